// A network that misbehaves: a proxy on loopback between hub and node, both engines, in the clear and by TLS. The node
// behind it loses and repeats nothing, and a second node of the same hub goes on meanwhile. Time runs fifty times as
// fast as the clock, so that ten seconds' silence is a fifth of one.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/time.h"
#include "world.h"

TestSuite(proxy, .timeout = 120);

static const struct farm_key KEY = {{1, 2, 3}};

enum { PAIRS_MAX = 256, BUFFER_BYTES = 1 << 16, FAULT_EVERY_BYTES = 30000, HASTE = 50, STEP_NS_MAX = 100000000 };
enum fault { CUT, HOLE, STALL, THROTTLE, SINGLE_BYTES, REPLAY, DUPLICATE, FAULTS };
static const char *const names[FAULTS] = {"cut", "hole", "stall", "throttle", "single bytes", "replay", "duplicate"};

struct pair {
    int fd[2]; // of the node, of the hub; -1: closed
    uint8_t held[2][BUFFER_BYTES];
    size_t bytes[2];
    bool hole;
};

struct proxy {
    int listener;
    struct sockaddr_in hub;
    enum fault fault;
    struct pair *pairs[PAIRS_MAX];
    uint32_t count, faults;
    uint64_t through, stalled_until_ns;
};

static int listen_somewhere(struct sockaddr_in *at) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert(bind(fd, (struct sockaddr *)at, length) == 0 && listen(fd, 64) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)at, &length), 0);
    return fd;
}

static struct pair *add_pair(struct proxy *proxy, int node) {
    struct pair *pair = calloc(1, sizeof *pair);
    cr_assert(pair && proxy->count < PAIRS_MAX);
    pair->fd[0] = node;
    pair->fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(pair->fd[1], (struct sockaddr *)&proxy->hub, sizeof proxy->hub), 0);
    fcntl(pair->fd[1], F_SETFL, O_NONBLOCK);
    for (int k = 0; k < 2; k++) setsockopt(pair->fd[k], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return proxy->pairs[proxy->count++] = pair;
}

static void cut(struct pair *pair) {
    for (int k = 0; k < 2; k++) {
        if (pair->fd[k] >= 0) close(pair->fd[k]);
        pair->fd[k] = -1;
    }
}

// Of bytes on their way from the node (0) or the hub (1).
static void strike(struct proxy *proxy, struct pair *pair, int from, uint64_t now_ns) {
    struct pair *second;
    proxy->faults++;
    switch (proxy->fault) {
    case CUT:
        cut(pair);
        break;
    case HOLE:
        pair->hole = true;
        break;
    case STALL:
        proxy->stalled_until_ns = now_ns + 3000000000;
        break;
    case REPLAY: // what was just sent, again
        if (send(pair->fd[!from], pair->held[from], pair->bytes[from] / 2 + 1, MSG_NOSIGNAL) < 0) cut(pair);
        break;
    case DUPLICATE: // a second connection that brings the same bytes, as far as they are at hand
        second = add_pair(proxy, -1);
        (void)!send(second->fd[1], pair->held[0], pair->bytes[0], MSG_NOSIGNAL);
        break;
    default:
        break;
    }
}

static void pump(struct proxy *proxy, struct pair *pair, int from, uint64_t now_ns) {
    const size_t most = proxy->fault == SINGLE_BYTES ? 1 : proxy->fault == THROTTLE ? 700 : BUFFER_BYTES;
    uint8_t *held = pair->held[from];
    size_t *bytes = &pair->bytes[from];
    if (pair->fd[0] < 0 || pair->fd[1] < 0 || pair->hole) return;
    if (*bytes < most) {
        const ssize_t got = recv(pair->fd[from], held + *bytes, most - *bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            cut(pair);
            return;
        }
        if (got > 0) *bytes += (size_t)got;
    }
    if (!*bytes) return;
    const uint64_t before = proxy->through / FAULT_EVERY_BYTES;
    proxy->through += *bytes;
    if (proxy->through / FAULT_EVERY_BYTES != before) strike(proxy, pair, from, now_ns);
    if (pair->fd[0] < 0 || pair->hole) return;
    const ssize_t put = send(pair->fd[!from], held, *bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN) cut(pair);
    if (put > 0) memmove(held, held + put, *bytes -= (size_t)put);
}

static void turn(struct proxy *proxy, uint64_t now_ns) {
    const int node = accept4(proxy->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (node >= 0) add_pair(proxy, node);
    if (now_ns < proxy->stalled_until_ns) return;
    for (uint32_t i = 0; i < proxy->count; i++)
        for (int k = 0; k < (proxy->fault == SINGLE_BYTES ? 64 : 2); k++) pump(proxy, proxy->pairs[i], k & 1, now_ns);
}

static void prepare(struct world *world, const char *engine, bool sealed, const char *address) {
    world_spec(world, 2, 2, 500, 16);
    world->hub_config.engine = world->node_config.engine = engine;
    world->hub_config.key = world->node_config.key = sealed ? &KEY : NULL;
    world->node_config.address = address;
}

static void play(const char *engine, bool sealed, enum fault fault) {
    static struct world first, other;
    struct sockaddr_in at;
    struct proxy proxy = {.fault = fault};
    char direct[32], behind[32];
    memset(&first, 0, sizeof first);
    memset(&other, 0, sizeof other);
    farm_log_set_level(FARM_LOG_ERROR);
    proxy.listener = listen_somewhere(&at);
    snprintf(behind, sizeof behind, "127.0.0.1:%u", ntohs(at.sin_port));
    const int listener = listen_somewhere(&proxy.hub);
    snprintf(direct, sizeof direct, "127.0.0.1:%u", ntohs(proxy.hub.sin_port));
    prepare(&first, engine, sealed, behind);
    prepare(&other, engine, sealed, direct);
    first.hub_config.listener = listener;
    world_make(&first, 1);
    world_make_other(&other, &first, 1);
    const uint64_t start_ns = farm_now_ns();
    uint64_t steps = 20, now_ns = start_ns, before_ns = start_ns;
    while (proxy.faults < 2 || other.taken[0][0] < 200 || !world_done(&first, steps)) {
        const uint64_t clock_ns = farm_now_ns(), step_ns = HASTE * (clock_ns - before_ns);
        before_ns = clock_ns;
        now_ns += step_ns < STEP_NS_MAX ? step_ns : STEP_NS_MAX; // this process may have been stopped
        if (world_done(&first, steps)) steps += 20;
        const bool busy = world_turn(&first, UINT64_MAX, now_ns);
        turn(&proxy, now_ns);
        if (!busy) usleep(200);
        cr_assert_lt(clock_ns - start_ns, 30000000000u, "%s %s %d: %u faults, %s", names[fault], engine, sealed,
                     proxy.faults, farm_node_why(first.node));
    }
    const uint64_t connections = other.node_stats.node[0].connections;
    cr_expect_eq(connections, 1, "the other node was cut %llu times", (unsigned long long)connections);
    world_free(&first);
    for (uint32_t i = 0; i < proxy.count; i++) {
        cut(proxy.pairs[i]);
        free(proxy.pairs[i]);
    }
    close(listener);
    close(proxy.listener);
}

static void play_all(const char *engine) {
    for (enum fault fault = 0; fault < FAULTS; fault++)
        for (int sealed = 0; sealed < 2; sealed++) play(engine, sealed, fault);
}

Test(proxy, a_bad_network_loses_nothing_and_leaves_the_other_node_alone_by_poll) {
    play_all("poll");
}
Test(proxy, a_bad_network_loses_nothing_and_leaves_the_other_node_alone_by_uring) {
    play_all("uring");
}
