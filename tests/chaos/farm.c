// One farm: rings, the supervisor with its actors and learner as `farm train` has them, and the order of deaths. Runs
// in a process that the runner forked: the farm's supervisor. Kills come from the supervisor's
// tick (at a random time) or are ordered there and carried out by the victim (hook.c, env.c); one at a time a worker.
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/rig.h"
#include "actor/actor.h"
#include "base/log.h"
#include "base/time.h"
#include "chaos.h"
#include "learner/checkpoint.h"
#include "run/player.h"
#include "supervisor/supervisor.h"

enum { PHASE_LEARNER, PHASE_ACTORS, GRACE_MS = 8000, SETTLED_STEPS = 64 };
static const uint64_t MS = 1000000, REQUEST_LIMIT_NS = 200000000;

struct sample {
    uint64_t produced, acted, consumed;
};

// The supervisor's order to one worker.
struct victim {
    enum chaos_kind ordered; // CHAOS_NONE: nothing
    uint64_t ordered_ns;
    bool counts; // among the paced kills; otherwise in addition to them
};

struct farm {
    struct chaos_shared *shared;
    const struct chaos_shape *shape;
    struct farm_ring rings[CHAOS_ACTORS_MAX];
    int eventfd;
    struct farm_supervisor *supervisor;
    struct farm_actor_config actors[CHAOS_ACTORS_MAX];
    int actor_keep[CHAOS_ACTORS_MAX][3];
    struct farm_learner_config learner;
    int ring_fds[CHAOS_ACTORS_MAX][2], learner_keep[2 * CHAOS_ACTORS_MAX + 1];
    char checkpoint[256]; // that the next learner starts from
    uint64_t random;
    struct victim victims[CHAOS_WORKERS];
    uint64_t actor_due_ns, learner_due_ns, actor_kills, learner_kills;
    // counters as seen at the tick before
    struct sample lanes[CHAOS_ALL_LANES];
    uint64_t moved_ns[CHAOS_ALL_LANES], agent_steps, updates, episodes, windows, publishes, frames;
    bool settling; // killing is over
    uint64_t settled_at[CHAOS_ALL_LANES];
    uint64_t stop_ns;
};

static bool is_learner(const struct farm *farm, size_t worker) {
    return worker == farm->shape->actors;
}

// ---- workers ----

static int actor_body(void *context, struct farm_error *err) {
    const struct farm_actor_config *config = context;
    chaos_hook_set(chaos_shared_of_process(), (int)config->actor);
    chaos_shared_of_process()->state.workers[config->actor].pid = getpid();
    return farm_actor_run(config, err);
}

static int learner_body(void *context, struct farm_error *err) {
    struct farm *farm = context;
    chaos_hook_set(farm->shared, (int)farm->shape->actors);
    farm->shared->state.workers[farm->shape->actors].pid = getpid();
    if (!farm->shape->evaluate) return farm_learner_run(&farm->learner, err);
    return farm_run_player(&farm->learner, &(struct farm_run_play){.games = 1 << 20}, err);
}

static enum farm_status add_actor(struct farm *farm, uint32_t a, struct farm_error *err) {
    const struct farm_ring *ring = &farm->rings[a];
    farm->actors[a] = (struct farm_actor_config){.actor = a,
                                                 .up_fd = ring->up.fd,
                                                 .down_fd = ring->down.fd_readonly,
                                                 .learner_eventfd = farm->eventfd,
                                                 .answer = chaos_answer,
                                                 .api = &chaos_env,
                                                 .seed = farm->shape->seed,
                                                 .video = -1,
                                                 .spin_ns = farm->shape->spin_ns,
                                                 .rings_late = farm->shape->rings_late,
                                                 .nap_ns = farm->shape->nap_ns};
    memcpy(farm->actor_keep[a], (int[3]){ring->up.fd, ring->down.fd_readonly, farm->eventfd}, sizeof(int[3]));
    struct farm_worker_spec spec = {.body = actor_body,
                                    .context = &farm->actors[a],
                                    .keep = farm->actor_keep[a],
                                    .keep_count = 3,
                                    .memory_node = -1,
                                    .stop_phase = PHASE_ACTORS};
    snprintf(spec.name, sizeof spec.name, "actor %u", a);
    return farm_supervisor_add(farm->supervisor, &spec, err);
}

