// See pair.h.
#include "pair.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../tests/support/rings.h"
#include "../common.h"
#include "base/bitmap.h"
#include "base/log.h"
#include "base/statistics.h"
#include "base/time.h"
#include "bridge/control.h"
#include "bridge/node.h"
#include "bridge/step.h"
#include "flood.h"
#include "host.h"
#include "kernels/random.h"

enum { RINGS_MAX = 16, NODE_STEPS = 4, TRIPS_MAX = 1 << 19, MS = 1000000 };
static const uint64_t LIMIT_NS = 30000000000u;

// Shared by both sides and the parent; each word has one writer.
struct page {
    uint64_t port, begin, end;
    uint64_t down_wanted, down_is; // states of the link, counted; odd: down
    struct bench_pair_result result;
    uint64_t trips;
    uint32_t trip_ns[TRIPS_MAX];
};

static uint8_t pixel(uint32_t env, size_t i) {
    return (uint8_t)(env * 31 + i * 7 + (i >> 8));
}

// ---- waiting, as in the bridges' workers ----

// Whether a side that has been idle since *idle_ns (0: it was not) sleeps now.
static bool must_sleep(const struct bench_pair *pair, bool busy, uint64_t *idle_ns) {
    const uint64_t now = busy ? 0 : farm_now_ns();
    if (busy || !*idle_ns) *idle_ns = now;
    if (busy || now - *idle_ns >= pair->spin_ns) return !busy;
    farm_cpu_relax();
    return false;
}

// ---- a side's figures over the measured time ----

struct figures {
    uint64_t cpu_ns, calls, steps;
};

// Steps and calls are written at the same ticks.
static struct figures figures_of(const struct farm_bridge_stats *stats) {
    return (struct figures){farm_thread_cpu_ns(), stats->system_calls, stats->node[0].steps};
}

static void keep_figures(struct bench_pair_result *result, enum bench_side side, struct figures from,
                         struct figures to) {
    result->cpu_ns[side] = to.cpu_ns - from.cpu_ns;
    result->calls[side] = to.calls - from.calls;
    result->call_steps[side] = to.steps - from.steps;
}

// ---- the learner's side ----

struct learner {
    const struct bench_pair *pair;
    struct page *page;
    struct bench_host host;
    struct farm_hub *hub;
    uint64_t *bells; // [rings] seen
    uint64_t *steps; // [rings][lanes] answered
    uint64_t lane_steps, idle_ns, answering_ns;
    uint32_t rings, lanes_playing; // sums over all nodes
};

static void check_step(const struct farm_lane *lane, uint64_t n, bool whole) {
    for (uint32_t e = 0; e < lane->width; e++) {
        const uint8_t *at = farm_lane_obs(lane, 0, n, e);
        uint64_t first, last;
        memcpy(&first, at, sizeof first);
        memcpy(&last, at + lane->obs_bytes[0] - sizeof last, sizeof last);
        must_hold(first == n && last == n && farm_lane_reward(lane, n)[e] == (float)n, "a step's stamps");
        for (size_t i = sizeof first; whole && i < lane->obs_bytes[0] - sizeof last; i++)
            must_hold(at[i] == pixel(e, i), "an observation's bytes");
    }
}

static void answer_ring(struct learner *learner, uint32_t r) {
    for (uint32_t l = 0; l < learner->pair->lanes; l++) {
        struct farm_lane *lane = &learner->host.view[r].lanes[l];
        const uint64_t n = farm_lane_acted(lane);
        if (farm_lane_produced(lane) == n) continue;
        check_step(lane, n, false);
        for (uint32_t e = 0; e < lane->width; e++) *(int32_t *)farm_lane_action(lane, n, e) = (int32_t)(n % 4);
        *farm_lane_version(lane, n) = n;
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n + 1);
        learner->lanes_playing += n == 0;
        learner->steps[r * learner->pair->lanes + l]++;
        learner->lane_steps++;
    }
}

// Answers every step that has arrived.
static bool answer_steps(struct learner *learner) {
    const uint64_t start = farm_now_ns();
    bool any = false;
    for (uint32_t r = 0; r < learner->host.session_count * learner->pair->rings; r++) {
        const uint64_t bell = farm_load_acquire(&learner->host.view[r].up_control->doorbell);
        if (bell == learner->bells[r]) continue;
        learner->bells[r] = bell;
        answer_ring(learner, r);
        any = true;
    }
    learner->answering_ns += farm_now_ns() - start;
    return any;
}

