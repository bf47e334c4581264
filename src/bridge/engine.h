// How a bridge's bytes move: sockets with one receive and one send in flight each, and descriptors to be woken by.
// Operations are begun here and end as events; turn() begins and collects without ever blocking, wait() sleeps until
// there may be an event. One thread: the first that calls either. The first turn that has nothing to tell may leave
// what was begun to the wait() that follows it, or to the next turn. Three implementations: io_uring (engine_uring.c),
// poll(2) (engine_poll.c; same bytes on the wire), and memory (tests/bridge/memory.c: two bridges joined by bytes, with
// faults).
//
// Memory named by an iovec belongs to the engine from the call until the operation's event, or CLOSED.
#ifndef FARM_BRIDGE_ENGINE_H
#define FARM_BRIDGE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/status.h"

struct farm_engine;

enum farm_engine_event_kind {
    FARM_ENGINE_ACCEPTED,  // result: the new connection's descriptor (the caller's), or -errno
    FARM_ENGINE_CONNECTED, // result: 0 or -errno
    FARM_ENGINE_RECEIVED,  // result: bytes, 0: the peer has ended, -errno
    FARM_ENGINE_SENT,      // result: all bytes, or -errno
    FARM_ENGINE_CLOSED,    // nothing of this socket is in flight any more, and its descriptor is closed
    FARM_ENGINE_READABLE,  // a watched descriptor; the caller reads it empty. result: 0, or see
                           // farm_engine_watch_counter
};

struct farm_engine_event {
    enum farm_engine_event_kind kind;
    uint32_t number; // of the socket; READABLE: of the watch
    int64_t result;
};

struct farm_engine_figures {
    uint64_t system_calls;
};

struct farm_engine_ops {
    const char *name;
    // sockets: numbers 0..sockets-1 can be used; watches likewise. context: the memory engine's. FARM_E_UNSUPPORTED:
    // io_uring is not there or forbidden (says by what), FARM_E_LIMIT.
    enum farm_status (*create)(uint32_t sockets, uint32_t watches, void *context, struct farm_engine **out,
                               struct farm_error *err);
    void (*destroy)(struct farm_engine *engine);                        // sockets must be closed
    void (*watch)(struct farm_engine *engine, uint32_t number, int fd); // until destroy; level-triggered
    void (*listen)(struct farm_engine *engine, int fd);                 // accepts until destroy; fd stays the caller's
    // `socket` takes fd over (an accepted one, or one to connect; non-blocking, close-on-exec). address stays valid
    // until CONNECTED.
    void (*open)(struct farm_engine *engine, uint32_t socket, int fd);
    void (*connect)(struct farm_engine *engine, uint32_t socket, const struct sockaddr *address, socklen_t bytes);
    // Ends with at least `least` bytes (>= 1), the peer's end, or an error. At most 1,024 iovecs, here and for send.
    // The array may be changed or freed by the caller after the event only.
    void (*receive)(struct farm_engine *engine, uint32_t socket, struct iovec *parts, uint32_t count, size_t least);
    void (*send)(struct farm_engine *engine, uint32_t socket, struct iovec *parts,
                 uint32_t count); // ends with all of it
    // Gives up what is in flight; its events do not come any more, CLOSED does. The number can be used again then.
    void (*close)(struct farm_engine *engine, uint32_t socket);
    uint32_t (*turn)(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room);
    void (*wait)(struct farm_engine *engine, uint64_t timeout_ns); // begins what has not been begun; then sleeps
    struct farm_engine_figures (*figures)(const struct farm_engine *engine);
    // What follows saves system calls where an engine has it, and may be NULL: call the functions below.
    void (*watch_counter)(struct farm_engine *engine, uint32_t number, int fd);
    void (*hush)(struct farm_engine *engine, uint32_t socket);
};

// As watch, of an eventfd that the engine may read itself: READABLE's result is what it read, or 0: the caller reads
// it.
static inline void farm_engine_watch_counter(const struct farm_engine_ops *ops, struct farm_engine *engine,
                                             uint32_t number, int fd) {
    (ops->watch_counter ? ops->watch_counter : ops->watch)(engine, number, fd);
}

// Before a wait(), of a socket that sends: the caller has nothing to do once it has SENT, so this alone need not end
// the wait (it may). SENT comes with the event that does, or when the time is up. Lasts until the wait.
static inline void farm_engine_hush(const struct farm_engine_ops *ops, struct farm_engine *engine, uint32_t socket) {
    if (ops->hush) ops->hush(engine, socket);
}

extern const struct farm_engine_ops farm_engine_uring, farm_engine_poll;

// What `word` says: uring, poll, or auto: io_uring where it works, else poll with a warning that says why. Makes it.
enum farm_status farm_engine_make(const char *word, uint32_t sockets, uint32_t watches,
                                  const struct farm_engine_ops **ops, struct farm_engine **out, struct farm_error *err);

#endif
