// What uneven environments cost: a synthetic one, in here, whose step takes 2 us of work but 200 us in one of a
// hundred, and whose reset takes 2 ms. Real actors and rings; the learner is a stand-in whose answers take as long as a
// GPU's would, without using a CPU meanwhile, so that an actor has to have something else to do. The ideal is the sum
// of the work: bare loops of the same environments, one on each CPU at once, by turns with the farm.
//
//   several lanes   a lane that waits for its answer, or for a slow environment of its own, holds up no other actor,
//                   and its actor steps another lane meanwhile. Wide enough that the cheapest turn of a lane (128 x 2
//                   us) covers the making of another one's answer and the wake-ups
//   narrow lanes    a quarter as wide: the other lane's turn is often over before the answer is there
//   one lane        the same environments in one lane: its actor has nothing to do while the answer is being made
//   lockstep        an answer is made when every lane of every actor is there, as one vector environment over all would
//                   do it: everybody waits for the slowest
//   order           where answers are the bottleneck (400 us, one lane each): served by age, or by the actor's number
//
// An actor a CPU, pinned; the learner floats and sleeps.
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor/actor.h"
#include "actor/bare.h"
#include "base/log.h"
#include "base/time.h"
#include "common.h"
#include "kernels/random.h"

enum {
    ACTORS_MAX = 16,
    ENVS = 256, // of an actor: 128 x 2 us is the cheapest turn of one of two lanes
    LANES_MAX = 4,
    STEPS = 8,
    ROUNDS = 5,
    MODES = 7,
    STEP_US = 2,
    SLOW_STEP_US = 200,
    SLOW_ONE_IN = 100,
    EPISODE = 500,
    RESET_US = 2000,
    RESET_ON_FORK = 1, // SCHED_FLAG_RESET_ON_FORK
};
static const uint64_t ANSWER_NS = 100000, SLOW_ANSWER_NS = 400000, US = 1000, PATIENCE_NS = 20000000000;

// ---- the environment ----

static double turns_per_us; // calibrated once, before any fork

// Work that no other program's turn on the CPU can count for.
static uint64_t work(uint64_t x, double us) {
    for (uint64_t turn = (uint64_t)(us * turns_per_us); turn > 0; turn--) x = farm_random_mix(x);
    return x;
}

static void calibrate(void) {
    turns_per_us = 1e6;
    double best = 0;
    for (int i = 0; i < 20; i++) {
        const uint64_t start = farm_now_ns();
        volatile uint64_t sink = work((uint64_t)i, 0.2); // 200,000 turns
        (void)sink;
        const double rate = 2e5 / ((double)(farm_now_ns() - start) * 1e-3);
        if (rate > best) best = rate;
    }
    turns_per_us = best;
}

struct bimodal {
    uint64_t random, sink;
    bool played; // the first reset is cheap, so that a farm starts at once
};

static int bimodal_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                        size_t error_bytes) {
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        .obs[0] = {.name = "none", .dtype = FARM_F32, .rank = 1, .dims = {4}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {2}},
        .frames_per_step = 1,
    };
    return 0;
}

static void *bimodal_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct bimodal *env = calloc(1, sizeof *env);
    if (env) env->random = config->seed;
    return env;
}

static void bimodal_observe(struct bimodal *env, double us, void *const *obs) {
    env->sink = work(env->random, us);
    const float numbers[4] = {(float)(env->sink >> 60)};
    memcpy(obs[0], numbers, sizeof numbers);
}

static void bimodal_reset(void *self, void *const *obs) {
    struct bimodal *env = self;
    bimodal_observe(env, env->played ? RESET_US : STEP_US, obs);
    env->played = true;
}

