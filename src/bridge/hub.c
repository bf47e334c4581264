// See hub.h. A step's way: `place` names its final address, an unpublished slot of its lane; `arrived` is called when
// all of its frame has been vouched for; `publish` stores `produced`, once, when the supervisor has written the actor's
// generation. Everything else is told to the bridge again when it starts anew, or stands in the rings' counters.
#include "bridge/hub.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "bridge/control.h"
#include "bridge/link.h"
#include "bridge/step.h"
#include "bridge/worker.h"
#include "ring/wait.h"

enum {
    PEERS_MAX = FARM_BRIDGE_NODES_MAX + 64, // connections, of which 64 may be strangers
    STRANGERS_MAX = 64,
    HANDSHAKES_PER_S = 100, // more wait for the next second
    EVENTS_MAX = 64,
    WATCH_CONTROL = 0,
    WATCH_WAKE = 1,
    BELLS_MAX = 64,
};
static const uint64_t TICK_NS = 100000000, HEARTBEAT_NS = 1000000000, NAP_NS = 100000000, JOIN_NS = 60000000000u;

struct hub_lane {
    struct farm_lane *lane;
    uint64_t placed,
        arrived;       // steps whose frame has begun, and those that are in their slots; published: produced_local
    uint64_t told;     // CENTRAL: answers sent to the node
    uint64_t credited; // `consumed` as last told to the node
    uint64_t acked;    // LOCAL: steps acknowledged to the node
    uint16_t ring, number;
    bool listed;
};

struct hub_ring {
    struct farm_ring ring; // lanes NULL: not there
    uint32_t actor, shard;
    uint64_t wanted, asked; // generations: the newest that arrived; the newest that the supervisor was told of
    bool touched;           // something was published in this turn
    struct hub_lane *lanes;
};

struct session {
    bool known, admitted, dying; // dying: forgotten; it waits until nothing of its connection is in flight
    uint8_t id[FARM_WIRE_ID_BYTES];
    char name[FARM_WIRE_NAME_BYTES];
    uint32_t place, ring_count, lane_count;
    struct hub_ring *rings;
    struct hub_lane **list; // lanes that wait for the learner: for an answer, or for room
    uint32_t listed;
    struct peer *peer, *next; // its connection; a newer one, which waits until nothing of the old one is in flight
    bool credits_last;        // the last frame was of CREDITS
    uint64_t env_steps, lane_steps;
};

enum peer_state { PEER_GREETING, PEER_OFFERED, PEER_ASKED, PEER_ATTACHED };

struct peer {
    struct farm_link link;
    struct farm_hub *hub;
    enum peer_state state;
    struct session *session;
    struct farm_wire_hello hello; // its counters are in `counters`
    uint8_t *counters;
    uint32_t from; // hash of its address
    uint64_t accepted_ns;
    bool begun;        // its handshake may go on
    uint64_t asked_ns; // when its places were last asked for
    uint32_t asked_rings;
};

struct farm_hub {
    struct farm_hub_config config;
    const struct farm_engine_ops *ops;
    struct farm_engine *engine;
    struct peer *peers[PEERS_MAX]; // by socket; allocated once, when first used
    struct session sessions[FARM_BRIDGE_NODES_MAX];
    struct session *active[PEERS_MAX]; // with a connection
    uint32_t active_count;
    struct hub_ring **touched; // [touched_count]
    uint32_t touched_count, touched_room;
    uint64_t now_ns, tick_ns, second_ns;
    uint32_t handshakes; // begun since second_ns
    uint64_t strange_ns; // when strangers that have gone were last reported
    uint32_t gone;       // of them, since
    bool ends;           // END was heard
    uint64_t ends_ns;
    struct farm_control_message unsent[256]; // to the supervisor, in order
    uint32_t unsent_count;
    uint8_t *scratch; // [FARM_WIRE_MESSAGE_BYTES_MAX] where messages are put together
};

// ---- to the supervisor ----

static void flush_control(struct farm_hub *hub) {
    uint32_t done = 0;
    while (done < hub->unsent_count && farm_control_send(hub->config.control, &hub->unsent[done])) done++;
    memmove(hub->unsent, hub->unsent + done, (hub->unsent_count -= done) * sizeof *hub->unsent);
}

// False: the supervisor does not read; then the connection that this is about is closed, and comes again.
static bool tell(struct farm_hub *hub, const struct farm_control_message *message) {
    if (hub->unsent_count == sizeof hub->unsent / sizeof *hub->unsent) flush_control(hub);
    if (hub->unsent_count == sizeof hub->unsent / sizeof *hub->unsent) return false;
    hub->unsent[hub->unsent_count] = *message;
    memset(hub->unsent[hub->unsent_count++].fds, 0xff, sizeof message->fds);
    flush_control(hub);
    return true;
}

// ---- figures ----

static struct farm_bridge_node_stats *row_of(const struct farm_hub *hub, const struct session *session) {
    static struct farm_bridge_node_stats nowhere;
    return hub->config.stats ? &hub->config.stats->node[session->place] : &nowhere;
}

static void show_figures(struct peer *peer) {
    struct session *session = peer->session;
    struct farm_bridge_node_stats *row = row_of(peer->hub, session);
    if (!peer->hub->config.stats) return;
    farm_link_add_figures(&peer->link, peer->hub->config.stats, row);
    farm_store_relaxed(&row->lane_steps, farm_load_relaxed(&row->lane_steps) + session->lane_steps);
    farm_store_relaxed(&row->steps, farm_load_relaxed(&row->steps) + session->env_steps);
    session->lane_steps = session->env_steps = 0;
}

// ---- lanes ----

static struct hub_lane *lane_of(const struct peer *peer, const struct farm_wire_entry *entry) {
    const struct session *session = peer->session;
    if (peer->state != PEER_ATTACHED || entry->ring >= session->ring_count || entry->lane >= session->lane_count ||
        !session->rings[entry->ring].lanes)
        return NULL;
    return &session->rings[entry->ring].lanes[entry->lane];
}