static bool all_play(const struct learner *learner) {
    return learner->lanes_playing == learner->rings * learner->pair->lanes;
}

static void turn_learner(struct learner *learner) {
    bool busy = farm_hub_turn(learner->hub, farm_now_ns());
    if (!all_play(learner) || learner->pair->cuts) bench_host_serve(&learner->host);
    busy |= answer_steps(learner);
    if (must_sleep(learner->pair, busy, &learner->idle_ns)) farm_hub_wait(learner->hub, 20 * MS);
}

static void turn_learner_until(struct learner *learner, uint64_t until_ns) {
    while (farm_now_ns() < until_ns) turn_learner(learner);
}

static void await_join(struct learner *learner) {
    const uint64_t start = farm_now_ns();
    while (!all_play(learner)) {
        must_hold(farm_now_ns() - start < LIMIT_NS, "all lanes play");
        turn_learner(learner);
    }
    learner->page->result.join_s = (double)(farm_now_ns() - start) * 1e-9;
}

static void await_step(struct learner *learner) {
    const uint64_t start = farm_now_ns(), from = learner->lane_steps;
    while (learner->lane_steps == from) {
        must_hold(farm_now_ns() - start < LIMIT_NS, "steps arrive");
        turn_learner(learner);
    }
}

static void make_hub(struct learner *learner) {
    struct farm_error err;
    must(farm_hub_make(&learner->host.config, &learner->hub, &err), &err);
}

// Ends the bridge; a new one starts as soon as the path is back.
static uint64_t cut_bridge(struct learner *learner, uint64_t away_ns) {
    farm_hub_free(learner->hub);
    close(learner->host.config.listener);
    usleep((useconds_t)(away_ns / 1000));
    const uint64_t back_ns = farm_now_ns();
    bench_host_listen(&learner->host);
    farm_control_clear(learner->host.control, learner->host.hub_control);
    bench_host_send_sessions(&learner->host);
    make_hub(learner);
    return back_ns;
}

static void set_link(struct learner *learner, uint64_t to) {
    farm_store_release(&learner->page->down_wanted, to);
    while (farm_load_acquire(&learner->page->down_is) != to) turn_learner(learner);
}

static uint64_t cut_link(struct learner *learner, uint64_t away_ns, uint64_t number) {
    set_link(learner, 2 * number + 1);
    turn_learner_until(learner, farm_now_ns() + away_ns);
    set_link(learner, 2 * number + 2);
    return farm_now_ns();
}

static void measure_cuts(struct learner *learner) {
    const struct bench_pair *pair = learner->pair;
    for (uint32_t c = 0; c < pair->cuts; c++) {
        const uint64_t away_ns =
            (uint64_t)((10 + farm_random_uniform(5, c, 0) * (float)(pair->away_ms - 10)) * (float)MS);
        turn_learner_until(learner, farm_now_ns() + 5 * MS);
        const uint64_t back_ns = pair->link ? cut_link(learner, away_ns, c) : cut_bridge(learner, away_ns);
        await_step(learner);
        learner->page->result.again_ms[c] = (double)(farm_now_ns() - back_ns) * 1e-6;
    }
}

static void measure_time(struct learner *learner) {
    struct bench_pair_result *result = &learner->page->result;
    turn_learner_until(learner, farm_now_ns() + (uint64_t)(learner->pair->warm_s * 1e9));
    farm_store_release(&learner->page->begin, 1);
    const struct figures from = figures_of(learner->host.stats);
    memset(learner->steps, 0, (size_t)learner->rings * learner->pair->lanes * sizeof *learner->steps);
    const uint64_t start = farm_now_ns(), before = learner->lane_steps, answering_ns = learner->answering_ns;
    turn_learner_until(learner, start + (uint64_t)(learner->pair->seconds * 1e9));
    result->ns = farm_now_ns() - start;
    result->lane_steps = learner->lane_steps - before;
    result->payload_bytes = result->lane_steps * farm_step_bytes(&learner->host.view[0].lanes[0]);
    keep_figures(result, BENCH_LEARNER, from, figures_of(learner->host.stats));
    result->answering_ns = learner->answering_ns - answering_ns;
    result->least_lane_steps = UINT64_MAX;
    for (uint32_t i = 0; i < learner->rings * learner->pair->lanes; i++)
        if (learner->steps[i] < result->least_lane_steps) result->least_lane_steps = learner->steps[i];
}

