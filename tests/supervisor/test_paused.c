// Paused is not dead: supervisor, actors and learner as processes of their own, stopped with SIGSTOP for a while, also
// in the middle of a write. This process looks on (read-only rings, one shared page) and sends the signals.
// Observations carry a sequence, the action that they follow and a checksum; the stand-in learner checks every one of
// them, and after a run with the real learner all that the rings still hold is checked here.
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/learner.h"
#include "actor/actor.h"
#include "base/log.h"
#include "base/time.h"
#include "learner/learner.h"
#include "supervisor/supervisor.h"
#include "supervisor/watchdog.h"

enum { ACTORS = 3, LANES = 2, WIDTH = 4, STEPS = 64, FLOATS = 96, ACTIONS = 4, GAME = 16, LEARNER = ACTORS };
enum { SEED, SEQUENCE, ACTION, FILL, CHECK = FLOATS - 1 }; // members of an observation; FILL..CHECK-1 follow from them
enum { PAUSE_MS = 500, PARTS = 5 };
static const uint64_t LIMIT_NS = 20000000000u;
static const float UNIT = 1 << 20; // members are whole numbers below it, divided by it: exact, and mild for a network

TestSuite(paused, .timeout = 60);

// What all processes see.
struct page {
    pid_t pids[ACTORS + 1];
    uint64_t starts[ACTORS + 1];
    uint64_t halt;   // 1 + actor whose environment shall stop itself in its next write; 0: none
    uint64_t halted; // how often one did
    uint64_t checked, faults;
    char fault[256]; // the first
    struct farm_stats stats;
};
static struct page *page;

// ---- the environment ----

struct witness {
    uint32_t seed, sequence, action, age;
};

static uint32_t hash(uint32_t a, uint32_t b) {
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 40) & 0xfffff;
}

static void compose(const struct witness *witness, float *out) {
    uint32_t members[FLOATS] = {[SEED] = witness->seed, [SEQUENCE] = witness->sequence, [ACTION] = witness->action};
    uint32_t check = 1;
    for (uint32_t i = FILL; i < CHECK; i++) members[i] = hash(witness->sequence, i + witness->seed);
    for (int i = 0; i < CHECK; i++) check = hash(check, members[i]);
    members[CHECK] = check;
    for (int i = 0; i < FLOATS; i++) out[i] = (float)members[i] / UNIT;
}

static uint32_t member(const float *obs, int i) {
    return (uint32_t)(obs[i] * UNIT);
}

static bool whole(const float *obs) {
    const struct witness witness = {member(obs, SEED), member(obs, SEQUENCE), member(obs, ACTION), 0};
    float expected[FLOATS];
    compose(&witness, expected);
    return memcmp(obs, expected, sizeof expected) == 0;
}

// The observation goes out in two halves, and the process may stop itself between them.
static void witness_write(const struct witness *witness, float *to) {
    float obs[FLOATS];
    compose(witness, obs);
    memcpy(to, obs, sizeof obs / 2);
    const uint64_t halt = farm_load_acquire(&page->halt);
    if (halt && page->pids[halt - 1] == getpid()) {
        farm_store_release(&page->halt, 0);
        farm_store_release(&page->halted, page->halted + 1);
        raise(SIGSTOP);
    }
    memcpy((char *)to + sizeof obs / 2, (char *)obs + sizeof obs / 2, sizeof obs / 2);
}

static int witness_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t bytes) {
    *spec = (struct farm_env_spec){.obs_count = 1,
                                   .obs[0] = {.name = "witness", .dtype = FARM_F32, .rank = 1, .dims = {FLOATS}},
                                   .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
                                   .frames_per_step = 1};
    return 0;
}
static void *witness_create(const struct farm_env_config *config, char *error, size_t bytes) {
    struct witness *witness = calloc(1, sizeof *witness);
    witness->seed = (uint32_t)config->seed & 0xfffff;
    return witness;
}
static void witness_reset(void *env, void *const *obs) {
    struct witness *witness = env;
    witness->sequence++;
    witness->action = witness->age = 0;
    witness_write(witness, obs[0]);
}
static uint32_t witness_step(void *env, const void *action, void *const *obs, float *reward) {
    struct witness *witness = env;
    memcpy(&witness->action, action, sizeof witness->action);
    witness->sequence++;
    witness->age++;
    *reward = 1;
    witness_write(witness, obs[0]);
    return witness->age < GAME ? 0 : FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
}

static const struct farm_env_api witness_api = FARM_ENV_API("test/witness", "tells what was done to it", witness, free);

