// What the engines of sockets share: a receive or a send in progress, events that wait for turn(), and a listener.
// Private to engine_poll.c and engine_uring.c. Nothing is allocated here.
#ifndef FARM_BRIDGE_ENGINE_STATE_H
#define FARM_BRIDGE_ENGINE_STATE_H

#include "bridge/engine.h"

struct farm_transfer {
    struct iovec *parts; // what is left; advanced in place
    uint32_t count;
    bool busy;
    size_t done, least, total;
};

void farm_transfer_begin(struct farm_transfer *transfer, struct iovec *parts, uint32_t count, size_t least);
// Of a system call or an operation: bytes, 0 (the peer has ended), -errno. True: the transfer is over, with *result.
bool farm_transfer_went(struct farm_transfer *transfer, int64_t outcome, int64_t *result);
static inline bool farm_transfer_wants_all(const struct farm_transfer *transfer) {
    return transfer->least >= transfer->total;
}

// First in, first out. Room for all events that there can be at a time: an operation has one.
struct farm_event_queue {
    struct farm_engine_event *events;
    uint32_t room, first, count;
};

void farm_event_put(struct farm_event_queue *queue, enum farm_engine_event_kind kind, uint32_t number, int64_t result);
uint32_t farm_event_take(struct farm_event_queue *queue, struct farm_engine_event *events, uint32_t room);
void farm_event_forget(struct farm_event_queue *queue, uint32_t socket);

// A listener rests for a moment after a failure that would only repeat (no descriptors, no memory).
struct farm_listener {
    int fd; // -1: none
    uint64_t rests_until_ns;
};
enum { FARM_LISTENER_REST_MS = 100 };

// One accept4: true and *result (a descriptor or -errno) if there is something to say.
bool farm_listener_accept(struct farm_listener *listener, int64_t *result);
bool farm_listener_rests(const struct farm_listener *listener);
// The time to sleep, at most until the listener has rested.
uint64_t farm_listener_bound(const struct farm_listener *listener, uint64_t timeout_ns);

#endif
