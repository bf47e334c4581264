// See hub_session.h. The way of a step: hub_place_entry gives its address in an unpublished slot of its lane,
// hub_take_steps counts it after its whole frame is verified, publish_lane stores `produced` once the supervisor has
// written the actor's generation. The rest is in the rings' counters, or the supervisor repeats it to a new bridge.
#include "bridge/hub_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "bridge/step.h"
#include "ring/wait.h"

// ---- messages to the supervisor and to a node ----

void hub_flush_control(struct farm_hub *hub) {
    uint32_t done = 0;
    while (done < hub->unsent_count && farm_control_send(hub->config.control, &hub->unsent[done])) done++;
    memmove(hub->unsent, hub->unsent + done, (hub->unsent_count -= done) * sizeof *hub->unsent);
}

bool hub_send_control(struct farm_hub *hub, const struct farm_control_message *message) {
    const uint32_t room = sizeof hub->unsent / sizeof *hub->unsent;
    if (hub->unsent_count == room) hub_flush_control(hub);
    if (hub->unsent_count == room) return false;
    hub->unsent[hub->unsent_count] = *message;
    memset(hub->unsent[hub->unsent_count++].fds, 0xff, sizeof message->fds);
    hub_flush_control(hub);
    return true;
}

void hub_refuse(struct hub_peer *peer, enum farm_wire_reason reason, const char *text) {
    uint8_t out[FARM_WIRE_TEXT_BYTES + 16];
    farm_link_post(&peer->link, FARM_WIRE_REFUSE, out, farm_wire_put_reason(reason, text, out, sizeof out), true);
}

// ---- figures ----

struct farm_bridge_node_stats *hub_row(const struct farm_hub *hub, const struct hub_session *session) {
    static struct farm_bridge_node_stats unused;
    return hub->config.stats ? &hub->config.stats->node[session->place] : &unused;
}

void hub_add_figures(struct hub_peer *peer) {
    struct hub_session *session = peer->session;
    struct farm_bridge_stats *stats = peer->hub->config.stats;
    if (!stats || session->forgotten) return;
    farm_link_add_figures(&peer->link, stats, hub_row(peer->hub, session), &session->lane_steps, &session->env_steps);
}

// ---- lanes ----

static struct hub_lane *find_lane(const struct hub_peer *peer, const struct farm_wire_entry *entry) {
    const struct hub_session *session = peer->session;
    if (peer->state != HUB_PEER_ATTACHED || entry->ring >= session->ring_count || entry->lane >= session->lane_count ||
        !session->rings[entry->ring].lanes)
        return NULL;
    return &session->rings[entry->ring].lanes[entry->lane];
}

static void list_lane(struct hub_session *session, struct hub_lane *lane) {
    if (lane->listed) return;
    lane->listed = true;
    session->list[session->listed++] = lane;
}

static bool is_full(const struct hub_lane *lane) {
    return lane->arrived - lane->credited >= lane->lane->steps;
}

static bool has_answer(const struct hub_lane *lane) {
    return !lane->lane->local && lane->replied < farm_lane_acted(lane->lane);
}

// LOCAL: `granted` for the node. If it holds the actor (UINT64_MAX does not), the OFFER of the newest version goes
// before.
static uint64_t load_granted(const struct hub_session *session, const struct hub_lane *lane) {
    const uint64_t granted = farm_load_acquire(&lane->lane->down->granted); // pair G: before the board's newest
    const struct farm_version_source *source = &session->peer->hub->versions;
    const bool known =
        granted == UINT64_MAX || !source->board || farm_version_is_known(&session->peer->versions, source);
    return known && granted > lane->granted ? granted : lane->granted;
}

static bool has_credit(const struct hub_session *session, const struct hub_lane *lane) {
    if (lane->lane->local && lane->replied < lane->lane->produced_local) return true;
    if (lane->lane->local && load_granted(session, lane) > lane->granted) return true;
    return is_full(lane) && farm_lane_consumed(lane->lane) > lane->credited;
}

