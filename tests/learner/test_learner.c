// The learner process as the supervisor runs it: forked, over real rings, with this test standing in for the actor. The
// environment is a bandit: four numbers, reward 1 for the action that names the largest. What the stand-in checks at
// every step: one answer each, never changed later, counters that only grow.
#include "rings.h"

#include "../support/learner.h"

#include <math.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/time.h"
#include "kernels/head.h"
#include "kernels/random.h"
#include "learner/backend.h"
#include "learner/checkpoint.h"
#include "learner/learner.h"
#include "ring/wait.h"

enum { LANES = 2, WIDTH = 8, STEPS = 64, FLAT = 4, ACTIONS = 4, GAME = 8, UNROLL = 8 };
static const uint64_t SECOND_NS = 1000000000u, LIMIT_NS = 20 * SECOND_NS;

// What both processes see.
struct shared {
    struct farm_stats stats;
    struct farm_error err;
};

struct answer {
    int32_t action;
    float value;
    uint64_t version;
};

// The stand-in's side of one lane.
struct seat {
    struct answer answers[STEPS][WIDTH]; // as they were when the actor read them
    uint32_t age[WIDTH];                 // transitions of the running game
    uint64_t acted, version;             // as seen last
    uint64_t inherited;                  // steps answered by learners that are dead
    uint64_t transitions, games, bad;    // in the steps published
    uint64_t newest[3];                  // the same three of the newest step alone
};

typedef bool condition(void);

static struct table {
    struct test_ring ring;
    struct shared *shared;
    struct farm_learner_config config;
    int fds[1][2];
    int eventfd;
    char folder[256];
    struct seat seats[LANES];
    bool spoil;       // now and then a value that makes no sense
    bool own_lengths; // environment g plays games of 1 + g % 5 transitions and is given g at their ends
    pid_t learner;
    int status; // of the learner that ended
    uint64_t goal;
} table;

// ---- set-up ----

static struct farm_learner_config usual(void) {
    struct farm_learner_config config = test_learner_config(FLAT, ACTIONS, UNROLL);
    config.ring_fds = table.fds;
    config.ring_count = 1;
    config.shards[0].eventfd = table.eventfd;
    config.stats = &table.shared->stats;
    config.seed = 3;
    config.algo.batch = LANES * WIDTH;
    config.algo.option[FARM_VTRACE_DISCOUNT] = 0.5f;
    config.algo.option[FARM_VTRACE_ENTROPY_COST] = 0.001f;
    config.algo.lr = config.algo.lr_end = 0.003;
    config.infer_batch_max = LANES * WIDTH;
    config.infer_wait_ms = 0.2;
    config.checkpoint_dir = table.folder;
    return config;
}

