// The bridge's engine by io_uring. Gathers operations and submits them with the io_uring_enter that also sleeps; with
// IORING_SETUP_DEFER_TASKRUN completions arrive at no other time. Tries flags and probes opcodes, so that it works on
// kernels from Linux 5.11 on. See engine.h.
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "bridge/engine_state.h"
#include "ring/wait.h"

// Kinds of operations; a socket's are bits of `flying`.
enum kind { IN, OUT, CONNECT, CANCEL, WATCH, KIND_BITS = 8 };
enum { LISTENER = FARM_ENGINE_WATCHES_MAX }; // the listener's watch

struct uring_socket {
    int fd; // -1: free
    bool closing;
    uint8_t flying;         // bits of enum kind
    uint64_t deferred_wait; // the wait, by number, that SENT need not end
    bool quiet;             // submitted so that only a failure completes
    uint8_t loud;           // sends that are not tried quietly, because one could not be sent at once
    struct farm_transfer in, out;
    struct msghdr in_message, out_message;
    const struct sockaddr *address;
    socklen_t address_bytes;
};

struct uring_watch {
    int fd; // -1: none
    bool flying;
    enum {
        REPORTED,
        READ_BY_ENGINE,
        POLLED_AND_READ,
        ACCEPTS
    } way; // POLLED_AND_READ: READ does not wait on this kernel
    uint64_t value;
};

struct want {
    uint8_t kind;
    uint32_t number;
};

struct farm_engine {
    struct io_uring ring;
    bool made, enabled, signals_work; // signals_work: IORING_SQ_TASKRUN reports completions that wait for a call
    bool can_be_quiet;
    struct uring_socket sockets[FARM_ENGINE_SOCKETS_MAX];
    struct uring_watch watches[FARM_ENGINE_WATCHES_MAX + 1];
    uint32_t socket_count;
    struct farm_listener listener;
    bool listener_paused;
    struct want wants[FARM_EVENTS_MAX];
    uint32_t want_count;
    uint32_t quiet[FARM_ENGINE_SOCKETS_MAX]; // sockets whose quiet send is submitted
    uint32_t quiet_count;
    bool deferred;  // the last turn left the submission to wait()
    uint64_t waits; // from 1
    struct farm_event_queue queue;
    uint64_t system_calls;
};

enum { LOUD_SENDS = 32, DESTROY_TRIES = 100 };

// ---- making ----

static void destroy(struct farm_engine *engine);

static enum farm_status explain_error(int error, struct farm_error *err) {
    char value[16];
    errno = error;
    if (error == ENOSYS)
        return farm_fail(err, FARM_E_UNSUPPORTED, "this kernel has no io_uring, or a seccomp filter hides it");
    if (error == ENOMEM)
        return farm_fail_errno(err, FARM_E_UNSUPPORTED, "io_uring_setup (RLIMIT_MEMLOCK or memory is too small)");
    if (error != EPERM && error != EACCES) return farm_fail_errno(err, FARM_E_UNSUPPORTED, "io_uring_setup");
    if (farm_file_line(value, sizeof value, "/proc/sys/kernel/io_uring_disabled") && value[0] != '0')
        return farm_fail(err, FARM_E_UNSUPPORTED, "forbidden by sysctl kernel.io_uring_disabled = %s", value);
    return farm_fail(err, FARM_E_UNSUPPORTED, "forbidden by a seccomp filter, perhaps of a container (EPERM)");
}

// Takes the best flags that this kernel supports. A ring that starts disabled belongs to the thread that uses it first.
static int set_up(struct farm_engine *engine, unsigned entries, unsigned completions) {
    static const unsigned attempts[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL |
            IORING_SETUP_R_DISABLED,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL |
            IORING_SETUP_R_DISABLED,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
        IORING_SETUP_SUBMIT_ALL,
        0,
    };
    int error = 0;
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        struct io_uring_params params = {.flags = attempts[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
                                         .cq_entries = completions};
        error = io_uring_queue_init_params(entries, &engine->ring, &params);
        if (error == -EINVAL) continue;
        engine->made = error == 0;
        engine->enabled = !(attempts[i] & IORING_SETUP_R_DISABLED);
        engine->signals_work = attempts[i] & IORING_SETUP_TASKRUN_FLAG;
        // On every kernel with this feature a short send with MSG_WAITALL fails, so it completes.
        engine->can_be_quiet = (attempts[i] & IORING_SETUP_DEFER_TASKRUN) && (params.features & IORING_FEAT_CQE_SKIP);
        return error;
    }
    return error;
}

