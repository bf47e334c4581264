// See hub.h. Connections, their handshake and the supervisor's messages; sessions and lanes are in hub_session.c.
#include "bridge/hub.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"
#include "bridge/hub_session.h"
#include "bridge/worker.h"
#include "ring/wait.h"

enum {
    HANDSHAKES_IN_A_ROW = 100, // that end without HELLO
    EVENTS_MAX = 64,
    WATCH_CONTROL = 0,
    WATCH_WAKE = 1,
};
static const uint64_t HANDSHAKE_NS = 20000000, LOOK_NS = 10000000, STRANGER_NS = 5000000000u;
static const uint64_t FORGIVE_NS = 600000000000u;
static const uint64_t TICK_NS = 100000000, SLEEP_NS = 100000000, JOIN_NS = 60000000000u;

// ---- a node's handshake ----

static bool same_id(const uint8_t *a, const uint8_t *b) {
    return memcmp(a, b, FARM_WIRE_ID_BYTES) == 0;
}

static struct hub_session *find_session(const struct farm_hub *hub, const uint8_t *id) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (hub->sessions[s] && same_id(hub->sessions[s]->id, id)) return hub->sessions[s];
    return NULL;
}

static bool send_offer(struct hub_peer *peer, struct farm_error *err) {
    struct farm_hub *hub = peer->hub;
    struct farm_board_description net;
    if (hub->versions.board && !hub->offer->net[0]) {
        if (!farm_board_described(hub->versions.board, &net)) return true; // the learner begins; tick_peer comes back
        _Static_assert(sizeof net.text == sizeof hub->offer->net, "a description fits an OFFER");
        memcpy(hub->offer->net, net.text, sizeof hub->offer->net);
    }
    peer->state = HUB_PEER_OFFERED;
    const size_t offered = farm_wire_put_offer(hub->offer, hub->scratch, FARM_WIRE_MESSAGE_BYTES_MAX);
    if (peer->link.tls && !farm_tls_certify(peer->link.tls, hub->scratch, offered))
        return !farm_fail(err, FARM_E_UNSUPPORTED, "OpenSSL cannot sign an OFFER");
    farm_link_post(&peer->link, FARM_WIRE_OFFER, hub->scratch, offered, false);
    return true;
}

static bool handle_hello(struct hub_peer *peer, struct farm_error *err) {
    static const uint8_t any[FARM_WIRE_ID_BYTES];
    struct farm_hub *hub = peer->hub;
    struct farm_wire_hello *hello = &peer->hello;
    const enum farm_status status = farm_wire_get_hello(peer->link.message, peer->link.message_bytes, hello, err);
    if (status == FARM_E_UNSUPPORTED) return hub_refuse(peer, FARM_WIRE_REFUSE_FOR_GOOD, err->message), true;
    if (status) return false;
    const size_t bytes = peer->link.message_bytes - (size_t)(hello->counters - peer->link.message);
    free(peer->counters);
    peer->counters = malloc(bytes + 1);
    if (!peer->counters) return !farm_fail(err, FARM_E_LIMIT, "no memory for a node's counters");
    memcpy(peer->counters, hello->counters, bytes);
    peer->link.known = true;
    hub->paid_ns -= HANDSHAKE_NS; // which its handshake has cost
    if (!same_id(hello->run, any) && !same_id(hello->run, hub->offer->run))
        return hub_refuse(peer, FARM_WIRE_REFUSE_SESSION, "the learner has begun another run"), true;
    peer->state = HUB_PEER_GREETED;
    return send_offer(peer, err);
}

static bool request_places(struct hub_peer *peer) {
    struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT,
                                           .count = peer->requested_rings,
                                           .ring = peer->hello.rings, // not 0: only an existing session will do
                                           .machine = peer->hello.machine};
    memcpy(message.id, peer->hello.session, FARM_WIRE_ID_BYTES);
    snprintf(message.text, sizeof message.text, "%s", peer->hello.name);
    if (peer->link.tls) snprintf(message.key, sizeof message.key, "%s", farm_tls_name(peer->link.tls));
    peer->requested_ns = peer->hub->now_ns;
    return hub_send_control(peer->hub, &message);
}

