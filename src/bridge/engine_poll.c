// The bridge's engine if io_uring is missing or forbidden: sendmsg, recvmsg and poll(2). Tries a call before it polls,
// unless the last call has shown that it would block. See engine.h.
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "bridge/engine_state.h"

enum { SKIPS = 16, LISTENER = FARM_ENGINE_WATCHES_MAX }; // LISTENER: its watch
enum { POLLED_MAX = FARM_ENGINE_SOCKETS_MAX + LISTENER + 1 };

struct poll_socket {
    int fd; // -1: free
    bool connecting;
    bool readable, writable; // or may be: worth a call
    bool untested;           // poll(2) has not reported `readable`
    uint8_t skips;           // receives after which no further one is tried, because one was in vain
    struct farm_transfer in, out;
};

struct farm_engine {
    struct poll_socket sockets[FARM_ENGINE_SOCKETS_MAX];
    int watches[LISTENER + 1]; // -1: none
    uint32_t socket_count;
    struct farm_listener listener;
    bool acceptable;
    bool polls_next; // the last turn had no event: the next one calls poll(2)
    struct pollfd polled[POLLED_MAX];
    uint32_t polled_number[POLLED_MAX]; // socket, or socket_count + watch
    struct farm_event_queue queue;
    uint64_t system_calls;
};

static void destroy(struct farm_engine *engine) {
    free(engine);
}

static enum farm_status create(uint32_t sockets, uint32_t watches, void *context, struct farm_engine **out,
                               struct farm_error *err) {
    (void)context;
    assert(sockets <= FARM_ENGINE_SOCKETS_MAX && watches <= FARM_ENGINE_WATCHES_MAX);
    struct farm_engine *engine = *out = calloc(1, sizeof *engine);
    if (!engine) return farm_fail(err, FARM_E_LIMIT, "out of memory for the bridge's sockets");
    engine->socket_count = sockets;
    engine->listener.fd = -1;
    for (uint32_t i = 0; i < sockets; i++) engine->sockets[i].fd = -1;
    for (uint32_t i = 0; i <= LISTENER; i++) engine->watches[i] = -1;
    return FARM_OK;
}

static void watch(struct farm_engine *engine, uint32_t number, int fd) {
    assert(number <= LISTENER);
    engine->watches[number] = fd;
}

static void listen_at(struct farm_engine *engine, int fd) {
    engine->listener = (struct farm_listener){.fd = fd};
    watch(engine, LISTENER, fd);
}

static struct poll_socket *socket_at(struct farm_engine *engine, uint32_t number) {
    assert(number < engine->socket_count && engine->sockets[number].fd >= 0);
    return &engine->sockets[number];
}

static void open_socket(struct farm_engine *engine, uint32_t number, int fd) {
    assert(number < engine->socket_count && engine->sockets[number].fd < 0);
    engine->sockets[number] = (struct poll_socket){.fd = fd, .readable = true, .writable = true};
}

static void connect_socket(struct farm_engine *engine, uint32_t number, const struct sockaddr *address,
                           socklen_t bytes) {
    struct poll_socket *socket = socket_at(engine, number);
    engine->system_calls++;
    if (connect(socket->fd, address, bytes) == 0) {
        farm_event_put(&engine->queue, FARM_ENGINE_CONNECTED, number, 0);
    } else if (errno == EINPROGRESS || errno == EINTR) {
        socket->connecting = true;
        socket->writable = false;
    } else {
        farm_event_put(&engine->queue, FARM_ENGINE_CONNECTED, number, -errno);
    }
}

static void receive(struct farm_engine *engine, uint32_t number, struct iovec *parts, uint32_t count, size_t least) {
    farm_transfer_begin(&socket_at(engine, number)->in, parts, count, least);
}

static void send_parts(struct farm_engine *engine, uint32_t number, struct iovec *parts, uint32_t count) {
    farm_transfer_begin(&socket_at(engine, number)->out, parts, count, SIZE_MAX);
}

static void close_socket(struct farm_engine *engine, uint32_t number) {
    struct poll_socket *socket = socket_at(engine, number);
    farm_event_forget(&engine->queue, number);
    shutdown(socket->fd, SHUT_RDWR);
    close(socket->fd);
    engine->system_calls += 2;
    *socket = (struct poll_socket){.fd = -1};
    farm_event_put(&engine->queue, FARM_ENGINE_CLOSED, number, 0);
}

// ---- attempts ----