static struct farm_learner_config learner_config(struct farm *farm) {
    static const struct farm_algo nothing = {.recipe.name = "nothing"},
                                  replays = {.recipe.name = "replays", .replay = true};
    const struct chaos_shape *shape = farm->shape;
    struct farm_learner_config config = test_learner_config(0, CHAOS_ACTIONS, shape->unroll);
    config.rings.fds = (const int(*)[2])farm->ring_fds;
    config.rings.count = shape->actors;
    config.shards[0].eventfd = farm->eventfd;
    config.stats = &farm->shared->state.stats;
    config.device.backend = &chaos_backend;
    config.seed = shape->seed;
    config.net = *net_spec("conv 1@1x1/64"); // the learner needs one
    config.io.frame_channels = 1;
    config.io.height = (int)shape->height;
    config.io.width = (int)shape->row_bytes;
    config.io.stack = (int)shape->stack;
    config.algo.algo = shape->replay ? &replays : &nothing;
    config.replay = (struct farm_replay_config){.start = shape->seed % 20,
                                                .ratio = 1 + (double)(shape->seed % 3),
                                                .repeats = shape->seed % 2,
                                                .exponent = 0.5f};
    config.algo.regime = shape->sync ? FARM_REGIME_SYNC : FARM_REGIME_ASYNC;
    config.algo.max_lag = shape->max_lag;
    config.algo.batch = shape->batch;
    config.algo.stack = shape->stack;
    config.inference.batch_max = shape->infer_batch_max;
    config.inference.wait_ms = shape->infer_wait_ms;
    config.inference.spin_ns = shape->spin_ns;
    config.inference.nap_ns = shape->nap_ns;
    config.checkpoints.dir = shape->checkpoint_every_s > 0 ? farm->shared->folder : NULL;
    config.checkpoints.every_s = shape->checkpoint_every_s;
    config.checkpoints.keep = 3;
    return config;
}

static enum farm_status add_learner(struct farm *farm, struct farm_error *err) {
    size_t kept = 0;
    for (uint32_t a = 0; a < farm->shape->actors; a++) {
        farm->learner_keep[kept++] = farm->ring_fds[a][0] = farm->rings[a].up.fd_readonly;
        farm->learner_keep[kept++] = farm->ring_fds[a][1] = farm->rings[a].down.fd;
    }
    farm->learner_keep[kept++] = farm->eventfd;
    farm->learner = learner_config(farm);
    struct farm_worker_spec spec = {.name = "learner",
                                    .body = learner_body,
                                    .context = farm,
                                    .keep = farm->learner_keep,
                                    .keep_count = kept,
                                    .memory_node = -1,
                                    .may_end = true,
                                    .errors_are_final = true,
                                    .stop_phase = PHASE_LEARNER};
    return farm_supervisor_add(farm->supervisor, &spec, err);
}

// ---- counters ----

static void only_grows(struct farm *farm, const char *what, int lane, uint64_t *before, uint64_t now) {
    if (now < *before)
        chaos_violation(farm->shared, "lane %d: %s went back from %" PRIu64 " to %" PRIu64, lane, what, *before, now);
    *before = now;
}

static struct farm_lane *lane_of(struct farm *farm, uint32_t id) {
    return &farm->rings[id / farm->shape->lanes].lanes[id % farm->shape->lanes];
}