// Step n of one environment follows step n-1, to which `action` was answered. NULL, or what is wrong.
static const char *follows(const float *obs, unsigned flags, const float *before, unsigned flags_before,
                           uint32_t action) {
    if (!whole(obs)) return "an observation is torn";
    if (flags_before & FARM_STEP_LAST && flags != FARM_STEP_FIRST) return "no FIRST after LAST";
    if (flags == FARM_STEP_FIRST) return NULL;
    if (member(obs, SEED) != member(before, SEED)) return "another environment";
    if (member(obs, SEQUENCE) != member(before, SEQUENCE) + 1) return "a step is lost or doubled";
    return member(obs, ACTION) == action ? NULL : "the answer to the step before was not played";
}

// ---- the farm: a supervisor process with its workers ----

static struct farm {
    struct farm_ring made[ACTORS];                     // holds the descriptors
    struct farm_ring view[ACTORS];                     // this process's, read-only
    struct farm_actor_config actor[ACTORS];            // read by the forked bodies
    int keep[ACTORS][3], learner_keep[2 * ACTORS + 1]; // descriptors
    int fds[ACTORS][2];
    struct farm_ring own[ACTORS]; // the supervisor process's: writes generations
    int bell;
    bool real; // learner
    struct farm_learner_config learner;
    pid_t supervisor;
    pid_t pids[ACTORS + 1]; // of the first lives
} farm;

static void open_view(const struct farm_ring *made, enum farm_ring_side side, struct farm_ring *view) {
    struct farm_error err = {0};
    const int down = side == FARM_RING_LEARNER ? made->down.fd : made->down.fd_readonly;
    if (farm_ring_open(dup(made->up.fd_readonly), dup(down), side, view, &err)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
}

static int actor_body(void *context, struct farm_error *err) {
    const struct farm_actor_config *config = context;
    page->pids[config->actor] = getpid();
    return farm_actor_run(config, err);
}

static void note_fault(const char *what, uint32_t actor, uint32_t lane, uint64_t n, uint32_t env) {
    if (!page->faults++)
        snprintf(page->fault, sizeof page->fault, "actor %u lane %u step %llu environment %u: %s", actor, lane,
                 (unsigned long long)n, env, what);
}

static void check_step(const struct farm_ring *ring, uint32_t actor, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &ring->lanes[l];
    for (uint32_t e = 0; e < WIDTH; e++) {
        const float *obs = farm_lane_obs(lane, 0, n, e), *before = n ? farm_lane_obs(lane, 0, n - 1, e) : obs;
        const unsigned flags = farm_lane_flags(lane, n)[e], flags_before = n ? farm_lane_flags(lane, n - 1)[e] : 0;
        const uint32_t action = n ? *(uint32_t *)farm_lane_action(lane, n - 1, e) : 0;
        const char *wrong = follows(obs, flags, before, flags_before, action);
        if (wrong) note_fault(wrong, actor, l, n, e);
    }
}

static volatile sig_atomic_t stop_asked;
static void on_stop(int number) {
    stop_asked = 1;
}

// Stands in for the learner: checks each step once, answers it, releases the ones before it.
static int stand_in_body(void *context, struct farm_error *err) {
    struct farm_ring rings[ACTORS], *pointers[ACTORS];
    struct farm_doorbells bells;
    uint32_t rung[ACTORS];
    page->pids[LEARNER] = getpid();
    for (int a = 0; a < ACTORS; a++) {
        open_view(&farm.made[a], FARM_RING_LEARNER, &rings[a]);
        pointers[a] = &rings[a];
    }
    signal(SIGTERM, on_stop);
    if (farm_doorbells_make(&bells, pointers, ACTORS, farm.bell, err)) return 1;
    while (!stop_asked) {
        farm_doorbells_wait(&bells, 0, 50000000);
        const uint32_t count = farm_doorbells_poll(&bells, rung);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t l = 0; l < LANES; l++) {
                struct farm_lane *lane = &rings[rung[i]].lanes[l];
                const uint64_t n = farm_lane_acted(lane);
                if (farm_lane_produced(lane) <= n) continue;
                if (farm_lane_produced(lane) != n + 1) note_fault("ran ahead of its answers", rung[i], l, n, 0);
                check_step(&rings[rung[i]], rung[i], l, n);
                for (uint32_t e = 0; e < WIDTH; e++)
                    *(uint32_t *)farm_lane_action(lane, n, e) = hash((uint32_t)n, e) % ACTIONS;
                farm_lane_answer(lane, n);
                farm_lane_release(lane, n);
                farm_learner_notify(&rings[rung[i]]);
                farm_store_relaxed(&page->checked, page->checked + 1);
            }
    }
    return 0;
}

