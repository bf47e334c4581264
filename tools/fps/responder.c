// See responder.h.
#include "tools/fps/responder.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actor/random_actions.h"
#include "base/format.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"
#include "intake/validator.h"
#include "kernels/head.h"
#include "ring/wait.h"
#include "ring/window.h"
#include "tools/fps/bare.h"

// A lane's first CHECKED_FIRST steps and then every 61st are checked: all would cost as much as a fast step.
enum { CHECKED_FIRST = 10000, CHECK_EVERY = 61 };
enum { SLICE_MS = 20, BELL_WAIT_MS = 100, IDLE_LIMIT_S = 10 };
static const uint64_t MS = 1000000;
static const double PARTIAL_S = 0.1; // an interrupted turn of this duration counts

// Suspends the answering threads while the bare loops run: without answers the actors sleep.
struct pause {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool paused, ended;
};

// As in training, one window is held back while the next one fills.
struct lane_state {
    struct farm_window_cursor cursor;
    struct farm_validator validator;
    uint64_t answered, trained; // trained: start of the window that is released next
    bool in_training;
};

struct server {
    pthread_t thread;
    bool started;
    struct director *director;
    uint32_t actor;
    struct farm_ring ring, *rings[1];
    struct farm_doorbells bells;
    struct lane_state *lanes; // [ring.spec.lanes]
    struct farm_random_actions source;
    int mask; // observation field of action masks (kernels/head.h), or -1
    uint64_t pad0[16];
    uint64_t steps;           // transitions answered; writer: this thread
    uint64_t valid, rejected; // checked steps: transitions, and steps with invalid values
    uint64_t pad1[16];
};

struct director {
    const struct farm_run_workers *workers;
    const struct farm_run_plan *plan;
    const struct farm_fps_turns *turns;
    struct farm_fps_samples *samples;
    struct farm_stats *stats;
    struct farm_window_shape shape;
    struct pause pause;
    struct server *servers; // [plan->actors]
    struct farm_fps_bare *bares;
    uint32_t bare_count;
};

static volatile sig_atomic_t stop_requested;

static void on_stop(int signal_number) {
    stop_requested = signal_number;
}

// ---- one thread per actor: answers ----

// Steps that are not FIRST.
static uint32_t count_transitions(const uint8_t *flags, uint32_t width) {
    uint32_t firsts = 0;
    for (uint32_t e = 0; e < width; e++) firsts += flags[e] & FARM_STEP_FIRST;
    return width - firsts;
}

// As in training, except that the step has been answered.
static void check_step(struct server *server, struct lane_state *state, uint64_t n) {
    const struct farm_lane *checked = &state->validator.checked;
    uint64_t rejected = 0;
    if (farm_validator_step(&state->validator, n, 0))
        farm_validator_report(&state->validator, &server->director->stats->first_bad);
    for (uint32_t e = 0; e < checked->width; e++)
        rejected += (farm_lane_flags(checked, n)[e] & FARM_STEP_SENSELESS) != 0;
    farm_store_relaxed(&server->rejected, server->rejected + rejected); // FIRST, as all rejected steps are
    farm_store_relaxed(&server->valid, server->valid + count_transitions(farm_lane_flags(checked, n), checked->width));
}

// Releases a window as training does after an update: here when the next window is full.
static void release_windows(const struct farm_window_shape *shape, struct farm_lane *lane, struct lane_state *state) {
    while (farm_window_ready(shape, &state->cursor, state->answered)) {
        const uint64_t start = farm_window_take(shape, &state->cursor);
        if (state->in_training) {
            farm_window_done(shape, &state->cursor, state->trained);
            farm_lane_release(lane, farm_window_needs(shape, &state->cursor));
        }
        state->trained = start;
        state->in_training = true;
    }
}