static bool handle_join(struct hub_peer *peer, struct farm_error *err) {
    uint32_t rings;
    if (farm_wire_get_join(peer->link.message, peer->link.message_bytes, &rings, err)) return false;
    if (peer->hello.rings && peer->hello.rings != rings)
        return !farm_fail(err, FARM_E_FORMAT, "a node of %u rings requests %u", peer->hello.rings, rings);
    struct hub_session *session = find_session(peer->hub, peer->hello.session);
    peer->state = HUB_PEER_JOINING;
    if (session && session->admitted) return hub_attach(peer, session), true;
    peer->requested_rings = rings;
    if (!request_places(peer)) return !farm_fail(err, FARM_E_BUSY, "the supervisor does not read");
    return true;
}

// Until its admission a session has no place; its id names it. False: the supervisor does not read.
static bool send_leave(struct hub_peer *peer, uint32_t ring) {
    struct farm_control_message message = {.kind = FARM_CONTROL_LEAVE, .session = UINT32_MAX, .ring = ring};
    memcpy(message.id, peer->hello.session, FARM_WIRE_ID_BYTES);
    if (peer->state == HUB_PEER_ATTACHED) message.session = peer->session->place;
    return peer->state < HUB_PEER_JOINING || hub_send_control(peer->hub, &message);
}

static bool handle_frame(void *context, struct farm_link *link, const struct farm_wire_header *header,
                         const struct farm_wire_entry *entries, struct farm_error *err) {
    struct hub_peer *peer = context;
    if (link->ending) return true; // ignored after the last message
    switch (header->type) {
    case FARM_WIRE_STEPS:
        hub_take_steps(peer, header, entries);
        return true;
    case FARM_WIRE_HEARTBEAT:
        farm_link_handle_heartbeat(link, entries, peer->hub->now_ns,
                                   peer->state == HUB_PEER_ATTACHED ? &hub_row(peer->hub, peer->session)->round_trip_ns
                                                                    : NULL);
        return true;
    case FARM_WIRE_HELLO:
        if (peer->state == HUB_PEER_CONNECTED) return handle_hello(peer, err);
        break;
    case FARM_WIRE_JOIN:
        if (peer->state == HUB_PEER_OFFERED) return handle_join(peer, err);
        break;
    case FARM_WIRE_VERSION_HAVE:
        if (peer->state == HUB_PEER_ATTACHED) return hub_take_have(peer, err);
        break;
    case FARM_WIRE_LEAVE:
        return send_leave(peer, entries[0].ring) ||
               (farm_fail(err, FARM_E_BUSY, "the supervisor does not read"), false);
    case FARM_WIRE_BYE:
        if (!send_leave(peer, UINT32_MAX))
            farm_log_warn("node %s has ended; its places stay reserved for node_grace_s", peer->hello.name);
        farm_link_close(link, NULL);
        return true;
    default:
        break;
    }
    return farm_link_refuse(header, err);
}

// ---- messages from the supervisor ----

// The newest connection that waits for this session's places.
static struct hub_peer *find_joining(const struct farm_hub *hub, const uint8_t *id) {
    struct hub_peer *newest = NULL;
    for (uint32_t p = 0; p < HUB_PEERS_MAX; p++) {
        struct hub_peer *peer = hub->peers[p];
        if (peer && peer->link.state == FARM_LINK_OPEN && peer->state == HUB_PEER_JOINING && !peer->session &&
            same_id(peer->hello.session, id) && (!newest || peer->accepted_ns > newest->accepted_ns))
            newest = peer;
    }
    return newest;
}