static void list(struct session *session, struct hub_lane *lane) {
    if (lane->listed) return;
    lane->listed = true;
    session->list[session->listed++] = lane;
}

static bool blocked(const struct hub_lane *lane) {
    return lane->arrived - lane->credited >= lane->lane->steps;
}

// Whether the node is to be told something of this lane: now, or later (*later).
static bool has_answer(const struct hub_lane *lane) {
    return !lane->lane->local && lane->told < farm_lane_acted(lane->lane);
}

static bool has_credit(const struct hub_lane *lane) {
    if (lane->lane->local && lane->acked < lane->lane->produced_local) return true;
    return blocked(lane) && farm_lane_consumed(lane->lane) > lane->credited;
}

static bool waits(const struct hub_lane *lane) {
    return (!lane->lane->local && lane->told < lane->lane->produced_local) || blocked(lane);
}

static void touch(struct farm_hub *hub, struct hub_ring *ring) {
    if (ring->touched || hub->touched_count == hub->touched_room) return;
    ring->touched = true;
    hub->touched[hub->touched_count++] = ring;
}

// All steps of the lane that have arrived, if the supervisor has written the generation of the ring's newest actor.
static void publish(struct farm_hub *hub, struct session *session, struct hub_ring *ring, struct hub_lane *lane) {
    if (farm_load_acquire(&lane->lane->down->generation) < ring->wanted) return;
    if (lane->arrived == lane->lane->produced_local) return;
    while (lane->arrived != lane->lane->produced_local) {
        farm_lane_actor_publish(lane->lane);
        session->lane_steps++;
        session->env_steps += lane->lane->width;
    }
    list(session, lane);
    touch(hub, ring);
}

static void want_generation(struct farm_hub *hub, struct session *session, uint32_t r) {
    struct hub_ring *ring = &session->rings[r];
    if (ring->asked >= ring->wanted) return;
    const struct farm_control_message message = {
        .kind = FARM_CONTROL_GENERATION, .session = session->place, .ring = r, .generation = ring->wanted};
    if (tell(hub, &message)) ring->asked = ring->wanted;
}

// Wakes the inference threads that sleep, once each, behind all that this turn has published.
static void ring_bells(struct farm_hub *hub) {
    bool rung[BELLS_MAX] = {false};
    if (!hub->touched_count) return;
    farm_fence_full(); // the doorbells before `asleep`; partner: the fence in farm_doorbells_wait
    for (uint32_t t = 0; t < hub->touched_count; t++) {
        struct hub_ring *ring = hub->touched[t];
        ring->touched = false;
        if (rung[ring->shard] || !farm_load_relaxed(&ring->ring.down_control->asleep)) continue;
        const uint64_t one = 1;
        ssize_t ignored = write(hub->config.bells[ring->shard], &one, sizeof one); // full: it is rung already
        (void)ignored;
        rung[ring->shard] = true;
    }
    hub->touched_count = 0;
}

// ---- steps come ----

static bool place(void *context, struct farm_link *link, const struct farm_wire_header *header,
                  const struct farm_wire_entry *entry, struct iovec *parts, uint32_t room, uint32_t *count,
                  struct farm_error *err) {
    struct peer *peer = context;
    if (header->type == FARM_WIRE_HEARTBEAT) return true;
    if (header->type == FARM_WIRE_LEAVE && peer->state == PEER_ATTACHED && entry->ring < peer->session->ring_count)
        return true;
    struct hub_lane *lane = header->type == FARM_WIRE_STEPS ? lane_of(peer, entry) : NULL;
    if (!lane)
        return farm_fail(err, FARM_E_FORMAT, "an unexpected %s of ring %u, lane %u", farm_wire_type_name(header->type),
                         entry->ring, entry->lane),
               false;
    const uint64_t n = entry->n, acted = farm_lane_acted(lane->lane);
    const bool early = n - farm_lane_consumed(lane->lane) >= lane->lane->steps ||
                       (!lane->lane->local && n != acted); // the answer before must be there
    if (n != lane->placed || early || room < FARM_STEP_PARTS_MAX)
        return farm_fail(err, FARM_E_FORMAT, "step %llu of ring %u, lane %u, where %llu was due and %llu are answered",
                         (unsigned long long)n, entry->ring, entry->lane, (unsigned long long)lane->placed,
                         (unsigned long long)acted),
               false;
    lane->placed++;
    *count = farm_step_parts(lane->lane, n, parts);
    return true;
}

static void take_steps(struct peer *peer, const struct farm_wire_header *header,
                       const struct farm_wire_entry *entries) {
    struct session *session = peer->session;
    for (uint32_t i = 0; i < header->entries; i++) {
        const struct farm_wire_entry *entry = &entries[i];
        struct hub_ring *ring = &session->rings[entry->ring];
        ring->lanes[entry->lane].arrived++;
        if (entry->third > ring->wanted) ring->wanted = entry->third;
        farm_store_relaxed(&ring->ring.up_control->heartbeat, entry->fourth);
    }
    for (uint32_t i = 0; i < header->entries; i++) {
        struct hub_ring *ring = &session->rings[entries[i].ring];
        want_generation(peer->hub, session, entries[i].ring);
        publish(peer->hub, session, ring, &ring->lanes[entries[i].lane]);
    }
}

// ---- a node comes ----

static void refuse(struct peer *peer, enum farm_wire_reason reason, const char *text) {
    uint8_t out[FARM_WIRE_TEXT_BYTES + 16];
    farm_link_post(&peer->link, FARM_WIRE_REFUSE, out, farm_wire_put_reason(reason, text, out, sizeof out), true);
}

static bool same_id(const uint8_t *a, const uint8_t *b) {
    return memcmp(a, b, FARM_WIRE_ID_BYTES) == 0;
}

