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

static void play(const char *engine, bool sealed, enum farm_answers answers, uint32_t pixels, uint64_t steps) {
    char address[64];
    world = calloc(1, sizeof *world);
    world_spec(world, 3, 4, pixels, 16);
    world->offer.spec.answers = world->node_spec.answers = answers;
    world->held = 5;
    const int listener = world->hub_config.listener = listen_somewhere(address, sizeof address);
    world->node_config.address = address;
    world->hub_config.engine = world->node_config.engine = engine;
    world->hub_config.key = world->node_config.key = sealed ? &KEY : NULL;
    world_make(world, 2);
    const uint64_t start = farm_now_ns();
    while (!world_done(world, steps)) {
        const uint64_t now = farm_now_ns();
        if (!world_turn(world, steps, now)) farm_node_wait(world->node, 100000);
        cr_assert_lt(now - start, 20000000000u, "%s", farm_node_why(world->node));
    }
    cr_assert_eq(farm_node_state(world->node), FARM_NODE_JOINED);
    cr_assert_eq(farm_node_actors(world->node)[1], 11);
    cr_assert_eq(world->node_stats.node[0].connections, 1);
    world_free(world);
    close(listener);
    free(world);
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
