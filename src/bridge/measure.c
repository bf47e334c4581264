// See measure.h. A step carries its number at both ends of each observation; the far side answers with the number
// modulo ACTIONS, or with the next one if a step differs. CRC32C or TLS protects the bytes between. Messages of plain
// sockets carry their number in the same way.
#include "bridge/measure.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/statistics.h"
#include "base/time.h"
#include "bridge/address.h"
#include "bridge/control.h"
#include "bridge/hub.h"
#include "bridge/node.h"
#include "bridge/step.h"
#include "ring/ring.h"

enum { TRIP = FARM_MEASURE_MAIN, STREAM = FARM_MEASURE_STREAM, SHAPES }; // each on its port
enum { STEPS = 2, CHUNK = 256 << 10, TRIPS_MAX = 1 << 17, ROUNDS_MIN = 5, PHASES = 4, ACTIONS = 4, LIMIT_S = 10 };
static const uint64_t SLEEP_NS = 100000000, LAST = 1ull << 63; // LAST: flag of a phase's last number
static const char OPTION[] = "farm_bridge_bench";              // in the offer: "1 PORT PORT", for STREAM and SOCKETS
static const struct { uint32_t lanes, width, pixels; } shapes[SHAPES] = {{1, 1, 7056}, {16, 8, 28224}};

static struct farm_ring_spec spec_of(int shape) {
    return farm_ring_spec_plain(shapes[shape].lanes, shapes[shape].width, STEPS, FARM_U8, shapes[shape].pixels,
                                ACTIONS);
}

static void stamp(uint8_t *at, size_t bytes, uint64_t number) {
    memcpy(at, &number, sizeof number);
    memcpy(at + bytes - sizeof number, &number, sizeof number);
}

static bool has_stamp(const uint8_t *at, size_t bytes, uint64_t number) {
    return memcmp(at, &number, sizeof number) == 0 && memcmp(at + bytes - sizeof number, &number, sizeof number) == 0;
}

// ---- plain sockets ----

// Announces a phase: messages of `out` bytes; replies of `back` bytes to each, or to the last only.
struct plain_phase {
    uint32_t out, back, each;
};

