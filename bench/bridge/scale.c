// See scale.h.
#include "scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../common.h"
#include "base/log.h"
#include "base/time.h"
#include "bridge/node.h"
#include "host.h"

enum { SESSIONS = 64, RINGS = 4, LANES = 64, PIXELS = 400, STEPS = 8, NODE_STEPS = 4, MS = 1000000 };
static const uint64_t LIMIT_NS = 30000000000u;

struct page {
    uint64_t port, end;
    struct bench_scale scale;
};

// ---- the learner's side ----

struct learner {
    struct bench_host host;
    struct farm_hub *hub;
    uint64_t bells[SESSIONS * RINGS]; // seen
    uint32_t steps[SESSIONS * RINGS][LANES];
    uint64_t lane_steps, answering_ns;
};

static void answer_ring(struct learner *learner, uint32_t r) {
    for (uint32_t l = 0; l < LANES; l++) {
        struct farm_lane *lane = &learner->host.view[r].lanes[l];
        const uint64_t n = farm_lane_acted(lane);
        uint64_t stamp;
        if (farm_lane_produced(lane) == n) continue;
        memcpy(&stamp, farm_lane_obs(lane, 0, n, 0), sizeof stamp);
        farm_bench_check(stamp == n, "a step's stamp");
        *(int32_t *)farm_lane_action(lane, n, 0) = (int32_t)n;
        *farm_lane_version(lane, n) = n;
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n + 1);
        learner->steps[r][l]++;
        learner->lane_steps++;
    }
}

static bool learn(struct learner *learner) {
    const uint64_t start = farm_now_ns();
    bool any = false;
    for (uint32_t r = 0; r < learner->host.session_count * RINGS; r++) {
        const uint64_t bell = farm_load_acquire(&learner->host.view[r].up_control->doorbell);
        if (bell == learner->bells[r]) continue;
        learner->bells[r] = bell;
        answer_ring(learner, r);
        any = true;
    }
    learner->answering_ns += farm_now_ns() - start;
    return any;
}

static void turn(struct learner *learner) {
    bool busy = farm_hub_turn(learner->hub, farm_now_ns());
    if (learner->host.session_count < SESSIONS || learner->lane_steps < SESSIONS * RINGS * LANES)
        busy |= bench_host_turn(&learner->host);
    busy |= learn(learner);
    if (!busy) farm_hub_wait(learner->hub, 10 * MS);
}

static bool all_play(const struct learner *learner) {
    for (uint32_t r = 0; r < SESSIONS * RINGS; r++)
        for (uint32_t l = 0; l < LANES; l++)
            if (!learner->steps[r][l]) return false;
    return true;
}

// Pages that are this process's alone.
static double own_mb(void) {
    long size = 0, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) resident = shared = 0;
    if (file) fclose(file);
    return (double)(resident - shared) * (double)sysconf(_SC_PAGESIZE) * 1e-6;
}

static void learner_side(const struct bench_net *net, const char *engine, double seconds, struct page *page) {
    static struct learner side;
    struct farm_error err;
    const double before_mb = own_mb();
    bench_offer_make(LANES, 1, PIXELS, STEPS, &side.host.offer);
    bench_host_make(&side.host, net, RINGS, true, engine);
    farm_bench_must(farm_hub_make(&side.host.config, &side.hub, &err), &err);
    farm_store_release(&page->port, ntohs(side.host.address.sin_port));
    const uint64_t begun = farm_now_ns();
    while (!all_play(&side)) {
        farm_bench_check(farm_now_ns() - begun < LIMIT_NS, "all lanes play");
        turn(&side);
    }
    page->scale.join_s = (double)(farm_now_ns() - begun) * 1e-9;
    memset(side.steps, 0, sizeof side.steps);
    const uint64_t start = farm_now_ns(), cpu = farm_thread_cpu_ns(), answering = side.answering_ns,
                   from = side.lane_steps;
    while (farm_now_ns() - start < (uint64_t)(seconds * 1e9)) turn(&side);
    const double steps = (double)(side.lane_steps - from);
    page->scale.lane_steps_per_s = steps / ((double)(farm_now_ns() - start) * 1e-9);
    page->scale.cpu_ns = (double)(farm_thread_cpu_ns() - cpu - (side.answering_ns - answering)) / steps;
    page->scale.memory_mb = own_mb() - before_mb;
    page->scale.ring_mb =
        (double)SESSIONS * RINGS * (double)(side.host.made[0].up.bytes + side.host.made[0].down.bytes) * 1e-6;
    uint32_t slowest = UINT32_MAX;
    for (uint32_t r = 0; r < SESSIONS * RINGS; r++)
        for (uint32_t l = 0; l < LANES; l++)
            if (side.steps[r][l] < slowest) slowest = side.steps[r][l];
    page->scale.slowest = slowest / (steps / (SESSIONS * RINGS * LANES));
    farm_store_release(&page->end, 1);
    farm_hub_free(side.hub);
}