static uint32_t bimodal_step(void *self, const void *action, void *const *obs, float *reward) {
    struct bimodal *env = self;
    env->random = farm_random_mix(env->random);
    const uint32_t fate = (uint32_t)env->random, end = (uint32_t)(env->random >> 32);
    bimodal_observe(env, fate < UINT32_MAX / SLOW_ONE_IN ? SLOW_STEP_US : STEP_US, obs);
    *reward = 0;
    return end < UINT32_MAX / EPISODE ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

static const struct farm_env_api bimodal = {
    .abi_version = FARM_ENV_ABI_VERSION,
    .struct_bytes = sizeof(struct farm_env_api),
    .name = "bench/bimodal",
    .about = "mostly cheap steps",
    .spec = bimodal_spec,
    .create = bimodal_create,
    .destroy = free,
    .reset = bimodal_reset,
    .step = bimodal_step,
};

// ---- the farm ----

enum service {
    ALL_READY, // whatever is ready, in one answer
    LOCKSTEP,  // all lanes, or none
    BY_AGE,    // one lane an answer, the one that waits longest
    BY_NUMBER, // one lane an answer, the first actor's first
};

struct mode {
    const char *name;
    uint32_t envs, lanes; // of an actor
    enum service service;
};

struct waiting {
    struct farm_lane *lane;
    struct farm_ring *ring;
    uint64_t answered, steps;
    uint64_t since_ns; // 0: not waiting
    uint64_t order;    // of the queue
};

struct farm {
    uint32_t actors, lanes;
    int bell;
    pid_t pids[ACTORS_MAX];
    struct farm_ring made[ACTORS_MAX], rings[ACTORS_MAX], *pointers[ACTORS_MAX];
    struct farm_doorbells bells;
    struct waiting waiting[ACTORS_MAX * LANES_MAX];
    uint64_t queued; // ever
};

static void must(enum farm_status status, const struct farm_error *err) {
    if (!status) return;
    fprintf(stderr, "imbalance: %s\n", err->message);
    exit(1);
}

static struct farm_actor_config config_of(const struct farm *farm, uint32_t a) {
    return (struct farm_actor_config){.actor = a,
                                      .up_fd = farm->made[a].up.fd,
                                      .down_fd = farm->made[a].down.fd_readonly,
                                      .learner_eventfd = farm->bell,
                                      .api = &bimodal,
                                      .seed = 1};
}

static void start_actor(struct farm *farm, uint32_t a, uint32_t envs, uint32_t lanes) {
    struct farm_error err;
    struct farm_ring_spec spec = {.lanes = lanes, .width = envs / lanes, .steps = STEPS};
    bimodal_spec(NULL, &spec.env, NULL, 0);
    farm_ring_spec_answers(&spec);
    must(farm_ring_create(&spec, a, -1, false, &farm->made[a], &err), &err);
    const struct farm_actor_config config = config_of(farm, a);
    farm->pids[a] = fork();
    farm_bench_check(farm->pids[a] >= 0, "fork");
    if (farm->pids[a] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        farm_bench_pin((int)a);
        _exit(farm_actor_run(&config, &err));
    }
    must(farm_ring_open(dup(farm->made[a].up.fd_readonly), dup(farm->made[a].down.fd), FARM_RING_LEARNER,
                        &farm->rings[a], &err),
         &err);
    farm->pointers[a] = &farm->rings[a];
    for (uint32_t l = 0; l < lanes; l++)
        farm->waiting[farm->lanes++] = (struct waiting){.lane = &farm->rings[a].lanes[l], .ring = &farm->rings[a]};
}

static void stop(struct farm *farm) {
    for (uint32_t a = 0; a < farm->actors; a++) {
        farm_store_release(&farm->rings[a].down_control->stop, 1);
        farm_learner_notify(&farm->rings[a]);
    }
    for (uint32_t a = 0; a < farm->actors; a++) {
        int status;
        farm_bench_check(waitpid(farm->pids[a], &status, 0) > 0 && WIFEXITED(status) && !WEXITSTATUS(status),
                         "an actor ends when it is told to");
        farm_ring_close(&farm->rings[a]);
        farm_ring_close(&farm->made[a]);
    }
    farm_doorbells_free(&farm->bells);
    close(farm->bell);
}

// ---- the stand-in learner ----

static uint32_t look(struct farm *farm) {
    uint32_t rung[ACTORS_MAX], waiting = 0;
    farm_doorbells_poll(&farm->bells, rung);
    for (uint32_t i = 0; i < farm->lanes; i++) {
        struct waiting *lane = &farm->waiting[i];
        if (!lane->since_ns && farm_lane_produced(lane->lane) > lane->answered) {
            farm_bench_check(farm_lane_produced(lane->lane) == lane->answered + 1, "an actor waits for its answers");
            lane->since_ns = farm_now_ns();
            lane->order = farm->queued++;
        }
        waiting += lane->since_ns != 0;
    }
    return waiting;
}

static void answer(struct waiting *waiting) {
    struct farm_lane *lane = waiting->lane;
    const uint64_t n = waiting->answered++;
    const uint8_t *flags = farm_lane_flags(lane, n);
    for (uint32_t e = 0; e < lane->width; e++) waiting->steps += !(flags[e] & FARM_STEP_FIRST);
    memset(farm_lane_action(lane, n, 0), 0, lane->width * lane->answer[FARM_ANSWER_ACTION].bytes);
    farm_lane_answer(lane, n);
    farm_lane_release(lane, n);
    waiting->since_ns = 0;
    farm_learner_notify(waiting->ring);
}

// The kernel's struct sched_attr, first version (sched_setattr(2)).
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

// A short time slice is one that is due soon: the learner, which hardly uses the CPU that it shares with an actor, gets
// it when an answer is ready and not when the actor's slice of milliseconds is over (Linux 6.12; ignored before).
static void ask_for_short_turns(void) {
    struct scheduling turns = {
        .size = sizeof turns, .policy = SCHED_OTHER, .flags = RESET_ON_FORK, .runtime = 100 * US};
    if (syscall(SYS_sched_setattr, 0, &turns, 0)) farm_log_debug("sched_setattr: %s", strerror(errno));
}

static void rest(uint64_t ns) {
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

// One answer: those that wait now, after the time that it takes.
static void serve(struct farm *farm, enum service service) {
    bool chosen[ACTORS_MAX * LANES_MAX] = {false};
    uint32_t one = farm->lanes;
    for (uint32_t i = 0; i < farm->lanes; i++) {
        const struct waiting *lane = &farm->waiting[i];
        chosen[i] = lane->since_ns && service <= LOCKSTEP;
        if (!lane->since_ns) continue;
        if (one == farm->lanes || (service == BY_AGE && lane->order < farm->waiting[one].order)) one = i;
    }
    if (service > LOCKSTEP) chosen[one] = true;
    rest(service > LOCKSTEP ? SLOW_ANSWER_NS : ANSWER_NS);
    for (uint32_t i = 0; i < farm->lanes; i++)
        if (chosen[i]) answer(&farm->waiting[i]);
}

static void serve_once(struct farm *farm, enum service service) {
    const uint32_t waiting = look(farm), least = service == LOCKSTEP ? farm->lanes : 1;
    if (waiting >= least)
        serve(farm, service);
    else
        farm_doorbells_wait(&farm->bells, 0, 10000 * US);
}

static void serve_until(struct farm *farm, enum service service, uint64_t end_ns) {
    while (farm_now_ns() < end_ns) serve_once(farm, service);
}

// Until every lane has taken two steps.
static void start_up(struct farm *farm, enum service service) {
    const uint64_t end = farm_now_ns() + PATIENCE_NS;
    for (bool all = false; !all;) {
        farm_bench_check(farm_now_ns() < end, "the farm starts");
        serve_once(farm, service);
        all = true;
        for (uint32_t i = 0; i < farm->lanes; i++) all &= farm->waiting[i].answered >= 2;
    }
}

struct outcome {
    double rate;    // transitions/s
    double slowest; // the slowest lane's share of the mean lane's steps
};

static struct outcome run_farm(uint32_t actors, const struct mode *mode, double seconds) {
    static struct farm farm;
    struct farm_error err;
    farm = (struct farm){.actors = actors, .bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    for (uint32_t a = 0; a < actors; a++) start_actor(&farm, a, mode->envs, mode->lanes);
    must(farm_doorbells_make(&farm.bells, farm.pointers, actors, farm.bell, &err), &err);
    start_up(&farm, mode->service == BY_NUMBER ? BY_AGE : mode->service); // by number some would never start
    for (uint32_t i = 0; i < farm.lanes; i++) farm.waiting[i].steps = 0;
    const uint64_t start = farm_now_ns();
    serve_until(&farm, mode->service, start + (uint64_t)(seconds * 1e9));
    const double taken_s = (double)(farm_now_ns() - start) * 1e-9;
    uint64_t sum = 0, least = UINT64_MAX;
    for (uint32_t i = 0; i < farm.lanes; i++) {
        sum += farm.waiting[i].steps;
        if (farm.waiting[i].steps < least) least = farm.waiting[i].steps;
    }
    farm_bench_check(sum > 0, "the farm steps");
    stop(&farm);
    return (struct outcome){.rate = (double)sum / taken_s, .slowest = (double)least * farm.lanes / (double)sum};
}

// ---- the ideal: bare loops, one a CPU ----

struct ideal {
    uint64_t steps, taken_ns;
};

static double run_ideal(uint32_t loops, double seconds) {
    struct ideal *shared =
        mmap(NULL, loops * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[ACTORS_MAX];
    double rate = 0;
    farm_bench_check(shared != MAP_FAILED, "memory");
    for (uint32_t i = 0; i < loops; i++) {
        pids[i] = fork();
        farm_bench_check(pids[i] >= 0, "fork");
        if (pids[i]) continue;
        struct farm_bare bare;
        struct farm_error err;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        farm_bench_pin((int)i);
        const struct farm_actor_config config = {.actor = i, .api = &bimodal, .seed = 1};
        must(farm_bare_open(&config, ENVS, &bare, &err), &err);
        shared[i].steps = farm_bare_run(&bare, (uint64_t)(seconds * 1e9), &shared[i].taken_ns);
        _exit(0);
    }
    for (uint32_t i = 0; i < loops; i++) waitpid(pids[i], NULL, 0);
    for (uint32_t i = 0; i < loops; i++) {
        farm_bench_check(shared[i].taken_ns > 0, "the bare loop ran");
        rate += (double)shared[i].steps / ((double)shared[i].taken_ns * 1e-9);
    }
    munmap(shared, loops * sizeof *shared);
    return rate;
}

int main(int argc, char **argv) {
    static const struct mode modes[MODES] = {
        {"imbalance_bimodal", ENVS, 2, ALL_READY},
        {"imbalance_four_lanes", ENVS, 4, ALL_READY},
        {"imbalance_narrow_lanes", ENVS / 4, 2, ALL_READY},
        {"imbalance_one_lane", ENVS, 1, ALL_READY},
        {"imbalance_lockstep", ENVS, 2, LOCKSTEP},
        {"imbalance_by_age", ENVS / 2, LANES_MAX, BY_AGE},
        {"imbalance_by_number", ENVS / 2, LANES_MAX, BY_NUMBER},
    };
    static const double targets[MODES] = {0.93, NAN, NAN, NAN, NAN, NAN, NAN};
    struct farm_bench bench = {
        .name = "imbalance",
        .about =
            "Environments with rare long steps and long resets: the farm with several lanes, with one lane, and in\n"
            "lockstep, against the sum of the work. Answers take 100 us, as a GPU's would."};
    double ideal[ROUNDS], rates[MODES][ROUNDS], slowest[MODES][ROUNDS];
    farm_bench_start(&bench, argc, argv, 20);
    const int cpus = farm_bench_cpus();
    const uint32_t actors = cpus < ACTORS_MAX ? (uint32_t)cpus : ACTORS_MAX;
    const double turn = bench.seconds / (ROUNDS * (1 + 1.2 * MODES));
    alarm((unsigned)(bench.seconds + PATIENCE_NS / 1000000000 + 20));
    farm_log_set_level(FARM_LOG_ERROR);
    prctl(PR_SET_TIMERSLACK, 1);
    calibrate();
    ask_for_short_turns();
    for (int r = 0; r < ROUNDS; r++) {
        ideal[r] = run_ideal(actors, turn);
        for (int m = 0; m < MODES; m++) {
            const struct outcome outcome = run_farm(actors, &modes[m], turn);
            rates[m][r] = outcome.rate;
            slowest[m][r] = outcome.slowest;
        }
    }
    for (int m = 0; m < MODES; m++)
        farm_bench_add(&bench, modes[m].name, "steps/s", "higher", rates[m], ROUNDS, "bare loops on all CPUs at once",
                       ideal, ROUNDS, targets[m]);
    farm_bench_add(&bench, "imbalance_slowest_lane", "share of the mean lane", "higher", slowest[MODES - 2], ROUNDS,
                   "served by number instead of by age", slowest[MODES - 1], ROUNDS, NAN);
    return farm_bench_finish(&bench);
}