// Sends or receives all bytes. False: the peer has closed, or was silent for LIMIT_S.
static bool transfer(int fd, void *at, size_t bytes, bool out) {
    for (size_t done = 0; done < bytes;) {
        char *rest = (char *)at + done;
        const ssize_t n = out ? send(fd, rest, bytes - done, MSG_NOSIGNAL) : recv(fd, rest, bytes - done, MSG_WAITALL);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static void set_socket_options(int fd) {
    const struct timeval limit = {.tv_sec = LIMIT_S};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static bool serve_phase(int fd, uint8_t *buffer) {
    struct plain_phase phase;
    uint64_t number = 0;
    if (!transfer(fd, &phase, sizeof phase, false) || phase.out < sizeof number || phase.out > CHUNK ||
        phase.back < sizeof number || phase.back > CHUNK)
        return false;
    for (bool good = true; !(number & LAST);) {
        if (!transfer(fd, buffer, phase.out, false)) return false;
        memcpy(&number, buffer, sizeof number);
        good &= has_stamp(buffer, phase.out, number);
        if (!phase.each && !(number & LAST)) continue;
        stamp(buffer, phase.back, good ? number : 0);
        if (!transfer(fd, buffer, phase.back, true)) return false;
    }
    return true;
}

// ---- the far side ----

// The supervisor's and the learner's part for one session of one ring.
struct responder {
    struct farm_wire_offer offer;
    struct farm_bridge_stats stats;
    struct farm_hub *hub;
    int control;
    struct farm_ring made, view;
    bool has_session;
};

// Answers plain sockets.
struct plain_server {
    int listener;
    uint8_t run[FARM_WIRE_ID_BYTES], buffer[CHUNK];
};

static void close_session(struct responder *responder) {
    const struct farm_control_message forget = {.kind = FARM_CONTROL_FORGET, .fds = {-1, -1}};
    if (!responder->has_session) return;
    farm_control_send(responder->control, &forget);
    farm_ring_close(&responder->view);
    farm_ring_close(&responder->made);
    responder->has_session = false;
}

static void refuse_node(struct responder *responder, const struct farm_control_message *request, const char *why) {
    struct farm_control_message no = {.kind = FARM_CONTROL_REFUSED, .reason = FARM_WIRE_REFUSE_LATER, .fds = {-1, -1}};
    memcpy(no.id, request->id, sizeof no.id);
    snprintf(no.text, sizeof no.text, "%.*s", (int)sizeof no.text - 1, why);
    farm_control_send(responder->control, &no);
}

// A new node replaces one that went away without BYE.
static void admit_node(struct responder *responder, const struct farm_control_message *request) {
    struct farm_error err;
    if (request->count != 1 || farm_load_acquire(&responder->stats.node[0].state) == FARM_NODE_CONNECTED) {
        refuse_node(responder, request,
                    request->count != 1 ? "this is farm bridge bench: it runs no environment"
                                        : "another measurement is under way");
        return;
    }
    close_session(responder);
    enum farm_status status = farm_ring_create(&responder->offer.spec, 0, -1, true, &responder->made, &err);
    if (!status && (status = farm_ring_view(&responder->made, FARM_RING_LEARNER, &responder->view, &err)))
        farm_ring_close(&responder->made);
    if (status) {
        refuse_node(responder, request, err.message);
        return;
    }
    responder->has_session = true;
    farm_control_send_session(responder->control, 0, request->id, &responder->made, 1, 0);
}

static void handle_control(struct responder *responder) {
    struct farm_control_message message;
    while (farm_control_receive(responder->control, &message)) {
        if (message.kind == FARM_CONTROL_ADMIT) admit_node(responder, &message);
        if (message.kind == FARM_CONTROL_LEAVE) close_session(responder);
    }
}

static bool answer_lanes(struct responder *responder) {
    bool any = false;
    for (uint32_t l = 0; responder->has_session && l < responder->offer.spec.lanes; l++) {
        struct farm_lane *lane = &responder->view.lanes[l];
        const uint64_t n = farm_lane_acted(lane);
        if (farm_lane_produced(lane) == n) continue;
        for (uint32_t e = 0; e < lane->width; e++) {
            const bool good = has_stamp(farm_lane_obs(lane, 0, n, e), lane->obs_bytes[0], n) &&
                              farm_lane_reward(lane, n)[e] == (float)n;
            *(int32_t *)farm_lane_action(lane, n, e) = (int32_t)((good ? n : n + 1) % ACTIONS);
        }
        *farm_lane_version(lane, n) = 0;
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n + 1);
        any = true;
    }
    return any;
}

static void *serve_steps(void *context) {
    for (struct responder *responder = context;;) {
        bool busy = farm_hub_turn(responder->hub, farm_now_ns());
        handle_control(responder);
        busy |= answer_lanes(responder);
        if (!busy) farm_hub_wait(responder->hub, SLEEP_NS);
    }
    return NULL;
}

// Serves one connection after another. Each starts with the run's id, which only holders of the key know.
static void *serve_sockets(void *context) {
    for (struct plain_server *server = context;;) {
        uint8_t id[FARM_WIRE_ID_BYTES];
        struct pollfd look = {.fd = server->listener, .events = POLLIN};
        poll(&look, 1, -1);
        const int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        set_socket_options(fd);
        if (transfer(fd, id, sizeof id, false) && memcmp(id, server->run, sizeof id) == 0)
            while (serve_phase(fd, server->buffer)) continue;
        close(fd);
    }
    return NULL;
}

static uint32_t port_of(int listener) {
    struct sockaddr_in6 bound = {0}; // its port is where sockaddr_in has it
    getsockname(listener, (struct sockaddr *)&bound, &(socklen_t){sizeof bound});
    return ntohs(bound.sin6_port);
}

static enum farm_status make_host(struct responder *responder, int shape, const int *listeners,
                                  const struct farm_hub_config *how, const uint8_t *run, struct farm_error *err) {
    static const int NO_BELL = -1; // the responder never sleeps
    struct farm_wire_offer *offer = &responder->offer;
    struct farm_hub_config config = {.listener = listeners[shape],
                                     .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                     .key = how->key,
                                     .withdrawn = how->withdrawn,
                                     .offer = offer,
                                     .stats = &responder->stats,
                                     .bells = &NO_BELL,
                                     .bell_count = 1,
                                     .engine = how->engine};
    enum farm_status status = farm_control_make(&responder->control, &config.control, err);
    if (status || config.wake < 0) return status ? status : farm_fail_errno(err, FARM_E_LIMIT, "farm bridge bench");
    offer->spec = spec_of(shape);
    strcpy(offer->env, "farm bridge bench");
    strcpy(offer->bad_values, "count");
    memcpy(offer->run, run, sizeof offer->run);
    offer->option_count = 1;
    strcpy(offer->options[0][0], OPTION);
    snprintf(offer->options[0][1], FARM_WIRE_OPTION_BYTES, "1 %u %u", port_of(listeners[FARM_MEASURE_STREAM]),
             port_of(listeners[FARM_MEASURE_SOCKETS]));
    return farm_hub_make(&config, &responder->hub, err);
}

enum farm_status farm_measure_serve(const int listeners[FARM_MEASURE_PORTS], const struct farm_hub_config *how,
                                    struct farm_error *err) {
    struct responder *responders = calloc(SHAPES, sizeof *responders);
    struct plain_server *server = calloc(1, sizeof *server);
    pthread_t thread;
    enum farm_status status = FARM_OK;
    if (!responders || !server || getrandom(server->run, sizeof server->run, 0) != sizeof server->run)
        status = farm_fail_errno(err, FARM_E_LIMIT, "farm bridge bench");
    for (int shape = 0; shape < SHAPES && !status; shape++)
        status = make_host(&responders[shape], shape, listeners, how, server->run, err);
    if (!status) {
        server->listener = listeners[FARM_MEASURE_SOCKETS];
        if (!pthread_create(&thread, NULL, serve_sockets, server) &&
            !pthread_create(&thread, NULL, serve_steps, &responders[STREAM])) {
            serve_steps(&responders[TRIP]);
            return FARM_OK; // the threads use both until the process ends
        }
        return farm_fail(err, FARM_E_LIMIT, "farm bridge bench cannot start threads");
    }
    free(responders);
    free(server);
    return status;
}

// ---- the near side ----

struct actor {
    struct farm_bridge_stats stats;
    struct farm_node *node;
    struct farm_ring made, view;
};

struct near_side {
    const struct farm_measure_config *config;
    char address[FARM_MEASURE_PORTS][FARM_ADDRESS_TEXT_BYTES];
    struct farm_wire_offer offer;
    struct actor actors[SHAPES];
    int fd;
    uint8_t buffer[CHUNK];
    double trips_us[TRIPS_MAX];
};

static bool stopped(const struct farm_measure_config *config) {
    return config->stop && config->stop(config->context);
}

static enum farm_status await_state(const struct farm_measure_config *config, const char *address,
                                    struct farm_node *node, enum farm_node_state wanted, struct farm_error *err) {
    const uint64_t until_ns = farm_now_ns() + (uint64_t)(config->retry_s * 1e9);
    while (farm_node_state(node) != wanted) {
        const uint64_t now_ns = farm_now_ns();
        const char *why = farm_node_why(node), *gap = why[0] ? ": " : "";
        if (farm_node_state(node) == FARM_NODE_REFUSED || farm_node_state(node) == FARM_NODE_ENDED)
            return farm_fail(err, FARM_E_DEAD, "%s refuses: %s", address, why);
        if (now_ns >= until_ns)
            return farm_fail(err, FARM_E_DEAD, "no `farm bridge bench --listen` at %s within %.3g s (--retry-s)%s%s",
                             address, config->retry_s, gap, why);
        if (stopped(config)) return FARM_E_INTERRUPTED;
        if (!farm_node_turn(node, now_ns))
            farm_node_wait(node, until_ns - now_ns < SLEEP_NS ? until_ns - now_ns : SLEEP_NS);
    }
    return FARM_OK;
}

static enum farm_status make_node(const struct near_side *near, int shape, struct farm_node_config *node_config,
                                  struct farm_node **node, struct farm_error *err) {
    if (getrandom(node_config->session, FARM_WIRE_ID_BYTES, 0) != FARM_WIRE_ID_BYTES)
        return farm_fail_errno(err, FARM_E_IO, "getrandom");
    memcpy(&node_config->seed, node_config->session, sizeof node_config->seed);
    node_config->address = near->address[shape];
    node_config->key = near->config->key;
    node_config->engine = near->config->engine;
    node_config->name = "bench";
    node_config->bell = -1;
    return farm_node_make(node_config, node, err);
}

// Reads the far side's OFFER, which names its other ports.
static enum farm_status find_far_side(struct near_side *near, struct farm_error *err) {
    struct farm_address found[FARM_ADDRESSES_MAX];
    struct farm_node_config config = {0};
    struct farm_node *node = NULL;
    uint32_t count, version = 0, ports[FARM_MEASURE_PORTS] = {0};
    char *main_address = near->address[FARM_MEASURE_MAIN];
    enum farm_status status = farm_address_read(near->config->address, main_address, err);
    if (!status && !near->config->key && !(status = farm_address_find(main_address, found, &count, err)))
        status = farm_address_check_insecure(main_address, found, count, err);
    if (!status) status = make_node(near, TRIP, &config, &node, err);
    if (!status) status = await_state(near->config, main_address, node, FARM_NODE_OFFERED, err);
    if (!status) near->offer = *farm_node_offer(node);
    farm_node_free(node, true);
    if (status) return status;
    for (uint32_t o = 0; o < near->offer.option_count; o++)
        if (strcmp(near->offer.options[o][0], OPTION) == 0)
            sscanf(near->offer.options[o][1], "%u %u %u", &version, &ports[FARM_MEASURE_STREAM],
                   &ports[FARM_MEASURE_SOCKETS]);
    if (version != 1)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "%s is a learner that plays %.100s: start `farm bridge bench --listen` there, on another port",
                         main_address, near->offer.env);
    for (int p = FARM_MEASURE_STREAM; p < FARM_MEASURE_PORTS; p++)
        snprintf(near->address[p], sizeof near->address[p], "%.*s:%u", (int)(strrchr(main_address, ':') - main_address),
                 main_address, ports[p]);
    return FARM_OK;
}

static enum farm_status make_actor(struct near_side *near, int shape, struct farm_error *err) {
    struct actor *actor = &near->actors[shape];
    const struct farm_ring_spec spec = spec_of(shape);
    enum farm_status status = farm_ring_create(&spec, 0, -1, true, &actor->made, err);
    if (!status) status = farm_ring_view(&actor->made, FARM_RING_ACTOR, &actor->view, err);
    if (status) return status;
    const int fds[1][2] = {{dup(actor->made.up.fd_readonly), dup(actor->made.down.fd)}};
    struct farm_node_config config = {.ring_fds = fds, .ring_count = 1, .stats = &actor->stats};
    status = make_node(near, shape, &config, &actor->node, err);
    return status ? status : await_state(near->config, near->address[shape], actor->node, FARM_NODE_JOINED, err);
}

static enum farm_status connect_plain(struct near_side *near, struct farm_error *err) {
    const char *text = near->address[FARM_MEASURE_SOCKETS];
    struct farm_address found[FARM_ADDRESSES_MAX];
    uint32_t count;
    const enum farm_status status = farm_address_find(text, found, &count, err);
    if (status) return status;
    for (uint32_t i = 0; i < count; i++) {
        near->fd = socket(found[i].socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        set_socket_options(near->fd);
        if (connect(near->fd, (const struct sockaddr *)&found[i].socket, found[i].bytes) == 0 &&
            transfer(near->fd, near->offer.run, FARM_WIRE_ID_BYTES, true))
            return FARM_OK;
        if (i + 1 < count) close(near->fd);
    }
    return farm_fail_errno(err, FARM_E_DEAD, "cannot connect plain sockets to %s (the bridge's port works)", text);
}

// One turn. If `on`, writes the next step of each lane that may go on. *idle: every published step is answered.
static enum farm_status turn_actor(struct actor *actor, bool on, bool *idle, struct farm_error *err) {
    bool busy = false;
    *idle = true;
    for (uint32_t l = 0; l < actor->view.spec.lanes; l++) {
        struct farm_lane *lane = &actor->view.lanes[l];
        const uint64_t n = farm_lane_actor_next(lane);
        *idle &= farm_lane_actor_answered(lane);
        if (!on || !farm_lane_actor_answered(lane) || !farm_lane_actor_can_write(lane)) continue;
        for (uint32_t e = 0; e < lane->width; e++) {
            if (n && *(int32_t *)farm_lane_action(lane, n - 1, e) != (int32_t)((n - 1) % ACTIONS))
                return farm_fail(err, FARM_E_DEAD, "step %llu of lane %u has a wrong answer", (unsigned long long)n - 1,
                                 l);
            stamp(farm_lane_obs(lane, 0, n, e), lane->obs_bytes[0], n);
            farm_lane_reward(lane, n)[e] = (float)n;
            farm_lane_flags(lane, n)[e] = n ? 0 : FARM_STEP_FIRST;
        }
        farm_lane_actor_publish(lane);
        *idle = false;
        busy = true;
    }
    if (!on && *idle) return FARM_OK;
    busy |= farm_node_turn(actor->node, farm_now_ns());
    if (!farm_node_connected(actor->node))
        return farm_fail(err, FARM_E_DEAD, "the connection broke: %s", farm_node_why(actor->node));
    if (!busy) farm_node_wait(actor->node, SLEEP_NS);
    return FARM_OK;
}

static enum farm_status measure_round_trips(struct near_side *near, uint64_t until_ns, double *us,
                                            struct farm_error *err) {
    struct actor *actor = &near->actors[TRIP];
    enum farm_status status = FARM_OK;
    uint32_t count = 0;
    for (uint64_t now_ns = farm_now_ns(); now_ns < until_ns && count < TRIPS_MAX && !status;) {
        const uint64_t start_ns = now_ns;
        bool idle = false;
        status = turn_actor(actor, true, &idle, err);
        while (!status && !idle) status = turn_actor(actor, false, &idle, err);
        now_ns = farm_now_ns();
        near->trips_us[count++] = (double)(now_ns - start_ns) * 1e-3;
    }
    *us = farm_median(near->trips_us, count, NULL);
    return status;
}

static enum farm_status measure_stream(struct near_side *near, uint64_t until_ns, uint64_t *bytes,
                                       struct farm_error *err) {
    struct actor *actor = &near->actors[STREAM];
    struct farm_lane *lanes = actor->view.lanes;
    enum farm_status status = FARM_OK;
    bool idle = false;
    for (uint32_t l = 0; l < actor->view.spec.lanes; l++) *bytes -= farm_lane_acted(&lanes[l]) * farm_step_bytes(lanes);
    while (!status && farm_now_ns() < until_ns) status = turn_actor(actor, true, &idle, err);
    for (idle = false; !status && !idle;) status = turn_actor(actor, false, &idle, err);
    for (uint32_t l = 0; l < actor->view.spec.lanes; l++) *bytes += farm_lane_acted(&lanes[l]) * farm_step_bytes(lanes);
    return status;
}

// The same by plain sockets, for `us` (phase.each) or `bytes`.
static enum farm_status measure_plain(struct near_side *near, struct plain_phase phase, uint64_t until_ns, double *us,
                                      uint64_t *bytes, struct farm_error *err) {
    uint32_t count = 0;
    bool good = transfer(near->fd, &phase, sizeof phase, true), last = false;
    for (uint64_t now_ns = farm_now_ns(), number = 1; good && !last; number++) {
        const uint64_t start_ns = now_ns;
        last = now_ns >= until_ns || count == TRIPS_MAX - 1;
        stamp(near->buffer, phase.out, number | (last ? LAST : 0));
        good = transfer(near->fd, near->buffer, phase.out, true);
        if (good && (phase.each || last))
            good = transfer(near->fd, near->buffer, phase.back, false) &&
                   has_stamp(near->buffer, phase.back, number | (last ? LAST : 0));
        now_ns = farm_now_ns();
        if (phase.each) near->trips_us[count++] = (double)(now_ns - start_ns) * 1e-3;
        *bytes += phase.out;
    }
    if (phase.each) *us = farm_median(near->trips_us, count, NULL);
    return good ? FARM_OK : farm_fail(err, FARM_E_DEAD, "plain sockets: the connection broke, or bytes arrived wrong");
}

static enum farm_status measure_round(struct near_side *near, uint64_t phase_ns, double v[FARM_MEASURES][2],
                                      struct farm_error *err) {
    const struct farm_lane *lane = &near->actors[TRIP].view.lanes[0];
    const uint32_t head = (uint32_t)farm_wire_head_bytes(1);
    const struct plain_phase there_and_back = {(uint32_t)farm_step_bytes(lane) + head,
                                               (uint32_t)farm_answer_bytes(lane) + head, 1},
                             there = {CHUNK, 64, 0};
    uint64_t ignored = 0;
    enum farm_status status =
        measure_round_trips(near, farm_now_ns() + phase_ns, &v[FARM_MEASURE_ROUND_TRIP_US][0], err);
    if (!status)
        status = measure_plain(near, there_and_back, farm_now_ns() + phase_ns, &v[FARM_MEASURE_ROUND_TRIP_US][1],
                               &ignored, err);
    for (int way = 0; way < FARM_MEASURE_WAYS && !status; way++) {
        const uint64_t start_ns = farm_now_ns(), cpu_ns = farm_thread_cpu_ns();
        uint64_t bytes = 0;
        status = way == FARM_MEASURE_BRIDGE ? measure_stream(near, start_ns + phase_ns, &bytes, err)
                                            : measure_plain(near, there, start_ns + phase_ns, NULL, &bytes, err);
        v[FARM_MEASURE_BYTES_PER_S][way] = (double)bytes / ((double)(farm_now_ns() - start_ns) * 1e-9);
        v[FARM_MEASURE_CPU_S_PER_GB][way] = (double)(farm_thread_cpu_ns() - cpu_ns) / (double)bytes;
    }
    return status;
}

// The first round is a warm-up.
static enum farm_status measure_rounds(struct near_side *near, struct farm_measure_result *result,
                                       struct farm_error *err) {
    const double seconds = near->config->seconds;
    const uint32_t rounds = (uint32_t)fmin(fmax(seconds, ROUNDS_MIN), FARM_MEASURE_ROUNDS_MAX);
    const uint64_t phase_ns = (uint64_t)(seconds * 1e9 / (PHASES * (rounds + 1)));
    for (uint32_t r = 0; r <= rounds; r++) {
        double v[FARM_MEASURES][FARM_MEASURE_WAYS];
        if (stopped(near->config)) return FARM_E_INTERRUPTED;
        const enum farm_status status = measure_round(near, phase_ns, v, err);
        if (status) return status;
        for (int m = 0; r && m < FARM_MEASURES * FARM_MEASURE_WAYS; m++)
            result->value[m / FARM_MEASURE_WAYS][m % FARM_MEASURE_WAYS][r - 1] =
                v[m / FARM_MEASURE_WAYS][m % FARM_MEASURE_WAYS];
        result->rounds = r;
    }
    return FARM_OK;
}

enum farm_status farm_measure_run(const struct farm_measure_config *config, struct farm_measure_result *result,
                                  struct farm_error *err) {
    struct near_side *near = calloc(1, sizeof *near);
    if (!near) return farm_fail_errno(err, FARM_E_LIMIT, "farm bridge bench");
    near->config = config;
    near->fd = -1;
    *result = (struct farm_measure_result){.encrypted = config->key};
    enum farm_status status = find_far_side(near, err);
    for (int shape = 0; shape < SHAPES && !status; shape++) status = make_actor(near, shape, err);
    if (!status) status = connect_plain(near, err);
    if (!status) status = measure_rounds(near, result, err);
    if (result->rounds) {
        result->uring = near->actors[TRIP].stats.uring;
        result->round_trip_bytes = (uint32_t)farm_step_bytes(near->actors[TRIP].view.lanes);
        result->stream_bytes = (uint32_t)farm_step_bytes(near->actors[STREAM].view.lanes);
    }
    result->interrupted = status == FARM_E_INTERRUPTED;
    for (int shape = 0; shape < SHAPES; shape++) {
        farm_node_free(near->actors[shape].node, true);
        if (near->actors[shape].view.lanes) farm_ring_close(&near->actors[shape].view);
        if (near->actors[shape].made.lanes) farm_ring_close(&near->actors[shape].made);
    }
    if (near->fd >= 0) close(near->fd);
    free(near);
    return result->interrupted ? FARM_OK : status;
}
