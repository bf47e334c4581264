// See host.h.
#include "host.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../tests/support/generation.h"
#include "../../tests/support/rings.h"
#include "../common.h"
#include "bridge/control.h"

const struct farm_key bench_key = {.kind = FARM_KEY_LEARNER, .secret = {1, 2, 3}};

const struct farm_key *bench_node_key(void) {
    static struct farm_key key;
    must_hold(key.kind || farm_key_derive(&bench_key, "node", &key), "a node's key");
    return &key;
}

void bench_offer_make(uint32_t lanes, uint32_t width, uint32_t pixels, uint32_t steps, struct farm_wire_offer *offer) {
    memset(offer, 0, sizeof *offer);
    offer->spec = farm_ring_spec_plain(lanes, width, steps, FARM_U8, pixels, 4);
    strcpy(offer->env, "native/breakout");
    strcpy(offer->bad_values, "count");
    memset(offer->run, 7, sizeof offer->run);
}

void bench_host_listen(struct bench_host *host) {
    socklen_t bytes = sizeof host->address;
    const int fd = host->config.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    must_hold(bind(fd, (struct sockaddr *)&host->address, bytes) == 0 && listen(fd, 1024) == 0 &&
                  getsockname(fd, (struct sockaddr *)&host->address, &bytes) == 0,
              "listening");
}

void bench_host_make(struct bench_host *host, const struct bench_net *net, uint32_t rings_each, bool sealed,
                     const char *engine) {
    struct farm_error err;
    host->address.sin_family = AF_INET;
    inet_pton(AF_INET, net->address[BENCH_LEARNER], &host->address.sin_addr);
    host->rings_each = rings_each;
    host->made = calloc((size_t)BENCH_SESSIONS_MAX * rings_each, sizeof *host->made);
    host->view = calloc((size_t)BENCH_SESSIONS_MAX * rings_each, sizeof *host->view);
    host->stats = calloc(1, sizeof *host->stats);
    must_hold(host->made && host->view && host->stats, "memory");
    must(farm_control_make(&host->control, &host->hub_control, &err), &err);
    host->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    host->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    host->config = (struct farm_hub_config){.control = host->hub_control,
                                            .wake = host->wake,
                                            .bells = &host->bell,
                                            .bell_count = 1,
                                            .key = sealed ? &bench_key : NULL,
                                            .offer = &host->offer,
                                            .stats = host->stats,
                                            .engine = engine};
    bench_host_listen(host);
}

static void make_rings(struct bench_host *host, uint32_t s) {
    for (uint32_t i = s * host->rings_each; i < (s + 1) * host->rings_each; i++) {
        host->made[i] = make_ring(host->offer.spec, i, true);
        host->view[i] = open_view(&host->made[i], FARM_RING_LEARNER);
        host->view[i].wake_fd = host->wake;
    }
}

static void send_session(struct bench_host *host, uint32_t s) {
    const uint32_t first = s * host->rings_each;
    must_hold(
        farm_control_send_session(host->control, s, host->session[s], &host->made[first], host->rings_each, first),
        "room in the hub's socket");
}

static void admit_node(struct bench_host *host, const struct farm_control_message *request) {
    const uint32_t s = host->session_count;
    for (uint32_t i = 0; i < s; i++) // a hub repeats a request without a reply
        if (memcmp(host->session[i], request->id, sizeof host->session[i]) == 0) return;
    must_hold(s < BENCH_SESSIONS_MAX && request->count == host->rings_each, "a node of this shape");
    memcpy(host->session[s], request->id, sizeof host->session[s]);
    make_rings(host, s);
    host->session_count++;
    send_session(host, s);
}

bool bench_host_serve(struct bench_host *host) {
    struct farm_control_message message;
    bool any = false;
    // A few at a time, because the replies wait in a socket.
    for (int i = 0; i < 8 && farm_control_receive(host->control, &message); i++, any = true) {
        if (message.kind == FARM_CONTROL_ADMIT) {
            admit_node(host, &message);
        } else if (message.kind == FARM_CONTROL_GENERATION) {
            const struct farm_ring *made = &host->made[message.session * host->rings_each + message.ring];
            must_hold(write_generation(host->control, made, &message), "room in the hub's socket");
        }
    }
    return any;
}

void bench_host_send_sessions(struct bench_host *host) {
    for (uint32_t s = 0; s < host->session_count; s++) send_session(host, s);
}