// Pages that belong to this process alone.
static double own_mb(void) {
    long size = 0, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) resident = shared = 0;
    if (file) fclose(file);
    return (double)(resident - shared) * (double)sysconf(_SC_PAGESIZE) * 1e-6;
}

static void run_learner(const struct bench_net *net, const struct bench_pair *pair, struct page *page) {
    static struct learner side;
    const double before_mb = own_mb();
    side.pair = pair;
    side.page = page;
    side.rings = pair->nodes * pair->rings;
    side.bells = calloc(side.rings, sizeof *side.bells);
    side.steps = calloc((size_t)side.rings * pair->lanes, sizeof *side.steps);
    must_hold(side.bells && side.steps, "memory");
    bench_offer_make(pair->lanes, pair->width, pair->pixels, pair->steps, &side.host.offer);
    bench_host_make(&side.host, net, pair->rings, pair->sealed, pair->engine);
    make_hub(&side);
    farm_store_release(&page->port, ntohs(side.host.address.sin_port));
    await_join(&side);
    if (pair->cuts)
        measure_cuts(&side);
    else
        measure_time(&side);
    page->result.bridge_mb = own_mb() - before_mb;
    page->result.ring_mb = side.rings * (double)(side.host.made[0].up.bytes + side.host.made[0].down.bytes) * 1e-6;
    farm_store_release(&page->end, 1);
    for (uint32_t r = 0; r < side.rings; r++)
        for (uint32_t l = 0; l < pair->lanes; l++)
            check_step(&side.host.view[r].lanes[l], farm_lane_acted(&side.host.view[r].lanes[l]) - 1, true);
    farm_hub_free(side.hub);
}

// ---- the nodes' side: all nodes in one process ----

struct node {
    struct farm_node *bridge;
    struct farm_ring made[RINGS_MAX], view[RINGS_MAX];
};

struct nodes {
    const struct bench_pair *pair;
    struct page *page;
    struct farm_bridge_stats stats; // the first node's
    struct node node[BENCH_SESSIONS_MAX];
    uint64_t published_ns, trips, idle_ns;
};

static void fill_with_pixels(struct farm_ring *ring) {
    for (uint32_t l = 0; l < ring->spec.lanes; l++)
        for (uint64_t n = 0; n < NODE_STEPS; n++)
            for (uint32_t e = 0; e < ring->spec.width; e++) {
                uint8_t *at = farm_lane_obs(&ring->lanes[l], 0, n, e);
                for (size_t i = 0; i < ring->lanes[l].obs_bytes[0]; i++) at[i] = pixel(e, i);
            }
}

static void make_node(struct nodes *nodes, uint32_t number, const char *address) {
    static struct farm_wire_offer offer;
    const struct bench_pair *pair = nodes->pair;
    struct node *node = &nodes->node[number];
    struct farm_error err;
    int fds[RINGS_MAX][2];
    bench_offer_make(pair->lanes, pair->width, pair->pixels, NODE_STEPS, &offer);
    for (uint32_t r = 0; r < pair->rings; r++) {
        node->made[r] = make_ring(offer.spec, r, true);
        node->view[r] = open_view(&node->made[r], FARM_RING_ACTOR);
        fill_with_pixels(&node->view[r]);
        lend_ring(&node->made[r], fds[r]);
    }
    const struct farm_node_config config = {.address = address,
                                            .key = pair->sealed ? bench_node_key() : NULL,
                                            .session = {1, (uint8_t)number},
                                            .name = "bench",
                                            .ring_fds = (const int(*)[2])fds,
                                            .ring_count = pair->rings,
                                            .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                            .stats = number ? NULL : &nodes->stats,
                                            .engine = pair->engine,
                                            .seed = 1 + number};
    must(farm_node_make(&config, &node->bridge, &err), &err);
}