static bool waits_for_learner(const struct hub_lane *lane) {
    return (lane->lane->local ? lane->granted < UINT64_MAX : lane->replied < lane->lane->produced_local) ||
           is_full(lane);
}

static void touch_ring(struct farm_hub *hub, struct hub_ring *ring) {
    if (ring->touched) return;
    ring->touched = true;
    ring->next_touched = hub->touched;
    hub->touched = ring;
}

static void publish_lane(struct farm_hub *hub, struct hub_session *session, struct hub_ring *ring,
                         struct hub_lane *lane) {
    if (farm_load_acquire(&lane->lane->down->generation) < ring->wanted) return;
    if (lane->arrived == lane->lane->produced_local) return;
    while (lane->arrived != lane->lane->produced_local) {
        farm_lane_actor_publish(lane->lane);
        session->lane_steps++;
        session->env_steps += lane->lane->width;
    }
    list_lane(session, lane);
    touch_ring(hub, ring);
}

void hub_publish_ring(struct farm_hub *hub, struct hub_session *session, uint32_t r) {
    if (r >= session->ring_count || !session->rings[r].lanes) return;
    for (uint32_t l = 0; l < session->lane_count; l++)
        publish_lane(hub, session, &session->rings[r], &session->rings[r].lanes[l]);
}

void hub_request_generation(struct farm_hub *hub, struct hub_session *session, uint32_t r) {
    struct hub_ring *ring = &session->rings[r];
    if (!ring->lanes || ring->requested >= ring->wanted) return;
    const struct farm_control_message message = {
        .kind = FARM_CONTROL_GENERATION, .session = session->place, .ring = r, .generation = ring->wanted};
    if (hub_send_control(hub, &message)) ring->requested = ring->wanted;
}

void hub_wake_shards(struct farm_hub *hub) {
    bool woken[HUB_SHARDS_MAX];
    if (!hub->touched) return;
    memset(woken, 0, hub->config.bell_count * sizeof *woken);
    farm_fence_full(); // the doorbells before `asleep`; partner: the fence in farm_doorbells_wait
    for (struct hub_ring *ring = hub->touched; ring; ring = ring->next_touched) {
        ring->touched = false;
        if (woken[ring->shard] || !farm_load_relaxed(&ring->ring.down_control->asleep)) continue;
        const uint64_t one = 1;
        (void)!write(hub->config.bells[ring->shard], &one, sizeof one); // full: the thread is being woken already
        woken[ring->shard] = true;
    }
    hub->touched = NULL;
}

// ---- steps in ----

bool hub_place_entry(void *context, const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                     struct iovec *parts, uint32_t room, uint32_t *count, struct farm_error *err) {
    const struct hub_peer *peer = context;
    if (header->type == FARM_WIRE_HEARTBEAT) return true;
    if (header->type == FARM_WIRE_LEAVE && peer->state == HUB_PEER_ATTACHED && entry->ring < peer->session->ring_count)
        return true;
    struct hub_lane *lane = header->type == FARM_WIRE_STEPS ? find_lane(peer, entry) : NULL;
    if (!lane)
        return !farm_fail(err, FARM_E_FORMAT, "unexpected %s of ring %u, lane %u", farm_wire_type_name(header->type),
                          entry->ring, entry->lane);
    const uint64_t n = entry->n, acted = farm_lane_acted(lane->lane);
    const bool early = n - farm_lane_consumed(lane->lane) >= lane->lane->steps ||
                       (!lane->lane->local && n != acted); // the answer to the step before is missing
    struct iovec own[FARM_STEP_PARTS_MAX];                 // `room` may be less
    if (n != lane->placed || early || (*count = farm_step_parts(lane->lane, n, own)) > room)
        return !farm_fail(err, FARM_E_FORMAT, "step %llu of ring %u, lane %u, expected %llu after %llu answers",
                          (unsigned long long)n, entry->ring, entry->lane, (unsigned long long)lane->placed,
                          (unsigned long long)acted);
    if (entry->generation > FARM_WIRE_GENERATION_MAX)
        return !farm_fail(err, FARM_E_FORMAT, "generation %llu of ring %u, lane %u: at most %d",
                          (unsigned long long)entry->generation, entry->ring, entry->lane, FARM_WIRE_GENERATION_MAX);
    lane->placed++;
    memcpy(parts, own, *count * sizeof *own);
    return true;
}