// The session may have fewer rings than its node has requested: no other has been sent.
static void handle_admitted(struct farm_hub *hub, struct hub_session *session,
                            const struct farm_control_message *message) {
    if (message->count && message->count < session->ring_count) session->ring_count = message->count;
    memcpy(session->note, message->text, sizeof session->note);
    for (uint32_t r = 0; r < session->ring_count; r++)
        if (!session->rings[r].lanes) return; // the supervisor knows that it failed, and refuses the session
    session->admitted = true;
    struct hub_peer *peer = find_joining(hub, session->id);
    if (!peer) return;
    hub_attach(peer, session);
    while ((peer = find_joining(hub, session->id)))
        farm_link_close(&peer->link, "a newer connection of this node replaces this one");
}

// Refuses this key's nodes, now and later.
static void withdraw_key(struct farm_hub *hub, const char *name) {
    if (!hub->tls || !farm_tls_withdraw(hub->tls, name)) return;
    for (uint32_t p = 0; p < HUB_PEERS_MAX; p++) {
        struct hub_peer *peer = hub->peers[p];
        char why[FARM_KEY_NAME_BYTES + 64];
        if (!peer || !peer->link.tls || strcmp(farm_tls_name(peer->link.tls), name) != 0) continue;
        snprintf(why, sizeof why, "the learner has withdrawn the key of node %s", name);
        if (peer->link.state == FARM_LINK_SHAKING) farm_link_close(&peer->link, "%s", why);
        peer->state = HUB_PEER_CONNECTED; // frames of its lanes end the connection
        hub_refuse(peer, FARM_WIRE_REFUSE_FOR_GOOD, why);
    }
}

static void handle_control(struct farm_hub *hub, const struct farm_control_message *message) {
    const bool in_range = message->session < FARM_BRIDGE_NODES_MAX;
    struct hub_session *session = in_range ? hub->sessions[message->session] : NULL;
    struct hub_peer *peer;
    switch (message->kind) {
    case FARM_CONTROL_SESSION:
        if (in_range) hub_begin_session(hub, message);
        break;
    case FARM_CONTROL_RING:
        if (in_range) hub_add_ring(hub, message);
        break;
    case FARM_CONTROL_ADMITTED:
        if (session) handle_admitted(hub, session, message);
        break;
    case FARM_CONTROL_REFUSED:
        while ((peer = find_joining(hub, message->id))) {
            peer->state = HUB_PEER_CONNECTED;
            hub_refuse(peer, (enum farm_wire_reason)message->reason, message->text);
        }
        break;
    case FARM_CONTROL_GENERATION_IS:
        if (session) hub_publish_ring(hub, session, message->ring);
        break;
    case FARM_CONTROL_FORGET:
        if (session) hub_forget_session(hub, session);
        break;
    case FARM_CONTROL_WITHDRAWN:
        withdraw_key(hub, message->key);
        break;
    case FARM_CONTROL_END:
        hub->ends = true;
        break;
    default:
        break;
    }
}

static void receive_control(struct farm_hub *hub) {
    struct farm_control_message message = {0};
    // A ring takes long to open: other work goes on after each.
    while (message.kind != FARM_CONTROL_RING && farm_control_receive(hub->config.control, &message))
        handle_control(hub, &message);
    hub_flush_control(hub);
}

// ---- connections ----

static bool is_stranger(const struct hub_peer *peer) {
    const struct farm_link *link = &peer->link;
    return peer->fd || (!link->known && link->state != FARM_LINK_VACANT && link->state != FARM_LINK_CLOSING);
}

static void report_stranger(struct farm_hub *hub, const struct hub_peer *peer) {
    static const uint64_t PAUSE_NS = 30000000000u;
    hub->unreported++;
    if (!peer->link.why[0] || (hub->reported_ns && hub->now_ns - hub->reported_ns < PAUSE_NS)) return;
    farm_log_info("closed an unknown connection: %s (1 of %u)", peer->link.why, hub->unreported);
    hub->reported_ns = hub->now_ns;
    hub->unreported = 0;
}