static int real_body(void *context, struct farm_error *err) {
    page->pids[LEARNER] = getpid();
    return farm_learner_run(&farm.learner, err);
}

static void configure_learner(void) {
    for (int a = 0; a < ACTORS; a++) {
        farm.learner_keep[2 * a] = farm.fds[a][0] = farm.made[a].up.fd_readonly;
        farm.learner_keep[2 * a + 1] = farm.fds[a][1] = farm.made[a].down.fd;
    }
    farm.learner_keep[2 * ACTORS] = farm.bell;
    farm.learner = test_learner_config(FLOATS, ACTIONS, 8);
    farm.learner.ring_fds = (const int(*)[2])farm.fds;
    farm.learner.ring_count = ACTORS;
    farm.learner.shards[0].eventfd = farm.bell;
    farm.learner.stats = &page->stats;
    farm.learner.seed = 3;
    farm.learner.algo.batch = 16;
    farm.learner.memory_node = -1;
    farm.learner.infer_batch_max = ACTORS * LANES * WIDTH;
}

static void before_start(void *context, size_t worker, uint64_t starts) {
    page->starts[worker] = starts + 1;
    for (uint32_t l = 0; worker < ACTORS && starts && l < LANES; l++)
        farm_store_release(&farm.own[worker].lanes[l].down->generation, starts);
}
static void before_stop(void *context, int phase) {
    for (int a = 0; a < ACTORS; a++) farm_store_release(&farm.own[a].down_control->stop, 1);
}

static _Noreturn void supervise(void) {
    struct farm_supervisor *supervisor;
    struct farm_error err = {0};
    const struct farm_supervisor_config config = {
        .context = &farm, .before_start = before_start, .before_stop = before_stop, .tick_ms = 5};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    farm_log_set_level(FARM_LOG_ERROR);
    for (int a = 0; a < ACTORS; a++) open_view(&farm.made[a], FARM_RING_LEARNER, &farm.own[a]);
    enum farm_status status = farm_supervisor_make(&config, &supervisor, &err);
    for (int a = 0; a < ACTORS && !status; a++) {
        struct farm_worker_spec spec = {.body = actor_body,
                                        .context = &farm.actor[a],
                                        .keep = farm.keep[a],
                                        .keep_count = 3,
                                        .memory_node = -1,
                                        .stop_phase = 1};
        snprintf(spec.name, sizeof spec.name, "actor %d", a);
        status = farm_supervisor_add(supervisor, &spec, &err);
    }
    const struct farm_worker_spec learner = {.name = "learner",
                                             .body = farm.real ? real_body : stand_in_body,
                                             .context = &farm,
                                             .keep = farm.learner_keep,
                                             .keep_count = 2 * ACTORS + 1,
                                             .memory_node = -1};
    if (!status) status = farm_supervisor_add(supervisor, &learner, &err);
    if (!status) status = farm_supervisor_run(supervisor, NULL, &err);
    if (status) fprintf(stderr, "%s\n", err.message);
    _exit(status ? 1 : 0);
}

static uint64_t produced(int actor) {
    uint64_t sum = 0;
    for (int l = 0; l < LANES; l++) sum += farm_lane_produced(&farm.view[actor].lanes[l]);
    return sum;
}
static uint64_t acted(int actor) {
    uint64_t sum = 0;
    for (int l = 0; l < LANES; l++) sum += farm_lane_acted(&farm.view[actor].lanes[l]);
    return sum;
}

// Until each actor has published `more` steps.
static void goes_on(uint64_t more) {
    const uint64_t start = farm_now_ns();
    uint64_t from[ACTORS];
    for (int a = 0; a < ACTORS; a++) from[a] = produced(a);
    for (int a = 0; a < ACTORS; a++)
        while (produced(a) < from[a] + more) {
            cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "actor %d stands still", a);
            usleep(1000);
        }
}

