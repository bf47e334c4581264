// See slow.h.
#include "slow.h"

#include <stdlib.h>

#include "../common.h"
#include "base/time.h"

struct waiting {
    struct iovec *parts; // NULL: nothing waits
    uint32_t count;
    uint64_t bytes, order;
};

struct farm_engine {
    struct farm_engine *inner;
    struct waiting waiting[FARM_ENGINE_SOCKETS_MAX];
    int leaving;             // the socket whose bytes are leaving; -1: none
    uint64_t end_ns, orders; // when the last one has left
};

static const struct bench_slow *slow;

void bench_slow_share(const struct bench_slow *shared) {
    slow = shared;
}

static const struct farm_engine_ops *const inner = &farm_engine_poll;

static enum farm_status create(uint32_t sockets, uint32_t watches, void *context, struct farm_engine **out,
                               struct farm_error *err) {
    struct farm_engine *engine = *out = calloc(1, sizeof *engine);
    must_hold(engine != NULL, "memory");
    engine->leaving = -1;
    return inner->create(sockets, watches, context, &engine->inner, err);
}
static void destroy(struct farm_engine *engine) {
    inner->destroy(engine->inner);
    free(engine);
}
static void watch(struct farm_engine *engine, uint32_t number, int fd) {
    inner->watch(engine->inner, number, fd);
}
static void listen_at(struct farm_engine *engine, int fd) {
    inner->listen(engine->inner, fd);
}
static void open_socket(struct farm_engine *engine, uint32_t socket, int fd) {
    inner->open(engine->inner, socket, fd);
}
static void connect_socket(struct farm_engine *engine, uint32_t socket, const struct sockaddr *address,
                           socklen_t bytes) {
    inner->connect(engine->inner, socket, address, bytes);
}
static void receive(struct farm_engine *engine, uint32_t socket, struct iovec *parts, uint32_t count, size_t least) {
    inner->receive(engine->inner, socket, parts, count, least);
}

static void choose_next(struct farm_engine *engine, uint64_t now_ns) {
    for (int s = 0; s < FARM_ENGINE_SOCKETS_MAX; s++)
        if (engine->waiting[s].parts &&
            (engine->leaving < 0 ||
             (!slow->in_turn && engine->waiting[s].order < engine->waiting[engine->leaving].order)))
            engine->leaving = s;
    if (engine->leaving < 0) return;
    if (engine->end_ns < now_ns) engine->end_ns = now_ns;
    engine->end_ns += (uint64_t)((double)engine->waiting[engine->leaving].bytes * 1e9 / slow->bytes_per_s);
}

// Lets go what has left by now.
static void let_go(struct farm_engine *engine) {
    const uint64_t now_ns = farm_now_ns();
    if (engine->leaving < 0) choose_next(engine, now_ns);
    while (engine->leaving >= 0 && engine->end_ns <= now_ns) {
        struct waiting *done = &engine->waiting[engine->leaving];
        inner->send(engine->inner, (uint32_t)engine->leaving, done->parts, done->count);
        done->parts = NULL;
        engine->leaving = -1;
        // What waited meanwhile began to leave at once; what comes later finds the card idle.
        choose_next(engine, engine->end_ns);
    }
}

static void send_parts(struct farm_engine *engine, uint32_t socket, struct iovec *parts, uint32_t count) {
    if (slow->bytes_per_s <= 0) {
        inner->send(engine->inner, socket, parts, count);
        return;
    }
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < count; p++) bytes += parts[p].iov_len;
    engine->waiting[socket] = (struct waiting){parts, count, bytes, engine->orders++};
    if (engine->leaving < 0) choose_next(engine, farm_now_ns());
}

static void close_socket(struct farm_engine *engine, uint32_t socket) {
    if (engine->leaving == (int)socket) engine->leaving = -1;
    engine->waiting[socket].parts = NULL;
    inner->close(engine->inner, socket);
}

static uint32_t turn(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room) {
    let_go(engine);
    return inner->turn(engine->inner, events, room);
}

static void wait_for_event(struct farm_engine *engine, uint64_t timeout_ns) {
    const uint64_t now_ns = farm_now_ns();
    if (engine->leaving >= 0 && engine->end_ns < now_ns + timeout_ns)
        timeout_ns = engine->end_ns > now_ns ? engine->end_ns - now_ns : 0;
    inner->wait(engine->inner, timeout_ns);
}

static uint64_t system_calls(const struct farm_engine *engine) {
    return inner->system_calls(engine->inner);
}

const struct farm_engine_ops bench_slow_engine = {
    "slow",     create,       destroy, watch,          listen_at,    open_socket, connect_socket, receive,
    send_parts, close_socket, turn,    wait_for_event, system_calls, NULL,        NULL,           NULL};