static void send_away(struct hub_peer *peer, const char *why) {
    if (!peer->fd) {
        farm_link_close(&peer->link, "%s", why);
        return;
    }
    snprintf(peer->link.why, sizeof peer->link.why, "%s", why);
    report_stranger(peer->hub, peer);
    close(peer->fd);
    peer->fd = 0;
}

// Number of strangers of an address (NULL: of all). *first yields first: the oldest without a whole hello, else the
// oldest in its handshake; NULL: all have sent hellos.
static uint32_t count_strangers(const struct farm_hub *hub, const uint32_t *hash, struct hub_peer **first) {
    uint32_t count = 0;
    *first = NULL;
    for (uint32_t p = 0; p < HUB_PEERS_MAX && hub->peers[p]; p++) { // a place is first used after all before it
        struct hub_peer *peer = hub->peers[p];
        if (!is_stranger(peer) || (hash && peer->address_hash != *hash)) continue;
        count++;
        if (peer->fd && peer->greeted) continue;
        if (!*first || (!peer->fd == !(*first)->fd ? peer->accepted_ns < (*first)->accepted_ns : peer->fd > 0))
            *first = peer;
    }
    return count;
}

// If its address or all together have too many strangers, one yields to the new one. False: none does.
static bool make_room(const struct farm_hub *hub, uint32_t hash) {
    struct hub_peer *first;
    const bool full = count_strangers(hub, &hash, &first) >= HUB_STRANGERS_EACH;
    if (!full && count_strangers(hub, NULL, &first) < HUB_STRANGERS_MAX) return true;
    if (!first || (full && !first->fd)) return false;
    send_away(first, full ? "too many unknown connections of its address" : "too many unknown connections");
    return true;
}

// Hashes the IPv4 host, even if an IPv6 socket accepted it, or the IPv6 network. 0: unknown.
static uint32_t hash_address(int fd) {
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof at;
    uint32_t hash = 2166136261u; // FNV-1a
    if (fd < 0 || getpeername(fd, (struct sockaddr *)&at, &bytes)) return 0;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&at)->sin6_addr;
    const uint8_t *from = v6->s6_addr, *end = from + 8;
    if (at.ss_family == AF_INET) {
        from = (const uint8_t *)&((const struct sockaddr_in *)&at)->sin_addr;
        end = from + 4;
    } else if (IN6_IS_ADDR_V4MAPPED(v6)) {
        from = v6->s6_addr + 12;
        end = from + 4;
    }
    for (; from < end; from++) hash = (hash ^ *from) * 16777619u;
    return hash;
}

// Until its client's hello (in the clear: the header of its first frame) lies in the socket, a stranger costs nothing
// else: no memory, no event.
static void look_for_hello(struct farm_hub *hub, struct hub_peer *peer) {
    struct farm_wire_header header;
    struct farm_error err;
    size_t wanted = hub->tls ? FARM_TLS_HEAD_BYTES : FARM_WIRE_HEADER_BYTES;
    const int64_t bytes = farm_engine_peek(hub->ops, hub->engine, peer->fd, hub->scratch, FARM_TLS_HELLO_BYTES_MAX);
    if (bytes == 0 || (bytes < 0 && bytes != -EAGAIN && bytes != -EINTR))
        send_away(peer, bytes ? strerror((int)-bytes) : "the peer has closed the connection");
    else if (bytes >= (int64_t)wanted && (hub->tls ? farm_tls_hello_bytes(hub->scratch, &wanted, &err)
                                                   : farm_wire_get_header(hub->scratch, &header, &err)))
        send_away(peer, err.message);
    else
        peer->greeted = bytes >= (int64_t)wanted;
}