static struct session *find(struct farm_hub *hub, const uint8_t *id) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (hub->sessions[s].known && same_id(hub->sessions[s].id, id)) return &hub->sessions[s];
    return NULL;
}

static bool greet(struct peer *peer, struct farm_error *err) {
    static const uint8_t any[FARM_WIRE_ID_BYTES];
    struct farm_hub *hub = peer->hub;
    struct farm_wire_hello *hello = &peer->hello;
    const enum farm_status status = farm_wire_get_hello(peer->link.message, peer->link.message_bytes, hello, err);
    if (status == FARM_E_UNSUPPORTED) return refuse(peer, FARM_WIRE_REFUSE_FOR_GOOD, err->message), true;
    if (status) return false;
    const size_t bytes = peer->link.message_bytes - (size_t)(hello->counters - peer->link.message);
    free(peer->counters);
    peer->counters = malloc(bytes + 1);
    if (!peer->counters) return farm_fail(err, FARM_E_LIMIT, "no memory for a node's counters"), false;
    memcpy(peer->counters, hello->counters, bytes);
    hello->counters = peer->counters;
    peer->link.known = true;
    if (!same_id(hello->run, any) && !same_id(hello->run, hub->config.offer->run)) {
        refuse(peer, FARM_WIRE_REFUSE_SESSION, "the learner's run is another one than before");
        return true;
    }
    peer->state = PEER_OFFERED;
    farm_link_post(&peer->link, FARM_WIRE_OFFER, hub->scratch,
                   farm_wire_put_offer(hub->config.offer, hub->scratch, FARM_WIRE_MESSAGE_BYTES_MAX), false);
    return true;
}

// Whether both sides' counters can be those of one lane: what each side says, the other has not less of.
static bool fits(const struct peer *peer, const struct hub_lane *lane, const struct farm_wire_counters *node) {
    const uint64_t produced = lane->lane->produced_local, acted = farm_lane_acted(lane->lane);
    if (!peer->hello.rings) return produced == 0;
    if (produced > node->produced || node->produced - produced > UINT32_MAX) return false;
    if (lane->lane->local) return node->acted <= produced;
    return node->acted <= acted && node->produced - node->acted <= 1 && acted <= node->produced;
}

static bool compare(const struct peer *peer, struct session *session) {
    const struct farm_wire_hello *hello = &peer->hello;
    if (hello->rings && (hello->rings != session->ring_count || hello->lanes != session->lane_count)) return false;
    for (uint32_t r = 0; r < session->ring_count; r++) {
        for (uint32_t l = 0; session->rings[r].lanes && l < session->lane_count; l++) {
            struct farm_wire_counters node = {0};
            if (hello->rings) farm_wire_get_counters(peer->counters, (size_t)r * session->lane_count + l, &node);
            if (!fits(peer, &session->rings[r].lanes[l], &node)) return false;
        }
    }
    return true;
}

static void welcome(struct peer *peer, struct session *session) {
    struct farm_hub *hub = peer->hub;
    const size_t lanes = (size_t)session->ring_count * session->lane_count;
    struct farm_wire_counters *counters = calloc(lanes, sizeof *counters);
    uint32_t *actors = calloc(session->ring_count, sizeof *actors);
    if (!counters || !actors) {
        farm_link_close(&peer->link, "no memory for the counters of %zu lanes", lanes);
    } else {
        for (size_t i = 0; i < lanes; i++) {
            const struct hub_ring *ring = &session->rings[i / session->lane_count];
            actors[i / session->lane_count] = ring->actor;
            if (!ring->lanes) continue;
            const struct farm_lane *lane = ring->lanes[i % session->lane_count].lane;
            counters[i] = (struct farm_wire_counters){lane->produced_local, farm_lane_acted(lane),
                                                      ring->lanes[i % session->lane_count].credited,
                                                      farm_load_acquire(&lane->down->generation)};
        }
        const size_t bytes =
            farm_wire_put_welcome(session->ring_count, session->lane_count, hub->config.offer->spec.steps, actors,
                                  counters, hub->scratch, FARM_WIRE_MESSAGE_BYTES_MAX);
        farm_link_post(&peer->link, FARM_WIRE_WELCOME, hub->scratch, bytes, false);
    }
    free(counters);
    free(actors);
}

// The connection is the session's from here on; nothing of an older one is in flight.
static void attach(struct peer *peer, struct session *session) {
    struct farm_bridge_node_stats *row = row_of(peer->hub, session);
    if (!compare(peer, session)) {
        peer->state = PEER_GREETING; // it asks no more
        refuse(peer, FARM_WIRE_REFUSE_SESSION, "the counters of node and learner are not of the same session");
        return;
    }
    session->peer = peer;
    session->listed = 0;
    peer->hub->active[peer->hub->active_count++] = session;
    peer->session = session;
    peer->state = PEER_ATTACHED;
    for (uint32_t r = 0; r < session->ring_count; r++) {
        struct hub_ring *ring = &session->rings[r];
        ring->wanted = ring->asked = 0;
        for (uint32_t l = 0; ring->lanes && l < session->lane_count; l++) {
            struct hub_lane *lane = &ring->lanes[l];
            struct farm_wire_counters node = {0};
            if (peer->hello.rings) farm_wire_get_counters(peer->counters, (size_t)r * session->lane_count + l, &node);
            lane->placed = lane->arrived = lane->acked = lane->lane->produced_local;
            lane->told = node.acted;
            lane->credited = farm_lane_consumed(lane->lane);
            lane->listed = false;
            if (waits(lane)) list(session, lane);
        }
    }
    welcome(peer, session);
    // A node's supervisor asks for the places; its bridge comes then, with rings.
    if (peer->hello.rings) farm_store_relaxed(&row->connections, farm_load_relaxed(&row->connections) + 1);
    farm_store_release(&row->state, FARM_NODE_CONNECTED);
}