// ---- all nodes ----

struct generator {
    struct farm_node *node;
    struct farm_ring made[RINGS], view[RINGS];
};

static void make_node(struct generator *generator, const char *address, const char *engine, uint32_t number) {
    static struct farm_wire_offer offer;
    struct farm_error err;
    int fds[RINGS][2];
    bench_offer_make(LANES, 1, PIXELS, NODE_STEPS, &offer);
    for (uint32_t r = 0; r < RINGS; r++) {
        struct farm_ring *made = &generator->made[r];
        farm_bench_must(farm_ring_create(&offer.spec, r, -1, true, made, &err), &err);
        farm_bench_must(
            farm_ring_open(dup(made->up.fd), dup(made->down.fd_readonly), FARM_RING_ACTOR, &generator->view[r], &err),
            &err);
        farm_ring_populate(&generator->view[r]);
        fds[r][0] = dup(made->up.fd_readonly);
        fds[r][1] = dup(made->down.fd);
    }
    const struct farm_node_config config = {.address = address,
                                            .key = &bench_key,
                                            .session = {1, (uint8_t)number},
                                            .name = "load",
                                            .ring_fds = (const int(*)[2])fds,
                                            .ring_count = RINGS,
                                            .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                            .engine = engine,
                                            .seed = number};
    farm_bench_must(farm_node_make(&config, &generator->node, &err), &err);
}

static bool act(struct generator *generator) {
    bool any = false;
    for (uint32_t r = 0; r < RINGS; r++) {
        for (uint32_t l = 0; l < LANES; l++) {
            struct farm_lane *lane = &generator->view[r].lanes[l];
            const uint64_t n = farm_lane_actor_next(lane);
            if (!farm_lane_actor_answered(lane) || !farm_lane_actor_can_write(lane)) continue;
            if (n) farm_bench_check(*(int32_t *)farm_lane_action(lane, n - 1, 0) == (int32_t)(n - 1), "an answer");
            memcpy(farm_lane_obs(lane, 0, n, 0), &n, sizeof n);
            *farm_lane_reward(lane, n) = 0;
            *farm_lane_flags(lane, n) = n ? 0 : FARM_STEP_FIRST;
            farm_lane_actor_publish(lane);
            any = true;
        }
    }
    return any;
}

static void node_side(const struct bench_net *net, const char *engine, struct page *page) {
    static struct generator all[SESSIONS];
    char address[64];
    while (!farm_load_acquire(&page->port)) usleep(200);
    snprintf(address, sizeof address, "%s:%u", net->address[BENCH_LEARNER], (unsigned)page->port);
    for (uint32_t s = 0; s < SESSIONS; s++) make_node(&all[s], address, engine, s);
    while (!farm_load_acquire(&page->end)) {
        bool busy = false;
        for (uint32_t s = 0; s < SESSIONS; s++) {
            busy |= act(&all[s]);
            busy |= farm_node_turn(all[s].node, farm_now_ns());
        }
        if (!busy) usleep(100);
    }
    _exit(0);
}

void bench_scale_run(const struct bench_net *net, const char *engine, double seconds, struct bench_scale *scale) {
    struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[BENCH_SIDES];
    farm_bench_check(page != MAP_FAILED, "shared memory");
    for (int side = 0; side < BENCH_SIDES; side++) {
        pids[side] = bench_net_fork(net, (enum bench_side)side);
        if (pids[side]) continue;
        farm_log_set_level(FARM_LOG_ERROR);
        if (side == BENCH_LEARNER)
            learner_side(net, engine, seconds, page);
        else
            node_side(net, engine, page);
        _exit(0);
    }
    bench_net_join(pids[BENCH_LEARNER], "the learner's side of many nodes");
    bench_net_join(pids[BENCH_NODE], "the nodes");
    *scale = page->scale;
    munmap(page, sizeof *page);
}