static void accept_peer(struct farm_hub *hub, int fd) {
    const uint32_t hash = hash_address(fd);
    const bool room = !hub->ends && make_room(hub, hash);
    uint32_t p = 0;
    while (p < HUB_PEERS_MAX && hub->peers[p] && (hub->peers[p]->fd || hub->peers[p]->link.state != FARM_LINK_VACANT))
        p++;
    if (p < HUB_PEERS_MAX && !hub->peers[p]) hub->peers[p] = calloc(1, sizeof *hub->peers[p]);
    struct hub_peer *peer = p < HUB_PEERS_MAX ? hub->peers[p] : NULL;
    if (!peer || !room) {
        hub->unreported++;
        close(fd);
        return;
    }
    free(peer->counters);
    peer->counters = NULL;
    peer->hub = hub;
    peer->fd = fd;
    peer->greeted = false;
    peer->address_hash = hash;
    peer->accepted_ns = hub->now_ns;
    hub->strangers_wait = true;
    look_for_hello(hub, peer);
    hub->hello_waits |= peer->fd && peer->greeted;
}

static void begin_handshake(struct farm_hub *hub, uint32_t p) {
    struct hub_peer *peer = hub->peers[p];
    const int fd = peer->fd;
    struct farm_error err;
    peer->fd = 0;
    peer->state = HUB_PEER_CONNECTED;
    peer->session = NULL;
    peer->hello.rings = 0;
    const struct farm_link_owner owner = {.place = hub_place_entry, .arrived = handle_frame, .context = peer};
    if (farm_link_make(&peer->link, hub->ops, hub->engine, p, true, hub->tls, &owner, &err)) {
        farm_log_warn("cannot serve a node: %s", err.message);
        close(fd);
        return;
    }
    farm_link_begin(&peer->link, fd, NULL, hub->now_ns);
    peer->link.begun_ns = peer->accepted_ns;
}

// Looks for hellos, and begins at most one handshake, because it takes long. The address whose last one is longest ago
// comes first, so that no address delays another one.
static bool serve_strangers(struct farm_hub *hub) {
    const uint64_t owed_ns = hub->paid_ns > hub->now_ns ? hub->paid_ns - hub->now_ns : 0;
    const bool looks = hub->now_ns - hub->looked_ns >= LOOK_NS,
               may_begin = owed_ns < HANDSHAKES_IN_A_ROW * HANDSHAKE_NS;
    uint32_t next = 0;
    uint64_t *next_served = NULL;
    if (!hub->strangers_wait || (!looks && !(hub->hello_waits && may_begin))) return false;
    if (looks) hub->looked_ns = hub->now_ns;
    hub->strangers_wait = hub->hello_waits = false;
    for (uint32_t p = 0; p < HUB_PEERS_MAX && hub->peers[p]; p++) {
        struct hub_peer *peer = hub->peers[p];
        uint64_t *served = &hub->served[peer->address_hash % (sizeof hub->served / sizeof *hub->served)];
        if (looks && peer->fd && !peer->greeted) look_for_hello(hub, peer);
        if (peer->fd && hub->now_ns - peer->accepted_ns > STRANGER_NS) send_away(peer, "received no HELLO within 5 s");
        hub->strangers_wait |= peer->fd > 0;
        if (!peer->fd || !peer->greeted) continue;
        hub->hello_waits = true;
        if (next_served && *served >= *next_served) continue;
        next = p;
        next_served = served;
    }
    if (!next_served || !may_begin) return false;
    *next_served = ++hub->handshakes;
    hub->paid_ns = hub->now_ns + owed_ns + HANDSHAKE_NS;
    begin_handshake(hub, next);
    return true;
}

static void handle_closed(struct farm_hub *hub, struct hub_peer *peer) {
    const bool expected = hub->ends || (!peer->hello.rings && !peer->link.status);
    if (!peer->link.known) report_stranger(hub, peer);
    if (peer->link.known && peer->link.why[0] && !expected)
        farm_log_info("node %s: %s", peer->hello.name, peer->link.why);
    hub_detach(peer);
}

