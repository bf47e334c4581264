// A hub and a node over TCP on loopback: both engines, in the clear and by TLS, both modes, small and large steps.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>

#include "base/time.h"
#include "world.h"

static struct world *world;
static const struct farm_key KEY = {{1, 2, 3}};

static int listen_somewhere(char *address, size_t bytes) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, length), 0);
    cr_assert_eq(listen(fd, 16), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    snprintf(address, bytes, "127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

static int listener;
static char address[64];

static void begin(const char *engine, bool sealed, uint32_t rings) {
    listener = world->hub_config.listener = listen_somewhere(address, sizeof address);
    world->node_config.address = address;
    world->hub_config.engine = world->node_config.engine = engine;
    world->hub_config.key = world->node_config.key = sealed ? &KEY : NULL;
    world_make(world, rings);
}

static void play_on(uint64_t steps) {
    const uint64_t start = farm_now_ns();
    while (!world_done(world, steps)) {
        const uint64_t now = farm_now_ns();
        if (!world_turn(world, steps, now)) farm_node_wait(world->node, 100000);
        cr_assert_lt(now - start, 20000000000u, "%s", farm_node_why(world->node));
    }
}

static void end(void) {
    world_free(world);
    close(listener);
    free(world);
}

static void play(const char *engine, bool sealed, enum farm_answers answers, uint32_t pixels, uint64_t steps) {
    world = calloc(1, sizeof *world);
    world_spec(world, 3, 4, pixels, 16);
    world->offer.spec.answers = world->node_spec.answers = answers;
    world->held = 5;
    begin(engine, sealed, 2);
    play_on(steps);
    cr_assert_eq(farm_node_state(world->node), FARM_NODE_JOINED);
    cr_assert_eq(farm_node_actors(world->node)[1], 11);
    cr_assert_eq(world->node_stats.node[0].connections, 1);
    end();
}

Test(pair, carries_every_step_once_and_in_order_by_poll) {
    play("poll", false, FARM_ANSWERS_CENTRAL, 100, 2000);
}
Test(pair, carries_every_step_by_poll_sealed) {
    play("poll", true, FARM_ANSWERS_CENTRAL, 7056, 500);
}
Test(pair, carries_answers_of_the_actors_own) {
    play("poll", false, FARM_ANSWERS_LOCAL, 100, 2000);
}
Test(pair, carries_a_step_larger_than_a_frame) {
    play("poll", true, FARM_ANSWERS_CENTRAL, 100000, 20);
    play("poll", false, FARM_ANSWERS_CENTRAL, 100000, 20);
}
Test(pair, carries_every_step_by_uring) {
    play("uring", false, FARM_ANSWERS_CENTRAL, 7056, 500);
    play("uring", true, FARM_ANSWERS_CENTRAL, 7056, 500);
    play("uring", true, FARM_ANSWERS_LOCAL, 7056, 500);
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
static void is_not_passed_over(const char *engine) {
    const uint64_t steps = 50, long_ns = 10000000000u;
    world = calloc(1, sizeof *world);
    world_spec(world, 2, 2, 1000, 256);
    begin(engine, false, 1);
    play_on(steps);
    world_act(world, steps + 1);
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
    farm_hub_announce(world->hub, true);
    farm_fence_full();
    if (!farm_hub_look(world->hub)) farm_hub_wait(world->hub, long_ns);
    farm_hub_announce(world->hub, false);
    cr_assert_lt(farm_now_ns() - start, long_ns / 2, "the answer waits until the sleep is over");
    play_on(steps + 1);
    end();
}

Test(pair, an_answer_that_comes_while_another_is_sent_wakes_the_hub) {
    is_not_passed_over("uring");
    is_not_passed_over("poll");
}