static void answer_lanes(struct server *server) {
    const struct farm_window_shape *shape = &server->director->shape;
    uint64_t steps = server->steps;
    for (uint32_t l = 0; l < server->ring.spec.lanes; l++) {
        struct farm_lane *lane = &server->ring.lanes[l];
        struct lane_state *state = &server->lanes[l];
        if (farm_lane_produced(lane) != state->answered + 1) continue; // the supervisor handles impossible counters
        const uint64_t n = state->answered++;
        steps += count_transitions(farm_lane_flags(lane, n), lane->width);
        if (n * lane->width < CHECKED_FIRST || n % CHECK_EVERY == 0) check_step(server, state, n);
        farm_random_actions_draw(&server->source, lane->width, farm_lane_action(lane, n, 0));
        if (server->mask >= 0)
            farm_random_actions_permit(&server->source, lane->width, farm_lane_obs(lane, (unsigned)server->mask, n, 0),
                                       farm_lane_action(lane, n, 0));
        *farm_lane_version(lane, n) = 0;
        farm_lane_answer(lane, n);
        release_windows(shape, lane, state);
    }
    farm_learner_notify(&server->ring);
    farm_store_relaxed(&server->steps, steps);
}

// False: the measurement has ended.
static bool wait_while_paused(struct pause *pause) {
    pthread_mutex_lock(&pause->lock);
    while (pause->paused && !pause->ended) pthread_cond_wait(&pause->changed, &pause->lock);
    const bool continues = !pause->ended;
    pthread_mutex_unlock(&pause->lock);
    return continues;
}

static void *answer_actor(void *context) {
    struct server *server = context;
    const struct farm_run_workers *workers = server->director->workers;
    struct farm_error err;
    uint32_t rung;
    if (workers->plan->recipe.pin && farm_bitmap_pin(&workers->actors[server->actor].cpus, &err))
        farm_log_warn("not pinned: %s", err.message);
    // Does not preempt the actor on the same CPU, but runs while that waits, and answers all its lanes at once.
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    while (wait_while_paused(&server->director->pause)) {
        if (!farm_doorbells_wait(&server->bells, 0, BELL_WAIT_MS * MS)) continue;
        if (!wait_while_paused(&server->director->pause)) break;
        farm_doorbells_poll(&server->bells, &rung);
        answer_lanes(server);
    }
    return NULL;
}

// ---- the turns ----

static void set_pause(struct pause *pause, bool paused, bool ended) {
    pthread_mutex_lock(&pause->lock);
    pause->paused = paused;
    pause->ended = ended;
    pthread_cond_broadcast(&pause->changed);
    pthread_mutex_unlock(&pause->lock);
}

// The supervisor gets the counts of the checked steps.
static uint64_t sum_steps(const struct director *director) {
    uint64_t steps = 0, valid = 0, rejected = 0;
    for (uint32_t a = 0; a < director->plan->actors; a++) {
        steps += farm_load_relaxed(&director->servers[a].steps);
        valid += farm_load_relaxed(&director->servers[a].valid);
        rejected += farm_load_relaxed(&director->servers[a].rejected);
    }
    farm_store_relaxed(&director->stats->agent_steps, valid);
    farm_store_relaxed(&director->stats->rejected_steps, rejected);
    return steps;
}

static void sleep_until(const struct director *director, uint64_t end_ns) {
    uint64_t now;
    while (!stop_requested && (now = farm_now_ns()) < end_ns) {
        const uint64_t left = end_ns - now, slice = left < SLICE_MS * MS ? left : SLICE_MS * MS;
        nanosleep(&(struct timespec){.tv_nsec = (long)slice}, NULL);
        sum_steps(director);
    }
}

// Waits until each lane of every actor holds an unanswered step: then the actors sleep. False: not within the limit.
static bool await_idle(const struct director *director, double limit_s) {
    const uint64_t end = farm_now_ns() + (uint64_t)(limit_s * 1e9);
    while (!stop_requested && farm_now_ns() < end) {
        uint32_t busy = 0;
        for (uint32_t a = 0; a < director->plan->actors; a++)
            for (uint32_t l = 0; l < director->plan->lanes; l++) {
                const struct farm_lane *lane = &director->servers[a].ring.lanes[l];
                busy += farm_lane_produced(lane) == farm_lane_acted(lane);
            }
        if (!busy) return true;
        nanosleep(&(struct timespec){.tv_nsec = (long)MS}, NULL);
    }
    return false;
}

