// The memory engine: joins bridges of one process by bytes, deterministic from a seed. Moves any number of bytes at a
// time, cuts a connection at a chosen byte (each side loses another part of what was in flight, as with TCP), flips a
// chosen byte, or silences a side. A closed socket's receive may write until CLOSED, as a kernel may. A test can be one
// end itself (memory_dial, memory_take). One thread.
#ifndef TESTS_BRIDGE_MEMORY_H
#define TESTS_BRIDGE_MEMORY_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/rings.h"
#include "bridge/engine_state.h"

enum { MEMORY_WIRE_BYTES = 1 << 13, MEMORY_CONNECTIONS_MAX = 1200, MEMORY_ACCEPTS_A_TURN = 16 };
enum { MEMORY_UP, MEMORY_DOWN }; // from the node, from the hub; also names the side that sends in that direction
#define MEMORY_NEVER UINT64_MAX

struct memory_wire {
    uint8_t bytes[MEMORY_WIRE_BYTES];
    uint64_t put, got;        // so far
    uint64_t cut_at, flip_at; // lost with all bytes after it; changed on its way
};

struct memory_connection {
    struct memory_wire wire[2];
    enum { MEMORY_WAITS, MEMORY_REPORTED, MEMORY_OPENED } hub; // REPORTED: accepted, and not opened yet
    int fd, end;                                               // the hub's; other end of this pipe, while REPORTED
    bool left[2];                                              // closed by this side
    bool cut, deaf;                                            // deaf: nothing arrives, and nothing fails
};

struct memory {
    uint64_t random;
    size_t most; // bytes moved at a time: 1 to most, at random; 0: all
    struct memory_connection *list[MEMORY_CONNECTIONS_MAX];
    uint32_t count;
    uint64_t made;            // connections so far
    uint64_t cut_at, flip_at; // bytes of the next connection, in `direction`; then MEMORY_NEVER
    uint32_t direction;
    uint64_t cut_span;  // > 0: every connection is cut before so many bytes, at random
    bool taken_by_test; // the test is the hub
};

struct memory_side { // an engine's context
    struct memory *net;
    bool hub;
};

struct memory_socket {
    struct memory_connection *connection;
    bool open, connecting;
    int fd;           // the hub's
    uint32_t closing; // turns until CLOSED
    struct farm_transfer in, out;
};

struct farm_engine {
    struct memory_side side;
    struct memory_socket sockets[FARM_ENGINE_SOCKETS_MAX];
    uint32_t socket_count, high; // high: above every open one
    struct pollfd watched[FARM_ENGINE_WATCHES_MAX];
    uint32_t watch_count;
    struct farm_event_queue queue;
};

static inline void memory_make(struct memory *net, uint64_t seed) {
    *net = (struct memory){.random = seed, .cut_at = MEMORY_NEVER, .flip_at = MEMORY_NEVER};
}

static inline uint64_t memory_random(struct memory *net, uint64_t below) {
    return random_next(&net->random) % below;
}

// ---- wires ----

static inline struct memory_connection *memory_dial(struct memory *net) {
    struct memory_connection *c = malloc(sizeof *c);
    assert(c && net->count < MEMORY_CONNECTIONS_MAX);
    c->hub = MEMORY_WAITS;
    c->fd = c->end = -1;
    c->left[0] = c->left[1] = c->cut = c->deaf = false;
    for (int d = 0; d < 2; d++) {
        c->wire[d].put = c->wire[d].got = 0;
        c->wire[d].cut_at = c->wire[d].flip_at = MEMORY_NEVER;
    }
    if (net->cut_span) c->wire[memory_random(net, 2)].cut_at = memory_random(net, net->cut_span);
    if (net->cut_at != MEMORY_NEVER) c->wire[net->direction].cut_at = net->cut_at;
    if (net->flip_at != MEMORY_NEVER) c->wire[net->direction].flip_at = net->flip_at;
    net->cut_at = net->flip_at = MEMORY_NEVER;
    net->made++;
    return net->list[net->count++] = c;
}