static void attach_when_free(struct peer *peer, struct session *session) {
    if (!session->peer) {
        attach(peer, session);
        return;
    }
    if (session->next) farm_link_close(&session->next->link, "a newer connection of this node came");
    session->next = peer;
    peer->session = session;
    farm_link_close(&session->peer->link, "a newer connection of this node came");
}

static bool ask(struct peer *peer) {
    struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT,
                                           .count = peer->asked_rings,
                                           .ring = peer->hello.rings, // it has rings: only an old session will do
                                           .machine = peer->hello.machine};
    memcpy(message.id, peer->hello.session, FARM_WIRE_ID_BYTES);
    snprintf(message.text, sizeof message.text, "%s", peer->hello.name);
    peer->asked_ns = peer->hub->now_ns;
    return tell(peer->hub, &message);
}

static bool join(struct peer *peer, struct farm_error *err) {
    uint32_t rings;
    if (farm_wire_get_join(peer->link.message, peer->link.message_bytes, &rings, err)) return false;
    if (peer->hello.rings && peer->hello.rings != rings)
        return farm_fail(err, FARM_E_FORMAT, "a node of %u rings asks for %u", peer->hello.rings, rings), false;
    if ((uint64_t)rings * peer->hub->config.offer->spec.lanes > FARM_WIRE_SESSION_LANES_MAX)
        return refuse(peer, FARM_WIRE_REFUSE_FOR_GOOD, "too many lanes for one node: give it fewer actors"), true;
    struct session *session = find(peer->hub, peer->hello.session);
    peer->state = PEER_ASKED;
    if (session && session->admitted) return attach_when_free(peer, session), true;
    peer->asked_rings = rings;
    if (!ask(peer)) return farm_fail(err, FARM_E_BUSY, "the supervisor does not answer"), false;
    return true;
}

// ---- frames ----

// A node that is being admitted has no place yet: then its id names the session. False: the supervisor does not read.
static bool leave(struct peer *peer, uint32_t ring) {
    struct farm_control_message message = {.kind = FARM_CONTROL_LEAVE, .session = UINT32_MAX, .ring = ring};
    memcpy(message.id, peer->hello.session, FARM_WIRE_ID_BYTES);
    if (peer->state == PEER_ATTACHED) message.session = peer->session->place;
    return (peer->state != PEER_ATTACHED && peer->state != PEER_ASKED) || tell(peer->hub, &message);
}

static bool arrived(void *context, struct farm_link *link, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries, struct farm_error *err) {
    struct peer *peer = context;
    if (link->ends) return true; // what it still says does not matter
    switch (header->type) {
    case FARM_WIRE_STEPS:
        take_steps(peer, header, entries);
        return true;
    case FARM_WIRE_HEARTBEAT:
        farm_link_handle_heartbeat(link, entries, peer->hub->now_ns,
                                   peer->state == PEER_ATTACHED ? &row_of(peer->hub, peer->session)->round_trip_ns
                                                                : NULL);
        return true;
    case FARM_WIRE_HELLO:
        if (peer->state == PEER_GREETING) return greet(peer, err);
        break;
    case FARM_WIRE_JOIN:
        if (peer->state == PEER_OFFERED) return join(peer, err);
        break;
    case FARM_WIRE_LEAVE:
        return leave(peer, entries[0].ring) || (farm_fail(err, FARM_E_BUSY, "the supervisor does not answer"), false);
    case FARM_WIRE_BYE:
        if (!leave(peer, UINT32_MAX))
            farm_log_warn("the places of node %s are kept until it has been away too long", peer->hello.name);
        farm_link_close(link, NULL);
        return true;
    default:
        break;
    }
    return farm_fail(err, FARM_E_FORMAT, "an unexpected %s", farm_wire_type_name(header->type)), false;
}

// ---- answers go ----

// Adds what the node is to be told of the lanes that wait; lanes that do not wait any more leave the list.
static bool gather(struct session *session, struct farm_link *link, enum farm_wire_type type) {
    const bool answers = type == FARM_WIRE_ANSWERS;
    uint32_t kept = 0;
    bool any = false, room = true;
    for (uint32_t i = 0; i < session->listed; i++) {
        struct hub_lane *lane = session->list[i];
        if (room && (answers ? has_answer(lane) : has_credit(lane))) {
            const uint64_t consumed = farm_lane_consumed(lane->lane);
            struct farm_wire_entry entry = {.ring = lane->ring, .lane = lane->number, .third = consumed};
            entry.n = answers ? lane->told : lane->lane->produced_local;
            if (answers) entry.fourth = *farm_lane_version(lane->lane, lane->told);
            const struct iovec part = answers ? farm_answer_part(lane->lane, lane->told) : (struct iovec){0};
            if (!any) farm_link_frame(link, type);
            any = true;
            room = farm_link_add(link, &entry, &part, answers);
            if (room) {
                lane->credited = consumed;
                lane->told += answers;
                lane->acked = lane->lane->produced_local;
            }
        }
        lane->listed = waits(lane) || has_credit(lane);
        if (lane->listed) session->list[kept++] = lane;
    }
    session->listed = kept;
    if (any) farm_link_commit(link);
    return any;
}

static bool answer(struct session *session) {
    struct farm_link *link = &session->peer->link;
    if (!session->listed || !farm_link_can_send(link)) return false;
    const enum farm_wire_type first = session->credits_last ? FARM_WIRE_ANSWERS : FARM_WIRE_CREDITS,
                              second = session->credits_last ? FARM_WIRE_CREDITS : FARM_WIRE_ANSWERS;
    if (gather(session, link, first)) {
        session->credits_last = first == FARM_WIRE_CREDITS;
        return true;
    }
    if (!gather(session, link, second)) return false;
    session->credits_last = second == FARM_WIRE_CREDITS;
    return true;
}

// ---- what the supervisor says ----