static int64_t try_receive(const struct poll_socket *socket, struct farm_transfer *in) {
    struct msghdr message = {.msg_iov = in->parts, .msg_iovlen = in->count};
    const ssize_t n = in->count == 1 ? recv(socket->fd, in->parts->iov_base, in->parts->iov_len, MSG_DONTWAIT)
                                     : recvmsg(socket->fd, &message, MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

static int64_t try_send(const struct poll_socket *socket, struct farm_transfer *out) {
    struct msghdr message = {.msg_iov = out->parts, .msg_iovlen = out->count};
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const ssize_t n = out->count == 1 ? send(socket->fd, out->parts->iov_base, out->parts->iov_len, flags)
                                      : sendmsg(socket->fd, &message, flags);
    return n < 0 ? -errno : n;
}

// After a partial transfer the next call would block, so poll(2) must report the socket first.
static void continue_send(struct farm_engine *engine, uint32_t number) {
    struct poll_socket *socket = &engine->sockets[number];
    int64_t result;
    while (socket->out.busy && socket->writable) {
        const int64_t outcome = try_send(socket, &socket->out);
        engine->system_calls++;
        socket->writable = outcome == -EINTR || outcome >= (int64_t)(socket->out.total - socket->out.done);
        if (farm_transfer_continue(&socket->out, outcome, &result))
            farm_event_put(&engine->queue, FARM_ENGINE_SENT, number, result);
    }
}

static bool may_have_more(struct poll_socket *socket, int64_t outcome) {
    if (outcome == -EAGAIN && socket->untested) socket->skips = SKIPS;
    socket->untested = true;
    if (outcome == -EINTR) return true;
    if (outcome < (int64_t)(socket->in.total - socket->in.done)) return false;
    return !socket->skips || !socket->skips--;
}

static void continue_receive(struct farm_engine *engine, uint32_t number) {
    struct poll_socket *socket = &engine->sockets[number];
    int64_t result;
    while (socket->in.busy && socket->readable) {
        const int64_t outcome = try_receive(socket, &socket->in);
        engine->system_calls++;
        socket->readable = may_have_more(socket, outcome);
        if (farm_transfer_continue(&socket->in, outcome, &result))
            farm_event_put(&engine->queue, FARM_ENGINE_RECEIVED, number, result);
    }
}

static void finish_connect(struct farm_engine *engine, uint32_t number) {
    struct poll_socket *socket = &engine->sockets[number];
    int error = 0;
    socklen_t bytes = sizeof error;
    engine->system_calls++;
    if (getsockopt(socket->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0) error = errno;
    socket->connecting = false;
    farm_event_put(&engine->queue, FARM_ENGINE_CONNECTED, number, -error);
}

static void transfer_all(struct farm_engine *engine) {
    for (uint32_t i = 0; i < engine->socket_count; i++) {
        struct poll_socket *socket = &engine->sockets[i];
        if (socket->fd < 0) continue;
        if (socket->connecting) {
            if (socket->writable) finish_connect(engine, i);
            continue;
        }
        continue_send(engine, i);
        continue_receive(engine, i);
    }
    if (engine->acceptable) engine->system_calls += farm_listener_accept(&engine->listener, &engine->queue);
    engine->acceptable = false;
}

// ---- poll(2) ----

static void add_polled(struct farm_engine *engine, uint32_t *count, int fd, short events, uint32_t number) {
    engine->polled[*count] = (struct pollfd){.fd = fd, .events = events};
    engine->polled_number[(*count)++] = number;
}

static uint32_t fill_polled(struct farm_engine *engine) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < engine->socket_count; i++) {
        const struct poll_socket *socket = &engine->sockets[i];
        const int events = (socket->in.busy ? POLLIN : 0) | (socket->out.busy || socket->connecting ? POLLOUT : 0);
        if (socket->fd >= 0 && events) add_polled(engine, &count, socket->fd, (short)events, i);
    }
    for (uint32_t i = 0; i <= LISTENER; i++)
        if (engine->watches[i] >= 0 && (i != LISTENER || !farm_listener_is_paused(&engine->listener)))
            add_polled(engine, &count, engine->watches[i], POLLIN, engine->socket_count + i);
    return count;
}

static void note_ready(struct farm_engine *engine, const struct pollfd *polled, uint32_t number) {
    const bool failed = polled->revents & (POLLERR | POLLHUP | POLLNVAL);
    if (number < engine->socket_count) {
        struct poll_socket *socket = &engine->sockets[number];
        socket->readable |= failed || (polled->revents & POLLIN);
        socket->writable |= failed || (polled->revents & POLLOUT);
        socket->untested &= !socket->readable;
    } else if (number == engine->socket_count + LISTENER) {
        engine->acceptable = true;
    } else {
        farm_event_put(&engine->queue, FARM_ENGINE_READABLE, number - engine->socket_count, 0);
    }
}

static void poll_sockets(struct farm_engine *engine, uint64_t timeout_ns) {
    const uint32_t count = fill_polled(engine);
    timeout_ns = farm_listener_bound(&engine->listener, timeout_ns);
    const struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    engine->system_calls++;
    if (ppoll(engine->polled, count, &timeout, NULL) <= 0) return;
    for (uint32_t i = 0; i < count; i++)
        if (engine->polled[i].revents) note_ready(engine, &engine->polled[i], engine->polled_number[i]);
}

// The first turn without events leaves poll(2) to wait(); each further turn without a wait calls it.
static uint32_t turn(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room) {
    transfer_all(engine);
    if (!engine->queue.count && engine->polls_next) {
        poll_sockets(engine, 0);
        transfer_all(engine);
    }
    engine->polls_next = engine->queue.count == 0;
    return farm_event_take(&engine->queue, events, room);
}

static void wait_for_events(struct farm_engine *engine, uint64_t timeout_ns) {
    transfer_all(engine);
    engine->polls_next = false;
    if (!engine->queue.count) poll_sockets(engine, timeout_ns);
}

static uint64_t system_calls(const struct farm_engine *engine) {
    return engine->system_calls;
}

const struct farm_engine_ops farm_engine_poll = {
    .name = "poll",
    .create = create,
    .destroy = destroy,
    .watch = watch,
    .listen = listen_at,
    .open = open_socket,
    .connect = connect_socket,
    .receive = receive,
    .send = send_parts,
    .close = close_socket,
    .turn = turn,
    .wait = wait_for_events,
    .system_calls = system_calls,
};