static void handle_event(struct farm_hub *hub, const struct farm_engine_event *event) {
    if (event->kind == FARM_ENGINE_READABLE) {
        if (event->number == WATCH_CONTROL) receive_control(hub);
        if (event->number == WATCH_WAKE && !event->result) farm_bell_empty(hub->config.wake);
    } else {
        struct hub_peer *peer = hub->peers[event->number];
        farm_link_event(&peer->link, event, hub->now_ns);
        if (event->kind == FARM_ENGINE_CLOSED) handle_closed(hub, peer);
    }
}

static void tick_peer(struct farm_hub *hub, struct hub_peer *peer) {
    farm_link_tick(&peer->link, hub->now_ns, FARM_LINK_BEAT_NS);
    if (peer->state < HUB_PEER_JOINING && !peer->link.ending && hub->now_ns - peer->accepted_ns > JOIN_NS)
        farm_link_close(&peer->link, "received no JOIN for a minute");
    struct farm_error err;
    if (peer->state == HUB_PEER_GREETED && !peer->link.ending && !send_offer(peer, &err))
        farm_link_close(&peer->link, "%s", err.message);
    if (peer->state == HUB_PEER_ATTACHED) {
        hub_add_figures(peer);
        farm_version_sender_tick(&peer->versions, &peer->link, hub->now_ns);
        for (uint32_t r = 0; r < peer->session->ring_count; r++) hub_request_generation(hub, peer->session, r);
    }
    if (peer->link.state == FARM_LINK_OPEN && peer->state == HUB_PEER_JOINING && !peer->session &&
        hub->now_ns - peer->requested_ns >= FARM_LINK_BEAT_NS)
        request_places(peer); // the reply may have been lost with a bridge before this one
}

static void tick(struct farm_hub *hub) {
    if (hub->now_ns - hub->tick_ns < TICK_NS) return;
    hub->tick_ns = hub->now_ns;
    hub_flush_control(hub);
    if (hub->now_ns - hub->forgiven_ns > FORGIVE_NS) {
        for (uint32_t n = 0; n < FARM_BRIDGE_NODES_MAX; n++)
            memset(hub->tree[n].avoided, 0, sizeof hub->tree[n].avoided);
        hub->forgiven_ns = hub->now_ns;
        hub->replan = true;
    }
    for (uint32_t p = 0; p < HUB_PEERS_MAX; p++)
        if (hub->peers[p] && hub->peers[p]->link.state != FARM_LINK_VACANT) tick_peer(hub, hub->peers[p]);
    if (!hub->config.stats) return;
    farm_store_relaxed(&hub->config.stats->cpu_ns, farm_thread_cpu_ns());
    farm_store_relaxed(&hub->config.stats->system_calls, hub->ops->system_calls(hub->engine));
}

// ---- the turn ----

// Whether a version is to be prepared, because a node has all of the one before from here.
static bool versions_due(struct farm_hub *hub) {
    for (uint32_t i = 0; i < hub->active_count && hub->versions.board; i++) {
        const struct farm_version_sender *sender = &hub->active[i]->peer->versions;
        if (farm_version_sender_is_idle(sender) && (sender->again || hub->tree[hub->active[i]->place].source < 0))
            return farm_version_source_due(&hub->versions);
    }
    return false;
}

bool farm_hub_turn(struct farm_hub *hub, uint64_t now_ns) {
    struct farm_engine_event events[EVENTS_MAX];
    hub->now_ns = now_ns;
    const uint32_t count = hub->ops->turn(hub->engine, events, EVENTS_MAX);
    bool busy = count > 0;
    for (uint32_t i = 0; i < count; i++)
        if (events[i].kind != FARM_ENGINE_ACCEPTED) handle_event(hub, &events[i]);
    hub_wake_shards(hub);
    if (hub->replan) farm_sources_assign(hub->tree, FARM_BRIDGE_NODES_MAX, hub->config.fan_out);
    hub->replan = false;
    if (versions_due(hub)) busy |= farm_version_source_turn(&hub->versions);
    for (uint32_t i = 0; i < hub->active_count; i++) busy |= hub_send_answers(hub->active[i]);
    for (uint32_t i = 0; i < count; i++) // strangers come last
        if (events[i].kind == FARM_ENGINE_ACCEPTED && events[i].result >= 0) accept_peer(hub, (int)events[i].result);
    busy |= serve_strangers(hub);
    tick(hub);
    return busy;
}