static void sample_lane(struct farm *farm, uint32_t id, uint64_t now_ns) {
    const struct farm_lane *lane = lane_of(farm, id);
    struct sample *seen = &farm->lanes[id];
    const uint64_t before = seen->produced + seen->acted + seen->consumed;
    // Each may grow until the next is read: this order bounds them from one side ...
    only_grows(farm, "consumed", (int)id, &seen->consumed, farm_lane_consumed(lane));
    only_grows(farm, "acted", (int)id, &seen->acted, farm_lane_acted(lane));
    only_grows(farm, "produced", (int)id, &seen->produced, farm_lane_produced(lane));
    if (seen->consumed > seen->acted || seen->acted > seen->produced)
        chaos_violation(farm->shared, "lane %u: consumed %" PRIu64 ", acted %" PRIu64 ", produced %" PRIu64, id,
                        seen->consumed, seen->acted, seen->produced);
    // ... and this one from the other.
    only_grows(farm, "acted", (int)id, &seen->acted, farm_lane_acted(lane));
    only_grows(farm, "consumed", (int)id, &seen->consumed, farm_lane_consumed(lane));
    if (seen->produced > seen->acted + farm_lane_ahead_max(lane) || seen->produced > seen->consumed + lane->steps)
        chaos_violation(farm->shared, "lane %u: produced %" PRIu64 ", acted %" PRIu64 ", consumed %" PRIu64 " of %u",
                        id, seen->produced, seen->acted, seen->consumed, lane->steps);
    if (seen->produced + seen->acted + seen->consumed != before) farm->moved_ns[id] = now_ns;
    if (now_ns - farm->moved_ns[id] > farm->shape->standstill_ns)
        chaos_violation(farm->shared,
                        "lane %u stands still: produced %" PRIu64 ", acted %" PRIu64 ", consumed %" PRIu64, id,
                        seen->produced, seen->acted, seen->consumed);
}

static void sample_counters(struct farm *farm, uint64_t now_ns) {
    const struct farm_stats *stats = &farm->shared->state.stats;
    for (uint32_t id = 0; id < farm->shape->actors * farm->shape->lanes; id++) sample_lane(farm, id, now_ns);
    only_grows(farm, "agent_steps", -1, &farm->agent_steps, farm_load_relaxed(&stats->agent_steps));
    only_grows(farm, "updates", -1, &farm->updates, farm_load_relaxed(&stats->updates));
    only_grows(farm, "episodes", -1, &farm->episodes, farm_load_relaxed(&stats->episodes));
    only_grows(farm, "windows", -1, &farm->windows, farm_load_relaxed(&stats->windows));
    only_grows(farm, "publishes", -1, &farm->publishes, farm_load_relaxed(&stats->publishes));
    only_grows(farm, "frames", -1, &farm->frames, farm_load_relaxed(&stats->frames));
    farm->shared->totals.counters_sampled++;
}

// ---- lives and deaths ----

static void verify_ring(struct farm *farm, size_t actor, const char *when) {
    char text[400];
    if (verify_lanes(&farm->rings[actor], text, sizeof text))
        chaos_violation(farm->shared, "%s, ring of actor %zu: %s", when, actor, text);
    farm->shared->totals.rings_verified++;
}

static void note_takeover(struct farm *farm, size_t actor, uint64_t generation) {
    struct chaos_state *state = &farm->shared->state;
    for (uint32_t l = 0; l < farm->shape->lanes; l++) {
        struct chaos_takeover *takeover =
            &state->takeovers[actor * farm->shape->lanes + l][generation % CHAOS_GENERATIONS];
        __atomic_store_n(&takeover->generation, 0, __ATOMIC_RELEASE);
        takeover->step = farm_lane_produced(&farm->rings[actor].lanes[l]);
        __atomic_store_n(&takeover->generation, generation + 1, __ATOMIC_RELEASE);
        farm_store_release(&farm->rings[actor].lanes[l].down->generation, generation);
    }
    __atomic_store_n(&state->generation[actor], generation, __ATOMIC_RELEASE);
}