static void close_ring(struct hub_ring *ring) {
    if (ring->ring.lanes) farm_ring_close(&ring->ring);
    free(ring->lanes);
    *ring = (struct hub_ring){0};
}

static void free_session(struct session *session) {
    for (uint32_t r = 0; r < session->ring_count; r++) close_ring(&session->rings[r]);
    free(session->rings);
    free(session->list);
    *session = (struct session){.place = session->place};
}

static bool room_to_touch(struct farm_hub *hub, uint32_t rings) {
    const uint32_t room = hub->touched_room + rings;
    struct hub_ring **larger = realloc(hub->touched, room * sizeof(struct hub_ring *));
    if (!larger) return false;
    hub->touched = larger;
    hub->touched_room = room;
    return true;
}

static void begin_session(struct farm_hub *hub, const struct farm_control_message *message) {
    struct session *session = &hub->sessions[message->session];
    if (session->known || !message->count || message->count > FARM_WIRE_RINGS_MAX) return;
    session->lane_count = hub->config.offer->spec.lanes;
    session->rings = calloc(message->count, sizeof *session->rings);
    session->list = calloc((size_t)message->count * session->lane_count, sizeof *session->list);
    if (!session->rings || !session->list || !room_to_touch(hub, message->count)) {
        struct farm_control_message failed = {.kind = FARM_CONTROL_RING_FAILED, .session = message->session};
        snprintf(failed.text, sizeof failed.text, "the bridge has no memory for %u rings", message->count);
        tell(hub, &failed);
        free_session(session);
        return;
    }
    session->known = true;
    session->ring_count = message->count;
    memcpy(session->id, message->id, sizeof session->id);
    snprintf(session->name, sizeof session->name, "%.*s", (int)sizeof session->name - 1, message->text);
}

// Opens the ring, which takes the descriptors over if it can.
static enum farm_status open_ring(const struct farm_hub *hub, const struct session *session, struct hub_ring *ring,
                                  const struct farm_control_message *message, struct farm_error *err) {
    if (message->fds[0] < 0 || message->fds[1] < 0)
        return farm_fail(err, FARM_E_LIMIT, "the bridge has no room for its descriptors (ulimit -n)");
    if (ring->lanes || message->shard >= hub->config.bell_count)
        return farm_fail(err, FARM_E_INVALID, "its place is taken, or its shard does not exist");
    ring->lanes = calloc(session->lane_count, sizeof *ring->lanes);
    if (!ring->lanes) return farm_fail(err, FARM_E_LIMIT, "no memory for %u lanes", session->lane_count);
    enum farm_status status = farm_ring_open(message->fds[0], message->fds[1], FARM_RING_ACTOR, &ring->ring, err);
    if (!status && ring->ring.spec.lanes != session->lane_count) {
        status =
            farm_fail(err, FARM_E_INVALID, "it has %u lanes instead of %u", ring->ring.spec.lanes, session->lane_count);
        ring->ring.up.fd = ring->ring.down.fd = -1; // the caller's
        farm_ring_close(&ring->ring);
    }
    if (!status) return FARM_OK;
    free(ring->lanes);
    *ring = (struct hub_ring){0};
    return status;
}

static void take_ring(struct farm_hub *hub, const struct farm_control_message *message) {
    struct session *session = &hub->sessions[message->session];
    struct farm_error err;
    const bool here = session->known && message->ring < session->ring_count;
    struct hub_ring *ring = here ? &session->rings[message->ring] : NULL;
    if (!ring || open_ring(hub, session, ring, message, &err)) {
        if (!ring) farm_fail(&err, FARM_E_INVALID, "it has no such place");
        struct farm_control_message failed = {
            .kind = FARM_CONTROL_RING_FAILED, .session = message->session, .ring = message->ring};
        snprintf(failed.text, sizeof failed.text, "%.*s", (int)sizeof failed.text - 1, err.message);
        farm_log_error("a ring of node %s cannot be used: %s", session->name, err.message);
        tell(hub, &failed);
        for (int k = 0; k < 2; k++)
            if (message->fds[k] >= 0) close(message->fds[k]);
        return;
    }
    ring->actor = message->actor;
    ring->shard = message->shard;
    farm_ring_populate(&ring->ring);
    for (uint32_t l = 0; l < session->lane_count; l++) {
        ring->lanes[l] =
            (struct hub_lane){.lane = &ring->ring.lanes[l], .ring = (uint16_t)message->ring, .number = (uint16_t)l};
        farm_lane_actor_take_over(ring->lanes[l].lane); // the bridge before this one may have died between two stores
    }
    touch(hub, ring);
}

// The newest connection that asks for this session's places.
static struct peer *asks_for(struct farm_hub *hub, const uint8_t *id) {
    struct peer *newest = NULL;
    for (uint32_t p = 0; p < PEERS_MAX; p++) {
        struct peer *peer = hub->peers[p];
        if (peer && peer->link.state == FARM_LINK_OPEN && peer->state == PEER_ASKED && !peer->session &&
            same_id(peer->hello.session, id) && (!newest || peer->accepted_ns > newest->accepted_ns))
            newest = peer;
    }
    return newest;
}

static void admitted(struct farm_hub *hub, struct session *session) {
    if (!session->known) return;
    for (uint32_t r = 0; r < session->ring_count; r++)
        if (!session->rings[r].lanes) return; // it has failed: the supervisor knows, and refuses the session
    session->admitted = true;
    struct peer *peer = asks_for(hub, session->id);
    if (!peer) return;
    attach_when_free(peer, session);
    while ((peer = asks_for(hub, session->id))) farm_link_close(&peer->link, "a newer connection of this node came");
}