static bool can_send_answers(struct farm_hub *hub) {
    if (versions_due(hub)) return true;
    for (uint32_t i = 0; i < hub->active_count; i++)
        if (farm_link_can_send(&hub->active[i]->peer->link) && hub_has_answers(hub->active[i])) return true;
    return false;
}

void farm_hub_wait(struct farm_hub *hub, uint64_t timeout_ns) {
    // After the fence of farm_hub_sleep: a later answer wakes this thread.
    for (uint32_t i = 0; i < hub->active_count; i++)
        if (!hub_has_answers(hub->active[i])) farm_link_defer_sent(&hub->active[i]->peer->link);
    hub->ops->wait(hub->engine, hub->strangers_wait && LOOK_NS < timeout_ns ? LOOK_NS : timeout_ns);
}

void farm_hub_sleep(struct farm_hub *hub, uint64_t timeout_ns) {
    for (uint32_t i = 0; i < hub->active_count; i++) hub_announce_sleep(hub->active[i], true);
    farm_fence_full(); // `asleep` before the counters; partner: the fence in farm_learner_notify
    if (!can_send_answers(hub)) farm_hub_wait(hub, timeout_ns);
    for (uint32_t i = 0; i < hub->active_count; i++) hub_announce_sleep(hub->active[i], false);
}

// ---- start and end ----

enum farm_status farm_hub_make(const struct farm_hub_config *config, struct farm_hub **out, struct farm_error *err) {
    struct farm_hub *hub = calloc(1, sizeof *hub);
    enum farm_status status = FARM_OK;
    if (!hub || !(hub->scratch = malloc(FARM_WIRE_MESSAGE_BYTES_MAX)) || !(hub->offer = malloc(sizeof *hub->offer)))
        status = farm_fail(err, FARM_E_LIMIT, "no memory for the bridge");
    if (hub) hub->config = *config, hub->ops = config->ops;
    if (!status) {
        *hub->offer = *config->offer;
        hub->versions.board = config->board;
        hub->versions.key = config->key;
        memcpy(hub->versions.run, config->offer->run, sizeof hub->versions.run);
        status = farm_version_source_make(&hub->versions, err);
    }
    if (!status && config->key) status = farm_tls_context_make(config->key, true, &hub->tls, err);
    if (!status)
        status = config->ops ? config->ops->create(HUB_PEERS_MAX, 2, config->ops_context, &hub->engine, err)
                             : farm_engine_make(config->engine, HUB_PEERS_MAX, 2, &hub->ops, &hub->engine, err);
    if (status) {
        farm_hub_free(hub);
        return status;
    }
    assert(config->bell_count <= HUB_SHARDS_MAX);
    if (!config->fan_out) hub->config.fan_out = 2;
    for (uint32_t s = 0; config->stats && s < FARM_BRIDGE_NODES_MAX; s++) // a bridge before this one may have died
        farm_store_relaxed(&config->stats->node[s].state, FARM_NODE_ABSENT);
    if (config->stats) farm_store_relaxed(&config->stats->uring, strcmp(hub->ops->name, "uring") == 0);
    for (uint32_t i = 0; config->withdrawn && i < config->withdrawn->count; i++)
        withdraw_key(hub, config->withdrawn->name[i]);
    receive_control(hub);
    hub->ops->watch(hub->engine, WATCH_CONTROL, config->control);
    farm_engine_watch_counter(hub->ops, hub->engine, WATCH_WAKE, config->wake);
    if (config->listener >= 0) hub->ops->listen(hub->engine, config->listener);
    *out = hub;
    return FARM_OK;
}