static const uint8_t codes[] = {IORING_OP_SEND,    IORING_OP_SENDMSG,  IORING_OP_RECV, IORING_OP_RECVMSG,
                                IORING_OP_CONNECT, IORING_OP_POLL_ADD, IORING_OP_READ, IORING_OP_ASYNC_CANCEL};
enum { CODES = sizeof codes / sizeof *codes };

// From its first use on the ring takes no other operation, because a seccomp filter does not see what it does.
static void restrict_operations(struct farm_engine *engine) {
    struct io_uring_restriction allowed[CODES + 2] = {
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_ENABLE_RINGS},
        {.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_CQE_SKIP_SUCCESS}};
    for (int i = 0; i < CODES; i++)
        allowed[i + 2] = (struct io_uring_restriction){.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = codes[i]};
    if (!engine->enabled)
        io_uring_register((unsigned)engine->ring.ring_fd, IORING_REGISTER_RESTRICTIONS, allowed, CODES + 2);
}

static enum farm_status probe(struct farm_engine *engine, struct farm_error *err) {
    const unsigned features = IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_EXT_ARG;
    if ((engine->ring.features & features) != features)
        return farm_fail(err, FARM_E_UNSUPPORTED, "this kernel's io_uring is older than Linux 5.11's");
    struct io_uring_probe *probe = io_uring_get_probe_ring(&engine->ring);
    if (!probe) return farm_fail(err, FARM_E_UNSUPPORTED, "this kernel's io_uring cannot be probed");
    int missing = -1;
    for (int i = 0; i < CODES; i++)
        if (!io_uring_opcode_supported(probe, codes[i])) missing = codes[i];
    io_uring_free_probe(probe);
    if (missing < 0) return restrict_operations(engine), FARM_OK;
    return farm_fail(err, FARM_E_UNSUPPORTED, "this kernel's io_uring lacks operation %d", missing);
}

static enum farm_status create(uint32_t sockets, uint32_t watches, void *context, struct farm_engine **out,
                               struct farm_error *err) {
    (void)context;
    assert(sockets <= FARM_ENGINE_SOCKETS_MAX && watches <= FARM_ENGINE_WATCHES_MAX);
    struct farm_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return farm_fail(err, FARM_E_LIMIT, "out of memory for the bridge's sockets");
    engine->socket_count = sockets;
    engine->listener.fd = -1;
    engine->waits = 1;
    for (uint32_t i = 0; i < sockets; i++) engine->sockets[i].fd = -1;
    for (uint32_t i = 0; i <= LISTENER; i++) engine->watches[i].fd = -1;
    const int error = set_up(engine, 64 + 2 * sockets, 128 + 8 * sockets + 2 * watches);
    const enum farm_status status = error ? explain_error(-error, err) : probe(engine, err);
    if (status)
        destroy(engine);
    else
        *out = engine;
    return status;
}

// ---- operations to submit ----

static void add_want(struct farm_engine *engine, enum kind kind, uint32_t number) {
    assert(engine->want_count < FARM_EVENTS_MAX);
    engine->wants[engine->want_count++] = (struct want){(uint8_t)kind, number};
}

static void forget_wants(struct farm_engine *engine, uint32_t socket) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < engine->want_count; i++) {
        const struct want one = engine->wants[i];
        if (one.kind > CANCEL || one.number != socket) engine->wants[kept++] = one;
    }
    engine->want_count = kept;
}

static void add_watch(struct farm_engine *engine, uint32_t number, int fd, int way) {
    assert(number <= LISTENER && engine->watches[number].fd < 0);
    engine->watches[number] = (struct uring_watch){.fd = fd, .way = way};
    add_want(engine, WATCH, number);
}

static void watch(struct farm_engine *engine, uint32_t number, int fd) {
    add_watch(engine, number, fd, REPORTED);
}

static void watch_counter(struct farm_engine *engine, uint32_t number, int fd) {
    add_watch(engine, number, fd, READ_BY_ENGINE);
}

static void listen_at(struct farm_engine *engine, int fd) {
    engine->listener = (struct farm_listener){.fd = fd};
    add_watch(engine, LISTENER, fd, ACCEPTS);
}

static struct uring_socket *socket_at(struct farm_engine *engine, uint32_t number) {
    assert(number < engine->socket_count && engine->sockets[number].fd >= 0 && !engine->sockets[number].closing);
    return &engine->sockets[number];
}

static void open_socket(struct farm_engine *engine, uint32_t number, int fd) {
    assert(number < engine->socket_count && engine->sockets[number].fd < 0);
    engine->sockets[number] = (struct uring_socket){.fd = fd};
}