// The place can be used again at once; what may still be written to lives on until the connection is closed.
static void forget(struct farm_hub *hub, struct session *session) {
    static const char why[] = "this node's places were given up";
    struct peer *peer = session->peer;
    struct session *dying = peer ? malloc(sizeof *dying) : NULL;
    ring_bells(hub); // which names rings
    if (session->next) farm_link_close(&session->next->link, why);
    if (peer && !dying) {
        farm_log_error("no memory to forget node %s", session->name);
        return;
    }
    if (peer) {
        *dying = *session;
        dying->known = dying->admitted = false;
        dying->dying = true;
        dying->next = NULL;
        peer->session = dying;
        peer->state = PEER_GREETING; // nothing of its lanes is taken any more
        for (uint32_t i = 0; i < hub->active_count; i++)
            if (hub->active[i] == session) hub->active[i] = dying;
        if (session->next) session->next->session = NULL;
        *session = (struct session){.place = session->place};
        refuse(peer, FARM_WIRE_REFUSE_SESSION, why);
    } else {
        free_session(session);
    }
}

static void obey(struct farm_hub *hub, const struct farm_control_message *message) {
    struct session *session = message->session < FARM_BRIDGE_NODES_MAX ? &hub->sessions[message->session] : NULL;
    struct peer *peer;
    switch (message->kind) {
    case FARM_CONTROL_SESSION:
        if (session) begin_session(hub, message);
        break;
    case FARM_CONTROL_RING:
        if (session) take_ring(hub, message);
        break;
    case FARM_CONTROL_ADMITTED:
        if (session) admitted(hub, session);
        break;
    case FARM_CONTROL_REFUSED:
        while ((peer = asks_for(hub, message->id))) {
            peer->state = PEER_GREETING;
            refuse(peer, (enum farm_wire_reason)message->reason, message->text);
        }
        break;
    case FARM_CONTROL_GENERATION_IS:
        if (session && session->known && message->ring < session->ring_count && session->rings[message->ring].lanes)
            for (uint32_t l = 0; l < session->lane_count; l++)
                publish(hub, session, &session->rings[message->ring], &session->rings[message->ring].lanes[l]);
        break;
    case FARM_CONTROL_FORGET:
        if (session && session->known) forget(hub, session);
        break;
    case FARM_CONTROL_END:
        hub->ends = true;
        break;
    default:
        break;
    }
}

static bool hear_supervisor(struct farm_hub *hub) {
    struct farm_control_message message;
    bool any = false;
    while (farm_control_receive(hub->config.control, &message)) {
        obey(hub, &message);
        any = true;
        if (message.kind == FARM_CONTROL_RING) break; // which takes its time: others first
    }
    flush_control(hub);
    return any;
}

// ---- connections ----

static bool is_stranger(const struct peer *peer) {
    return peer && !peer->link.known && peer->link.state != FARM_LINK_VACANT && peer->link.state != FARM_LINK_CLOSING;
}

// Too many strangers: the oldest of those from the address that has most of them makes room, so that one machine cannot
// keep the others out.
static void make_room(struct farm_hub *hub) {
    uint32_t all = 0, most = 0;
    struct peer *oldest = NULL;
    for (uint32_t p = 0; p < PEERS_MAX; p++) {
        struct peer *peer = hub->peers[p];
        uint32_t same = 0;
        if (!is_stranger(peer)) continue;
        all++;
        for (uint32_t q = 0; q < PEERS_MAX; q++)
            same += is_stranger(hub->peers[q]) && hub->peers[q]->from == peer->from;
        const bool older = oldest && same == most && peer->accepted_ns < oldest->accepted_ns;
        if (same <= most && !older) continue;
        most = same;
        oldest = peer;
    }
    if (all >= STRANGERS_MAX) farm_link_close(&oldest->link, "more than %d unknown connections", STRANGERS_MAX);
}

static uint32_t address_hash(int fd) {
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof at;
    uint32_t hash = 2166136261u; // FNV-1a
    if (fd < 0 || getpeername(fd, (struct sockaddr *)&at, &bytes)) return 0;
    const bool v4 = at.ss_family == AF_INET;
    const uint8_t *host = v4 ? (const uint8_t *)&((const struct sockaddr_in *)&at)->sin_addr
                             : (const uint8_t *)&((const struct sockaddr_in6 *)&at)->sin6_addr;
    for (uint32_t i = 0; i < (v4 ? 4 : 8); i++) hash = (hash ^ host[i]) * 16777619u; // IPv6: the network
    return hash;
}

static void begin_peer(struct farm_hub *hub, struct peer *peer) {
    if (peer->begun || peer->link.state != FARM_LINK_CONNECTING || hub->handshakes == HANDSHAKES_PER_S) return;
    hub->handshakes++;
    peer->begun = true;
    farm_link_begin(&peer->link, hub->now_ns);
}

static void accept_peer(struct farm_hub *hub, int fd) {
    uint32_t p = 0;
    while (p < PEERS_MAX && hub->peers[p] && hub->peers[p]->link.state != FARM_LINK_VACANT) p++;
    if (p < PEERS_MAX && !hub->peers[p]) hub->peers[p] = calloc(1, sizeof *hub->peers[p]);
    struct peer *peer = p < PEERS_MAX ? hub->peers[p] : NULL;
    struct farm_error err;
    make_room(hub);
    if (!peer || hub->ends) {
        close(fd);
        return;
    }
    free(peer->counters);
    peer->counters = NULL;
    peer->hub = hub;
    peer->state = PEER_GREETING;
    peer->session = NULL;
    peer->begun = false;
    peer->hello.rings = 0;
    peer->from = address_hash(fd);
    peer->accepted_ns = hub->now_ns;
    const struct farm_link_owner owner = {.place = place, .arrived = arrived, .context = peer};
    if (farm_link_make(&peer->link, hub->ops, hub->engine, p, true, hub->config.key, &owner, &err)) {
        farm_log_warn("a node cannot be served: %s", err.message);
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); // or an answer waits for the ACK of the last
    hub->ops->open(hub->engine, p, fd);
    peer->link.fd = fd;
    peer->link.begun_ns = peer->link.heard_ns = peer->link.heartbeat_ns = hub->now_ns;
    begin_peer(hub, peer);
}