static void write_step(struct farm_lane *lane, uint64_t n) {
    for (uint32_t e = 0; e < lane->width; e++) {
        uint8_t *at = farm_lane_obs(lane, 0, n, e);
        memcpy(at, &n, sizeof n);
        memcpy(at + lane->obs_bytes[0] - sizeof n, &n, sizeof n);
        farm_lane_reward(lane, n)[e] = (float)n;
        farm_lane_flags(lane, n)[e] = n ? 0 : FARM_STEP_FIRST;
    }
}

static void note_trip(struct nodes *nodes) {
    const uint64_t now = farm_now_ns();
    if (nodes->published_ns && farm_load_acquire(&nodes->page->begin) && nodes->trips < TRIPS_MAX)
        nodes->page->trip_ns[nodes->trips++] = (uint32_t)(now - nodes->published_ns);
    nodes->published_ns = now;
}

static bool times_trips(const struct bench_pair *pair) {
    return pair->nodes * pair->rings * pair->lanes == 1;
}

// The actors of a node step every lane that is answered.
static bool step_lanes(struct nodes *nodes, struct node *node) {
    bool any = false;
    for (uint32_t r = 0; r < nodes->pair->rings; r++) {
        for (uint32_t l = 0; l < nodes->pair->lanes; l++) {
            struct farm_lane *lane = &node->view[r].lanes[l];
            const uint64_t n = farm_lane_actor_next(lane);
            if (!farm_lane_actor_answered(lane) || !farm_lane_actor_can_write(lane)) continue;
            if (n)
                must_hold(*(int32_t *)farm_lane_action(lane, n - 1, lane->width - 1) == (int32_t)((n - 1) % 4),
                          "an answer");
            write_step(lane, n);
            if (times_trips(nodes->pair)) note_trip(nodes);
            farm_lane_actor_publish(lane);
            any = true;
        }
    }
    return any;
}

static void turn_nodes(struct nodes *nodes) {
    bool busy = false;
    for (uint32_t i = 0; i < nodes->pair->nodes; i++) {
        busy |= step_lanes(nodes, &nodes->node[i]);
        busy |= farm_node_turn(nodes->node[i].bridge, farm_now_ns());
    }
    if (!must_sleep(nodes->pair, busy, &nodes->idle_ns)) return;
    if (nodes->pair->nodes == 1)
        farm_node_wait(nodes->node[0].bridge, 20 * MS);
    else
        usleep(100);
}

static void run_nodes(const struct bench_net *net, const struct bench_pair *pair, struct page *page) {
    static struct nodes nodes;
    char address[64];
    nodes.pair = pair;
    nodes.page = page;
    while (!farm_load_acquire(&page->port)) usleep(200);
    snprintf(address, sizeof address, "%s:%u", net->address[BENCH_LEARNER], (unsigned)page->port);
    for (uint32_t i = 0; i < pair->nodes; i++) make_node(&nodes, i, address);
    while (!farm_load_acquire(&page->begin) && !farm_load_acquire(&page->end)) turn_nodes(&nodes);
    const struct figures from = figures_of(&nodes.stats);
    while (!farm_load_acquire(&page->end)) turn_nodes(&nodes);
    keep_figures(&page->result, BENCH_NODE, from, figures_of(&nodes.stats));
    farm_store_release(&page->trips, nodes.trips);
}

// ---- both ----

static double median_trip(struct page *page) {
    double *all = malloc((page->trips + 1) * sizeof *all);
    must_hold(all && page->trips, "round trips");
    for (uint64_t t = 0; t < page->trips; t++) all[t] = page->trip_ns[t];
    const double median = farm_median(all, page->trips, NULL);
    free(all);
    return median;
}

// Takes the link down and up on the learner's side's request.
static void serve_link(const struct bench_net *net, struct page *page) {
    while (!farm_load_acquire(&page->end)) {
        const uint64_t wanted = farm_load_acquire(&page->down_wanted);
        if (wanted != page->down_is) {
            bench_net_cut(net, wanted % 2);
            farm_store_release(&page->down_is, wanted);
        }
        usleep(500);
    }
}

// Strangers, from before the node joins to the end.
static pid_t start_flood(const struct bench_net *net, const struct bench_pair *pair, struct page *page) {
    const pid_t pid = pair->floods ? bench_net_fork(net, BENCH_NODE) : -1;
    if (pid) return pid;
    while (!farm_load_acquire(&page->port)) usleep(200);
    page->result.flood_hz = bench_flood(net->address[BENCH_LEARNER], (uint16_t)page->port, pair->flood_hz, &page->end);
    _exit(0);
}