static void set_up_mode(enum farm_answers answers) {
    struct farm_ring_spec spec = test_ring_spec(LANES, WIDTH, STEPS, FLAT, ACTIONS);
    spec.answers = answers;
    memset(&table, 0, sizeof table);
    test_ring_open(&spec, &table.ring);
    test_folder_make(table.folder, sizeof table.folder);
    table.shared = mmap(NULL, sizeof *table.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    table.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    cr_assert(table.shared != MAP_FAILED && table.eventfd >= 0);
    table.config = usual();
}

static void set_up(void) {
    set_up_mode(FARM_ANSWERS_CENTRAL);
}

static void tear_down(void) {
    test_ring_close(&table.ring);
    test_folder_remove(table.folder);
    munmap(table.shared, sizeof *table.shared);
    close(table.eventfd);
}

TestSuite(learner, .init = set_up, .fini = tear_down, .timeout = 60);

// The next answers are another learner's: of any version, after those that are there.
static void expect_another_learner(void) {
    for (uint32_t l = 0; l < LANES; l++) {
        table.seats[l].version = 0;
        table.seats[l].inherited = farm_lane_acted(&table.ring.actor.lanes[l]);
    }
}

static void launch(void) {
    table.fds[0][0] = dup(table.ring.made.up.fd_readonly);
    table.fds[0][1] = dup(table.ring.made.down.fd);
    table.learner = fork();
    cr_assert_geq(table.learner, 0);
    if (table.learner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(farm_learner_run(&table.config, &table.shared->err));
    }
    close(table.fds[0][0]);
    close(table.fds[0][1]);
}

// ---- the stand-in actor ----

static uint32_t game_length(uint32_t l, uint32_t env) {
    return table.own_lengths ? 1 + (l * WIDTH + env) % 5 : GAME;
}

static int best_action(const float *obs) {
    return farm_categorical_greedy(obs, FLAT);
}

// Reads the answers to step n, which nobody may change from now on.
static void take_answers(uint32_t l, uint64_t n) {
    struct farm_lane *lane = &table.ring.actor.lanes[l];
    struct seat *seat = &table.seats[l];
    const uint64_t version = *farm_lane_version(lane, n);
    cr_assert_eq(seat->acted, n + 1, "lane %u: %lu steps answered where %lu were published", l, seat->acted, n + 1);
    if (n >= seat->inherited) { // a learner that came back goes on from its checkpoint's version
        cr_assert_geq(version, seat->version, "lane %u step %lu: version %lu after %lu", l, n, version, seat->version);
        seat->version = version;
    }
    for (uint32_t e = 0; e < WIDTH; e++) {
        const int32_t action = *(int32_t *)farm_lane_action(lane, n, e);
        cr_assert(action >= 0 && action < ACTIONS, "action %d", action);
        if (table.config.greedy) cr_assert_eq(action, farm_categorical_greedy(farm_lane_policy(lane, n, e), ACTIONS));
        seat->answers[n % STEPS][e] = (struct answer){action, farm_lane_value(lane, n)[e], version};
    }
}

// The answers to step n are still those that were taken.
static void check_answers(uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &table.ring.actor.lanes[l];
    for (uint32_t e = 0; e < WIDTH; e++) {
        const struct answer *answer = &table.seats[l].answers[n % STEPS][e];
        cr_assert(*(int32_t *)farm_lane_action(lane, n, e) == answer->action &&
                      memcmp(&farm_lane_value(lane, n)[e], &answer->value, sizeof answer->value) == 0 &&
                      *farm_lane_version(lane, n) == answer->version,
                  "lane %u step %lu environment %u was answered twice", l, n, e);
    }
}

// Makes some steps senseless; returns how many values of this one now are.
static unsigned spoil(struct farm_lane *lane, uint64_t n, uint32_t env) {
    const uint64_t turn = (n + 17 * env) % 97;
    if (turn == 11) ((float *)farm_lane_obs(lane, 0, n, env))[n % FLAT] = NAN;
    if (turn == 11 || turn == 50) farm_lane_reward(lane, n)[env] = turn == 11 ? NAN : INFINITY;
    if (turn == 60) farm_lane_flags(lane, n)[env] |= 0x40;
    if (turn == 70) ((float *)farm_lane_obs(lane, 0, n, env))[0] = -INFINITY;
    return turn == 11 ? 2 : turn == 50 || turn == 60 || turn == 70;
}

// LOCAL: an actor whose policy is to choose at random, by version 0.
static void answer_itself(uint32_t l, uint64_t n, uint32_t env) {
    struct farm_lane *lane = &table.ring.actor.lanes[l];
    const int32_t action = (int32_t)(farm_random_uniform(6, farm_random_stream(l, env), n) * ACTIONS) % ACTIONS;
    memcpy(farm_lane_action(lane, n, env), &action, sizeof action);
    memset(farm_lane_policy(lane, n, env), 0, ACTIONS * sizeof(float));
    farm_lane_value(lane, n)[env] = 0;
    *farm_lane_version(lane, n) = 0;
    table.seats[l].answers[n % STEPS][env].action = action;
}

// Writes environment env's part of step n.
static void play(uint32_t l, uint64_t n, uint32_t env) {
    struct farm_lane *lane = &table.ring.actor.lanes[l];
    struct seat *seat = &table.seats[l];
    const bool first = n == 0 || seat->age[env] == game_length(l, env);
    float reward = 0;
    unsigned flags = FARM_STEP_FIRST;
    if (first) {
        seat->age[env] = 0;
    } else {
        const float *before = farm_lane_obs(lane, 0, n - 1, env);
        const bool over = ++seat->age[env] == game_length(l, env);
        reward = seat->answers[(n - 1) % STEPS][env].action == best_action(before);
        if (table.own_lengths) reward = over ? (float)(l * WIDTH + env) : 0;
        flags = over ? FARM_STEP_LAST | FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
    }
    for (uint32_t i = 0; i < FLAT; i++)
        ((float *)farm_lane_obs(lane, 0, n, env))[i] =
            2 * farm_random_uniform(5, farm_random_stream(l, env), n * FLAT + i) - 1;
    farm_lane_reward(lane, n)[env] = reward;
    farm_lane_flags(lane, n)[env] = (uint8_t)flags;
    if (lane->local) answer_itself(l, n, env);
    const unsigned bad = table.spoil ? spoil(lane, n, env) : 0;
    seat->newest[0] += !first;
    seat->newest[1] += !first && flags != 0;
    seat->newest[2] += bad;
}

static void step_lane(uint32_t l) {
    struct farm_lane *lane = &table.ring.actor.lanes[l];
    struct seat *seat = &table.seats[l];
    const uint64_t n = farm_lane_actor_next(lane);
    seat->acted = farm_lane_acted(lane);
    if (n > 0 && !lane->local) take_answers(l, n - 1);
    if (n >= STEPS && !lane->local) check_answers(l, n - STEPS);
    memset(seat->newest, 0, sizeof seat->newest);
    for (uint32_t e = 0; e < WIDTH; e++) play(l, n, e);
    seat->transitions += seat->newest[0];
    seat->games += seat->newest[1];
    seat->bad += seat->newest[2];
    farm_lane_actor_publish(lane);
    farm_actor_notify(&table.ring.actor, table.eventfd);
}

static void look_at_counters(void) {
    for (uint32_t l = 0; l < LANES; l++) {
        const struct farm_lane *lane = &table.ring.actor.lanes[l];
        const uint64_t acted = farm_lane_acted(lane);
        cr_assert_geq(acted, table.seats[l].acted, "lane %u: acted went back from %lu to %lu", l, table.seats[l].acted,
                      acted);
        cr_assert_leq(acted, farm_lane_actor_next(lane));
        table.seats[l].acted = acted;
    }
}

static bool learner_ended(void) {
    return table.learner == 0 ||
           (waitpid(table.learner, &table.status, WNOHANG) == table.learner && !(table.learner = 0));
}

// Acts until the condition holds (true), the learner has ended or patience has (false). No condition: until it ends.
static bool act_until(condition *reached) {
    const uint64_t start = farm_now_ns();
    uint32_t lane = 0;
    while (farm_now_ns() - start < LIMIT_NS) {
        if (farm_actor_wait(&table.ring.actor, NULL, 0, SECOND_NS / 50, &lane)) step_lane(lane);
        look_at_counters();
        if (reached && reached()) return true;
        if (learner_ended()) return false;
    }
    return false;
}

// ---- the end ----

static void end(int signal_number) {
    cr_assert_neq(table.learner, 0, "it has ended before: %s", table.shared->err.message);
    kill(table.learner, signal_number);
    cr_assert_eq(waitpid(table.learner, &table.status, 0), table.learner);
    table.learner = 0;
}

static void expect_exit(int wanted) {
    cr_assert(WIFEXITED(table.status) && WEXITSTATUS(table.status) == wanted, "status 0x%x: %s", (unsigned)table.status,
              table.shared->err.message);
}

static void end_well(void) {
    end(SIGTERM);
    expect_exit(0);
}

// A learner that is started ends by itself.
static void launch_to_its_end(int exit_status) {
    launch();
    cr_assert_not(act_until(NULL));
    cr_assert_eq(table.learner, 0, "it did not end");
    expect_exit(exit_status);
}

// A learner that is started goes on until the condition holds.
static void launch_until(condition *reached) {
    launch();
    cr_assert(act_until(reached), "return %.2f, %lu updates of %lu: %s",
              farm_stats_get(&table.shared->stats.return_mean), table.shared->stats.updates, table.goal,
              table.shared->err.message);
}

// The learner refuses to start, with these words.
static void expect_refused(const char *reason) {
    launch();
    cr_assert_eq(waitpid(table.learner, &table.status, 0), table.learner);
    table.learner = 0;
    expect_exit(1);
    cr_assert(strstr(table.shared->err.message, reason) != NULL, "no '%s' in: %s", reason, table.shared->err.message);
    cr_assert_eq(table.shared->stats.ready, 0);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 0, "nothing is written");
}