// Orders a death by countdown; long: some ms into its life, short: at its very beginning.
static void order(struct farm *farm, size_t worker, enum chaos_kind kind, bool soon, bool counts) {
    struct chaos_worker *words = &farm->shared->state.workers[worker];
    const uint64_t stores = soon ? 40 : is_learner(farm, worker) ? 6000 : 600, env_steps = soon ? 8 : 200;
    farm->victims[worker] = (struct victim){.ordered = kind, .ordered_ns = farm_now_ns(), .counts = counts};
    if (kind == CHAOS_HOOK)
        __atomic_store_n(&words->stores, 1 + chaos_random_below(&farm->random, stores), __ATOMIC_RELAXED);
    if (kind == CHAOS_STEP)
        __atomic_store_n(&words->env_steps, 1 + chaos_random_below(&farm->random, env_steps), __ATOMIC_RELAXED);
}

static enum chaos_kind draw_kind(struct farm *farm, size_t worker) {
    if (is_learner(farm, worker)) return random_next(&farm->random) & 1 ? CHAOS_TIME : CHAOS_HOOK;
    return (enum chaos_kind)(CHAOS_TIME + chaos_random_below(&farm->random, 3));
}

// The newest checkpoint, by its name, is what `farm train` lets a learner start from.
static void choose_checkpoint(struct farm *farm) {
    DIR *folder = opendir(farm->shared->folder);
    char newest[64] = "";
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot && strcmp(entry->d_name, FARM_CHECKPOINT_BEST) != 0 && strcmp(dot, ".safetensors") == 0 &&
            strcmp(entry->d_name, newest) > 0)
            snprintf(newest, sizeof newest, "%.63s", entry->d_name);
    }
    if (folder) closedir(folder);
    snprintf(farm->checkpoint, sizeof farm->checkpoint, "%s/%s", farm->shared->folder, newest);
    farm->learner.checkpoints.load = newest[0] ? farm->checkpoint : NULL;
}

static void before_start(void *context, size_t worker, uint64_t starts) {
    struct farm *farm = context;
    struct chaos_worker *words = &farm->shared->state.workers[worker];
    farm->victims[worker] = (struct victim){0};
    __atomic_store_n(&words->stores, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&words->env_steps, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&words->kind, 0, __ATOMIC_RELAXED);
    if (is_learner(farm, worker)) {
        __atomic_store_n(&farm->shared->state.learner_life, starts, __ATOMIC_RELEASE);
        choose_checkpoint(farm);
    } else {
        if (starts) verify_ring(farm, worker, "after a death");
        if (starts && farm_ring_restore(&farm->rings[worker]))
            chaos_violation(farm->shared, "the ring of actor %zu needed a repair after an honest actor", worker);
        note_takeover(farm, worker, starts);
        farm->shared->totals.generations++;
    }
    // Now and then a new worker dies while it takes over.
    const uint64_t every_ns =
        is_learner(farm, worker) ? farm->shape->learner_kill_every_ns : farm->shape->actor_kill_every_ns;
    if (starts && every_ns && !farm->settling && chaos_random_below(&farm->random, 6) == 0)
        order(farm, worker, is_learner(farm, worker) || random_next(&farm->random) & 1 ? CHAOS_HOOK : CHAOS_STEP, true,
              false);
}

static void on_death(void *context, size_t worker, const struct farm_death *death) {
    struct farm *farm = context;
    struct chaos_totals *totals = &farm->shared->totals;
    struct chaos_worker *words = &farm->shared->state.workers[worker];
    uint64_t kind = __atomic_load_n(&words->kind, __ATOMIC_ACQUIRE);
    if (kind == CHAOS_NONE && farm->victims[worker].ordered == CHAOS_TIME) kind = CHAOS_TIME;
    if (strncmp(death->how, "was killed by signal 9", 22) != 0 || kind == CHAOS_NONE || kind >= CHAOS_KINDS) {
        chaos_violation(farm->shared, "worker %zu %s: not by us", worker, death->how);
        return;
    }
    if (is_learner(farm, worker)) {
        totals->learner_kills[kind]++;
        farm->learner_kills++;
        farm->shared->state.learner_deaths++;
    } else {
        totals->actor_kills[kind]++;
        farm->actor_kills++;
        chaos_sample(&totals->noticed, farm_now_ns() - __atomic_load_n(&words->died_ns, __ATOMIC_RELAXED));
    }
}