static void report_stranger(struct farm_hub *hub, const struct peer *peer) {
    static const uint64_t PAUSE_NS = 30000000000u;
    hub->gone++;
    if (!peer->link.why[0] || (hub->strange_ns && hub->now_ns - hub->strange_ns < PAUSE_NS)) return;
    farm_log_info("a connection did not become a node's: %s%s", peer->link.why, hub->gone > 1 ? " (and others)" : "");
    hub->strange_ns = hub->now_ns;
    hub->gone = 0;
}

// Nothing of the connection is in flight any more.
static void closed(struct farm_hub *hub, struct peer *peer) {
    struct session *session = peer->session;
    const bool done = hub->ends || !peer->hello.rings; // it closes the connection as it should
    if (!peer->link.known) report_stranger(hub, peer);
    if (peer->link.known && peer->link.why[0] && !done) farm_log_info("node %s: %s", peer->hello.name, peer->link.why);
    if (!session) return;
    if (session->peer != peer) {
        if (session->next == peer) session->next = NULL;
        peer->session = NULL;
        return;
    }
    if (!session->dying) show_figures(peer);
    peer->session = NULL;
    session->peer = NULL;
    session->listed = 0;
    for (uint32_t i = 0; i < hub->active_count; i++)
        if (hub->active[i] == session) hub->active[i] = hub->active[--hub->active_count];
    for (uint32_t r = 0; r < session->ring_count; r++)
        if (session->rings[r].lanes) farm_store_relaxed(&session->rings[r].ring.up_control->asleep, 0);
    if (session->dying) {
        ring_bells(hub); // which names rings
        free_session(session);
        free(session);
        return;
    }
    farm_store_release(&row_of(hub, session)->state, FARM_NODE_ABSENT);
    struct peer *next = session->next;
    session->next = NULL;
    if (next) attach(next, session);
}

static void handle(struct farm_hub *hub, const struct farm_engine_event *event) {
    uint64_t count;
    if (event->kind == FARM_ENGINE_ACCEPTED) {
        if (event->result >= 0) accept_peer(hub, (int)event->result);
    } else if (event->kind == FARM_ENGINE_READABLE) {
        if (event->number == WATCH_CONTROL) hear_supervisor(hub);
        if (event->number == WATCH_WAKE && !event->result) (void)!read(hub->config.wake, &count, sizeof count);
    } else {
        struct peer *peer = hub->peers[event->number];
        farm_link_event(&peer->link, event, hub->now_ns);
        if (event->kind == FARM_ENGINE_CLOSED) closed(hub, peer);
    }
}

static void tick_peer(struct farm_hub *hub, struct peer *peer) {
    farm_link_tick(&peer->link, hub->now_ns);
    if (peer->state < PEER_ASKED && hub->now_ns - peer->accepted_ns > JOIN_NS)
        farm_link_close(&peer->link, "it has not asked for places within a minute");
    if (peer->state == PEER_ATTACHED) {
        show_figures(peer);
        for (uint32_t r = 0; r < peer->session->ring_count; r++)
            if (peer->session->rings[r].lanes) want_generation(hub, peer->session, r);
    }
    if (peer->link.state != FARM_LINK_OPEN || hub->now_ns - peer->link.heartbeat_ns < HEARTBEAT_NS) return;
    if (peer->state == PEER_ASKED && !peer->session && hub->now_ns - peer->asked_ns >= HEARTBEAT_NS)
        ask(peer); // an answer may have been lost with a bridge before this one
    farm_link_send_heartbeat(&peer->link, hub->now_ns);
}

