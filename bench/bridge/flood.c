// See flood.h.
#include "flood.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../common.h"
#include "base/atomics.h"
#include "base/time.h"
#include "bridge/tls.h"

enum { HELD_MAX = 256, HEAD_BYTES = 9 };

// A client's first message by another key than the learner's.
static size_t make_hello(uint8_t *out, size_t room) {
    static const struct farm_key wrong = {.kind = FARM_KEY_NODE, .secret = {9}, .name = "node"};
    struct farm_tls_context *context;
    struct farm_tls *tls;
    struct farm_error err;
    size_t bytes;
    bool done;
    must(farm_tls_context_make(&wrong, false, &context, &err), &err);
    must(farm_tls_make(context, &tls, &err), &err);
    must(farm_tls_handshake(tls, &done, &err), &err);
    const void *hello = farm_tls_output(tls, &bytes);
    must_hold(bytes > HEAD_BYTES && bytes <= room, "a hello");
    memcpy(out, hello, bytes);
    farm_tls_free(tls);
    farm_tls_context_free(context);
    return bytes;
}

double bench_flood(const char *host, uint16_t port, uint32_t hz, const uint64_t *end) {
    static const uint8_t garbage[64] = "GET / HTTP/1.1\r\n";
    uint8_t hello[1024];
    int held[HELD_MAX];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    const struct linger reset = {.l_onoff = 1};
    const size_t hello_bytes = make_hello(hello, sizeof hello);
    const uint64_t start_ns = farm_now_ns();
    uint64_t made = 0;
    inet_pton(AF_INET, host, &to.sin_addr);
    memset(held, 0xff, sizeof held);
    while (!farm_load_acquire(end)) {
        if (farm_now_ns() < start_ns + made * 1000000000u / hz) {
            usleep(100);
            continue;
        }
        const enum bench_flood_shape now = (enum bench_flood_shape)(made % BENCH_FLOOD_SHAPES);
        int *slot = &held[made++ % HELD_MAX];
        if (*slot >= 0) close(*slot);
        const int fd = *slot = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); // no TIME_WAIT
        connect(fd, (struct sockaddr *)&to, sizeof to); // over veth it is connected when this returns, if it can be
        if (now == BENCH_FLOOD_GARBAGE) send(fd, garbage, sizeof garbage, MSG_NOSIGNAL);
        if (now == BENCH_FLOOD_HEAD) send(fd, hello, HEAD_BYTES, MSG_NOSIGNAL);
        if (now == BENCH_FLOOD_SLOW) send(fd, hello, 1, MSG_NOSIGNAL);
        if (now == BENCH_FLOOD_KEY) send(fd, hello, hello_bytes, MSG_NOSIGNAL);
        if (now == BENCH_FLOOD_CLOSE) shutdown(fd, SHUT_WR);
        if (now != BENCH_FLOOD_RESET) continue;
        close(fd);
        *slot = -1;
    }
    return (double)made / ((double)(farm_now_ns() - start_ns) * 1e-9);
}