static bool all_vacant(const struct farm_hub *hub) {
    for (uint32_t p = 0; p < HUB_PEERS_MAX; p++)
        if (hub->peers[p] && hub->peers[p]->link.state != FARM_LINK_VACANT) return false;
    return true;
}

// Waits until nothing is in flight, because the engine may still write to rings.
static void close_all(struct farm_hub *hub) {
    for (uint32_t p = 0; p < HUB_PEERS_MAX && hub->peers[p]; p++)
        hub->peers[p]->fd ? send_away(hub->peers[p], "") : farm_link_close(&hub->peers[p]->link, NULL);
    for (uint64_t start_ns = farm_now_ns(); !all_vacant(hub) && farm_now_ns() - start_ns < 1000000000u;) {
        struct farm_engine_event events[EVENTS_MAX];
        const uint32_t count = hub->ops->turn(hub->engine, events, EVENTS_MAX);
        for (uint32_t i = 0; i < count; i++)
            if (events[i].kind == FARM_ENGINE_ACCEPTED && events[i].result >= 0)
                close((int)events[i].result);
            else if (events[i].kind != FARM_ENGINE_READABLE && events[i].kind != FARM_ENGINE_ACCEPTED)
                handle_event(hub, &events[i]);
        if (!count) hub->ops->wait(hub->engine, 1000000);
    }
}

void farm_hub_free(struct farm_hub *hub) {
    if (!hub) return;
    if (hub->engine) close_all(hub);
    if (hub->engine) hub->ops->destroy(hub->engine);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) hub_free_session(hub->sessions[s]);
    for (uint32_t p = 0; p < HUB_PEERS_MAX; p++) {
        if (hub->peers[p]) free(hub->peers[p]->counters);
        free(hub->peers[p]);
    }
    farm_version_source_free(&hub->versions);
    farm_tls_context_free(hub->tls);
    free(hub->offer);
    free(hub->scratch);
    free(hub);
}

// ---- the worker ----

static void send_bye(struct farm_hub *hub) {
    uint8_t out[64];
    const size_t bytes = farm_wire_put_reason(FARM_WIRE_BYE_END, "the run has ended", out, sizeof out);
    for (uint32_t p = 0; p < HUB_PEERS_MAX; p++)
        if (hub->peers[p]) farm_link_post(&hub->peers[p]->link, FARM_WIRE_BYE, out, bytes, true);
    hub->ends_ns = hub->now_ns;
}

int farm_hub_run(const struct farm_hub_config *config, struct farm_error *err) {
    static const uint64_t BYE_NS = 1000000000;
    struct farm_hub *hub;
    uint64_t idle_ns = 0;
    farm_sigterm_catch();
    if (farm_hub_make(config, &hub, err)) return 1;
    farm_worker_confine(false);
    for (;;) {
        const uint64_t now_ns = farm_now_ns();
        const bool busy = farm_hub_turn(hub, now_ns);
        if (farm_sigterm_caught()) receive_control(hub); // the supervisor sends END before SIGTERM
        if (farm_sigterm_caught() && !hub->ends) break;
        if (hub->ends && !hub->ends_ns) send_bye(hub);
        if (hub->ends_ns && (all_vacant(hub) || now_ns - hub->ends_ns > BYE_NS)) break;
        if (!farm_worker_may_sleep(&idle_ns, busy, now_ns, config->spin_ns)) continue;
        farm_hub_sleep(hub, hub->ends_ns ? SLEEP_NS / 10 : SLEEP_NS);
    }
    const bool ends = hub->ends;
    farm_hub_free(hub);
    if (ends) return 0;
    farm_worker_die_of_sigterm(); // not sent by the supervisor: it starts another bridge
    return 1;
}
