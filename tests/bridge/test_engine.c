// Both engines over socket pairs and loopback TCP: an operation ends as one event, however the bytes are cut.
// Accepting, connecting and both directions at once are shown by test_pair.c.
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/time.h"
#include "bridge/engine.h"
#include "loopback.h"

TestSuite(bridge, .timeout = 30);

enum { SOCKETS = 4, WATCHES = 2, MS = 1000000, LARGE = 8 << 20, NO_EVENT = FARM_ENGINE_READABLE + 1 };
static const uint64_t LIMIT_NS = 5000 * (uint64_t)MS;

static const struct farm_engine_ops *ops;
static struct farm_engine *engine;

static bool make_engine(const char *word) {
    struct farm_error err = {0};
    const enum farm_status status = farm_engine_make(word, SOCKETS, WATCHES, &ops, &engine, &err);
    if (status == FARM_E_UNSUPPORTED) cr_log_warn("NOT tested: %s: %s", word, err.message);
    cr_assert(!status || status == FARM_E_UNSUPPORTED, "%s", err.message);
    return !status;
}

// Each test runs once for each engine.
#define ENGINE_TEST(name)                                                                                              \
    static void name(void);                                                                                            \
    Test(bridge, poll_##name) {                                                                                        \
        cr_assert(make_engine("poll"));                                                                                \
        name();                                                                                                        \
        ops->destroy(engine);                                                                                          \
    }                                                                                                                  \
    Test(bridge, uring_##name) {                                                                                       \
        if (!make_engine("uring")) cr_skip_test("no io_uring here");                                                   \
        name();                                                                                                        \
        ops->destroy(engine);                                                                                          \
    }                                                                                                                  \
    static void name(void)

// The next event; kind NO_EVENT after the time limit.
static struct farm_engine_event next_within(uint64_t limit_ns) {
    struct farm_engine_event event;
    for (const uint64_t end = farm_now_ns() + limit_ns;;) {
        if (ops->turn(engine, &event, 1)) return event;
        const uint64_t now = farm_now_ns();
        if (now >= end) return (struct farm_engine_event){.kind = (enum farm_engine_event_kind)NO_EVENT};
        ops->wait(engine, end - now);
    }
}

static void expect(enum farm_engine_event_kind kind, uint32_t number, int64_t result) {
    const struct farm_engine_event event = next_within(LIMIT_NS);
    cr_assert(event.kind == kind && event.number == number && event.result == result,
              "got kind %d number %u result %ld, not %d %u %ld", event.kind, event.number, (long)event.result, kind,
              number, (long)result);
}

static void expect_nothing(void) {
    const struct farm_engine_event event = next_within(20 * MS);
    cr_assert_eq((int)event.kind, NO_EVENT, "kind %d number %u result %ld", event.kind, event.number,
                 (long)event.result);
}

static void expect_sleep(void) {
    const uint64_t calls = ops->system_calls(engine);
    expect_nothing();
    cr_assert_lt(ops->system_calls(engine) - calls, 20, "it spins");
}

static void close_all(uint32_t sockets) {
    for (uint32_t i = 0; i < sockets; i++) ops->close(engine, i);
    for (uint32_t i = 0; i < sockets; i++) cr_assert_eq(next_within(LIMIT_NS).kind, FARM_ENGINE_CLOSED);
    expect_nothing();
}

// Opens the engine's socket `number`; returns the other end, which blocks.
static int open_pair(uint32_t number) {
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    ops->open(engine, number, fds[0]);
    return fds[1];
}

static void close_pair(int peer) {
    close_all(1);
    close(peer);
}

static uint8_t *make_pattern(size_t bytes) {
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    return data;
}