static void kill_now(struct farm *farm, size_t worker, bool counts) {
    const pid_t pid = farm_supervisor_pid(farm->supervisor, worker);
    if (pid <= 0) return;
    struct chaos_worker *words = &farm->shared->state.workers[worker];
    farm->victims[worker] = (struct victim){.ordered = CHAOS_TIME, .ordered_ns = farm_now_ns(), .counts = counts};
    __atomic_store_n(&words->died_ns, farm_now_ns(), __ATOMIC_RELAXED);
    kill(pid, SIGKILL); // the supervisor has not reaped it: the number is its own
}

// Carries out a due kill of one worker and draws the next time.
static void kill_when_due(struct farm *farm, size_t worker, uint64_t *due_ns, uint64_t every_ns, uint64_t now_ns) {
    if (!every_ns || now_ns < *due_ns) return;
    if (farm->victims[worker].ordered || !farm_supervisor_pid(farm->supervisor, worker))
        return; // try again at the next tick
    *due_ns = now_ns + chaos_random_below(&farm->random, 2 * every_ns);
    const enum chaos_kind kind = draw_kind(farm, worker);
    if (kind == CHAOS_TIME)
        kill_now(farm, worker, true);
    else
        order(farm, worker, kind, false, true);
}

// A worker that does not reach the ordered place in time (its lanes wait) is killed from outside.
static void expire_orders(struct farm *farm, uint64_t now_ns) {
    for (size_t w = 0; w <= farm->shape->actors; w++) {
        const struct victim *victim = &farm->victims[w];
        struct chaos_worker *words = &farm->shared->state.workers[w];
        if (victim->ordered == CHAOS_NONE || victim->ordered == CHAOS_TIME) continue;
        if (now_ns - victim->ordered_ns < REQUEST_LIMIT_NS) continue;
        __atomic_store_n(&words->stores, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&words->env_steps, 0, __ATOMIC_RELAXED);
        kill_now(farm, w, victim->counts);
    }
}

// Cancels orders that were not carried out yet.
static void cancel_orders(struct farm *farm) {
    for (size_t w = 0; w <= farm->shape->actors; w++) {
        __atomic_store_n(&farm->shared->state.workers[w].stores, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&farm->shared->state.workers[w].env_steps, 0, __ATOMIC_RELAXED);
    }
}

// After the last kill every lane must go on: no later death hides a wake-up that was lost. A lane that does not go on
// is found standing still. True when all have gone on.
static bool has_settled(struct farm *farm) {
    const uint32_t lanes = farm->shape->actors * farm->shape->lanes;
    if (!farm->settling) {
        farm->settling = true;
        cancel_orders(farm);
        for (uint32_t id = 0; id < lanes; id++) farm->settled_at[id] = farm->lanes[id].produced + SETTLED_STEPS;
    }
    for (uint32_t id = 0; id < lanes; id++)
        if (farm->lanes[id].produced < farm->settled_at[id]) return false;
    return true;
}

static enum farm_supervisor_turn on_tick(void *context) {
    struct farm *farm = context;
    const struct chaos_shape *shape = farm->shape;
    const uint64_t now_ns = farm_now_ns();
    sample_counters(farm, now_ns);
    const bool had_all = farm->actor_kills >= shape->actor_kills && farm->learner_kills >= shape->learner_kills;
    const bool over = had_all || now_ns >= shape->ends_by_ns || farm->settling;
    if (farm->shared->totals.violations || (over && has_settled(farm))) {
        farm->stop_ns = farm_now_ns();
        return FARM_TURN_STOP;
    }
    if (over) return FARM_TURN_ON;
    expire_orders(farm, now_ns);
    const size_t actor = chaos_random_below(&farm->random, shape->actors);
    kill_when_due(farm, actor, &farm->actor_due_ns, shape->actor_kill_every_ns, now_ns);
    kill_when_due(farm, shape->actors, &farm->learner_due_ns, shape->learner_kill_every_ns, now_ns);
    return FARM_TURN_ON;
}