static inline void memory_cut(struct memory *net, struct memory_connection *c) {
    c->cut = true;
    for (int d = 0; d < 2; d++) {
        struct memory_wire *wire = &c->wire[d];
        if (wire->cut_at > wire->put) wire->cut_at = wire->got + memory_random(net, wire->put - wire->got + 1);
    }
}

// This side closes. Bytes that it has not read may break what it sent itself.
static inline void memory_leave(struct memory *net, struct memory_connection *c, int side) {
    c->left[side] = true;
    if (c->wire[!side].put > c->wire[!side].got && memory_random(net, 2)) memory_cut(net, c);
}

static inline int64_t memory_put(struct memory_connection *c, int side, const uint8_t *from, size_t bytes) {
    struct memory_wire *wire = &c->wire[side];
    if (c->cut || c->left[!side]) return (int64_t)bytes; // lost: TCP reports it later
    const uint64_t room = MEMORY_WIRE_BYTES - (wire->put - wire->got);
    if (bytes > room) bytes = room;
    for (size_t i = 0; i < bytes; i++) wire->bytes[(wire->put + i) % MEMORY_WIRE_BYTES] = from[i];
    if (wire->flip_at - wire->put < bytes) wire->bytes[wire->flip_at % MEMORY_WIRE_BYTES] ^= 0x10;
    wire->put += bytes;
    return bytes ? (int64_t)bytes : -EAGAIN;
}

// Receives from the other side. 0: that has closed.
static inline int64_t memory_get(struct memory *net, struct memory_connection *c, int side, uint8_t *to, size_t bytes) {
    struct memory_wire *wire = &c->wire[!side];
    const uint64_t end = wire->put < wire->cut_at ? wire->put : wire->cut_at;
    if (c->deaf) return -EAGAIN;
    if (end == wire->got) {
        if (wire->put > wire->cut_at && !c->cut) memory_cut(net, c);
        if (c->cut) return memory_random(net, 3) ? -EAGAIN : -ECONNRESET;
        return c->left[!side] ? 0 : -EAGAIN;
    }
    if (bytes > end - wire->got) bytes = end - wire->got;
    for (size_t i = 0; i < bytes; i++) to[i] = wire->bytes[(wire->got + i) % MEMORY_WIRE_BYTES];
    wire->got += bytes;
    return (int64_t)bytes;
}

static inline void memory_reap(struct memory *net) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < net->count; i++) {
        struct memory_connection *c = net->list[i];
        if (c->left[MEMORY_UP] && c->left[MEMORY_DOWN] && c->hub != MEMORY_REPORTED)
            free(c);
        else
            net->list[kept++] = c;
    }
    net->count = kept;
}

static inline void memory_free(struct memory *net) {
    for (uint32_t i = 0; i < net->count; i++) net->list[i]->left[0] = net->list[i]->left[1] = true;
    memory_reap(net);
    assert(!net->count);
}

// The oldest connection that no hub has accepted; the test is the hub.
static inline struct memory_connection *memory_take(struct memory *net) {
    for (uint32_t i = 0; i < net->count; i++)
        if (net->list[i]->hub == MEMORY_WAITS) return net->list[i]->hub = MEMORY_OPENED, net->list[i];
    return NULL;
}

// ---- the engine ----

static inline enum farm_status memory_create(uint32_t sockets, uint32_t watches, void *context,
                                             struct farm_engine **out, struct farm_error *err) {
    struct farm_engine *engine = calloc(1, sizeof *engine);
    assert(engine && sockets <= FARM_ENGINE_SOCKETS_MAX && watches <= FARM_ENGINE_WATCHES_MAX && !err == !err);
    engine->side = *(struct memory_side *)context;
    engine->socket_count = sockets;
    *out = engine;
    return FARM_OK;
}

static inline int memory_sends(const struct farm_engine *engine) {
    return engine->side.hub ? MEMORY_DOWN : MEMORY_UP;
}