static int tcp_socket(void) {
    return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// ---- receiving ----

ENGINE_TEST(receives_into_parts_when_all_pieces_have_come) {
    const int peer = open_pair(0);
    uint8_t data[1000], *sent = make_pattern(sizeof data);
    struct iovec parts[] = {{data, 1}, {data + 1, 500}, {data + 501, 0}, {data + 501, 499}};
    ops->receive(engine, 0, parts, 4, sizeof data);
    for (size_t i = 0; i < sizeof data; i += 100) {
        expect_nothing();
        cr_assert_eq(write(peer, sent + i, 100), 100);
    }
    expect(FARM_ENGINE_RECEIVED, 0, sizeof data);
    cr_assert_arr_eq(data, sent, sizeof data);
    close_pair(peer);
    free(sent);
}

ENGINE_TEST(a_receive_ends_with_at_least_the_requested_bytes) {
    const int peer = open_pair(0);
    char data[100];
    struct iovec part = {data, sizeof data};
    ops->receive(engine, 0, &part, 1, 10);
    cr_assert_eq(write(peer, "abcdefghi", 9), 9);
    expect_nothing();
    cr_assert_eq(write(peer, "jkl", 3), 3);
    expect(FARM_ENGINE_RECEIVED, 0, 12);
    cr_assert_arr_eq(data, "abcdefghijkl", 12);
    close_pair(peer);
}

ENGINE_TEST(a_closed_peer_is_zero_bytes_and_a_send_to_it_an_error) {
    const int peer = open_pair(0);
    char data[8];
    struct iovec part = {data, sizeof data};
    ops->receive(engine, 0, &part, 1, 1);
    close(peer);
    expect(FARM_ENGINE_RECEIVED, 0, 0);
    part = (struct iovec){data, sizeof data};
    ops->send(engine, 0, &part, 1);
    expect(FARM_ENGINE_SENT, 0, -EPIPE);
    close_all(1);
}

// ---- sending ----

struct reader {
    int fd;
    uint8_t *data;
    size_t bytes;
    pthread_t thread;
};

static void *read_slowly(void *argument) {
    struct reader *reader = argument;
    usleep(20000);
    for (ssize_t n = 1; n > 0 && reader->bytes < LARGE; reader->bytes += (size_t)n)
        n = read(reader->fd, reader->data + reader->bytes, LARGE - reader->bytes);
    return NULL;
}

static void send_large(bool deferred) {
    struct reader reader = {.fd = open_pair(0), .data = malloc(LARGE)};
    uint8_t *sent = make_pattern(LARGE);
    struct iovec parts[1024];
    for (size_t i = 0; i < 1024; i++) parts[i] = (struct iovec){sent + i * (LARGE / 1024), LARGE / 1024};
    pthread_create(&reader.thread, NULL, read_slowly, &reader);
    ops->send(engine, 0, parts, 1024);
    if (deferred && ops->defer_sent) ops->defer_sent(engine, 0);
    expect(FARM_ENGINE_SENT, 0, LARGE);
    pthread_join(reader.thread, NULL);
    cr_assert_eq(reader.bytes, LARGE);
    cr_assert_eq(memcmp(reader.data, sent, LARGE), 0);
    close_pair(reader.fd);
    free(reader.data);
    free(sent);
}

ENGINE_TEST(sends_everything_to_a_peer_that_reads_slowly_deferred_too) {
    send_large(false);
    send_large(true);
}

ENGINE_TEST(a_deferred_send_comes_with_the_answer_in_one_wait) {
    const int peer = open_pair(0);
    struct farm_engine_event events[4];
    char in[4], out[] = "abcd";
    struct iovec in_part = {in, 4}, out_part;
    uint64_t calls = 0;
    for (int i = 0; i < 20; i++) {
        in_part = (struct iovec){in, 4}, out_part = (struct iovec){out, 4};
        ops->receive(engine, 0, &in_part, 1, 4);
        ops->send(engine, 0, &out_part, 1);
        cr_assert_eq(write(peer, "wxyz", 4), 4); // the answer
        if (i == 10) calls = ops->system_calls(engine);
        if (ops->defer_sent) ops->defer_sent(engine, 0);
        uint32_t n = 0;
        while (n < 2) {
            const uint32_t more = ops->turn(engine, events + n, 4 - n);
            if (!more) ops->wait(engine, LIMIT_NS);
            n += more;
        }
        cr_assert_eq(n, 2);
    }
    calls = ops->system_calls(engine) - calls;
    cr_assert_leq(calls, strcmp(ops->name, "uring") == 0 ? 10 : 20, "%lu system calls for 10 answers", calls);
    close_pair(peer);
}

// ---- closing ----

ENGINE_TEST(after_closed_there_is_no_event_and_the_number_is_free) {
    struct farm_engine_event event;
    static uint8_t out[LARGE];
    for (int round = 0; round < 20; round++) {
        const int peer = open_pair(1);
        char in[100];
        struct iovec in_part = {in, sizeof in}, out_part = {out, sizeof out};
        ops->receive(engine, 1, &in_part, 1, sizeof in);
        ops->send(engine, 1, &out_part, 1);
        for (int i = 0; i < round % 4; i++) // not submitted, submitted, or half done
            if (!ops->turn(engine, &event, 1)) ops->wait(engine, MS);
        if (round & 4) cr_assert_eq(write(peer, in, sizeof in), sizeof in); // ended, and not reported
        ops->close(engine, 1);
        expect(FARM_ENGINE_CLOSED, 1, 0);
        cr_assert_eq(ops->turn(engine, &event, 1), 0);
        char byte;
        while (read(peer, &byte, 1) == 1 && recv(peer, out, sizeof out, 0) > 0) // the descriptor is closed
            ;
        close(peer);
    }
    expect_nothing();
}

// ---- watching ----

ENGINE_TEST(a_watch_repeats_its_event_until_it_is_read_empty) {
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t value = 3;
    ops->watch(engine, 1, fd);
    expect_nothing();
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(write(fd, &value, 8), 8);
        expect(FARM_ENGINE_READABLE, 1, 0);
        expect(FARM_ENGINE_READABLE, 1, 0);
        cr_assert_eq(read(fd, &value, 8), 8);
        expect_nothing();
    }
    close(fd);
}