static void before_stop(void *context, int phase) {
    struct farm *farm = context;
    cancel_orders(farm);
    for (uint32_t a = 0; a < farm->shape->actors && phase == PHASE_ACTORS; a++)
        farm_store_release(&farm->rings[a].down_control->stop, 1);
}

static uint64_t progress_of(void *context, size_t worker) {
    const struct farm *farm = context;
    if (is_learner(farm, worker)) return farm_load_relaxed(&farm->shared->state.stats.agent_steps);
    return farm_load_relaxed(&farm->rings[worker].up_control->heartbeat);
}

// ---- beginning and end ----

static void note_files(struct farm *farm, uint32_t a) {
    struct stat up, down;
    if (fstat(farm->rings[a].up.fd, &up) || fstat(farm->rings[a].down.fd, &down)) return;
    farm->shared->state.files[2 * a] = up.st_ino;
    farm->shared->state.files[2 * a + 1] = down.st_ino;
    farm->shared->state.device = up.st_dev;
}

static enum farm_status build(struct farm *farm, struct farm_error *err) {
    const struct chaos_shape *shape = farm->shape;
    struct farm_ring_spec spec = {.lanes = shape->lanes, .width = shape->width, .steps = shape->steps};
    const struct farm_env_config none = {0};
    chaos_env.spec(&none, &spec.env, NULL, 0);
    farm_ring_spec_answers(&spec);
    if (shape->local) spec.answers = FARM_ANSWERS_LOCAL;
    spec.leaf_every = shape->replay ? shape->unroll : 0;
    enum farm_status status = FARM_OK;
    for (uint32_t a = 0; a < shape->actors; a++) {
        farm->rings[a] = ring_of(spec, a);
        note_files(farm, a);
    }
    farm->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!status && farm->eventfd < 0) status = farm_fail_errno(err, FARM_E_LIMIT, "eventfd");
    const struct farm_supervisor_config config = {.context = farm,
                                                  .before_start = before_start,
                                                  .on_death = on_death,
                                                  .before_stop = before_stop,
                                                  .on_tick = on_tick,
                                                  .progress = progress_of,
                                                  .tick_ms = 1,
                                                  .grace_ms = GRACE_MS,
                                                  .backoff_max_ms = 1,
                                                  .deaths_max = UINT32_MAX,
                                                  .short_lives_max = UINT32_MAX};
    if (!status) status = farm_supervisor_make(&config, &farm->supervisor, err);
    for (uint32_t a = 0; a < shape->actors && !status; a++) status = add_actor(farm, a, err);
    if (!status) status = add_learner(farm, err);
    return status;
}

// Sums of steps published, seen, answered and counted in a farm whose processes have ended.
static void check_lane_sums(struct farm *farm, uint32_t id, struct chaos_seen *sum) {
    const struct farm_lane *lane = lane_of(farm, id);
    const uint64_t acted = farm_lane_acted(lane), produced = farm_lane_produced(lane);
    if (produced - acted > farm_lane_ahead_max(lane))
        chaos_violation(farm->shared, "lane %u at the end: produced %" PRIu64 ", acted %" PRIu64, id, produced, acted);
    for (uint32_t e = 0; e < farm->shape->width && acted && !lane->local; e++) { // local: inference receives no rows
        const struct chaos_seen *seen = &farm->shared->state.seen[id][e][(acted - 1) % 2];
        if (seen->step != acted)
            chaos_violation(farm->shared, "lane %u environment %u at the end: acted %" PRIu64 ", seen last %" PRIu64,
                            id, e, acted, seen->step);
        sum->transitions += seen->transitions;
        sum->games += seen->games;
        sum->abandoned += seen->abandoned;
    }
}