// Reported, and not opened: the hub closed the descriptor.
static inline void memory_refuse(struct memory_connection *c) {
    c->hub = MEMORY_OPENED;
    c->left[MEMORY_DOWN] = true;
    close(c->end);
}

static inline void memory_destroy(struct farm_engine *engine) {
    struct memory *net = engine->side.net;
    for (uint32_t i = 0; i < engine->high; i++) assert(!engine->sockets[i].open);
    for (uint32_t i = 0; i < net->count && engine->side.hub; i++)
        if (net->list[i]->hub == MEMORY_REPORTED) memory_refuse(net->list[i]);
    free(engine);
}

static inline void memory_watch(struct farm_engine *engine, uint32_t number, int fd) {
    assert(number == engine->watch_count);
    engine->watched[engine->watch_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static inline void memory_listen(struct farm_engine *engine, int fd) {
    (void)engine, (void)fd;
}

static inline void memory_open(struct farm_engine *engine, uint32_t number, int fd) {
    struct memory_socket *socket = &engine->sockets[number];
    const struct memory *net = engine->side.net;
    assert(number < engine->socket_count && !socket->open);
    *socket = (struct memory_socket){.open = true, .fd = fd};
    if (number >= engine->high) engine->high = number + 1;
    for (uint32_t i = 0; i < net->count && engine->side.hub; i++)
        if (net->list[i]->hub == MEMORY_REPORTED && net->list[i]->fd == fd) socket->connection = net->list[i];
    if (!engine->side.hub) return;
    assert(socket->connection);
    socket->connection->hub = MEMORY_OPENED;
    close(socket->connection->end);
}

// Without taking the bytes.
static inline int64_t memory_peek(struct farm_engine *engine, int fd, void *to, size_t bytes) {
    struct memory *net = engine->side.net;
    for (uint32_t i = 0; i < net->count; i++) {
        struct memory_connection *c = net->list[i];
        if (c->hub != MEMORY_REPORTED || c->fd != fd) continue;
        const uint64_t got = c->wire[MEMORY_UP].got;
        const int64_t result = memory_get(net, c, MEMORY_DOWN, to, bytes);
        c->wire[MEMORY_UP].got = got;
        return result;
    }
    return -EBADF;
}

static inline void memory_connect(struct farm_engine *engine, uint32_t number, const struct sockaddr *address,
                                  socklen_t bytes) {
    (void)address, (void)bytes;
    engine->sockets[number].connecting = true;
}

static inline void memory_receive(struct farm_engine *engine, uint32_t number, struct iovec *parts, uint32_t count,
                                  size_t least) {
    assert(engine->sockets[number].open && !engine->sockets[number].closing && count <= 1024);
    farm_transfer_begin(&engine->sockets[number].in, parts, count, least);
}

static inline void memory_send(struct farm_engine *engine, uint32_t number, struct iovec *parts, uint32_t count) {
    assert(engine->sockets[number].open && !engine->sockets[number].closing && count <= 1024);
    farm_transfer_begin(&engine->sockets[number].out, parts, count, SIZE_MAX);
}

static inline void memory_close(struct farm_engine *engine, uint32_t number) {
    struct memory_socket *socket = &engine->sockets[number];
    assert(socket->open && !socket->closing);
    farm_event_forget(&engine->queue, number);
    if (socket->connection) memory_leave(engine->side.net, socket->connection, memory_sends(engine));
    socket->connection = NULL; // freed after both sides have left it
    socket->closing = 1 + (uint32_t)memory_random(engine->side.net, 3);
}

static inline void memory_finish_close(struct farm_engine *engine, uint32_t number) {
    struct memory_socket *socket = &engine->sockets[number];
    for (uint32_t p = 0; socket->in.busy && p < socket->in.count; p++) // late bytes
        memset(socket->in.parts[p].iov_base, 0xee, socket->in.parts[p].iov_len);
    if (socket->fd >= 0) close(socket->fd);
    *socket = (struct memory_socket){0};
    farm_event_put(&engine->queue, FARM_ENGINE_CLOSED, number, 0);
}

static inline void memory_move(struct farm_engine *engine, uint32_t number, struct farm_transfer *transfer,
                               enum farm_engine_event_kind kind) {
    struct memory *net = engine->side.net;
    const struct memory_socket *socket = &engine->sockets[number];
    int64_t result, outcome = 0;
    while (transfer->busy) {
        struct iovec *part = transfer->parts;
        const size_t most = net->most ? 1 + memory_random(net, net->most) : SIZE_MAX;
        const size_t bytes = part->iov_len < most ? part->iov_len : most;
        outcome = kind == FARM_ENGINE_SENT
                      ? memory_put(socket->connection, memory_sends(engine), part->iov_base, bytes)
                      : memory_get(net, socket->connection, memory_sends(engine), part->iov_base, bytes);
        const bool over = farm_transfer_continue(transfer, outcome, &result);
        if (over) farm_event_put(&engine->queue, kind, number, result);
        if (outcome <= 0 || net->most) break;
    }
}

static inline void memory_begin(struct farm_engine *engine, uint32_t number) {
    struct memory_socket *socket = &engine->sockets[number];
    struct memory *net = engine->side.net;
    if (!socket->open) return;
    if (socket->closing) {
        if (!--socket->closing) memory_finish_close(engine, number);
        return;
    }
    if (socket->connecting) {
        socket->connecting = false;
        socket->connection = memory_dial(net);
        farm_event_put(&engine->queue, FARM_ENGINE_CONNECTED, number, 0);
    }
    if (!socket->connection) return;
    memory_move(engine, number, &socket->out, FARM_ENGINE_SENT);
    memory_move(engine, number, &socket->in, FARM_ENGINE_RECEIVED);
}

static inline void memory_accept(struct farm_engine *engine) {
    struct memory *net = engine->side.net;
    uint32_t reported = 0;
    for (uint32_t i = 0; i < net->count; i++) {
        struct memory_connection *c = net->list[i];
        struct pollfd end = {.fd = c->end};
        if (c->hub == MEMORY_REPORTED && poll(&end, 1, 0) > 0) memory_refuse(c);
    }
    for (uint32_t i = 0; i < net->count && reported < MEMORY_ACCEPTS_A_TURN; i++) {
        struct memory_connection *c = net->list[i];
        int ends[2];
        if (c->hub != MEMORY_WAITS) continue;
        c->hub = MEMORY_REPORTED;
        const int failed = pipe2(ends, O_CLOEXEC);
        assert(!failed);
        c->fd = ends[1];
        c->end = ends[0];
        reported++;
        farm_event_put(&engine->queue, FARM_ENGINE_ACCEPTED, 0, c->fd);
    }
}

static inline uint32_t memory_turn(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room) {
    struct memory *net = engine->side.net;
    const bool idle = engine->queue.count == 0; // else the caller's array was too small: the rest comes first
    if (idle && poll(engine->watched, engine->watch_count, 0) > 0)
        for (uint32_t i = 0; i < engine->watch_count; i++)
            if (engine->watched[i].revents) farm_event_put(&engine->queue, FARM_ENGINE_READABLE, i, 0);
    if (idle && engine->side.hub) memory_accept(engine);
    for (uint32_t i = 0; i < engine->high; i++) memory_begin(engine, i);
    memory_reap(net);
    return farm_event_take(&engine->queue, events, room);
}

static inline void memory_wait(struct farm_engine *engine, uint64_t timeout_ns) {
    (void)engine, (void)timeout_ns;
}

static inline uint64_t memory_system_calls(const struct farm_engine *engine) {
    (void)engine;
    return 0;
}

static const struct farm_engine_ops farm_engine_memory = {
    "memory",       memory_create, memory_destroy, memory_watch, memory_listen, memory_open,         memory_connect,
    memory_receive, memory_send,   memory_close,   memory_turn,  memory_wait,   memory_system_calls, NULL,
    NULL,           memory_peek};

#endif