static void begin(bool real, uint64_t spin_ns) {
    struct farm_error err;
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    memset(&farm, 0, sizeof farm);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(page != MAP_FAILED);
    witness_spec(NULL, &spec.env, NULL, 0);
    farm_ring_spec_answers(&spec);
    farm.real = real;
    farm.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (uint32_t a = 0; a < ACTORS; a++) {
        struct farm_ring *made = &farm.made[a];
        cr_assert_eq(farm_ring_create(&spec, a, -1, false, made, &err), FARM_OK, "%s", err.message);
        open_view(made, FARM_RING_OBSERVER, &farm.view[a]);
        const int keep[3] = {made->up.fd, made->down.fd_readonly, farm.bell};
        memcpy(farm.keep[a], keep, sizeof keep);
        farm.actor[a] = (struct farm_actor_config){.actor = a,
                                                   .up_fd = made->up.fd,
                                                   .down_fd = made->down.fd_readonly,
                                                   .learner_eventfd = farm.bell,
                                                   .api = &witness_api,
                                                   .seed = 11,
                                                   .spin_ns = spin_ns};
    }
    configure_learner();
    farm.supervisor = fork();
    if (farm.supervisor == 0) supervise();
    goes_on(50);
    memcpy(farm.pids, page->pids, sizeof farm.pids);
}

// Ends it, and looks at everything that is left: nothing lost, torn or doubled.
static void end(void) {
    char findings[2000];
    int status;
    goes_on(200);
    kill(farm.supervisor, SIGTERM);
    cr_assert_eq(waitpid(farm.supervisor, &status, 0), farm.supervisor);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(page->faults, 0, "%lu faults, the first: %s", page->faults, page->fault);
    uint64_t steps = 0;
    for (uint32_t a = 0; a < ACTORS; a++) {
        cr_assert_eq(farm_ring_verify(&farm.view[a], findings, sizeof findings), 0, "%s", findings);
        steps += acted((int)a);
        for (uint32_t l = 0; l < LANES; l++) {
            const struct farm_lane *lane = &farm.view[a].lanes[l];
            const uint64_t last = farm_lane_produced(lane);
            for (uint64_t n = last - STEPS + 2; n < last; n++) check_step(&farm.view[a], a, l, n);
        }
        farm_ring_close(&farm.view[a]);
        farm_ring_close(&farm.made[a]);
    }
    cr_assert_eq(page->faults, 0, "%lu faults in the rings, the first: %s", page->faults, page->fault);
    if (farm.real) {
        cr_assert_eq(page->stats.bad_values, 0);
        cr_assert_gt(page->stats.updates, 0);
    } else {
        cr_assert_eq(page->checked, steps, "every answered step was checked once");
    }
    close(farm.bell);
}

// ---- looking on ----

static void await_stopped(pid_t pid, bool stopped) {
    const uint64_t start = farm_now_ns();
    while (farm_watch_stopped(pid) != stopped) {
        cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "process %d", (int)pid);
        usleep(200);
    }
}

static void pause_process(pid_t pid) {
    kill(pid, SIGSTOP);
    await_stopped(pid, true);
}
static void continue_process(pid_t pid) {
    kill(pid, SIGCONT);
    await_stopped(pid, false);
}

static void expect_same_lives(void) {
    for (int w = 0; w <= ACTORS; w++) {
        cr_assert_eq(page->pids[w], farm.pids[w], "worker %d has another process", w);
        cr_assert_eq(page->starts[w], 1, "worker %d was started %lu times", w, page->starts[w]);
    }
    for (int a = 0; a < ACTORS; a++)
        for (int l = 0; l < LANES; l++)
            cr_assert_eq(farm_load_acquire(&farm.view[a].lanes[l].down->generation), 0,
                         "somebody took actor %d's lanes", a);
}

// For PAUSE_MS or longer actor 0 is left alone while the others publish in each part of that time.
static void others_go_on(void) {
    const uint64_t published = produced(0), answered = acted(0);
    cr_assert_leq(answered, published);
    for (int part = 0; part < PARTS; part++) {
        uint64_t before[ACTORS];
        for (int a = 1; a < ACTORS; a++) before[a] = produced(a);
        usleep(PAUSE_MS * 1000 / PARTS);
        for (int a = 1; a < ACTORS; a++)
            for (const uint64_t start = farm_now_ns(); produced(a) == before[a];
                 usleep(1000)) // other programs run, too
                cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "actor %d stood still in part %d", a, part);
        cr_assert(farm_watch_stopped(farm.pids[0]), "somebody continued it");
        cr_assert_eq(produced(0), published);
    }
    cr_assert_eq(acted(0), published, "what it had published is answered, and nothing else");
    expect_same_lives();
}

static void stops_an_actor(bool real) {
    begin(real, 1000);
    for (int round = 0; round < 2; round++) {
        pause_process(farm.pids[0]);
        others_go_on();
        continue_process(farm.pids[0]);
        goes_on(100);
        expect_same_lives();
    }
    end();
}

Test(paused, an_actor_that_is_stopped_is_nobodys_death_and_the_others_go_on) {
    stops_an_actor(false);
}

Test(paused, an_actor_that_is_stopped_lets_the_learner_train_with_the_others) {
    stops_an_actor(true);
}

