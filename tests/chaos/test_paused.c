// Paused is not dead: a farm of the chaos runner, in which every process checks every step (chaos.h), with processes
// that are stopped by SIGSTOP instead of killed: at any moment, within an observation, around a store. This process
// reads the lanes' counters through farm/farm.h and sends the signals.
#include <criterion/criterion.h>
#include <farm/farm.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "chaos.h"
#include "supervisor/watchdog.h"

enum { ACTORS = 3, LANES = 2, WIDTH = 4, LEARNER = ACTORS, PAUSE_MS = 500, PARTS = 5 };
static const uint64_t LIMIT_NS = 20000000000u;

TestSuite(paused, .timeout = 60);

static struct chaos_shared *shared;
static struct farm_view *view;
static pid_t supervisor, pids[ACTORS + 1]; // the first lives'

enum counter { PRODUCED, ACTED };

// Sum over an actor's lanes.
static uint64_t sum(int actor, enum counter counter) {
    uint64_t total = 0;
    for (unsigned l = 0; l < LANES; l++) {
        struct farm_lane_state state;
        farm_view_state(view, (unsigned)actor * LANES + l, &state);
        total += counter == PRODUCED ? state.produced : state.acted;
    }
    return total;
}

static void wait_for_count(int actor, enum counter counter, uint64_t least) {
    for (const uint64_t start = farm_now_ns(); sum(actor, counter) < least; usleep(500))
        cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "actor %d stands still", actor);
}

// Until each actor has published `more` steps.
static void wait_for_all(uint64_t more) {
    uint64_t from[ACTORS];
    for (int a = 0; a < ACTORS; a++) from[a] = sum(a, PRODUCED);
    for (int a = 0; a < ACTORS; a++) wait_for_count(a, PRODUCED, from[a] + more);
}

static void begin_farm(bool local, uint64_t spin_ns) {
    char error[256] = "";
    shared = shared_memory(sizeof *shared);
    shared->shape = (struct chaos_shape){.seed = 11,
                                         .actors = ACTORS,
                                         .lanes = LANES,
                                         .width = WIDTH,
                                         .steps = 64,
                                         .height = 4,
                                         .row_bytes = 96,
                                         .stack = 2,
                                         .unroll = 4,
                                         .batch = 16,
                                         .infer_batch_max = ACTORS * LANES * WIDTH,
                                         .spin_ns = spin_ns,
                                         .local = local,
                                         .actor_kills = UINT64_MAX, // never reached: `ends_by_ns` ends the farm
                                         .standstill_ns = LIMIT_NS,
                                         .ends_by_ns = UINT64_MAX};
    chaos_hook_set(shared, -1);
    supervisor = fork();
    if (supervisor == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(chaos_farm_run(shared));
    }
    const uint64_t start = farm_now_ns();
    while (!(view = farm_attach(supervisor, error, sizeof error)) || farm_view_lanes(view) < ACTORS * LANES) {
        cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "%s", error);
        farm_detach(view);
        usleep(1000);
    }
    for (int a = 0; a < ACTORS; a++) wait_for_count(a, ACTED, 50);
    for (int w = 0; w <= ACTORS; w++) pids[w] = shared->state.workers[w].pid;
}

// The farm's own checks: nothing lost, torn or doubled, all sums exact, nothing left.
static void end_farm(void) {
    int status;
    __atomic_store_n(&shared->shape.ends_by_ns, 0, __ATOMIC_RELAXED);
    cr_assert_eq(waitpid(supervisor, &status, 0), supervisor);
    const struct chaos_totals *totals = &shared->totals;
    cr_assert_eq(totals->violations, 0, "%llu violations: %s; %s", (unsigned long long)totals->violations,
                 totals->sentences[0], totals->sentences[1]);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_gt(totals->answers_checked, 0);
    cr_assert_gt(totals->windows_checked, 0);
    cr_assert(shared->shape.local || totals->steps_checked > 0);
    farm_detach(view);
}

static void wait_until_stopped(pid_t pid, bool stopped) {
    for (const uint64_t start = farm_now_ns(); farm_watch_stopped(pid) != stopped; usleep(200))
        cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "process %d", (int)pid);
}

static void pause_process(pid_t pid) {
    kill(pid, SIGSTOP);
    wait_until_stopped(pid, true);
}

static void continue_process(pid_t pid) {
    kill(pid, SIGCONT);
    wait_until_stopped(pid, false);
}

static void expect_same_lives(void) {
    for (int w = 0; w <= ACTORS; w++)
        cr_assert_eq(shared->state.workers[w].pid, pids[w], "worker %d has another process", w);
    for (int a = 0; a < ACTORS; a++) cr_assert_eq(shared->state.generation[a], 0, "actor %d lost its lanes", a);
    cr_assert_eq(shared->state.learner_life, 0);
}