void hub_take_steps(struct hub_peer *peer, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries) {
    struct hub_session *session = peer->session;
    for (uint32_t i = 0; i < header->entries; i++) {
        struct hub_ring *ring = &session->rings[entries[i].ring];
        ring->lanes[entries[i].lane].arrived++;
        if (entries[i].generation > ring->wanted) ring->wanted = entries[i].generation;
        farm_store_relaxed(&ring->ring.up_control->heartbeat, entries[i].heartbeat);
    }
    for (uint32_t i = 0; i < header->entries; i++) {
        struct hub_ring *ring = &session->rings[entries[i].ring];
        hub_request_generation(peer->hub, session, entries[i].ring);
        publish_lane(peer->hub, session, ring, &ring->lanes[entries[i].lane]);
    }
}

// ---- answers out ----

// Sends a frame of what lanes on the list have for the node. Lanes that wait no longer leave the list.
static bool send_frame(struct hub_session *session, struct farm_link *link, enum farm_wire_type type) {
    const bool answers = type == FARM_WIRE_ANSWERS;
    uint32_t kept = 0;
    bool any = false, room = true;
    for (uint32_t i = 0; i < session->listed; i++) {
        struct hub_lane *lane = session->list[i];
        if (room && (answers ? has_answer(lane) : has_credit(session, lane))) {
            const uint64_t consumed = farm_lane_consumed(lane->lane);
            struct farm_wire_entry entry = {.ring = lane->ring, .lane = lane->number, .consumed = consumed};
            entry.n = answers ? lane->replied : lane->lane->produced_local;
            if (lane->lane->local) entry.granted = load_granted(session, lane);
            if (answers) entry.version = *farm_lane_version(lane->lane, lane->replied);
            struct iovec parts[FARM_ANSWER_PARTS_MAX];
            const uint32_t count = answers ? farm_answer_parts(lane->lane, lane->replied, parts) : 0;
            if (!any) farm_link_frame(link, type);
            any = true;
            room = farm_link_add(link, &entry, parts, count);
            if (room) {
                lane->credited = consumed;
                if (lane->lane->local) lane->granted = entry.granted;
                lane->replied = lane->lane->local ? entry.n : lane->replied + answers;
            }
        }
        lane->listed = waits_for_learner(lane) || has_credit(session, lane);
        if (lane->listed) session->list[kept++] = lane;
    }
    session->listed = kept;
    if (any) farm_link_commit(link);
    return any;
}

bool hub_take_have(struct hub_peer *peer, struct farm_error *err) {
    struct farm_source_node *node = &peer->hub->tree[peer->session->place];
    const int32_t lost = peer->versions.from.address[0] ? node->source : FARM_SOURCE_LEARNER;
    if (!farm_version_sender_ask(&peer->versions, &peer->link, err)) return false;
    if (lost >= 0) node->avoided[lost / 64] |= 1ull << lost % 64;
    node->present = true;
    memcpy(node->cache.address, peer->hello.cache, sizeof node->cache.address);
    node->group = 0;
    for (const char *c = peer->link.tls ? farm_tls_name(peer->link.tls) : ""; *c; c++)
        node->group = (node->group ^ (uint8_t)*c) * 0x100000001b3u;
    node->source = FARM_SOURCE_LEARNER;
    peer->hub->replan = true;
    return true;
}

