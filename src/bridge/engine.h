// Moves a bridge's bytes: sockets with at most one receive and one send in flight each, and watched descriptors. Calls
// begin operations, which end as events. turn() submits and collects without blocking; wait() sleeps until there may be
// an event. The first turn without events may leave the submission to the next wait() or turn(). One thread: the first
// that calls either. Implementations: io_uring (engine_uring.c), poll(2) (engine_poll.c), memory with faults
// (tests/bridge/memory.h). Memory of an iovec belongs to the engine from the call to the operation's event, or CLOSED.
#ifndef FARM_BRIDGE_ENGINE_H
#define FARM_BRIDGE_ENGINE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/status.h"

struct farm_engine;

enum { FARM_ENGINE_SOCKETS_MAX = 320, FARM_ENGINE_WATCHES_MAX = 4, FARM_ENGINE_PARTS_MAX = 1024 };

enum farm_engine_event_kind {
    FARM_ENGINE_ACCEPTED,  // result: the new connection's descriptor (the caller's), or -errno
    FARM_ENGINE_CONNECTED, // result: 0 or -errno
    FARM_ENGINE_RECEIVED,  // result: bytes, 0: the peer has closed, -errno
    FARM_ENGINE_SENT,      // result: all bytes, or -errno
    FARM_ENGINE_CLOSED,    // nothing of this socket is in flight, and its descriptor is closed
    FARM_ENGINE_READABLE,  // a watched descriptor, which the caller reads empty. result: 0; see watch_counter
};

struct farm_engine_event {
    enum farm_engine_event_kind kind;
    uint32_t number; // socket; READABLE: watch
    int64_t result;
};

struct farm_engine_ops {
    const char *name;
    // Sockets have the numbers 0..sockets-1, watches 0..watches-1. context: the memory engine's. FARM_E_UNSUPPORTED:
    // io_uring is missing or forbidden (the message names the cause), FARM_E_LIMIT.
    enum farm_status (*create)(uint32_t sockets, uint32_t watches, void *context, struct farm_engine **out,
                               struct farm_error *err);
    void (*destroy)(struct farm_engine *engine);                        // after all sockets are closed
    void (*watch)(struct farm_engine *engine, uint32_t number, int fd); // until destroy; level-triggered
    void (*listen)(struct farm_engine *engine, int fd);                 // accepts until destroy; the caller closes fd
    // `socket` takes over fd, accepted or to be connected; non-blocking, close-on-exec. address: valid until CONNECTED.
    void (*open)(struct farm_engine *engine, uint32_t socket, int fd);
    void (*connect)(struct farm_engine *engine, uint32_t socket, const struct sockaddr *address, socklen_t bytes);
    // receive ends with at least `least` bytes (>= 1), the peer's close, or an error; send with all bytes, or an error.
    // At most FARM_ENGINE_PARTS_MAX iovecs; the array belongs to the engine until the event.
    void (*receive)(struct farm_engine *engine, uint32_t socket, struct iovec *parts, uint32_t count, size_t least);
    void (*send)(struct farm_engine *engine, uint32_t socket, struct iovec *parts, uint32_t count);
    // Cancels what is in flight: CLOSED is the socket's only further event. Then its number is free.
    void (*close)(struct farm_engine *engine, uint32_t socket);
    uint32_t (*turn)(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room);
    void (*wait)(struct farm_engine *engine, uint64_t timeout_ns); // submits, then sleeps
    uint64_t (*system_calls)(const struct farm_engine *engine);    // so far
    // These two save system calls and may be NULL. watch_counter: call farm_engine_watch_counter. defer_sent: before a
    // wait(), for a socket that sends: SENT alone need not end it, and may come with what does.
    void (*watch_counter)(struct farm_engine *engine, uint32_t number, int fd);
    void (*defer_sent)(struct farm_engine *engine, uint32_t socket);
    // As recv of an accepted descriptor, not opened yet, with MSG_PEEK and MSG_DONTWAIT; or -errno. NULL: do just that.
    int64_t (*peek)(struct farm_engine *engine, int fd, void *to, size_t bytes);
};

// As watch, for an eventfd that the engine may read itself. READABLE's result: the value, or 0 if the caller must read.
static inline void farm_engine_watch_counter(const struct farm_engine_ops *ops, struct farm_engine *engine,
                                             uint32_t number, int fd) {
    (ops->watch_counter ? ops->watch_counter : ops->watch)(engine, number, fd);
}

static inline int64_t farm_engine_peek(const struct farm_engine_ops *ops, struct farm_engine *engine, int fd, void *to,
                                       size_t bytes) {
    if (ops->peek) return ops->peek(engine, fd, to, bytes);
    const ssize_t n = recv(fd, to, bytes, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

extern const struct farm_engine_ops farm_engine_uring, farm_engine_poll;

// FARM_E_USAGE unless `word` is auto, uring or poll.
enum farm_status farm_engine_check_word(const char *word, struct farm_error *err);

// Creates the engine that `word` names: uring, poll, or auto (io_uring if it works, else poll with a warning).
enum farm_status farm_engine_make(const char *word, uint32_t sockets, uint32_t watches,
                                  const struct farm_engine_ops **ops, struct farm_engine **out, struct farm_error *err);

#endif