// For PAUSE_MS actor 0 is stopped, and the others publish in each part of that time. `silent`: steps that it may have
// published without ringing the doorbell.
static void expect_others_go_on(uint64_t silent) {
    const uint64_t published = sum(0, PRODUCED);
    for (int part = 0; part < PARTS; part++) {
        uint64_t before[ACTORS];
        for (int a = 1; a < ACTORS; a++) before[a] = sum(a, PRODUCED);
        usleep(PAUSE_MS * 1000 / PARTS);
        for (int a = 1; a < ACTORS; a++) wait_for_count(a, PRODUCED, before[a] + 1);
        cr_assert(farm_watch_stopped(pids[0]), "another process continued it");
        cr_assert_eq(sum(0, PRODUCED), published);
    }
    cr_assert_leq(sum(0, ACTED), published);
    cr_assert_geq(sum(0, ACTED) + silent, published, "its published steps are answered");
    expect_same_lives();
}

// `kind`: where actor 0 stops.
static void stop_an_actor(enum chaos_kind kind, bool local) {
    begin_farm(local, 1000);
    struct chaos_worker *worker = &shared->state.workers[0];
    worker->stops = true;
    for (uint64_t round = 0; round < 2; round++) {
        if (kind == CHAOS_TIME) pause_process(pids[0]);
        if (kind == CHAOS_STEP) __atomic_store_n(&worker->env_steps, 100 + round, __ATOMIC_RELAXED);
        if (kind == CHAOS_HOOK) __atomic_store_n(&worker->stores, 100 + round, __ATOMIC_RELAXED);
        wait_until_stopped(pids[0], true);
        expect_others_go_on(kind == CHAOS_HOOK);
        continue_process(pids[0]);
        wait_for_all(100);
        expect_same_lives();
    }
    end_farm();
}

Test(paused, a_stopped_actor_keeps_its_lanes_and_the_others_go_on) {
    stop_an_actor(CHAOS_TIME, false);
}

Test(paused, a_stopped_actor_that_answers_itself_keeps_its_lanes) {
    stop_an_actor(CHAOS_TIME, true);
}

Test(paused, a_half_written_step_reaches_neither_inference_nor_training) {
    stop_an_actor(CHAOS_STEP, false);
}

Test(paused, an_actor_goes_on_after_a_stop_around_a_store) {
    stop_an_actor(CHAOS_HOOK, false);
}

// CENTRAL: an actor publishes one step per lane and waits, asleep or spinning.
static void stop_the_learner(uint64_t spin_ns, bool around_a_store) {
    begin_farm(false, spin_ns);
    uint64_t published[ACTORS], answered[ACTORS];
    struct chaos_worker *worker = &shared->state.workers[LEARNER];
    worker->stops = true;
    if (around_a_store) __atomic_store_n(&worker->stores, 1000, __ATOMIC_RELAXED);
    if (!around_a_store) pause_process(pids[LEARNER]);
    wait_until_stopped(pids[LEARNER], true);
    for (int a = 0; a < ACTORS; a++) answered[a] = sum(a, ACTED);
    usleep(PAUSE_MS * 1000 / 2);
    for (int a = 0; a < ACTORS; a++) {
        published[a] = sum(a, PRODUCED);
        cr_assert_leq(published[a] - answered[a], LANES);
    }
    usleep(PAUSE_MS * 1000 / 2);
    for (int a = 0; a < ACTORS; a++) {
        cr_assert_eq(sum(a, PRODUCED), published[a], "actor %d", a);
        cr_assert_eq(sum(a, ACTED), answered[a], "a stopped learner's steps were answered");
    }
    expect_same_lives();
    continue_process(pids[LEARNER]);
    wait_for_all(100);
    expect_same_lives();
    end_farm();
}

Test(paused, actors_sleep_while_the_learner_is_stopped_and_lose_nothing) {
    stop_the_learner(0, false);
}

Test(paused, actors_spin_while_the_learner_is_stopped_and_lose_nothing) {
    stop_the_learner(UINT64_MAX, false);
}

Test(paused, a_learner_goes_on_after_a_stop_around_a_store) {
    stop_the_learner(0, true);
}

Test(paused, a_stopped_supervisor_delays_no_worker_and_restarts_the_dead_later) {
    begin_farm(false, 0);
    pause_process(supervisor);
    wait_for_all(100);
    shared->state.workers[1].kind = CHAOS_TIME; // the farm counts it as a death that was ordered
    shared->state.workers[1].died_ns = farm_now_ns();
    kill(pids[1], SIGKILL);
    usleep(PAUSE_MS * 1000);
    const uint64_t left = sum(1, PRODUCED);
    wait_for_count(0, PRODUCED, sum(0, PRODUCED) + 50);
    wait_for_count(2, PRODUCED, sum(2, PRODUCED) + 50);
    expect_same_lives();
    continue_process(supervisor);
    wait_for_count(1, PRODUCED, left + 100);
    cr_assert_neq(shared->state.workers[1].pid, pids[1]);
    cr_assert_eq(shared->state.generation[1], 1);
    pids[1] = shared->state.workers[1].pid;
    shared->state.generation[1] = 0;
    expect_same_lives();
    shared->state.generation[1] = 1;
    end_farm();
}

Test(paused, a_whole_farm_that_was_stopped_goes_on) {
    begin_farm(false, 1000);
    pause_process(supervisor);
    for (int w = 0; w <= ACTORS; w++) pause_process(pids[w]);
    usleep(PAUSE_MS * 1000);
    for (int w = ACTORS; w >= 0; w--) continue_process(pids[w]);
    continue_process(supervisor);
    wait_for_all(100);
    expect_same_lives();
    end_farm();
}