static void tick(struct farm_hub *hub) {
    struct timespec cpu;
    if (hub->now_ns - hub->tick_ns < TICK_NS) return;
    hub->tick_ns = hub->now_ns;
    if (hub->now_ns - hub->second_ns >= 1000000000u) {
        hub->second_ns = hub->now_ns;
        hub->handshakes = 0;
        for (uint32_t p = 0; p < PEERS_MAX; p++)
            if (hub->peers[p]) begin_peer(hub, hub->peers[p]);
    }
    flush_control(hub);
    for (uint32_t p = 0; p < PEERS_MAX; p++)
        if (hub->peers[p] && hub->peers[p]->link.state != FARM_LINK_VACANT) tick_peer(hub, hub->peers[p]);
    if (!hub->config.stats) return;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    farm_store_relaxed(&hub->config.stats->cpu_ns, (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec);
    farm_store_relaxed(&hub->config.stats->system_calls, hub->ops->system_calls(hub->engine));
}

// ---- the turn ----

bool farm_hub_turn(struct farm_hub *hub, uint64_t now_ns) {
    struct farm_engine_event events[EVENTS_MAX];
    hub->now_ns = now_ns;
    const uint32_t count = hub->ops->turn(hub->engine, events, EVENTS_MAX);
    bool busy = count > 0;
    for (uint32_t i = 0; i < count; i++) handle(hub, &events[i]);
    ring_bells(hub);
    for (uint32_t i = 0; i < hub->active_count; i++)
        if (hub->active[i]->peer->state == PEER_ATTACHED) busy |= answer(hub->active[i]);
    tick(hub);
    return busy;
}

void farm_hub_announce(struct farm_hub *hub, bool asleep) {
    for (uint32_t i = 0; i < hub->active_count; i++) {
        const struct session *session = hub->active[i];
        for (uint32_t r = 0; r < session->ring_count; r++)
            if (session->rings[r].lanes) farm_store_relaxed(&session->rings[r].ring.up_control->asleep, asleep);
    }
    if (!asleep) return;
    farm_fence_full(); // `asleep` before the counters; partner: the fence in farm_learner_notify
}

static bool can_be_told(const struct session *session) {
    for (uint32_t k = 0; session->peer->state == PEER_ATTACHED && k < session->listed; k++)
        if (has_answer(session->list[k]) || has_credit(session->list[k])) return true;
    return false;
}

bool farm_hub_look(const struct farm_hub *hub) {
    for (uint32_t i = 0; i < hub->active_count; i++)
        if (farm_link_can_send(&hub->active[i]->peer->link) && can_be_told(hub->active[i])) return true;
    return false;
}

void farm_hub_wait(struct farm_hub *hub, uint64_t timeout_ns) {
    for (uint32_t i = 0; i < hub->active_count;
         i++) // behind the fence: what is answered from here on wakes this thread
        if (!can_be_told(hub->active[i])) farm_link_defer_sent(&hub->active[i]->peer->link);
    hub->ops->wait(hub->engine, timeout_ns);
}

// ---- start and end ----

enum farm_status farm_hub_make(const struct farm_hub_config *config, struct farm_hub **out, struct farm_error *err) {
    struct farm_hub *hub = calloc(1, sizeof *hub);
    if (!hub || !(hub->scratch = malloc(FARM_WIRE_MESSAGE_BYTES_MAX))) {
        free(hub);
        return farm_fail(err, FARM_E_LIMIT, "no memory for the bridge");
    }
    assert(config->bell_count <= BELLS_MAX);
    hub->config = *config;
    hub->ops = config->ops;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) hub->sessions[s].place = s;
    const enum farm_status status = config->ops
                                        ? config->ops->create(PEERS_MAX, 2, config->ops_context, &hub->engine, err)
                                        : farm_engine_make(config->engine, PEERS_MAX, 2, &hub->ops, &hub->engine, err);
    if (status) {
        free(hub->scratch);
        free(hub);
        return status;
    }
    for (uint32_t s = 0; config->stats && s < FARM_BRIDGE_NODES_MAX; s++) // the bridge before this one may have died
        farm_store_relaxed(&config->stats->node[s].state, FARM_NODE_ABSENT);
    if (config->stats) farm_store_relaxed(&config->stats->uring, strcmp(hub->ops->name, "uring") == 0);
    hear_supervisor(hub);
    hub->ops->watch(hub->engine, WATCH_CONTROL, config->control);
    farm_engine_watch_counter(hub->ops, hub->engine, WATCH_WAKE, config->wake);
    if (config->listener >= 0) hub->ops->listen(hub->engine, config->listener);
    *out = hub;
    return FARM_OK;
}

static bool all_vacant(const struct farm_hub *hub) {
    for (uint32_t p = 0; p < PEERS_MAX; p++)
        if (hub->peers[p] && hub->peers[p]->link.state != FARM_LINK_VACANT) return false;
    return true;
}

// Until nothing is in flight: the engine may still write into rings.
static void close_all(struct farm_hub *hub, const char *why) {
    for (uint32_t p = 0; p < PEERS_MAX; p++)
        if (hub->peers[p]) farm_link_close(&hub->peers[p]->link, "%s", why);
    for (uint64_t start_ns = farm_now_ns(); !all_vacant(hub) && farm_now_ns() - start_ns < 1000000000u;) {
        struct farm_engine_event events[EVENTS_MAX];
        const uint32_t count = hub->ops->turn(hub->engine, events, EVENTS_MAX);
        for (uint32_t i = 0; i < count; i++)
            if (events[i].kind == FARM_ENGINE_ACCEPTED && events[i].result >= 0)
                close((int)events[i].result);
            else if (events[i].kind != FARM_ENGINE_READABLE && events[i].kind != FARM_ENGINE_ACCEPTED)
                handle(hub, &events[i]);
        if (!count) hub->ops->wait(hub->engine, 1000000);
    }
}

void farm_hub_free(struct farm_hub *hub) {
    if (!hub) return;
    close_all(hub, "");
    hub->ops->destroy(hub->engine);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) free_session(&hub->sessions[s]);
    for (uint32_t p = 0; p < PEERS_MAX; p++) {
        if (hub->peers[p]) free(hub->peers[p]->counters);
        free(hub->peers[p]);
    }
    free(hub->touched);
    free(hub->scratch);
    free(hub);
}

// ---- the worker ----

static void say_bye(struct farm_hub *hub) {
    uint8_t out[64];
    const size_t bytes = farm_wire_put_reason(FARM_WIRE_BYE_END, "the run has ended", out, sizeof out);
    for (uint32_t p = 0; p < PEERS_MAX; p++)
        if (hub->peers[p]) farm_link_post(&hub->peers[p]->link, FARM_WIRE_BYE, out, bytes, true);
    hub->ends_ns = hub->now_ns;
}

int farm_hub_run(const struct farm_hub_config *config, struct farm_error *err) {
    static const uint64_t BYE_NS = 1000000000;
    struct farm_hub *hub;
    uint64_t idle_ns = 0;
    farm_worker_catch_sigterm();
    if (farm_hub_make(config, &hub, err)) return 1;
    for (;;) {
        const uint64_t now_ns = farm_now_ns();
        const bool busy = farm_hub_turn(hub, now_ns);
        if (farm_worker_terminated()) hear_supervisor(hub); // it says END before it sends SIGTERM
        if (farm_worker_terminated() && !hub->ends) break;
        if (hub->ends && !hub->ends_ns) say_bye(hub);
        if (hub->ends_ns && (all_vacant(hub) || now_ns - hub->ends_ns > BYE_NS)) break;
        if (!farm_worker_may_sleep(&idle_ns, busy, now_ns, config->spin_ns)) continue;
        farm_hub_announce(hub, true);
        if (!farm_hub_look(hub)) farm_hub_wait(hub, hub->ends_ns ? NAP_NS / 10 : NAP_NS);
        farm_hub_announce(hub, false);
    }
    const bool ends = hub->ends;
    farm_hub_free(hub);
    if (ends) return 0;
    farm_worker_die_of_sigterm(); // not the supervisor's wish: it starts another bridge
    return 1;
}