static void connect_socket(struct farm_engine *engine, uint32_t number, const struct sockaddr *address,
                           socklen_t bytes) {
    struct uring_socket *socket = socket_at(engine, number);
    socket->address = address;
    socket->address_bytes = bytes;
    add_want(engine, CONNECT, number);
}

static void receive(struct farm_engine *engine, uint32_t number, struct iovec *parts, uint32_t count, size_t least) {
    farm_transfer_begin(&socket_at(engine, number)->in, parts, count, least);
    add_want(engine, IN, number);
}

static void send_parts(struct farm_engine *engine, uint32_t number, struct iovec *parts, uint32_t count) {
    struct uring_socket *socket = socket_at(engine, number);
    farm_transfer_begin(&socket->out, parts, count, SIZE_MAX);
    socket->deferred_wait = 0;
    add_want(engine, OUT, number);
}

static void defer_sent(struct farm_engine *engine, uint32_t number) {
    engine->sockets[number].deferred_wait = engine->waits;
}

static void finish_close(struct farm_engine *engine, uint32_t number) {
    forget_wants(engine, number);
    close(engine->sockets[number].fd);
    engine->system_calls++;
    engine->sockets[number] = (struct uring_socket){.fd = -1};
    farm_event_put(&engine->queue, FARM_ENGINE_CLOSED, number, 0);
}

static void close_socket(struct farm_engine *engine, uint32_t number) {
    struct uring_socket *socket = socket_at(engine, number);
    forget_wants(engine, number);
    farm_event_forget(&engine->queue, number);
    shutdown(socket->fd, SHUT_RDWR);
    engine->system_calls++;
    socket->closing = true;
    if (socket->flying)
        add_want(engine, CANCEL, number);
    else
        finish_close(engine, number);
}

// ---- submission ----

static uint64_t tag(enum kind kind, uint32_t number) {
    return (uint64_t)number << KIND_BITS | kind;
}

static struct io_uring_sqe *next_sqe(struct farm_engine *engine) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring);
    if (!sqe) {
        engine->system_calls++;
        io_uring_submit(&engine->ring);
        sqe = io_uring_get_sqe(&engine->ring);
    }
    assert(sqe); // a submission makes room
    return sqe;
}

static void prepare_in(struct farm_engine *engine, uint32_t number) {
    struct uring_socket *socket = &engine->sockets[number];
    struct io_uring_sqe *sqe = next_sqe(engine);
    const struct farm_transfer *in = &socket->in;
    const unsigned flags = farm_transfer_wants_all(in) ? MSG_WAITALL : 0;
    socket->in_message = (struct msghdr){.msg_iov = in->parts, .msg_iovlen = in->count};
    if (in->count == 1)
        io_uring_prep_recv(sqe, socket->fd, in->parts->iov_base, in->parts->iov_len, (int)flags);
    else
        io_uring_prep_recvmsg(sqe, socket->fd, &socket->in_message, flags);
    sqe->user_data = tag(IN, number);
}

static bool goes_quietly(struct farm_engine *engine, struct uring_socket *socket) {
    if (!engine->can_be_quiet || socket->deferred_wait != engine->waits) return false;
    if (socket->loud) socket->loud--;
    return !socket->loud;
}

static void prepare_out(struct farm_engine *engine, uint32_t number) {
    struct uring_socket *socket = &engine->sockets[number];
    struct io_uring_sqe *sqe = next_sqe(engine);
    const struct farm_transfer *out = &socket->out;
    socket->quiet = goes_quietly(engine, socket);
    const unsigned flags = MSG_WAITALL | MSG_NOSIGNAL | (socket->quiet ? MSG_DONTWAIT : 0);
    socket->out_message = (struct msghdr){.msg_iov = out->parts, .msg_iovlen = out->count};
    if (out->count == 1)
        io_uring_prep_send(sqe, socket->fd, out->parts->iov_base, out->parts->iov_len, (int)flags);
    else
        io_uring_prep_sendmsg(sqe, socket->fd, &socket->out_message, flags);
    sqe->user_data = tag(OUT, number);
    if (!socket->quiet) return;
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
    engine->quiet[engine->quiet_count++] = number;
}

static void prepare_cancels(struct farm_engine *engine, uint32_t number) {
    for (enum kind kind = IN; kind <= CONNECT; kind++) {
        if (!(engine->sockets[number].flying & 1u << kind)) continue;
        struct io_uring_sqe *sqe = next_sqe(engine);
        io_uring_prep_cancel64(sqe, tag(kind, number), 0);
        sqe->user_data = tag(CANCEL, number);
    }
}