// First chooses where a version comes from. A node that has lost its source gets the next one from here.
static bool send_version(struct hub_session *session) {
    struct hub_peer *peer = session->peer;
    struct farm_version_sender *sender = &peer->versions;
    struct farm_version_stage *newest = farm_version_source_newest(&peer->hub->versions);
    const int32_t source = peer->hub->tree[session->place].source;
    if (newest && newest->head.version >= sender->offered && farm_version_sender_is_idle(sender) && !sender->again) {
        sender->from.address[0] = 0;
        if (source >= 0) sender->from = peer->hub->tree[source].cache;
        if (source >= 0) sender->have.version = UINT64_MAX; // only OFFERs
    }
    return farm_version_send(sender, &peer->link, newest, peer->hub->now_ns);
}

bool hub_send_answers(struct hub_session *session) {
    struct farm_link *link = &session->peer->link;
    bool sent = false;
    for (int i = 0; i < 3 && !sent && session->peer->state == HUB_PEER_ATTACHED && farm_link_can_send(link); i++) {
        session->turn = (session->turn + 1) % 3;
        sent = session->turn == 0
                   ? send_version(session)
                   : send_frame(session, link, session->turn == 1 ? FARM_WIRE_CREDITS : FARM_WIRE_ANSWERS);
    }
    return sent;
}

bool hub_has_answers(const struct hub_session *session) {
    const struct hub_peer *peer = session->peer;
    for (uint32_t k = 0; peer->state == HUB_PEER_ATTACHED && k < session->listed; k++)
        if (has_answer(session->list[k]) || has_credit(session, session->list[k])) return true;
    return peer->state == HUB_PEER_ATTACHED &&
           farm_version_sender_has(&peer->versions, farm_version_source_newest(&peer->hub->versions));
}

void hub_announce_sleep(const struct hub_session *session, bool asleep) {
    for (uint32_t r = 0; r < session->ring_count; r++)
        if (session->rings[r].lanes) farm_store_relaxed(&session->rings[r].ring.up_control->asleep, asleep);
}

// ---- connections of a session ----

static struct farm_wire_counters node_counters(const struct hub_peer *peer, const struct hub_session *session,
                                               uint32_t r, uint32_t l) {
    struct farm_wire_counters node = {0};
    if (peer->hello.rings) farm_wire_get_counters(peer->counters, (size_t)r * session->lane_count + l, &node);
    return node;
}

// Whether both sides' counters can belong to one lane: each side has at least what the other has seen of it.
static bool counters_match(const struct hub_peer *peer, const struct farm_lane *lane,
                           const struct farm_wire_counters *node) {
    const uint64_t produced = lane->produced_local, acted = farm_lane_acted(lane);
    if (!peer->hello.rings) return produced == 0;
    if (produced > node->produced || node->produced - produced > UINT32_MAX) return false;
    if (node->consumed > node->acted || node->generation > FARM_WIRE_GENERATION_MAX) return false;
    if (lane->local) return node->acted <= produced;
    return node->acted <= acted && node->produced - node->acted <= 1 && acted <= node->produced;
}

static bool session_matches(const struct hub_peer *peer, const struct hub_session *session) {
    const struct farm_wire_hello *hello = &peer->hello;
    if (hello->rings && (hello->rings != session->ring_count || hello->lanes != session->lane_count)) return false;
    for (uint32_t r = 0; r < session->ring_count; r++) {
        for (uint32_t l = 0; session->rings[r].lanes && l < session->lane_count; l++) {
            const struct farm_wire_counters node = node_counters(peer, session, r, l);
            if (!counters_match(peer, session->rings[r].lanes[l].lane, &node)) return false;
        }
    }
    return true;
}

static void send_welcome(struct hub_peer *peer, const struct hub_session *session) {
    struct farm_hub *hub = peer->hub;
    const size_t lanes = (size_t)session->ring_count * session->lane_count;
    struct farm_wire_counters *counters = calloc(lanes, sizeof *counters);
    uint32_t *actors = calloc(session->ring_count, sizeof *actors);
    if (!counters || !actors) farm_link_close(&peer->link, "no memory for the counters of %zu lanes", lanes);
    for (size_t i = 0; counters && actors && i < lanes; i++) {
        const struct hub_ring *ring = &session->rings[i / session->lane_count];
        actors[i / session->lane_count] = ring->actor;
        if (!ring->lanes) continue;
        const struct hub_lane *lane = &ring->lanes[i % session->lane_count];
        counters[i] = (struct farm_wire_counters){lane->lane->produced_local, farm_lane_acted(lane->lane),
                                                  lane->credited, farm_load_acquire(&lane->lane->down->generation)};
    }
    if (counters && actors)
        farm_link_post(&peer->link, FARM_WIRE_WELCOME, hub->scratch,
                       farm_wire_put_welcome(session->ring_count, session->lane_count, hub->offer->spec.steps,
                                             session->note, actors, counters, hub->scratch,
                                             FARM_WIRE_MESSAGE_BYTES_MAX),
                       false);
    free(counters);
    free(actors);
}