// CPU time of this process and the actors.
static uint64_t read_cpu_ns(const struct director *director) {
    uint64_t sum = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t a = 0; a < director->plan->actors; a++) {
        clockid_t clock;
        const pid_t pid = __atomic_load_n(&director->samples->actors[a], __ATOMIC_RELAXED);
        if (pid && clock_getcpuclockid(pid, &clock) == 0) sum += farm_clock_ns(clock);
    }
    return sum;
}

static void measure_farm(struct director *director) {
    struct farm_fps_samples *samples = director->samples;
    set_pause(&director->pause, false, false);
    sleep_until(director, farm_now_ns() + (uint64_t)(director->turns->warm_s * 1e9));
    const uint64_t cpu_from = read_cpu_ns(director), from = sum_steps(director), start = farm_now_ns();
    sleep_until(director, start + (uint64_t)(director->turns->farm_s * 1e9));
    const uint64_t steps = sum_steps(director) - from;
    const double taken_s = (double)(farm_now_ns() - start) * 1e-9;
    const uint64_t cpu_ns = read_cpu_ns(director) - cpu_from;
    set_pause(&director->pause, true, false);
    if (stop_requested && taken_s < PARTIAL_S) return;
    samples->farm_cpu_ns[samples->farm_count] = steps ? (double)cpu_ns / (double)steps : 0;
    samples->farm[samples->farm_count++] = (double)steps / taken_s;
    samples->agent_steps += steps;
    samples->farm_s += taken_s;
    await_idle(director, IDLE_LIMIT_S);
}

// A turn of all loops, or of one: another one each round.
static enum farm_status measure_bare(const struct director *director, uint32_t round, bool all,
                                     struct farm_error *err) {
    struct farm_fps_samples *samples = director->samples;
    const struct farm_fps_bare *bares = director->bares;
    struct farm_fps_bare_rate rate;
    const struct farm_fps_bare *first = all ? bares : &bares[round % director->bare_count];
    enum farm_status status =
        farm_fps_bare_turn(first, all ? director->bare_count : 1, director->turns->bare_s, &stop_requested, &rate, err);
    if (status) return stop_requested ? FARM_OK : status;
    if (all) {
        samples->all[samples->all_count++] = rate.per_s;
    } else {
        samples->one_cpu_ns[samples->one_count] = rate.cpu_ns;
        samples->one[samples->one_count++] = rate.per_s;
    }
    return FARM_OK;
}

static void print_round(const struct director *director, uint32_t round) {
    const struct farm_fps_samples *samples = director->samples;
    if (!director->turns->prints || !samples->farm_count) return;
    const uint64_t rejected = farm_load_relaxed(&director->stats->rejected_steps);
    if (rejected) farm_log_info("rejected steps so far: %s", farm_format_count((double)rejected).text);
    const struct farm_number_text farm = farm_format_count(samples->farm[samples->farm_count - 1]);
    if (!samples->one_count)
        farm_log_info("round %u of %u: farm %s steps/s", round + 1, director->turns->rounds, farm.text);
    else
        farm_log_info("round %u of %u: farm %s steps/s, one bare loop %s", round + 1, director->turns->rounds,
                      farm.text, farm_format_count(samples->one[samples->one_count - 1]).text);
}

// Farm and bare loops alternate in being first, so that a drift of the machine affects both.
static enum farm_status measure_rounds(struct director *director, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t r = 0; r < director->turns->rounds && !stop_requested && !status; r++) {
        const bool farm_first = r % 2;
        if (farm_first) measure_farm(director);
        if (director->bare_count) status = measure_bare(director, r, farm_first, err);
        if (director->bare_count && !status && !stop_requested) status = measure_bare(director, r, !farm_first, err);
        if (!farm_first && !status && !stop_requested) measure_farm(director);
        print_round(director, r);
    }
    return status;
}

// ---- start and end ----