struct sums {
    uint64_t steps, transitions, games, bad;
};

// Of all answered steps: the newest may have none.
static struct sums answered(void) {
    struct sums sums = {0};
    for (uint32_t l = 0; l < LANES; l++) {
        const struct farm_lane *lane = &table.ring.actor.lanes[l];
        const struct seat *seat = &table.seats[l];
        const bool open = farm_lane_acted(lane) < farm_lane_actor_next(lane);
        sums.steps += farm_lane_acted(lane);
        sums.transitions += seat->transitions - (open ? seat->newest[0] : 0);
        sums.games += seat->games - (open ? seat->newest[1] : 0);
        sums.bad += seat->bad - (open ? seat->newest[2] : 0);
    }
    return sums;
}

// The figures of a learner that was never killed are those of the steps, to the last one.
static void expect_exact_figures(void) {
    const struct farm_stats *stats = &table.shared->stats;
    const struct sums sums = answered();
    cr_assert_eq(stats->agent_steps, sums.transitions, "%lu agent steps, %lu transitions", stats->agent_steps,
                 sums.transitions);
    cr_assert_eq(stats->episodes, sums.games, "%lu episodes, %lu games", stats->episodes, sums.games);
    cr_assert_eq(stats->bad_values, sums.bad, "%lu bad values, %lu were written", stats->bad_values, sums.bad);
    const uint64_t asked = table.ring.actor.lanes[0].local ? 0 : sums.steps * WIDTH;
    cr_assert_geq(stats->infer_rows, asked);
    cr_assert_lt(stats->infer_rows, asked + LANES * WIDTH, "no more than a part of a lane was computed for nothing");
    cr_assert_eq(stats->windows, stats->updates * table.config.algo.batch);
    char findings[2000];
    const int count = table.spoil ? 0 : farm_ring_verify(&table.ring.actor, findings, sizeof findings);
    cr_assert_eq(count, 0, "%s", findings);
}