ENGINE_TEST(the_engine_or_its_caller_reads_a_counter) {
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t value;
    farm_engine_watch_counter(ops, engine, 0, fd);
    for (uint64_t i = 1; i < 6; i++) {
        expect_nothing();
        cr_assert_eq(write(fd, &i, 8), 8);
        const struct farm_engine_event event = next_within(LIMIT_NS);
        cr_assert(event.kind == FARM_ENGINE_READABLE && event.number == 0);
        if (event.result == 0) cr_assert_eq(read(fd, &value, 8), 8);
        cr_assert_eq(event.result ? (uint64_t)event.result : value, i);
    }
    close(fd);
}

// ---- connections ----

ENGINE_TEST(reports_a_refused_connection) {
    struct sockaddr_in address;
    close(listen_on_loopback(&address));
    ops->open(engine, 0, tcp_socket());
    ops->connect(engine, 0, (struct sockaddr *)&address, sizeof address);
    expect(FARM_ENGINE_CONNECTED, 0, -ECONNREFUSED);
    close_all(1);
}

ENGINE_TEST(closes_an_attempt_to_connect) {
    struct sockaddr_in address;
    const int listener = listen_on_loopback(&address);
    int fillers[64]; // a full backlog: further attempts hang
    for (int i = 0; i < 64; i++) connect(fillers[i] = tcp_socket(), (struct sockaddr *)&address, sizeof address);
    ops->open(engine, 0, tcp_socket());
    ops->connect(engine, 0, (struct sockaddr *)&address, sizeof address);
    expect_nothing();
    close_all(1);
    for (int i = 0; i < 64; i++) close(fillers[i]);
    close(listener);
}

ENGINE_TEST(a_listener_without_descriptors_pauses_and_recovers) {
    struct sockaddr_in address;
    struct rlimit before, none;
    const int listener = listen_on_loopback(&address), client = tcp_socket();
    ops->listen(engine, listener);
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 3;
    expect_nothing();
    connect(client, (struct sockaddr *)&address, sizeof address);
    setrlimit(RLIMIT_NOFILE, &none);
    expect(FARM_ENGINE_ACCEPTED, 0, -EMFILE);
    expect_sleep();
    setrlimit(RLIMIT_NOFILE, &before);
    const struct farm_engine_event event = next_within(LIMIT_NS);
    cr_assert(event.kind == FARM_ENGINE_ACCEPTED && event.result > 0);
    expect_sleep(); // the pause is over
    close((int)event.result);
    close(client);
    close(listener);
}

// ---- system calls, and which engine ----

ENGINE_TEST(turns_without_work_make_no_system_call_and_waits_end_in_time) {
    const int peer = open_pair(0);
    char data[8];
    struct iovec part = {data, sizeof data};
    struct farm_engine_event event;
    ops->receive(engine, 0, &part, 1, 1);
    expect_nothing();
    const uint64_t calls = ops->system_calls(engine), began = farm_now_ns();
    ops->wait(engine, 30 * MS);
    cr_assert_geq(farm_now_ns() - began, 25 * MS);
    cr_assert_eq(ops->system_calls(engine), calls + 1);
    for (int i = 0; i < 100 && strcmp(ops->name, "uring") == 0; i++) ops->turn(engine, &event, 1);
    cr_assert_eq(ops->system_calls(engine), calls + 1);
    cr_assert_eq(write(peer, "x", 1), 1);
    for (int i = 0; i < 1000 && !ops->turn(engine, &event, 1); i++) // without a wait, as a spinning caller does
        ;
    cr_assert(event.kind == FARM_ENGINE_RECEIVED && event.result == 1);
    close_pair(peer);
}

static bool refuse_io_uring(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

Test(bridge, auto_falls_back_to_poll_if_io_uring_is_forbidden) {
    struct farm_error err = {0};
    if (!refuse_io_uring()) cr_skip_test("no seccomp filters here");
    cr_assert_eq(farm_engine_make("uring", SOCKETS, WATCHES, &ops, &engine, &err), FARM_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "io_uring") && strchr(err.message, ':'), "%s", err.message);
    cr_assert_eq(farm_engine_make("auto", SOCKETS, WATCHES, &ops, &engine, &err), FARM_OK, "%s", err.message);
    cr_assert_str_eq(ops->name, "poll");
    ops->destroy(engine);
    cr_assert_eq(farm_engine_make("epoll", SOCKETS, WATCHES, &ops, &engine, &err), FARM_E_USAGE);
}

static void *use_engine(void *argument) {
    (void)argument;
    const int peer = open_pair(0);
    char data[3];
    struct iovec part = {data, 3};
    ops->receive(engine, 0, &part, 1, 3);
    cr_assert_eq(write(peer, "abc", 3), 3);
    expect(FARM_ENGINE_RECEIVED, 0, 3);
    close_pair(peer);
    return NULL;
}

ENGINE_TEST(belongs_to_the_thread_that_uses_it_first) {
    pthread_t thread;
    pthread_create(&thread, NULL, use_engine, NULL);
    pthread_join(thread, NULL);
}
