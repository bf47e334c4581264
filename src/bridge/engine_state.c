// See engine_state.h.
#include "bridge/engine_state.h"

#include <assert.h>
#include <errno.h>

#include "base/time.h"

void farm_transfer_begin(struct farm_transfer *transfer, struct iovec *parts, uint32_t count, size_t least) {
    assert(!transfer->busy && count > 0);
    *transfer = (struct farm_transfer){.parts = parts, .count = count, .least = least, .busy = true};
    for (uint32_t i = 0; i < count; i++) transfer->total += parts[i].iov_len;
    if (least > transfer->total) transfer->least = transfer->total;
}

static void advance(struct farm_transfer *transfer, size_t bytes) {
    transfer->done += bytes;
    while (transfer->count && bytes >= transfer->parts->iov_len) {
        bytes -= transfer->parts->iov_len;
        transfer->parts++, transfer->count--;
    }
    if (!transfer->count) return;
    transfer->parts->iov_base = (uint8_t *)transfer->parts->iov_base + bytes;
    transfer->parts->iov_len -= bytes;
}

bool farm_transfer_continue(struct farm_transfer *transfer, int64_t outcome, int64_t *result) {
    if (outcome == -EAGAIN || outcome == -EINTR) return false;
    if (outcome > 0) {
        advance(transfer, (size_t)outcome);
        if (transfer->done < transfer->least) return false;
        outcome = (int64_t)transfer->done;
    }
    transfer->busy = false;
    *result = outcome;
    return true;
}

void farm_event_put(struct farm_event_queue *queue, enum farm_engine_event_kind kind, uint32_t number, int64_t result) {
    assert(queue->count < FARM_EVENTS_MAX);
    queue->events[(queue->first + queue->count++) % FARM_EVENTS_MAX] =
        (struct farm_engine_event){.kind = kind, .number = number, .result = result};
}

uint32_t farm_event_take(struct farm_event_queue *queue, struct farm_engine_event *events, uint32_t room) {
    uint32_t n = 0;
    for (; n < room && queue->count; n++, queue->count--) {
        events[n] = queue->events[queue->first];
        queue->first = (queue->first + 1) % FARM_EVENTS_MAX;
    }
    return n;
}

static bool belongs_to_socket(const struct farm_engine_event *event, uint32_t socket) {
    return event->number == socket && event->kind != FARM_ENGINE_ACCEPTED && event->kind != FARM_ENGINE_READABLE;
}

void farm_event_forget(struct farm_event_queue *queue, uint32_t socket) {
    const uint32_t count = queue->count;
    queue->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_engine_event event = queue->events[(queue->first + i) % FARM_EVENTS_MAX];
        if (!belongs_to_socket(&event, socket)) farm_event_put(queue, event.kind, event.number, event.result);
    }
}

uint32_t farm_listener_accept(struct farm_listener *listener, struct farm_event_queue *queue) {
    uint32_t calls = 0, pause_ms = FARM_LISTENER_PAUSE_MS;
    for (int fd = 0; fd >= 0 && calls < FARM_LISTENER_ACCEPTS; calls++) {
        fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        const bool failed = fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
        if (fd >= 0 || failed) farm_event_put(queue, FARM_ENGINE_ACCEPTED, 0, fd >= 0 ? fd : -errno);
        if (failed) pause_ms = FARM_LISTENER_FAILED_MS;
    }
    listener->paused_until_ns = farm_now_ns() + pause_ms * 1000000ull;
    return calls;
}

bool farm_listener_is_paused(struct farm_listener *listener) {
    if (!listener->paused_until_ns) return false;
    if (farm_now_ns() < listener->paused_until_ns) return true;
    listener->paused_until_ns = 0;
    return false;
}

uint64_t farm_listener_bound(const struct farm_listener *listener, uint64_t timeout_ns) {
    if (!listener->paused_until_ns) return timeout_ns;
    const uint64_t now = farm_now_ns();
    const uint64_t left = listener->paused_until_ns > now ? listener->paused_until_ns - now : 0;
    return left < timeout_ns ? left : timeout_ns;
}
