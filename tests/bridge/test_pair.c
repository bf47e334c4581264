// A hub and a node over TCP on loopback: both engines, in the clear and by TLS, both answer modes, small and large
// steps, connections closed with bytes in flight.
#include <errno.h>
#include <stdio.h>

#include "base/log.h"
#include "base/time.h"
#include "loopback.h"
#include "world.h"

TestSuite(pair, .timeout = 60);

static const struct farm_key KEY = {.kind = FARM_KEY_LEARNER, .secret = {1, 2, 3}};
static struct farm_key node_key;
static struct world *world;
static int listener;
static char address[32];

// After `listener` listens at this port, in network byte order.
static void make_pair_at(in_port_t port, const char *engine, bool encrypted, enum farm_answers answers, uint32_t pixels,
                         uint32_t ring_steps) {
    farm_log_set_level(FARM_LOG_ERROR);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(port));
    world = calloc(1, sizeof *world);
    world_spec(world, 3, 4, pixels, ring_steps);
    world->offer.spec.answers = world->node_spec.answers = answers;
    if (encrypted && answers == FARM_ANSWERS_CENTRAL) {
        farm_ring_spec_control(&world->offer.spec);
        farm_ring_spec_control(&world->node_spec);
    }
    world->held = 5;
    world->weights = answers == FARM_ANSWERS_LOCAL ? 150000 : 0; // three chunks
    world->hub_config.listener = listener;
    world->node_config.address = address;
    world->hub_config.engine = world->node_config.engine = engine;
    cr_assert(farm_key_derive(&KEY, "node", &node_key));
    world->hub_config.key = encrypted ? &KEY : NULL;
    world->node_config.key = encrypted ? &node_key : NULL;
    world_make(world, 2);
}

static void make_pair(const char *engine, bool encrypted, enum farm_answers answers, uint32_t pixels,
                      uint32_t ring_steps) {
    struct sockaddr_in at;
    listener = listen_on_loopback(&at);
    make_pair_at(at.sin_port, engine, encrypted, answers, pixels, ring_steps);
}

static void run_to(uint64_t steps) {
    const uint64_t start = farm_now_ns();
    while (!world_done(world, steps)) {
        const uint64_t now = farm_now_ns();
        if (!world_turn(world, steps, now)) farm_node_wait(world->node, 100000);
        cr_assert_lt(now - start, 20000000000u, "%s", farm_node_why(world->node));
    }
}

static void free_pair(void) {
    world_free(world);
    close(listener);
    free(world);
}

static const struct {
    const char *engine;
    bool encrypted;
    enum farm_answers answers;
    uint32_t pixels;
    uint64_t steps;
} flows[] = {
    {"poll", false, FARM_ANSWERS_CENTRAL, 100, 2000},  {"poll", true, FARM_ANSWERS_CENTRAL, 7056, 500},
    {"poll", false, FARM_ANSWERS_LOCAL, 100, 2000},    {"poll", true, FARM_ANSWERS_CENTRAL, 100000, 20},
    {"poll", false, FARM_ANSWERS_CENTRAL, 100000, 20}, {"uring", false, FARM_ANSWERS_CENTRAL, 7056, 500},
    {"uring", true, FARM_ANSWERS_CENTRAL, 7056, 500},  {"uring", true, FARM_ANSWERS_LOCAL, 7056, 500},
};

Test(pair, carries_every_step_once_and_in_order) {
    for (size_t f = 0; f < sizeof flows / sizeof *flows; f++) {
        make_pair(flows[f].engine, flows[f].encrypted, flows[f].answers, flows[f].pixels, 16);
        run_to(flows[f].steps);
        cr_assert_eq(farm_node_state(world->node), FARM_NODE_JOINED);
        cr_assert_eq(farm_node_actors(world->node)[1], 11);
        cr_assert_eq(world->node_stats.node[0].connections, 1);
        free_pair();
    }
}

Test(pair, loses_and_repeats_nothing_when_hub_or_node_is_replaced) {
    for (int flow = 0; flow < 4; flow++) {
        make_pair(flow & 1 ? "uring" : "poll", flow & 2, FARM_ANSWERS_CENTRAL, 20000, 16);
        for (uint64_t cut = 0, steps = 0; cut < 10; cut++) {
            for (run_to(steps += 10); world->taken[0][0] < steps + cut;) world_turn(world, UINT64_MAX, farm_now_ns());
            steps = world->taken[0][0];
            if (cut % 2)
                world_replace_hub(world);
            else
                world_replace_node(world);
        }
        run_to(world->taken[0][0] + 10);
        cr_assert_eq(world->node_stats.node[0].connections, 11);
        free_pair();
    }
}