static enum farm_status open_server(struct director *director, uint32_t a, struct farm_error *err) {
    const struct farm_run_workers *workers = director->workers;
    struct server *server = &director->servers[a];
    server->director = director;
    server->actor = a;
    server->rings[0] = &server->ring;
    enum farm_status status =
        farm_ring_open(workers->ring_fds[a][0], workers->ring_fds[a][1], FARM_RING_LEARNER, &server->ring, err);
    if (!status) status = farm_doorbells_make(&server->bells, server->rings, 1, workers->rings->bells[a], err);
    if (status) return status;
    server->lanes = calloc(server->ring.spec.lanes, sizeof *server->lanes);
    if (!server->lanes) return farm_fail_errno(err, FARM_E_LIMIT, "the lanes of actor %u", a);
    for (uint32_t l = 0; l < server->ring.spec.lanes; l++) { // a restarted responder continues at the counters
        status = farm_validator_open(&server->ring, l, &server->lanes[l].validator, err);
        if (status) return status;
        server->lanes[l].answered = farm_lane_acted(&server->ring.lanes[l]);
        farm_window_cursor_start(&server->ring.lanes[l], &director->shape, &server->lanes[l].cursor);
    }
    if (farm_head_mask_field(&workers->plan->env.spec, &server->mask, NULL)) server->mask = -1;
    farm_random_actions_start(&workers->plan->env.spec.action, workers->actors[a].config.seed + a, &server->source);
    return FARM_OK;
}

static enum farm_status start_bares(struct director *director, struct farm_error *err) {
    const uint32_t actors = director->plan->actors,
                   most = (uint32_t)farm_bitmap_count(&director->plan->placement->actor_cpus);
    enum farm_status status = FARM_OK;
    if (director->turns->bare_s <= 0) return FARM_OK;
    director->bare_count = actors < most ? actors : most;
    director->samples->bare_loops = director->bare_count;
    director->bares = calloc(director->bare_count, sizeof *director->bares);
    if (!director->bares) return farm_fail_errno(err, FARM_E_LIMIT, "the bare loops");
    for (uint32_t b = 0; b < director->bare_count && !status; b++)
        status = farm_fps_bare_start(director->workers, b, &director->bares[b], err);
    for (uint32_t b = 0; b < director->bare_count && !status; b++)
        status = farm_fps_bare_await(&director->bares[b], &stop_requested, err);
    return status;
}

static enum farm_status start_threads(struct director *director, struct farm_error *err) {
    const uint32_t actors = director->plan->actors;
    enum farm_status status = start_bares(director, err);
    director->servers = calloc(actors, sizeof *director->servers);
    if (!director->servers) return farm_fail_errno(err, FARM_E_LIMIT, "%u actors", actors);
    for (uint32_t a = 0; a < actors && !status; a++) status = open_server(director, a, err);
    for (uint32_t a = 0; a < actors && !status; a++) {
        struct server *server = &director->servers[a];
        const int failed = farm_thread_start(&server->thread, "answer", a, answer_actor, server);
        if (failed) return farm_fail(err, FARM_E_LIMIT, "a thread for actor %u: %s", a, strerror(failed));
        server->started = true;
    }
    return status;
}

static void end_threads(struct director *director) {
    set_pause(&director->pause, true, true);
    for (uint32_t a = 0; director->servers && a < director->plan->actors; a++) {
        struct server *server = &director->servers[a];
        if (server->started) pthread_join(server->thread, NULL);
        farm_doorbells_free(&server->bells);
        for (uint32_t l = 0; server->lanes && l < server->ring.spec.lanes; l++)
            farm_validator_close(&server->lanes[l].validator);
        if (server->ring.lanes) farm_ring_close(&server->ring);
        free(server->lanes);
    }
    for (uint32_t b = 0; director->bares && b < director->bare_count; b++) farm_fps_bare_end(&director->bares[b]);
    free(director->servers);
    free(director->bares);
}

int farm_fps_responder_run(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                           struct farm_error *err) {
    const struct farm_fps_responder *responder = context;
    struct director director = {
        .workers = workers,
        .plan = workers->plan,
        .turns = &responder->turns,
        .samples = responder->samples,
        .stats = stats,
        .shape = workers->plan->passes.shape,
        .pause = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .paused = true},
    };
    stop_requested = 0;
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_stop}, NULL);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    enum farm_status status = start_threads(&director, err);
    while (!status && !stop_requested && !await_idle(&director, IDLE_LIMIT_S))
        continue; // environments are still being made
    if (!status) status = measure_rounds(&director, err);
    end_threads(&director);
    if (stop_requested) return 0;
    if (!status) farm_store_release(&stats->done, 1);
    return status ? 1 : 0;
}
