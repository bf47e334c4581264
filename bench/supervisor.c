// How long a farm of 1,000 actors takes to start: from farm_supervisor_run to the first step of the last actor, through
// the real supervisor and the real actors, each with its ring (native/catch, 1 lane x 1 environment x 8 steps; the
// rings are made before, and count in what a fork has to copy). The reference is 1,000 bare forks of the same process
// while it has no rings, to the last child's first instruction; by turns with ours. Nobody is pinned and nobody learns:
// a first step needs no answer.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor/actor.h"
#include "base/log.h"
#include "base/time.h"
#include "common.h"
#include "shm/limits.h"
#include "supervisor/supervisor.h"

enum {
    ACTORS = 1000,
    ROUNDS_MAX = 5,
    STEPS = 8,
    DESCRIPTORS = 8, // an actor costs the supervisor: both segments twice, its pidfd, its output
    LOOK_US = 200,
    PATIENCE_S = 30,
};

struct start {
    struct farm_ring rings[ACTORS];
    struct farm_actor_config actors[ACTORS];
    int keep[ACTORS][3];
    int bell;
    uint64_t running_ns; // when the last actor's first step was seen
    uint64_t limit_ns;
};

static void must(enum farm_status status, const struct farm_error *err) {
    if (!status) return;
    fprintf(stderr, "supervisor: %s\n", err->message);
    exit(1);
}

// ---- ours ----

static int actor_body(void *context, struct farm_error *err) {
    return farm_actor_run(context, err);
}

static void make_rings(struct start *start) {
    struct farm_error err;
    const struct farm_env_api *api = farm_native_env_find("native/catch");
    struct farm_ring_spec spec = {.lanes = 1, .width = 1, .steps = STEPS};
    farm_bench_check(api && !api->spec(&(struct farm_env_config){0}, &spec.env, NULL, 0), "native/catch");
    farm_ring_spec_answers(&spec);
    for (uint32_t a = 0; a < ACTORS; a++) {
        struct farm_ring *ring = &start->rings[a];
        must(farm_ring_create(&spec, a, -1, false, ring, &err), &err);
        start->actors[a] = (struct farm_actor_config){.actor = a,
                                                      .up_fd = ring->up.fd,
                                                      .down_fd = ring->down.fd_readonly,
                                                      .learner_eventfd = start->bell,
                                                      .api = api,
                                                      .seed = 1};
        start->keep[a][0] = ring->up.fd;
        start->keep[a][1] = ring->down.fd_readonly;
        start->keep[a][2] = start->bell;
    }
}

static bool all_have_stepped(const struct start *start) {
    for (int a = 0; a < ACTORS; a++)
        if (!farm_lane_produced(&start->rings[a].lanes[0])) return false;
    return true;
}

static enum farm_supervisor_turn on_tick(void *context) {
    struct start *start = context;
    farm_bench_check(farm_now_ns() < start->limit_ns, "the farm did not start in time");
    if (!all_have_stepped(start)) return FARM_TURN_ON;
    start->running_ns = farm_now_ns();
    return FARM_TURN_STOP;
}

// What an unanswered actor leaves: step 0, FIRST, with the ball and the paddle in its picture.
static void check_rings(struct start *start) {
    char text[256];
    for (int a = 0; a < ACTORS; a++) {
        struct farm_ring *ring = &start->rings[a];
        const struct farm_lane *lane = &ring->lanes[0];
        const uint8_t *obs = farm_lane_obs(lane, 0, 0, 0);
        size_t lit = 0;
        for (size_t i = 0; i < lane->obs_bytes[0]; i++) lit += obs[i] != 0;
        farm_bench_check(farm_ring_verify(ring, text, sizeof text) == 0, text);
        farm_bench_check(farm_lane_produced(lane) == 1 && (farm_lane_flags(lane, 0)[0] & FARM_STEP_FIRST) && lit > 0,
                         "an actor's first step");
    }
}

// Milliseconds from the start to the last actor's first step.
static double start_farm(struct start *start) {
    const struct farm_supervisor_config config = {.context = start, .on_tick = on_tick, .tick_ms = 1};
    struct farm_supervisor *supervisor;
    struct farm_error err;
    int signal_number;
    must(farm_supervisor_make(&config, &supervisor, &err), &err);
    for (int a = 0; a < ACTORS; a++) {
        struct farm_worker_spec worker = {.body = actor_body,
                                          .context = &start->actors[a],
                                          .keep = start->keep[a],
                                          .keep_count = 3,
                                          .memory_node = -1};
        snprintf(worker.name, sizeof worker.name, "actor %d", a);
        must(farm_supervisor_add(supervisor, &worker, &err), &err);
    }
    const uint64_t from = farm_now_ns();
    start->limit_ns = from + PATIENCE_S * 1000000000ull;
    must(farm_supervisor_run(supervisor, &signal_number, &err), &err);
    if (signal_number) exit(128 + signal_number);
    for (int a = 0; a < ACTORS; a++)
        farm_bench_check(farm_supervisor_restarts(supervisor, (size_t)a) == 0, "no deaths");
    farm_supervisor_free(supervisor);
    check_rings(start);
    return (double)(start->running_ns - from) * 1e-6;
}

// ---- bare forks ----

static double start_bare(uint32_t *born) {
    pid_t pids[ACTORS];
    *born = 0;
    const uint64_t from = farm_now_ns();
    for (int a = 0; a < ACTORS; a++) {
        pids[a] = fork();
        farm_bench_check(pids[a] >= 0, "fork");
        if (pids[a]) continue;
        farm_add32_release(born, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    while (farm_load32_acquire(born) < ACTORS) usleep(LOOK_US);
    const double ms = (double)(farm_now_ns() - from) * 1e-6;
    for (int a = 0; a < ACTORS; a++) kill(pids[a], SIGKILL);
    for (int a = 0; a < ACTORS; a++) farm_bench_check(waitpid(pids[a], NULL, 0) == pids[a], "waitpid");
    return ms;
}

int main(int argc, char **argv) {
    struct farm_bench bench = {.name = "supervisor",
                               .about = "The start of a farm of 1,000 actors against 1,000 bare forks."};
    static struct start start;
    double ours[ROUNDS_MAX], bare[ROUNDS_MAX];
    struct farm_error err;
    farm_bench_start(&bench, argc, argv, 30);
    farm_log_set_level(FARM_LOG_ERROR);
    const struct farm_limits_request limits = {.descriptors = ACTORS * DESCRIPTORS + 64};
    must(farm_limits_check(&limits, &err), &err);
    uint32_t *born = mmap(NULL, sizeof *born, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    start.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    farm_bench_check(born != MAP_FAILED && start.bell >= 0, "set-up");

    const uint64_t from = farm_now_ns();
    size_t rounds = 0;
    double spent_s = 0;
    while (rounds < ROUNDS_MAX && (rounds == 0 || spent_s * (double)(rounds + 1) / (double)rounds < bench.seconds)) {
        bare[rounds] = start_bare(born);
        make_rings(&start);
        ours[rounds++] = start_farm(&start);
        for (int a = 0; a < ACTORS; a++) farm_ring_close(&start.rings[a]);
        spent_s = (double)(farm_now_ns() - from) * 1e-9;
    }
    farm_bench_add(&bench, "start_1000_actors", "ms", "lower", ours, rounds, "1,000 bare forks", bare, rounds, NAN);
    return farm_bench_finish(&bench);
}