void bench_pair_run(const struct bench_net *net, const struct bench_pair *pair, struct bench_pair_result *result) {
    struct page *page = shared_memory(sizeof *page);
    must_hold(pair->nodes <= BENCH_SESSIONS_MAX && pair->rings <= RINGS_MAX && pair->cuts <= BENCH_CUTS_MAX, "shape");
    pid_t pids[BENCH_SIDES];
    for (int side = 0; side < BENCH_SIDES; side++) {
        pids[side] = bench_net_fork(net, (enum bench_side)side);
        if (pids[side]) continue;
        farm_log_set_level(FARM_LOG_ERROR);
        if (pair->beside && net->cpu[BENCH_LEARNER] >= 0) farm_bitmap_pin_to(net->cpu[BENCH_LEARNER], NULL);
        (side == BENCH_LEARNER ? run_learner : run_nodes)(net, pair, page);
        _exit(0);
    }
    const pid_t flood = start_flood(net, pair, page);
    if (pair->link) serve_link(net, page);
    bench_net_join(pids[BENCH_LEARNER], "the learner's side");
    bench_net_join(pids[BENCH_NODE], "the node's side");
    if (flood > 0) bench_net_join(flood, "the flood");
    if (times_trips(pair)) page->result.trip_ns = median_trip(page);
    *result = page->result;
    munmap(page, sizeof *page);
}

// ---- plain sockets ----

static void transfer(int fd, uint8_t *at, size_t bytes, bool out) {
    while (bytes) {
        const ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, MSG_WAITALL);
        if (n <= 0) _exit(0); // the other side has ended
        at += n;
        bytes -= (size_t)n;
    }
}

static void plain_learner(const struct bench_net *net, struct page *page, uint32_t in_bytes, uint32_t back_bytes) {
    struct bench_host host = {.address.sin_family = AF_INET};
    static uint8_t bytes[1 << 20];
    inet_pton(AF_INET, net->address[BENCH_LEARNER], &host.address.sin_addr);
    bench_host_listen(&host);
    farm_store_release(&page->port, ntohs(host.address.sin_port));
    int fd = -1;
    while ((fd = accept(host.config.listener, NULL, NULL)) < 0) usleep(200);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (;;) {
        transfer(fd, bytes, in_bytes, false);
        transfer(fd, bytes, back_bytes, true);
    }
}

static void plain_node(const struct bench_net *net, struct page *page, uint32_t out_bytes, uint32_t back_bytes,
                       double seconds) {
    static uint8_t bytes[1 << 20];
    struct sockaddr_in address = {.sin_family = AF_INET};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (!farm_load_acquire(&page->port)) usleep(200);
    address.sin_port = htons((uint16_t)page->port);
    inet_pton(AF_INET, net->address[BENCH_LEARNER], &address.sin_addr);
    must_hold(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connecting");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    const uint64_t begin = farm_now_ns() + 50 * MS, end = begin + (uint64_t)(seconds * 1e9);
    for (uint64_t now = 0; now < end && page->trips < TRIPS_MAX;) {
        const uint64_t start = farm_now_ns();
        transfer(fd, bytes, out_bytes, true);
        transfer(fd, bytes, back_bytes, false);
        now = farm_now_ns();
        if (start >= begin) page->trip_ns[page->trips++] = (uint32_t)(now - start);
    }
}

double bench_plain_trip(const struct bench_net *net, uint32_t out_bytes, uint32_t back_bytes, double seconds) {
    struct page *page = shared_memory(sizeof *page);
    pid_t pids[BENCH_SIDES];
    for (int side = 0; side < BENCH_SIDES; side++) {
        pids[side] = bench_net_fork(net, (enum bench_side)side);
        if (pids[side]) continue;
        if (side == BENCH_LEARNER)
            plain_learner(net, page, out_bytes, back_bytes);
        else
            plain_node(net, page, out_bytes, back_bytes, seconds);
        _exit(0);
    }
    bench_net_join(pids[BENCH_NODE], "plain sockets");
    bench_net_join(pids[BENCH_LEARNER], "plain sockets");
    const double median = median_trip(page);
    munmap(page, sizeof *page);
    return median;
}