static void prepare_connect(struct farm_engine *engine, uint32_t number) {
    const struct uring_socket *socket = &engine->sockets[number];
    struct io_uring_sqe *sqe = next_sqe(engine);
    io_uring_prep_connect(sqe, socket->fd, socket->address, socket->address_bytes);
    sqe->user_data = tag(CONNECT, number);
}

static void prepare_watch(struct farm_engine *engine, uint32_t number) {
    struct uring_watch *watch = &engine->watches[number];
    struct io_uring_sqe *sqe = next_sqe(engine);
    if (watch->way == READ_BY_ENGINE)
        io_uring_prep_read(sqe, watch->fd, &watch->value, sizeof watch->value, 0);
    else
        io_uring_prep_poll_add(sqe, watch->fd, POLLIN);
    sqe->user_data = tag(WATCH, number);
    watch->flying = true;
}

static void prepare(struct farm_engine *engine, struct want one) {
    static void (*const prepares[])(struct farm_engine *, uint32_t) = {
        [IN] = prepare_in,          [OUT] = prepare_out,     [CONNECT] = prepare_connect,
        [CANCEL] = prepare_cancels, [WATCH] = prepare_watch,
    };
    prepares[one.kind](engine, one.number);
    if (one.kind < CANCEL) engine->sockets[one.number].flying |= (uint8_t)(1u << one.kind);
}

// ---- completions ----

static void handle_completion(struct farm_engine *engine, enum kind kind, uint32_t number, int64_t outcome) {
    struct uring_socket *socket = &engine->sockets[number];
    socket->flying &= (uint8_t) ~(1u << kind);
    int64_t result = outcome;
    if (kind == OUT && socket->quiet) {
        socket->quiet = false;
        socket->loud = LOUD_SENDS;
    }
    if (socket->closing) {
        if (!socket->flying) finish_close(engine, number);
    } else if (kind == CONNECT) {
        farm_event_put(&engine->queue, FARM_ENGINE_CONNECTED, number, result);
    } else if (!farm_transfer_continue(kind == IN ? &socket->in : &socket->out, outcome, &result)) {
        add_want(engine, kind, number);
    } else {
        farm_event_put(&engine->queue, kind == IN ? FARM_ENGINE_RECEIVED : FARM_ENGINE_SENT, number, result);
    }
}

static void handle_watch(struct farm_engine *engine, uint32_t number, int64_t outcome) {
    struct uring_watch *watch = &engine->watches[number];
    watch->flying = false;
    if (outcome == -ECANCELED || outcome == -EBADF) return;
    if (watch->way == ACCEPTS) {
        engine->system_calls += farm_listener_accept(&engine->listener, &engine->queue);
        engine->listener_paused = true;
        return;
    }
    if (watch->way == READ_BY_ENGINE && outcome != sizeof watch->value) {
        watch->way = POLLED_AND_READ;
        add_want(engine, WATCH, number);
        return;
    }
    if (watch->way == POLLED_AND_READ) {
        engine->system_calls++;
        watch->value = farm_bell_empty(watch->fd);
        if (!watch->value) {
            add_want(engine, WATCH, number);
            return;
        }
    }
    farm_event_put(&engine->queue, FARM_ENGINE_READABLE, number, watch->way == REPORTED ? 0 : (int64_t)watch->value);
}

// Moves completions into the queue, without a system call.
static void collect(struct farm_engine *engine) {
    unsigned head, seen = 0;
    const struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&engine->ring, head, cqe) {
        const enum kind kind = cqe->user_data & ((1u << KIND_BITS) - 1);
        const uint32_t number = (uint32_t)(cqe->user_data >> KIND_BITS);
        seen++;
        if (cqe->user_data == LIBURING_UDATA_TIMEOUT || kind == CANCEL) continue;
        if (kind < CANCEL)
            handle_completion(engine, kind, number, cqe->res);
        else
            handle_watch(engine, number, cqe->res);
    }
    io_uring_cq_advance(&engine->ring, seen);
}

// A submitted quiet send without a completion was sent at once.
static void conclude_quiet(struct farm_engine *engine) {
    if (!engine->quiet_count || io_uring_sq_ready(&engine->ring) || io_uring_cq_has_overflow(&engine->ring)) return;
    for (uint32_t i = 0; i < engine->quiet_count; i++) {
        struct uring_socket *socket = &engine->sockets[engine->quiet[i]];
        if (!socket->quiet) continue;
        socket->quiet = false;
        handle_completion(engine, OUT, engine->quiet[i], (int64_t)(socket->out.total - socket->out.done));
    }
    engine->quiet_count = 0;
}