// After nothing of an older connection is in flight.
static void attach_now(struct hub_peer *peer, struct hub_session *session) {
    struct farm_bridge_node_stats *row = hub_row(peer->hub, session);
    if (!session_matches(peer, session)) {
        peer->state = HUB_PEER_CONNECTED; // waits for no places any more
        peer->session = NULL;
        hub_refuse(peer, FARM_WIRE_REFUSE_SESSION, "the counters of node and learner are not of the same session");
        return;
    }
    session->peer = peer;
    session->listed = 0;
    peer->hub->active[peer->hub->active_count++] = session;
    peer->session = session;
    peer->state = HUB_PEER_ATTACHED;
    for (uint32_t r = 0; r < session->ring_count; r++) {
        struct hub_ring *ring = &session->rings[r];
        ring->wanted = ring->requested = 0;
        for (uint32_t l = 0; ring->lanes && l < session->lane_count; l++) {
            struct hub_lane *lane = &ring->lanes[l];
            lane->placed = lane->arrived = lane->lane->produced_local;
            lane->replied = lane->lane->local ? lane->arrived : node_counters(peer, session, r, l).acted;
            lane->credited = farm_lane_consumed(lane->lane);
            lane->granted = 0;
            lane->listed = false;
            if (waits_for_learner(lane)) list_lane(session, lane);
        }
    }
    send_welcome(peer, session);
    // A node's supervisor joins without rings; its bridge connects then, with rings.
    if (peer->hello.rings) farm_store_relaxed(&row->connections, farm_load_relaxed(&row->connections) + 1);
    farm_store_release(&row->state, FARM_NODE_CONNECTED);
}

void hub_attach(struct hub_peer *peer, struct hub_session *session) {
    if (!session->peer) {
        attach_now(peer, session);
        return;
    }
    if (session->next) {
        farm_link_close(&session->next->link, "a newer connection of this node replaces this one");
        session->next->session = NULL;
    }
    session->next = peer;
    peer->session = session;
    farm_link_close(&session->peer->link, "a newer connection of this node replaces this one");
}

static void leave_tree(struct farm_hub *hub, uint32_t place) {
    hub->tree[place] = (struct farm_source_node){.source = FARM_SOURCE_LEARNER};
    for (uint32_t n = 0; n < FARM_BRIDGE_NODES_MAX; n++) hub->tree[n].avoided[place / 64] &= ~(1ull << place % 64);
    hub->replan = true;
}

void hub_detach(struct hub_peer *peer) {
    struct farm_hub *hub = peer->hub;
    struct hub_session *session = peer->session;
    if (!session) return;
    if (session->peer != peer) {
        if (session->next == peer) session->next = NULL;
        peer->session = NULL;
        return;
    }
    hub_add_figures(peer);
    farm_version_sender_end(&peer->versions);
    if (!session->forgotten) leave_tree(hub, session->place);
    peer->session = NULL;
    session->peer = NULL;
    session->listed = 0;
    for (uint32_t i = 0; i < hub->active_count; i++)
        if (hub->active[i] == session) hub->active[i] = hub->active[--hub->active_count];
    hub_announce_sleep(session, false);
    if (session->forgotten) {
        hub_wake_shards(hub); // its list names rings
        hub_free_session(session);
        return;
    }
    farm_store_release(&hub_row(hub, session)->state, FARM_NODE_ABSENT);
    struct hub_peer *next = session->next;
    session->next = NULL;
    if (next) attach_now(next, session);
}