// The newest checkpoint's vectors, to be freed; its path.
static float *newest_checkpoint(char *path, size_t bytes) {
    struct farm_checkpoint_metadata metadata;
    float *vectors = test_newest_checkpoint(&table.config, path, bytes, &metadata);
    // A learner killed in between has not announced the file that it just wrote.
    cr_assert_geq(farm_checkpoint_get_u64(&metadata, "frames"), table.shared->stats.checkpoint_frames);
    farm_checkpoint_metadata_free(&metadata);
    return vectors;
}

static void check_checkpoint(char *path, size_t bytes) {
    free(newest_checkpoint(path, bytes));
}

// ---- training ----

static bool has_learned(void) {
    const struct farm_stats *stats = &table.shared->stats;
    return stats->episodes >= 1000 && farm_stats_get(&stats->return_mean) > 0.85 * GAME; // chance: GAME / 4
}

Test(learner, learns_answers_each_step_once_and_ends_on_sigterm_with_a_checkpoint) {
    char path[512];
    launch_until(has_learned);
    const struct farm_stats *stats = &table.shared->stats;
    end_well();
    expect_exact_figures();
    cr_assert_eq(stats->done, 0, "nobody set a target");
    cr_assert_gt(table.seats[0].version, 0, "answers come from trained parameters");
    check_checkpoint(path, sizeof path);
    cr_assert_eq(stats->checkpoint_frames, stats->frames, "the checkpoint is of the last moment");
}

static bool has_saved(void) {
    return table.shared->stats.checkpoints >= 2 && table.shared->stats.updates >= 20;
}