// At most an hour, so that the kernel's clock does not overflow when it adds this.
static struct __kernel_timespec timespec_of(uint64_t timeout_ns) {
    const uint64_t longest_ns = 3600 * 1000000000ull, ns = timeout_ns < longest_ns ? timeout_ns : longest_ns;
    return (struct __kernel_timespec){(long long)(ns / 1000000000u), (long long)(ns % 1000000000u)};
}

static void enter(struct farm_engine *engine, bool sleep, uint64_t timeout_ns) {
    if (!engine->enabled) {
        engine->system_calls++;
        // liburing 2.3 does not export io_uring_enable_rings
        const int result = io_uring_register((unsigned)engine->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
        engine->enabled = result == 0;
    }
    for (uint32_t i = 0; i < engine->want_count; i++) prepare(engine, engine->wants[i]);
    engine->want_count = 0;
    engine->deferred = false;
    engine->system_calls++;
    struct __kernel_timespec timeout = timespec_of(timeout_ns);
    struct io_uring_cqe *cqe;
    const int result = sleep ? io_uring_submit_and_wait_timeout(&engine->ring, &cqe, 1, &timeout, NULL)
                             : io_uring_submit_and_get_events(&engine->ring);
    assert(result != -EEXIST && result != -EBADF); // the ring belongs to another thread
    (void)result;
    collect(engine);
    conclude_quiet(engine);
}

// ---- turns and waits ----

static uint32_t take_events(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room) {
    const uint32_t n = farm_event_take(&engine->queue, events, room);
    for (uint32_t i = 0; i < n; i++) // watched again after the caller has handled it
        if (events[i].kind == FARM_ENGINE_READABLE) add_want(engine, WATCH, events[i].number);
    return n;
}

static void resume_listener(struct farm_engine *engine) {
    if (!engine->listener_paused || farm_listener_is_paused(&engine->listener)) return;
    engine->listener_paused = false;
    add_want(engine, WATCH, LISTENER);
}

// The first turn without completions leaves submitting to wait(), in one call; the next turn without a wait submits.
static uint32_t turn(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room) {
    collect(engine);
    if (engine->queue.count) return take_events(engine, events, room);
    resume_listener(engine);
    const unsigned flags = engine->signals_work ? IO_URING_READ_ONCE(*engine->ring.sq.kflags) : 0;
    const bool work = (flags & IORING_SQ_TASKRUN) || io_uring_cq_has_overflow(&engine->ring);
    const bool wanted = engine->want_count || io_uring_sq_ready(&engine->ring);
    if (work || (wanted && engine->deferred))
        enter(engine, false, 0);
    else
        engine->deferred = wanted;
    return take_events(engine, events, room);
}

static void wait_for_events(struct farm_engine *engine, uint64_t timeout_ns) {
    collect(engine);
    if (!engine->queue.count) {
        resume_listener(engine);
        enter(engine, true, farm_listener_bound(&engine->listener, timeout_ns));
    }
    engine->waits++;
}

static uint64_t system_calls(const struct farm_engine *engine) {
    return engine->system_calls;
}

static bool any_watch_flies(const struct farm_engine *engine) {
    bool flies = false;
    for (uint32_t i = 0; i <= LISTENER; i++) flies |= engine->watches[i].flying;
    return flies;
}

// A read of an eventfd in flight writes to memory of the engine, which is about to be freed.
static void cancel_watches(struct farm_engine *engine) {
    for (uint32_t i = 0; i <= LISTENER; i++) {
        if (!engine->watches[i].flying) continue;
        struct io_uring_sqe *sqe = next_sqe(engine);
        io_uring_prep_cancel64(sqe, tag(WATCH, i), 0);
        sqe->user_data = tag(CANCEL, 0);
    }
    for (int i = 0; i < DESTROY_TRIES && any_watch_flies(engine); i++) {
        engine->want_count = 0;
        engine->queue.count = 0;
        enter(engine, true, 1000000);
    }
}

static void destroy(struct farm_engine *engine) {
    if (engine->enabled) cancel_watches(engine);
    if (engine->made) io_uring_queue_exit(&engine->ring);
    free(engine);
}

const struct farm_engine_ops farm_engine_uring = {
    .name = "uring",
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
    .watch_counter = watch_counter,
    .defer_sent = defer_sent,
};