// Torn observations in the slots that actor 0 may be writing.
static int torn(void) {
    int count = 0;
    for (int l = 0; l < LANES; l++) {
        const struct farm_lane *lane = &farm.view[0].lanes[l];
        for (uint32_t e = 0; e < WIDTH; e++) count += !whole(farm_lane_obs(lane, 0, farm_lane_produced(lane), e));
    }
    return count;
}

static void stops_in_mid_write(bool real) {
    begin(real, 0);
    goes_on(2 * STEPS); // every slot has held a step before
    for (uint64_t round = 1; round <= 2; round++) {
        farm_store_release(&page->halt, 1 + 0);
        await_stopped(farm.pids[0], true);
        cr_assert_eq(page->halted, round, "it stopped itself");
        cr_assert_eq(torn(), 1, "half of one observation is written");
        others_go_on();
        cr_assert_eq(torn(), 1);
        continue_process(farm.pids[0]);
        goes_on(100);
        expect_same_lives();
    }
    end();
}

Test(paused, a_half_written_step_is_never_answered_and_is_whole_when_it_is) {
    stops_in_mid_write(false);
}

Test(paused, a_half_written_step_never_reaches_inference_or_training) {
    stops_in_mid_write(true);
}

static void stops_the_learner(bool real, uint64_t spin_ns) {
    begin(real, spin_ns);
    uint64_t published[ACTORS], answered[ACTORS];
    pause_process(farm.pids[LEARNER]);
    for (int a = 0; a < ACTORS; a++) answered[a] = acted(a);
    usleep(PAUSE_MS * 1000 / 2);
    for (int a = 0; a < ACTORS; a++) {
        published[a] = produced(a);
        cr_assert_leq(published[a] - answered[a], LANES, "an actor publishes one step a lane and waits");
        const bool sleeps = farm_load_acquire(&farm.view[a].up_control->asleep) != 0;
        if (spin_ns == UINT64_MAX) cr_assert_not(sleeps);
    }
    usleep(PAUSE_MS * 1000 / 2);
    for (int a = 0; a < ACTORS; a++) {
        cr_assert_eq(produced(a), published[a], "actor %d", a);
        cr_assert_eq(acted(a), answered[a], "somebody answers for a stopped learner");
    }
    expect_same_lives();
    continue_process(farm.pids[LEARNER]);
    goes_on(100);
    expect_same_lives();
    end();
}

Test(paused, actors_sleep_while_the_learner_is_stopped_and_nothing_is_lost) {
    stops_the_learner(false, 0);
}

Test(paused, actors_spin_while_the_learner_is_stopped_and_nothing_is_lost) {
    stops_the_learner(false, UINT64_MAX);
}

Test(paused, the_real_learner_goes_on_where_it_was_stopped) {
    stops_the_learner(true, 0);
}

Test(paused, a_stopped_supervisor_holds_nobody_up_and_catches_up) {
    begin(false, 0);
    pause_process(farm.supervisor);
    for (int part = 0; part < PARTS; part++) {
        uint64_t before[ACTORS];
        for (int a = 0; a < ACTORS; a++) before[a] = produced(a);
        usleep(PAUSE_MS * 1000 / PARTS);
        for (int a = 0; a < ACTORS; a++)
            cr_assert(produced(a) > before[a] || (a == 1 && part > 2), "actor %d part %d", a, part);
        if (part == 2) kill(farm.pids[1], SIGKILL); // nobody is there to see it
    }
    const uint64_t left = produced(1);
    expect_same_lives();
    continue_process(farm.supervisor);
    goes_on(100);
    cr_assert_gt(produced(1), left);
    cr_assert_neq(page->pids[1], farm.pids[1]);
    cr_assert_eq(page->starts[1], 2);
    for (int l = 0; l < LANES; l++) cr_assert_eq(farm_load_acquire(&farm.view[1].lanes[l].down->generation), 1);
    cr_assert_eq(page->starts[0] + page->starts[2] + page->starts[LEARNER], 3, "nobody else was started again");
    end();
}

Test(paused, a_whole_farm_that_was_stopped_goes_on) {
    begin(true, 1000);
    pause_process(farm.pids[1]);
    pause_process(farm.supervisor);
    for (int w = 0; w <= ACTORS; w++) pause_process(farm.pids[w]);
    usleep(PAUSE_MS * 1000);
    for (int w = ACTORS; w >= 0; w--) continue_process(farm.pids[w]);
    continue_process(farm.supervisor);
    goes_on(100);
    expect_same_lives();
    end();
}