static bool went_on(void) {
    return table.shared->stats.updates >= table.goal && table.shared->stats.checkpoints >= 4;
}

Test(learner, goes_on_where_it_was_after_sigkill) {
    char path[512];
    table.config.checkpoint_every_s = 0.03;
    launch_until(has_saved);
    for (int life = 0; life < 2; life++) {
        end(SIGKILL);
        const struct farm_stats before = table.shared->stats;
        const uint64_t acted =
            farm_lane_acted(&table.ring.actor.lanes[0]) + farm_lane_acted(&table.ring.actor.lanes[1]);
        check_checkpoint(path, sizeof path);
        table.config.checkpoint_load = path;
        table.goal = before.updates + 20;
        expect_another_learner();
        launch_until(went_on);
        cr_assert_gt(answered().steps, acted);
        cr_assert_gt(table.shared->stats.agent_steps, before.agent_steps);
        cr_assert_gt(table.shared->stats.episodes, before.episodes);
    }
    end_well();
    // A killed learner may have answered a step of each lane that it did not count any more.
    const struct sums sums = answered();
    cr_assert_leq(table.shared->stats.agent_steps, sums.transitions);
    cr_assert_geq(table.shared->stats.agent_steps + 2 * LANES * WIDTH, sums.transitions);
}

// Answers, but trains nothing: what a learner leaves behind that dies while its training lags.
static void fill_lanes(void) {
    for (uint32_t l = 0; l < LANES; l++) {
        struct farm_lane *lane = &table.ring.learner.lanes[l];
        for (uint64_t n = 0; n < STEPS; n++) {
            step_lane(l);
            farm_lane_answer(lane, n);
        }
        cr_assert_not(farm_lane_actor_can_write(&table.ring.actor.lanes[l]));
    }
    look_at_counters();
}

static bool has_updated(void) {
    return table.shared->stats.updates >= 20;
}

static bool all_taken_in(void) {
    bool all = true;
    for (uint32_t l = 0; l < LANES; l++)
        all &= farm_lane_acted(&table.ring.actor.lanes[l]) == farm_lane_actor_next(&table.ring.actor.lanes[l]);
    return all;
}

Test(learner, takes_in_and_trains_on_what_actors_answer_themselves) {
    tear_down();
    set_up_mode(FARM_ANSWERS_LOCAL);
    launch_until(has_updated);
    const uint64_t start = farm_now_ns();
    while (!all_taken_in()) cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "published steps are left");
    end_well();
    expect_exact_figures();
    cr_assert_eq(table.shared->stats.infer_calls, 0);
}

Test(learner, evaluation_lets_actors_go_on_that_answer_themselves) {
    tear_down();
    set_up_mode(FARM_ANSWERS_LOCAL);
    table.config.evaluate = true;
    table.config.episodes_target = 200;
    launch_to_its_end(0);
    cr_assert_eq(table.shared->stats.done, 1);
    cr_assert_eq(table.shared->stats.episodes, 200);
}

Test(learner, a_learner_that_finds_all_lanes_full_and_answered_trains_on_them) {
    fill_lanes();
    launch_until(has_updated);
    end_well();
}

Test(learner, reaches_its_frames_and_says_that_it_is_done) {
    char path[512];
    table.config.frames_per_step = 4;
    table.config.frames_start = 1000;
    table.config.frames_target = 21000;
    launch_to_its_end(0);
    const struct farm_stats *stats = &table.shared->stats;
    cr_assert_eq(stats->done, 1);
    cr_assert_eq(stats->frames, 1000 + 4 * stats->agent_steps);
    cr_assert_geq(stats->frames, 21000);
    cr_assert_leq(stats->frames, 21000 + 4 * LANES * WIDTH, "it ends with the batch that reaches the target");
    expect_exact_figures();
    check_checkpoint(path, sizeof path);
}