static void answer_lane(uint32_t l) {
    struct farm_lane *lane = &world->learner[0].lanes[l];
    const uint64_t n = farm_lane_acted(lane);
    for (uint32_t e = 0; e < lane->width; e++) *(int32_t *)farm_lane_action(lane, n, e) = world_action(0, l, n, e);
    *farm_lane_version(lane, n) = n / 5;
    farm_lane_answer(lane, n);
    farm_learner_notify(&world->learner[0]);
    world->taken[0][l]++;
}

// The learner sees that the hub is awake, and does not wake it; the hub sees that its connection sends, and sleeps.
static void answer_while_sending(const char *engine) {
    const uint64_t steps = 50, long_ns = 10000000000u;
    make_pair(engine, false, FARM_ANSWERS_CENTRAL, 1000, 256);
    run_to(steps);
    world_publish_steps(world, steps + 1);
    for (bool both = false; !both;) {
        farm_node_turn(world->node, farm_now_ns());
        farm_hub_turn(world->hub, farm_now_ns());
        both = farm_lane_produced(&world->learner[0].lanes[0]) > steps &&
               farm_lane_produced(&world->learner[0].lanes[1]) > steps;
    }
    answer_lane(0);
    while (farm_hub_turn(world->hub, farm_now_ns())) continue; // sends it
    answer_lane(1);
    const uint64_t start = farm_now_ns();
    farm_hub_sleep(world->hub, long_ns);
    cr_assert_lt(farm_now_ns() - start, long_ns / 2, "the answer waited until the sleep ended");
    run_to(steps + 1);
    free_pair();
}

Test(pair, an_answer_that_comes_while_another_is_sent_wakes_the_hub) {
    answer_while_sending("uring");
    answer_while_sending("poll");
}

// ---- strangers ----

// Listens for IPv4 and IPv6, as `--listen [::]:PORT` does. Returns the port in network byte order; 0: no IPv6 here.
static in_port_t listen_for_both(void) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6};
    socklen_t bytes = sizeof at;
    listener = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0) return 0;
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&at, bytes) || listen(listener, 128)) return 0;
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
    return at.sin6_port;
}

// Connects to the listener from this address of the loopback interface; the hub accepts later.
static int dial_from(const char *from, in_port_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in own = {.sin_family = AF_INET}, to = own;
    own.sin_addr.s_addr = inet_addr(from);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = port;
    cr_assert_eq(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool closed_by_hub(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

static uint32_t count_closed(const int *fds, uint32_t count) {
    uint32_t closed = 0;
    for (uint32_t i = 0; i < count; i++) closed += closed_by_hub(fds[i]);
    return closed;
}

Test(pair, strangers_of_one_host_do_not_close_those_of_another) {
    enum { MANY = 80, OPEN_MAX = 16 }; // OPEN_MAX: of one host, as docs/WIRE.md says
    const in_port_t port = listen_for_both();
    int many[MANY];
    if (!port) cr_skip_test("no IPv6 here");
    make_pair_at(port, "poll", false, FARM_ANSWERS_CENTRAL, 100, 16);
    run_to(5);
    const int other = dial_from("127.0.0.3", port);
    for (uint32_t i = 0; i < MANY; i++) many[i] = dial_from("127.0.0.2", port);
    uint64_t now = farm_now_ns(), limit = now + 4000000; // 4 ms of the hub's time, before it closes silent strangers
    for (; count_closed(many, MANY) < MANY - OPEN_MAX && !closed_by_hub(other) && now < limit; now += 1000) {
        farm_hub_turn(world->hub, now);
        farm_hub_wait(world->hub, 1000000);
    }
    cr_expect_not(closed_by_hub(other), "the only stranger of its host is closed");
    cr_expect_eq(count_closed(many, MANY), MANY - OPEN_MAX);
    for (uint32_t i = 0; i < MANY; i++) close(many[i]);
    close(other);
    run_to(10);
    free_pair();
}