// ---- sessions and rings, as the supervisor gives them ----

void hub_free_session(struct hub_session *session) {
    if (!session) return;
    for (uint32_t r = 0; session->rings && r < session->ring_count; r++) {
        if (session->rings[r].ring.lanes) farm_ring_close(&session->rings[r].ring);
        free(session->rings[r].lanes);
    }
    free(session->rings);
    free(session->list);
    free(session);
}

static void report_failure(struct farm_hub *hub, const struct farm_control_message *message, const char *why) {
    struct farm_control_message failed = {
        .kind = FARM_CONTROL_RING_FAILED, .session = message->session, .ring = message->ring};
    snprintf(failed.text, sizeof failed.text, "%.*s", (int)sizeof failed.text - 1, why);
    hub_send_control(hub, &failed);
}

void hub_begin_session(struct farm_hub *hub, const struct farm_control_message *message) {
    if (hub->sessions[message->session] || !message->count || message->count > FARM_WIRE_RINGS_MAX) return;
    struct hub_session *session = calloc(1, sizeof *session);
    if (session) {
        session->place = message->session;
        session->ring_count = message->count;
        session->lane_count = hub->offer->spec.lanes;
        session->rings = calloc(message->count, sizeof *session->rings);
        session->list = calloc((size_t)message->count * session->lane_count, sizeof *session->list);
    }
    if (!session || !session->rings || !session->list) {
        report_failure(hub, message, "the bridge has no memory for the session's rings");
        hub_free_session(session);
        return;
    }
    memcpy(session->id, message->id, sizeof session->id);
    snprintf(session->name, sizeof session->name, "%.*s", (int)sizeof session->name - 1, message->text);
    hub->sessions[message->session] = session;
}

// Opens the ring, which takes the descriptors over on success.
static enum farm_status open_ring(const struct farm_hub *hub, const struct hub_session *session,
                                  const struct farm_control_message *message, struct farm_error *err) {
    if (!session || message->ring >= session->ring_count)
        return farm_fail(err, FARM_E_INVALID, "place %u does not exist", message->ring);
    struct hub_ring *ring = &session->rings[message->ring];
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

void hub_add_ring(struct farm_hub *hub, const struct farm_control_message *message) {
    struct hub_session *session = hub->sessions[message->session];
    struct farm_error err;
    if (open_ring(hub, session, message, &err)) {
        farm_log_error("a ring of node %s cannot be used: %s", session ? session->name : "?", err.message);
        report_failure(hub, message, err.message);
        for (int k = 0; k < 2; k++)
            if (message->fds[k] >= 0) close(message->fds[k]);
        return;
    }
    struct hub_ring *ring = &session->rings[message->ring];
    ring->actor = message->actor;
    ring->shard = message->shard;
    farm_ring_populate(&ring->ring);
    for (uint32_t l = 0; l < session->lane_count; l++) {
        ring->lanes[l] =
            (struct hub_lane){.lane = &ring->ring.lanes[l], .ring = (uint16_t)message->ring, .number = (uint16_t)l};
        farm_lane_actor_take_over(ring->lanes[l].lane); // a bridge before this one may have died between two stores
    }
    touch_ring(hub, ring);
}

void hub_forget_session(struct farm_hub *hub, struct hub_session *session) {
    static const char WHY[] = "the learner gave up this node's places";
    hub_wake_shards(hub); // its list names rings
    hub->sessions[session->place] = NULL;
    session->forgotten = true;
    leave_tree(hub, session->place);
    if (session->next) {
        farm_link_close(&session->next->link, WHY);
        session->next->session = NULL;
        session->next = NULL;
    }
    if (session->peer) {
        session->peer->state = HUB_PEER_CONNECTED; // frames of its lanes end the connection
        hub_refuse(session->peer, FARM_WIRE_REFUSE_SESSION, WHY);
    } else {
        hub_free_session(session);
    }
}