Test(learner, what_makes_no_sense_is_counted_once_and_trains_nothing) {
    char path[512];
    table.spoil = true;
    launch_until(has_learned);
    end_well();
    const struct farm_stats *stats = &table.shared->stats;
    const struct sums sums = answered();
    cr_assert_gt(sums.bad, 50);
    cr_assert_eq(stats->bad_values, sums.bad, "%lu bad values, %lu were written", stats->bad_values, sums.bad);
    cr_assert(isfinite(farm_stats_get(&stats->grad_norm)) &&
              isfinite(farm_stats_get(&stats->algo[FARM_VTRACE_BASELINE - 1])));
    check_checkpoint(path, sizeof path); // refuses what is not finite
}

// ---- a device that is lost ----

// The CPU as a device that is lost after LOST_AFTER updates, and whose state was last copied after `copied_after`.
enum { LOST_AFTER = 40 };
static struct {
    uint64_t copied_after; // 0: before the first
    size_t count;          // parameters
    struct farm_backend_state copy;
} device;

static void copy_device(struct farm_backend *backend) {
    const struct farm_backend_state from = farm_backend_cpu.state(backend);
    const size_t bytes = device.count * sizeof(float);
    for (uint32_t v = device.copy.vector_count; v < from.vector_count; v++)
        device.copy.vectors[device.copy.vector_count++] =
            (struct farm_backend_vector){from.vectors[v].name, malloc(bytes)};
    for (uint32_t v = 0; v < from.vector_count; v++)
        memcpy(device.copy.vectors[v].values, from.vectors[v].values, bytes);
    device.copy.version = from.version;
    device.copy.optimiser_step = from.optimiser_step;
}

static enum farm_status begin_on_device(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                                        uint32_t count, struct farm_error *err) {
    const uint64_t made = farm_backend_cpu.state(backend).version;
    if (made == LOST_AFTER) return farm_fail(err, FARM_E_DEAD, "the device is lost");
    if (made == 0) copy_device(backend);
    return farm_backend_cpu.begin(backend, slot, windows, count, err);
}

static enum farm_status finish_on_device(struct farm_backend *backend, struct farm_pass_stats *stats,
                                         struct farm_error *err) {
    const enum farm_status status = farm_backend_cpu.finish(backend, stats, err);
    stats->copied = farm_backend_cpu.state(backend).version == device.copied_after;
    if (stats->copied) copy_device(backend);
    return status;
}

static struct farm_backend_state state_of_device(struct farm_backend *backend) {
    if (farm_backend_cpu.state(backend).version < LOST_AFTER) copy_device(backend);
    return device.copy;
}

// A device whose state is a copy, made anew at each call, as a GPU's is.
static struct farm_backend_state state_by_copy(struct farm_backend *backend) {
    copy_device(backend);
    return device.copy;
}

static enum farm_status take_copy(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                  struct farm_error *err) {
    const struct farm_backend_state to = farm_backend_cpu.state(backend);
    for (uint32_t v = 0; v < to.vector_count; v++)
        memcpy(to.vectors[v].values, device.copy.vectors[v].values, device.count * sizeof(float));
    return farm_backend_cpu.state_changed(backend, version, optimiser_step, err);
}

static bool made_updates(void) {
    return table.shared->stats.updates >= table.goal;
}

Test(learner, a_device_goes_on_from_the_parameters_of_a_checkpoint) {
    struct farm_net net;
    struct farm_backend_ops ops = farm_backend_cpu;
    char path[512], later[512];
    cr_assert_eq(farm_net_make(&table.config.net, &table.config.io, &net, &table.shared->err), FARM_OK);
    device.count = net.parameter_count;
    ops.state = state_by_copy;
    ops.state_changed = take_copy;
    table.config.backend = &ops;
    table.goal = 20;
    launch_until(made_updates);
    end(SIGTERM);
    float *first = newest_checkpoint(path, sizeof path);
    table.config.checkpoint_load = path;
    table.config.algo.lr = table.config.algo.lr_end = 0;
    expect_another_learner();
    table.goal = table.shared->stats.updates + 5;
    launch_until(made_updates);
    end(SIGTERM);
    float *second = newest_checkpoint(later, sizeof later);
    cr_assert_str_neq(path, later);
    cr_assert_arr_eq(first, second, net.parameter_count * sizeof(float));
    free(first);
    free(second);
}

