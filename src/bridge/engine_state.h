// Parts of all engines: a receive or send in progress, the queue of events, a listener. Allocates nothing.
#ifndef FARM_BRIDGE_ENGINE_STATE_H
#define FARM_BRIDGE_ENGINE_STATE_H

#include "bridge/engine.h"

struct farm_transfer {
    struct iovec *parts; // the rest; advanced in place
    uint32_t count;
    bool busy;
    size_t done, least, total;
};

void farm_transfer_begin(struct farm_transfer *transfer, struct iovec *parts, uint32_t count, size_t least);
// After an operation that moved `outcome` bytes (0: the peer has closed, or -errno). True: it has ended with *result.
bool farm_transfer_continue(struct farm_transfer *transfer, int64_t outcome, int64_t *result);
static inline bool farm_transfer_wants_all(const struct farm_transfer *transfer) {
    return transfer->least >= transfer->total;
}

// First in, first out. An operation has at most one event, so the room suffices.
enum { FARM_EVENTS_MAX = 4 * FARM_ENGINE_SOCKETS_MAX + FARM_ENGINE_WATCHES_MAX + 32 };
struct farm_event_queue {
    struct farm_engine_event events[FARM_EVENTS_MAX];
    uint32_t first, count;
};

void farm_event_put(struct farm_event_queue *queue, enum farm_engine_event_kind kind, uint32_t number, int64_t result);
uint32_t farm_event_take(struct farm_event_queue *queue, struct farm_engine_event *events, uint32_t room);
void farm_event_forget(struct farm_event_queue *queue, uint32_t socket);

// A listener pauses after it has accepted, so that a flood costs little, whatever its rate: a few wake-ups and at most
// FARM_LISTENER_ACCEPTS connections each time. It pauses longer after a failure that would repeat at once (no
// descriptors, no memory).
struct farm_listener {
    int fd;                   // -1: none
    uint64_t paused_until_ns; // 0: not paused
};
enum { FARM_LISTENER_PAUSE_MS = 5, FARM_LISTENER_FAILED_MS = 100, FARM_LISTENER_ACCEPTS = 10 };

// Accepts the connections that wait; each has an event. Returns the number of calls.
uint32_t farm_listener_accept(struct farm_listener *listener, struct farm_event_queue *queue);
// False ends the pause: the engine accepts again before it sleeps.
bool farm_listener_is_paused(struct farm_listener *listener);
// The shorter of timeout_ns and the rest of the listener's pause; 0 until farm_listener_is_paused reports its end.
uint64_t farm_listener_bound(const struct farm_listener *listener, uint64_t timeout_ns);

#endif