// The stats counts an answered step once; a learner that dies between its answers and their count loses those of one
// forward pass, and of games of which it saw the end but not the beginning.
static void check_stats(struct farm *farm, const char *what, uint64_t counted, uint64_t seen, uint64_t lost_per_death,
                        uint64_t *uncounted) {
    // An ordered death may come after the supervisor's last on_death.
    const uint64_t deaths =
        farm->shared->state.learner_deaths + (farm->victims[farm->shape->actors].ordered != CHAOS_NONE);
    if (counted > seen || seen - counted > deaths * lost_per_death)
        chaos_violation(farm->shared,
                        "%" PRIu64 " %s in the stats, %" PRIu64 " were answered, %" PRIu64 " learners died", counted,
                        what, seen, deaths);
    if (counted <= seen) *uncounted += seen - counted;
}

static void check_sums(struct farm *farm) {
    const struct chaos_shape *shape = farm->shape;
    struct chaos_state *state = &farm->shared->state;
    struct chaos_totals *totals = &farm->shared->totals;
    struct chaos_seen sum = {0};
    sample_counters(farm, farm->stop_ns);
    for (uint32_t a = 0; a < shape->actors; a++) verify_ring(farm, a, "at the end");
    for (uint32_t id = 0; id < shape->actors * shape->lanes; id++) check_lane_sums(farm, id, &sum);
    const uint64_t environments = (uint64_t)shape->actors * shape->lanes * shape->width;
    if (!shape->local) {
        check_stats(farm, "transitions", state->stats.agent_steps, sum.transitions, environments,
                    &totals->uncounted_transitions);
        check_stats(farm, "games", state->stats.episodes, sum.games, 2 * environments, &totals->uncounted_games);
    }
    uint64_t uncounted = 0;
    check_stats(farm, "updates", state->stats.updates, state->passes, 1, &uncounted);
    if (state->stats.bad_values)
        chaos_violation(farm->shared, "the learner found %" PRIu64 " invalid values", state->stats.bad_values);
    totals->checkpoints += state->stats.checkpoints;
    totals->transitions += sum.transitions;
    totals->games += sum.games;
    totals->abandoned += sum.abandoned;
}

static void check_nothing_left(struct farm *farm, size_t descriptors) {
    const pid_t child = waitpid(-1, NULL, WNOHANG);
    if (child >= 0) chaos_violation(farm->shared, "the supervisor has ended and still has a child (%d)", (int)child);
    if (chaos_descriptors() != descriptors)
        chaos_violation(farm->shared, "%zu descriptors open in the supervisor at its end, %zu at its beginning",
                        chaos_descriptors(), descriptors);
}

int chaos_farm_run(struct chaos_shared *shared) {
    struct farm *farm = calloc(1, sizeof *farm);
    struct farm_error err = {0};
    if (!farm) return 1;
    farm_log_set_level(FARM_LOG_ERROR);
    farm->shared = shared;
    farm->shape = &shared->shape;
    farm->random = shared->shape.seed ^ 0x5DEECE66Du;
    farm->eventfd = -1;
    farm->actor_due_ns = farm_now_ns() + 20 * MS;
    farm->learner_due_ns = farm_now_ns() + chaos_random_below(&farm->random, shared->shape.learner_kill_every_ns + 1);
    for (uint32_t i = 0; i < CHAOS_ALL_LANES; i++) farm->moved_ns[i] = farm_now_ns();
    const size_t descriptors = chaos_descriptors();
    enum farm_status status = build(farm, &err);
    int number = 0;
    if (!status) status = farm_supervisor_run(farm->supervisor, &number, &err);
    if (!status && !number && farm_now_ns() - farm->stop_ns > GRACE_MS * MS)
        chaos_violation(shared, "a worker did not end at SIGTERM");
    if (status) chaos_violation(shared, "the supervisor gave up: %s", err.message);
    if (!status && !number) check_sums(farm);
    farm_supervisor_free(farm->supervisor);
    for (uint32_t a = 0; a < shared->shape.actors; a++) farm_ring_close(&farm->rings[a]);
    if (farm->eventfd >= 0) close(farm->eventfd);
    if (!number) check_nothing_left(farm, descriptors);
    free(farm);
    return status ? 1 : 0;
}