static bool was_answered(void) {
    return farm_lane_acted(&table.ring.actor.lanes[0]) > 0;
}

Test(learner, a_checkpoint_of_version_0_counts_too) {
    struct farm_net net;
    char path[512], later[512];
    cr_assert_eq(farm_net_make(&table.config.net, &table.config.io, &net, &table.shared->err), FARM_OK);
    float *params = calloc(net.parameter_count, sizeof *params);
    for (size_t i = 0; i < net.parameter_count; i++) params[i] = 0.25f;
    const struct farm_backend_state state = farm_backend_state_of(params, NULL, NULL, 0, 0);
    snprintf(path, sizeof path, "%s/000000000000.safetensors", table.folder);
    cr_assert_eq(farm_checkpoint_save(path, &net, &state, NULL, 0, &table.shared->err), FARM_OK);
    table.config.checkpoint_load = path;
    table.config.algo.lr = table.config.algo.lr_end = 0;
    table.goal = 5;
    launch_until(was_answered);
    for (uint32_t e = 0; e < WIDTH; e++) // inference has them before any update: all logits are the same
        cr_assert_float_eq(farm_lane_policy(&table.ring.actor.lanes[0], 0, e)[0],
                           farm_lane_policy(&table.ring.actor.lanes[0], 0, e)[ACTIONS - 1], 1e-6);
    cr_assert(act_until(made_updates), "%s", table.shared->err.message);
    end(SIGTERM);
    float *kept = newest_checkpoint(later, sizeof later);
    cr_assert_arr_eq(kept, params, net.parameter_count * sizeof(float));
    free(params);
    free(kept);
}

// A learner whose device is lost has ended.
static void lose_device(struct farm_backend_ops *ops, uint64_t copied_after) {
    struct farm_net net;
    cr_assert_eq(farm_net_make(&table.config.net, &table.config.io, &net, &table.shared->err), FARM_OK);
    device.count = net.parameter_count;
    device.copied_after = copied_after;
    *ops = farm_backend_cpu;
    ops->begin = begin_on_device;
    ops->finish = finish_on_device;
    ops->state = state_of_device;
    table.config.backend = ops;
    launch_to_its_end(1);
    cr_assert_str_eq(table.shared->err.message, "the device is lost");
}

Test(learner, the_checkpoint_after_a_lost_device_says_when_its_parameters_were) {
    enum { COPIED = 20, STEPS_OF_UPDATE = LANES * WIDTH * UNROLL };
    struct farm_backend_ops ops;
    struct farm_checkpoint_metadata metadata;
    char path[512], name[32], last[256];
    lose_device(&ops, COPIED);
    cr_assert_eq(table.shared->stats.updates, LOST_AFTER);
    cr_assert_eq(test_folder_files(table.folder, last, sizeof last), 1);
    check_checkpoint(path, sizeof path);
    cr_assert_eq(farm_checkpoint_read_metadata(path, &metadata, &table.shared->err), FARM_OK);
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "version"), COPIED);
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "updates"), COPIED);
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "optimiser_step"), COPIED);
    const uint64_t frames = farm_checkpoint_get_u64(&metadata, "frames");
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "agent_steps"), frames);
    cr_assert_leq(farm_checkpoint_get_u64(&metadata, "episodes"), frames / GAME);
    farm_checkpoint_metadata_free(&metadata);
    // One step in GAME + 1 is a first one, which is no transition; the rings hold so many steps more.
    cr_assert_gt(frames, COPIED * STEPS_OF_UPDATE * GAME / (GAME + 1) - LANES * WIDTH);
    cr_assert_lt(frames, COPIED * STEPS_OF_UPDATE + LANES * WIDTH * STEPS);
    snprintf(name, sizeof name, "%012lu.safetensors", frames);
    cr_assert_str_eq(last, name);
    cr_assert_eq(table.shared->stats.checkpoint_frames, frames);
}

Test(learner, no_checkpoint_is_written_of_parameters_that_a_lost_device_has_not_trained) {
    struct farm_backend_ops ops;
    lose_device(&ops, 0);
    cr_assert_eq(table.shared->stats.updates, LOST_AFTER);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 0);
    cr_assert_eq(table.shared->stats.checkpoints, 0);
}

// ---- evaluation ----

Test(learner, evaluation_counts_exactly_its_games_spread_over_the_environments) {
    table.own_lengths = true;
    table.config.evaluate = table.config.greedy = true;
    table.config.episodes_target = 3 * LANES * WIDTH;
    launch_to_its_end(0);
    const struct farm_stats *stats = &table.shared->stats;
    cr_assert_eq(stats->done, 1);
    cr_assert_eq(stats->episodes, table.config.episodes_target);
    cr_assert_float_eq(farm_stats_get(&stats->return_mean), (LANES * WIDTH - 1) / 2.0, 1e-9,
                       "each environment counts alike");
    cr_assert_eq(stats->updates, 0);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 0, "evaluation writes no checkpoint");
}

static bool has_acted(void) {
    return table.seats[0].acted > 200 && table.seats[1].acted > 200;
}

static void expect_answers_of(uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &table.ring.actor.lanes[l];
    const void *rows[WIDTH];
    for (uint32_t e = 0; e < WIDTH; e++) rows[e] = farm_lane_obs(lane, 0, n, e);
    test_expect_answers(&table.config, lane, n, rows, l ? "lane 1" : "lane 0");
}

Test(learner, lanes_wider_than_a_batch_are_answered_in_parts) {
    table.config.evaluate = table.config.greedy = true;
    table.config.episodes_target = UINT32_MAX;
    table.config.infer_batch_max = 5;
    launch_until(has_acted);
    end_well();
    expect_exact_figures();
    const struct farm_stats *stats = &table.shared->stats;
    cr_assert_leq(stats->infer_rows, stats->infer_calls * 5);
    for (uint32_t l = 0; l < LANES; l++) expect_answers_of(l, farm_lane_acted(&table.ring.actor.lanes[l]) - 1);
}

// ---- refusals ----

// Device auto where CUDA is not to be had: the CPU computes, and what that costs is said where a GPU was planned for.
Test(learner, falls_back_to_the_cpu_and_says_why_and_what_it_costs) {
    for (int planned = 0; planned < 2; planned++) {
        char said[4096] = "";
        const int errors = memfd_create("said", MFD_CLOEXEC), before = dup(STDERR_FILENO);
        tear_down();
        set_up();
        table.config.device = FARM_DEVICE_AUTO;
        table.config.cuda_library = "/nowhere/libfarm_cuda.so";
        table.config.shards[0].gpu = planned ? "0000:01:00.0" : NULL;
        dup2(errors, STDERR_FILENO);
        launch();
        dup2(before, STDERR_FILENO);
        cr_assert(act_until(has_updated), "%s", table.shared->err.message);
        end_well();
        cr_assert_gt(pread(errors, said, sizeof said - 1, 0), 0);
        cr_expect(strstr(said, "using the CPU; CUDA is unavailable: the CUDA backend does not load: /nowhere/") != NULL,
                  "%s", said);
        cr_expect_eq(strstr(said, "--device cpu plans more") != NULL, planned, "%s", said);
        close(errors);
        close(before);
    }
}

Test(learner, refuses_what_cannot_work_with_a_sentence) {
    table.config.algo.batch = 1000;
    expect_refused("does not fit the rings");
    cr_assert(strstr(table.shared->err.message, "--ring-steps") != NULL, "%s", table.shared->err.message);
    table.config = usual();
    table.config.algo.unroll = STEPS;
    expect_refused("does not fit the rings");
    table.config = usual();
    table.config.io.flat = FLAT + 1;
    expect_refused("does not fit the environment's");
    table.config = usual();
    table.config.io.actions = ACTIONS + 1;
    expect_refused("does not fit the environment's");
    table.config = usual();
    table.config.checkpoint_load = "/nowhere.safetensors";
    expect_refused("/nowhere.safetensors");
    table.config = usual();
    table.config.evaluate = true;
    expect_refused("no episodes");
}
