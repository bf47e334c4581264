// See node.h. Sends a step once it is published and the learner has room for it, and again after a cut if the learner's
// counter shows that it was lost. Releases its slot to the actor when the answer has come (LOCAL: the acknowledgement).
#include "bridge/node.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"
#include "bridge/cache.h"
#include "bridge/dial.h"
#include "bridge/link.h"
#include "bridge/step.h"
#include "bridge/versions.h"
#include "bridge/worker.h"
#include "ring/wait.h"

enum { SOCKET = 0, WATCH_BELL = 0, EVENTS_MAX = 64, RESOLVER_MS = 50 };
static const uint64_t TICK_NS = 25000000, PROBE_NS = 40000000, SLEEP_NS = 100000000;

struct node_lane {
    struct farm_lane *lane;
    uint64_t placed;   // CENTRAL: answers whose frame has begun
    uint64_t answered; // CENTRAL: answered; LOCAL: acknowledged
    uint64_t sent;     // steps that the learner had, or that this connection has sent
    uint64_t consumed; // the learner's newest known `consumed`
    uint64_t granted;  // LOCAL: the learner's newest known; the actor's when the versions before it are on the boards
    uint16_t ring, number;
    bool listed;
};

struct farm_node {
    struct farm_node_config config;
    const struct farm_engine_ops *ops;
    struct farm_engine *engine;
    struct farm_tls_context *tls; // for all connections; NULL: in the clear
    struct farm_link link;
    struct farm_dial dial;
    enum farm_node_state state;
    bool welcomed; // on this connection
    char why[FARM_WIRE_TEXT_BYTES];

    struct farm_ring *rings; // [ring_count]
    struct farm_ring **ring_list;
    uint32_t ring_count, lane_count; // lanes of a ring
    struct farm_doorbells bells;
    uint32_t *rung;
    struct node_lane *lanes; // ring after ring
    struct node_lane **list; // a queue of lanes with steps to send
    uint32_t head, listed;
    bool *touched; // [ring_count] answered in this frame
    uint32_t learner_steps;

    struct farm_version_receiver versions; // boards NULL: none
    struct farm_cache *cache;              // with them: other nodes, as a source and to be fed
    uint64_t granted_done;                 // versions.done when the actors' grants were last looked at
    struct farm_wire_offer *offer;
    bool offered;
    uint32_t wanted; // places to request
    uint32_t *actors;

    uint64_t now_ns, tick_ns, env_steps, lane_steps;
    uint8_t *scratch;
};

// ---- figures ----

static void add_figures(struct farm_node *node) {
    struct farm_bridge_stats *stats = node->config.stats;
    if (!stats) return;
    farm_link_add_figures(&node->link, stats, &stats->node[0], &node->lane_steps, &node->env_steps);
    farm_store_relaxed(&stats->cpu_ns, farm_thread_cpu_ns());
    farm_store_relaxed(&stats->system_calls, node->ops->system_calls(node->engine));
}

// ---- lanes ----

static struct node_lane *lane_at(const struct farm_node *node, uint32_t ring, uint32_t lane) {
    return &node->lanes[(size_t)ring * node->lane_count + lane];
}

// Whether the lane's next step is published and the learner has room for it. Pair P.
static bool can_send(const struct farm_node *node, const struct node_lane *lane) {
    const uint64_t produced = farm_lane_produced(lane->lane);
    if (produced == lane->sent || lane->sent - lane->consumed >= node->learner_steps) return false;
    // The supervisor ends an actor that has overwritten its counter; nothing more of it is sent.
    return produced - lane->answered <= farm_lane_ahead_max(lane->lane);
}

static void list_lane(struct farm_node *node, struct node_lane *lane) {
    if (lane->listed || !node->welcomed || !can_send(node, lane)) return;
    const uint32_t room = node->ring_count * node->lane_count;
    lane->listed = true;
    node->list[(node->head + node->listed++) % room] = lane;
}

static bool check_bells(struct farm_node *node) {
    const uint32_t count = farm_doorbells_poll(&node->bells, node->rung);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t l = 0; l < node->lane_count; l++) list_lane(node, lane_at(node, node->rung[i], l));
    return count > 0;
}

// ---- steps out ----

static bool send_steps(struct farm_node *node) {
    struct farm_link *link = &node->link;
    const uint32_t room = node->ring_count * node->lane_count;
    if (!node->listed || !farm_link_can_send(link)) return false;
    farm_link_frame(link, FARM_WIRE_STEPS);
    while (node->listed) {
        struct node_lane *lane = node->list[node->head];
        const struct farm_ring *ring = &node->rings[lane->ring];
        struct iovec parts[FARM_STEP_PARTS_MAX];
        const struct farm_wire_entry entry = {.ring = lane->ring,
                                              .lane = lane->number,
                                              .n = lane->sent,
                                              .generation = farm_load_acquire(&lane->lane->down->generation),
                                              .heartbeat = farm_load_relaxed(&ring->up_control->heartbeat)};
        const uint32_t count = farm_step_parts(lane->lane, lane->sent, parts);
        if (!farm_link_add(link, &entry, parts, count)) break;
        lane->sent++;
        if (can_send(node, lane)) continue; // LOCAL: more of it
        lane->listed = false;
        node->head = (node->head + 1) % room;
        node->listed--;
    }
    farm_link_commit(link);
    return true;
}

// ---- answers in ----

static bool fail_entry(const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                       struct farm_error *err) {
    return !farm_fail(err, FARM_E_FORMAT, "unexpected %s of ring %u, lane %u, step %llu",
                      farm_wire_type_name(header->type), entry->ring, entry->lane, (unsigned long long)entry->n);
}

static bool place_entry(void *context, const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                        struct iovec *parts, uint32_t room, uint32_t *count, struct farm_error *err) {
    struct farm_node *node = context;
    if (header->type == FARM_WIRE_HEARTBEAT) return true;
    if (header->type == FARM_WIRE_VERSION_CHUNK && node->welcomed && node->cache)
        return *count = 1, farm_version_place_chunk(&node->versions, &node->link, header, entry, parts, err);
    const bool answers = header->type == FARM_WIRE_ANSWERS;
    if (!node->welcomed || (!answers && header->type != FARM_WIRE_CREDITS) || entry->ring >= node->ring_count ||
        entry->lane >= node->lane_count)
        return fail_entry(header, entry, err);
    struct node_lane *lane = lane_at(node, entry->ring, entry->lane);
    if (entry->consumed < lane->consumed || entry->consumed > lane->sent) return fail_entry(header, entry, err);
    if (!answers) return entry->n >= lane->answered && entry->n <= lane->sent ? true : fail_entry(header, entry, err);
    if (lane->lane->local || entry->n != lane->placed || entry->n >= lane->sent || room < 1 + (lane->lane->control > 0))
        return fail_entry(header, entry, err);
    lane->placed++;
    *count = farm_answer_parts(lane->lane, entry->n, parts);
    return true;
}

// Releases steps that the learner has to the actor.
static void release_steps(struct farm_node *node, struct node_lane *lane, uint64_t steps) {
    if (steps <= lane->answered) return;
    node->lane_steps += steps - lane->answered;
    node->env_steps += (steps - lane->answered) * lane->lane->width;
    lane->answered = steps;
    farm_lane_answer(lane->lane, steps - 1);
    farm_lane_release(lane->lane, steps);
}

// Before the actor can see them: its environments may index memory by them.
static bool check_actions(const struct farm_node *node, const struct farm_wire_entry *entry, struct farm_error *err) {
    const struct farm_lane *lane = lane_at(node, entry->ring, entry->lane)->lane;
    const struct farm_action_spec *action = &node->rings[entry->ring].spec.env.action;
    const void *values = farm_lane_action(lane, entry->n, 0);
    const size_t bad = farm_action_find_invalid(action, values, lane->width);
    const bool real = action->kind == FARM_ACTION_CONTINUOUS;
    if (bad == (size_t)lane->width * action->dims) return true;
    return !farm_fail(err, FARM_E_FORMAT, "action %g of environment %zu is %s (ring %u, lane %u, step %llu)",
                      real ? (double)((const float *)values)[bad] : ((const int32_t *)values)[bad], bad / action->dims,
                      real ? "not finite" : "not one of its choices", entry->ring, entry->lane,
                      (unsigned long long)entry->n);
}

// What the learner has granted after a version, if that is on the boards (or the actors keep all buffers).
static void grant_steps(struct farm_node *node, struct node_lane *lane) {
    if (!farm_version_is_done(&node->versions) || lane->granted <= farm_load_relaxed(&lane->lane->down->granted))
        return;
    farm_lane_grant(lane->lane, lane->granted);
    node->touched[lane->ring] = true;
}

static void notify_actors(struct farm_node *node) {
    for (uint32_t r = 0; r < node->ring_count; r++) {
        if (node->touched[r]) farm_learner_notify(&node->rings[r]);
        node->touched[r] = false;
    }
}

static void grant_all(struct farm_node *node) {
    node->granted_done = node->versions.done;
    for (uint32_t i = 0; i < node->ring_count * node->lane_count; i++) grant_steps(node, &node->lanes[i]);
    notify_actors(node);
}

// If it names a source, the version comes from there.
static bool handle_version_offer(struct farm_node *node, struct farm_error *err) {
    struct farm_wire_source source = {0};
    struct farm_link *link = &node->link;
    if (link->message_bytes == sizeof(struct farm_wire_version) + sizeof source) {
        link->message_bytes -= sizeof source;
        memcpy(&source, link->message + link->message_bytes, sizeof source);
        source.address[sizeof source.address - 1] = 0;
    }
    if (source.address[0])
        farm_cache_follow(node->cache, &source);
    else if (node->versions.from != link)
        farm_cache_ask_learner(node->cache, "it sends them itself");
    return farm_version_take_offer(&node->versions, link, err);
}

static void handle_answers(struct farm_node *node, const struct farm_wire_header *header,
                           const struct farm_wire_entry *entries) {
    for (uint32_t i = 0; i < header->entries; i++) {
        const struct farm_wire_entry *entry = &entries[i];
        struct node_lane *lane = lane_at(node, entry->ring, entry->lane);
        if (entry->consumed > lane->consumed) lane->consumed = entry->consumed;
        if (header->type == FARM_WIRE_ANSWERS) {
            *farm_lane_version(lane->lane, entry->n) = entry->version;
            release_steps(node, lane, entry->n + 1);
        } else if (lane->lane->local) {
            release_steps(node, lane, entry->n);
            if (entry->granted > lane->granted) lane->granted = entry->granted;
            grant_steps(node, lane);
        }
        node->touched[entry->ring] = true;
        list_lane(node, lane);
    }
    notify_actors(node);
}

// ---- joining ----

static void send_hello(struct farm_node *node) {
    const size_t lanes = (size_t)node->ring_count * node->lane_count;
    struct farm_wire_counters *counters = calloc(lanes + 1, sizeof *counters);
    struct farm_wire_hello hello = {.version = FARM_WIRE_VERSION,
                                    .segment_version = FARM_SEGMENT_VERSION,
                                    .machine = node->config.machine,
                                    .rings = node->ring_count,
                                    .lanes = node->ring_count ? node->lane_count : 0};
    memcpy(hello.session, node->config.session, FARM_WIRE_ID_BYTES);
    memcpy(hello.run, node->config.run, FARM_WIRE_ID_BYTES);
    snprintf(hello.name, sizeof hello.name, "%s", node->config.name ? node->config.name : "");
    if (node->cache && node->config.cache > 0)
        snprintf(hello.cache, sizeof hello.cache, "%s", node->config.cache_address);
    for (size_t i = 0; counters && i < lanes; i++) {
        const struct farm_lane *lane = node->lanes[i].lane;
        counters[i] = (struct farm_wire_counters){farm_lane_produced(lane), farm_lane_acted(lane),
                                                  farm_lane_consumed(lane), farm_load_acquire(&lane->down->generation)};
    }
    const size_t bytes =
        counters ? farm_wire_put_hello(&hello, counters, node->scratch, FARM_WIRE_MESSAGE_BYTES_MAX) : 0;
    free(counters);
    if (bytes)
        farm_link_post(&node->link, FARM_WIRE_HELLO, node->scratch, bytes, false);
    else
        farm_link_close(&node->link, "%zu lanes are too many for one node", lanes);
}

static void send_join(struct farm_node *node) {
    uint8_t out[8];
    node->state = FARM_NODE_JOINING;
    farm_link_post(&node->link, FARM_WIRE_JOIN, out, farm_wire_put_join(node->wanted, out, sizeof out), false);
}

static bool handle_offer(struct farm_node *node, struct farm_error *err) {
    static const uint8_t any[FARM_WIRE_ID_BYTES];
    struct farm_wire_offer *offer = node->offer;
    if (node->link.tls && !farm_tls_certify(node->link.tls, node->link.message, node->link.message_bytes))
        return !farm_fail(err, FARM_E_PERMISSION,
                          "the peer has the key of node %s, but is not the learner: its signature is wrong",
                          farm_tls_name(node->link.tls));
    if (farm_wire_get_offer(node->link.message, node->link.message_bytes, offer, err)) return false;
    if (memcmp(node->config.run, any, sizeof any) == 0)
        memcpy(node->config.run, offer->run, sizeof offer->run); // a later connection must have this run
    node->offered = true;
    node->link.known = true;
    if (node->wanted)
        send_join(node);
    else
        node->state = FARM_NODE_OFFERED;
    return true;
}

static bool apply_counters(struct farm_node *node, const struct farm_wire_welcome *welcome) {
    for (uint32_t r = 0; r < node->ring_count; r++) {
        for (uint32_t l = 0; l < node->lane_count; l++) {
            struct node_lane *lane = lane_at(node, r, l);
            struct farm_wire_counters learner;
            farm_wire_get_counters(welcome->counters, (size_t)r * node->lane_count + l, &learner);
            const uint64_t produced = farm_lane_produced(lane->lane), answered = farm_lane_acted(lane->lane);
            if (learner.produced > produced || learner.produced < answered || learner.consumed > learner.produced)
                return false;
            lane->placed = lane->answered = answered;
            lane->sent = learner.produced;
            lane->consumed = learner.consumed;
            lane->listed = false;
            if (lane->lane->local) release_steps(node, lane, learner.produced); // its CREDITS may have been lost
            if (farm_lane_consumed(lane->lane) < lane->answered) // a bridge before this one died between two stores
                farm_lane_release(lane->lane, lane->answered);
        }
        farm_learner_notify(&node->rings[r]);
    }
    return true;
}

static bool handle_welcome(struct farm_node *node, struct farm_error *err) {
    struct farm_wire_welcome welcome;
    if (farm_wire_get_welcome(node->link.message, node->link.message_bytes, &welcome, err)) return false;
    const bool rings = node->ring_count > 0;
    if (!rings && welcome.rings < node->wanted) node->wanted = welcome.rings; // the learner has no room for more
    if (welcome.rings != node->wanted || welcome.steps != node->offer->spec.steps ||
        (rings && (welcome.lanes != node->lane_count || !apply_counters(node, &welcome)))) {
        node->state = FARM_NODE_STRANGE; // another attempt would not change it
        return !farm_fail(err, FARM_E_FORMAT, "the learner's counters do not match this session");
    }
    if (!node->actors) node->actors = calloc(welcome.rings, sizeof *node->actors);
    if (!node->actors) return !farm_fail(err, FARM_E_LIMIT, "no memory for %u actors", welcome.rings);
    memcpy(node->actors, welcome.actors, welcome.rings * sizeof *node->actors);
    node->learner_steps = welcome.steps;
    node->head = node->listed = 0;
    node->welcomed = true;
    node->state = FARM_NODE_JOINED;
    farm_dial_reset(&node->dial);
    snprintf(node->why, sizeof node->why, "%s", welcome.note);
    if (node->config.stats) {
        struct farm_bridge_node_stats *row = &node->config.stats->node[0];
        farm_store_relaxed(&row->connections, farm_load_relaxed(&row->connections) + 1);
        farm_store_release(&row->state, FARM_NODE_CONNECTED);
    }
    if (node->cache) farm_cache_ask_learner(node->cache, "a new connection to it");
    for (uint32_t i = 0; i < node->ring_count * node->lane_count; i++) list_lane(node, &node->lanes[i]);
    return true;
}

static bool handle_reason(struct farm_node *node, bool bye, struct farm_error *err) {
    enum farm_wire_reason reason;
    char text[FARM_WIRE_TEXT_BYTES];
    if (farm_wire_get_reason(node->link.message, node->link.message_bytes, &reason, text, err)) return false;
    node->welcomed = false;
    if (bye)
        node->state = FARM_NODE_ENDED;
    else if (reason == FARM_WIRE_REFUSE_FOR_GOOD)
        node->state = FARM_NODE_REFUSED;
    else if (reason == FARM_WIRE_REFUSE_SESSION)
        node->state = FARM_NODE_STRANGE;
    else if (reason == FARM_WIRE_REFUSE_AGAIN)
        node->dial.at_once = true;
    snprintf(node->why, sizeof node->why, "%s", text);
    farm_link_close(&node->link, "%s", text);
    return true;
}

// ---- frames ----

static bool handle_frame(void *context, struct farm_link *link, const struct farm_wire_header *header,
                         const struct farm_wire_entry *entries, struct farm_error *err) {
    struct farm_node *node = context;
    switch (header->type) {
    case FARM_WIRE_ANSWERS:
    case FARM_WIRE_CREDITS:
        for (uint32_t i = 0; i < header->entries && header->type == FARM_WIRE_ANSWERS; i++)
            if (!check_actions(node, &entries[i], err)) return false;
        handle_answers(node, header, entries);
        return true;
    case FARM_WIRE_HEARTBEAT:
        farm_link_handle_heartbeat(link, entries, node->now_ns,
                                   node->config.stats ? &node->config.stats->node[0].round_trip_ns : NULL);
        return true;
    case FARM_WIRE_VERSION_OFFER:
        if (node->welcomed && node->cache) return handle_version_offer(node, err);
        break;
    case FARM_WIRE_VERSION_CHUNK: // place_entry
        return farm_version_take_chunk(&node->versions, link, header, entries, err);
    case FARM_WIRE_OFFER:
        if (!node->offered) return handle_offer(node, err);
        break;
    case FARM_WIRE_WELCOME:
        if (node->state == FARM_NODE_JOINING) return handle_welcome(node, err);
        break;
    case FARM_WIRE_REFUSE:
        return handle_reason(node, false, err);
    case FARM_WIRE_BYE:
        return handle_reason(node, true, err);
    default:
        break;
    }
    return farm_link_refuse(header, err);
}

// ---- connecting ----

static bool is_over(const struct farm_node *node) {
    return node->state == FARM_NODE_ENDED || node->state == FARM_NODE_REFUSED || node->state == FARM_NODE_STRANGE;
}

static void connect_to_learner(struct farm_node *node) {
    struct farm_error err = {0};
    const struct farm_link_owner owner = {.place = place_entry, .arrived = handle_frame, .context = node};
    int fd = -1;
    enum farm_status status = FARM_OK;
    if (!node->config.ops_context) status = farm_dial_open(&node->dial, node->now_ns, &fd, &err);
    if (!status) status = farm_link_make(&node->link, node->ops, node->engine, SOCKET, false, node->tls, &owner, &err);
    if (status) {
        if (fd >= 0) close(fd);
        snprintf(node->why, sizeof node->why, "%.*s", (int)sizeof node->why - 1, err.message);
        farm_dial_plan_retry(&node->dial, node->now_ns);
        return;
    }
    node->offered = node->welcomed = false;
    node->dial.retry_ns = UINT64_MAX;
    farm_link_begin(&node->link, fd, &node->dial.address, node->now_ns);
}

static void handle_closed(struct farm_node *node) {
    add_figures(node);
    if (node->welcomed && !is_over(node)) farm_log_warn("connection to the learner: %s; trying again", node->link.why);
    node->welcomed = node->offered = false;
    node->listed = 0;
    if (node->config.stats) farm_store_release(&node->config.stats->node[0].state, FARM_NODE_ABSENT);
    if (node->link.status == FARM_E_PERMISSION && node->ring_count && strcmp(node->why, node->link.why) != 0)
        farm_log_warn("no connection to the learner: %s", node->link.why);
    if (node->link.why[0]) snprintf(node->why, sizeof node->why, "%s", node->link.why);
    // A node that has not joined does not wait for a learner with another key.
    if (node->link.status == FARM_E_PERMISSION && !node->ring_count) node->state = FARM_NODE_REFUSED;
    if (is_over(node)) return;
    if (node->state != FARM_NODE_JOINED) node->state = FARM_NODE_TRYING;
    farm_dial_plan_retry(&node->dial, node->now_ns);
}

// Whether it is not of the connection to the learner.
static bool handle_others_event(struct farm_node *node, const struct farm_engine_event *event) {
    const bool bell = event->kind == FARM_ENGINE_READABLE, accepted = event->kind == FARM_ENGINE_ACCEPTED;
    if (!bell && !accepted && event->number == SOCKET) return false;
    if (bell && !event->result) farm_bell_empty(node->config.bell);
    if (accepted && event->result >= 0) farm_cache_accept(node->cache, (int)event->result, node->now_ns);
    if (!bell && !accepted) farm_cache_event(node->cache, event, node->now_ns);
    return true;
}

static void handle_event(struct farm_node *node, const struct farm_engine_event *event) {
    if (handle_others_event(node, event)) return;
    const bool opens = node->link.state != FARM_LINK_OPEN;
    farm_link_event(&node->link, event, node->now_ns);
    if (event->kind == FARM_ENGINE_CLOSED) handle_closed(node);
    if (opens && node->link.state == FARM_LINK_OPEN) send_hello(node);
}

// Ends an attempt that takes too long, or a connection whose path is cut: the next one may find a path.
static void end_stalled(struct farm_node *node) {
    struct farm_link *link = &node->link;
    const bool opens = link->state == FARM_LINK_DIALLING && link->fd > 0;
    if (opens && node->now_ns - link->begun_ns > farm_dial_limit_ns(&node->dial, node->now_ns)) {
        node->dial.at_once = true;
        farm_link_close(link, "no answer from its machine");
    } else if (farm_link_is_stalled(link)) {
        node->dial.at_once = true;
        farm_link_close(link, "the learner's machine acknowledges nothing");
    }
    if (link->state == FARM_LINK_OPEN && link->path.rtt_ns) node->dial.rtt_ns = link->path.rtt_ns;
}

static void tick(struct farm_node *node) {
    end_stalled(node);
    if (node->now_ns - node->tick_ns < TICK_NS) return;
    node->tick_ns = node->now_ns;
    // If the peer is silent, sent bytes show whether the path is cut.
    const bool silent = node->now_ns - node->link.heard_ns > PROBE_NS;
    farm_link_tick(&node->link, node->now_ns, silent ? PROBE_NS : FARM_LINK_BEAT_NS);
    if (node->link.state == FARM_LINK_OPEN) add_figures(node);
}

// ---- the turn ----

bool farm_node_turn(struct farm_node *node, uint64_t now_ns) {
    struct farm_engine_event events[EVENTS_MAX];
    node->now_ns = now_ns;
    if (node->link.state == FARM_LINK_VACANT && !is_over(node) && now_ns >= node->dial.retry_ns)
        connect_to_learner(node);
    const uint32_t count = node->ops->turn(node->engine, events, EVENTS_MAX);
    for (uint32_t i = 0; i < count; i++) handle_event(node, &events[i]);
    bool busy = count > 0;
    if (node->cache) busy |= farm_cache_turn(node->cache, now_ns);
    if (node->granted_done != node->versions.done) grant_all(node);
    busy |= check_bells(node);
    if (node->welcomed) busy |= send_steps(node);
    tick(node);
    return busy;
}

void farm_node_wait(struct farm_node *node, uint64_t timeout_ns) {
    if (node->link.state == FARM_LINK_VACANT && node->dial.retry_ns != UINT64_MAX) {
        const uint64_t now_ns = farm_now_ns(),
                       left_ns = node->dial.retry_ns > now_ns ? node->dial.retry_ns - now_ns : 0;
        if (left_ns < timeout_ns) timeout_ns = left_ns;
    }
    const uint64_t limit_ns = farm_dial_limit_ns(&node->dial, node->now_ns);
    const bool opens = node->link.state == FARM_LINK_DIALLING || node->link.state == FARM_LINK_SHAKING;
    if (opens && limit_ns < timeout_ns) timeout_ns = limit_ns;
    if (node->link.state == FARM_LINK_OPEN && TICK_NS < timeout_ns) timeout_ns = TICK_NS; // to check the path
    if (!node->listed) farm_link_defer_sent(&node->link);
    node->ops->wait(node->engine, timeout_ns);
}

void farm_node_sleep(struct farm_node *node, uint64_t timeout_ns) {
    farm_doorbells_announce(&node->bells, true); // with its fence
    if (!farm_doorbells_look(&node->bells) && !(node->listed && farm_link_can_send(&node->link)))
        farm_node_wait(node, timeout_ns);
    farm_doorbells_announce(&node->bells, false);
}

enum farm_node_state farm_node_state(const struct farm_node *node) {
    return node->state;
}
bool farm_node_connected(const struct farm_node *node) {
    return node->welcomed;
}
const struct farm_wire_offer *farm_node_offer(const struct farm_node *node) {
    return node->offered ? node->offer : NULL;
}
const uint32_t *farm_node_actors(const struct farm_node *node) {
    return node->actors;
}
uint32_t farm_node_places(const struct farm_node *node) {
    return node->wanted;
}
const char *farm_node_why(const struct farm_node *node) {
    return node->why;
}

void farm_node_join(struct farm_node *node, uint32_t rings) {
    node->wanted = rings;
    if (node->state == FARM_NODE_OFFERED) send_join(node);
}

// ---- start and end ----

static enum farm_status open_rings(struct farm_node *node, struct farm_error *err) {
    const struct farm_node_config *config = &node->config;
    const uint32_t count = config->ring_count;
    enum farm_status status = FARM_OK;
    node->rings = calloc(count + 1, sizeof *node->rings);
    node->ring_list = calloc(count + 1, sizeof *node->ring_list);
    node->rung = calloc(count + 1, sizeof *node->rung);
    node->touched = calloc(count + 1, sizeof *node->touched);
    if (!node->rings || !node->ring_list || !node->rung || !node->touched)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u rings", count);
    for (; node->ring_count < count && !status; node->ring_count += !status) {
        const uint32_t r = node->ring_count;
        status =
            farm_ring_open(config->ring_fds[r][0], config->ring_fds[r][1], FARM_RING_LEARNER, &node->rings[r], err);
        if (!status && r && node->rings[r].spec.lanes != node->rings[0].spec.lanes)
            status = farm_fail(err, FARM_E_INVALID, "rings of different shapes");
        node->ring_list[r] = &node->rings[r];
    }
    if (status) return status;
    node->lane_count = count ? node->rings[0].spec.lanes : 0;
    const size_t lanes = (size_t)count * node->lane_count;
    node->lanes = calloc(lanes + 1, sizeof *node->lanes);
    node->list = calloc(lanes + 1, sizeof *node->list);
    if (!node->lanes || !node->list) return farm_fail(err, FARM_E_LIMIT, "no memory for %zu lanes", lanes);
    for (size_t i = 0; i < lanes; i++)
        node->lanes[i] = (struct node_lane){.lane = &node->rings[i / node->lane_count].lanes[i % node->lane_count],
                                            .ring = (uint16_t)(i / node->lane_count),
                                            .number = (uint16_t)(i % node->lane_count)};
    return farm_doorbells_make(&node->bells, node->ring_list, count, config->bell, err);
}

static struct farm_board *board_of(const struct farm_node *node, uint32_t r) {
    return farm_board_near(node->config.boards, node->config.board_count, &node->rings[r].down);
}

// Watches the actors' announcements, before the first version is received.
static enum farm_status open_boards(struct farm_node *node, struct farm_error *err) {
    const struct farm_node_config *config = &node->config;
    enum farm_status status = FARM_OK;
    if (!config->board_count) return FARM_OK;
    node->versions = (struct farm_version_receiver){
        .boards = config->boards, .board_count = config->board_count, .key = config->key, .staged = config->cache > 0};
    memcpy(node->versions.run, config->run, sizeof config->run);
    for (uint32_t r = 0; r < node->ring_count && !status; r++)
        status = farm_board_watch(board_of(node, r), &node->rings[r].up_control->using, err);
    return status ? status : farm_version_receiver_make(&node->versions, err);
}

enum farm_status farm_node_make(const struct farm_node_config *config, struct farm_node **out, struct farm_error *err) {
    struct farm_node *node = calloc(1, sizeof *node);
    if (!node) return farm_fail(err, FARM_E_LIMIT, "no memory for the bridge");
    node->config = *config;
    node->ops = config->ops;
    node->bells.eventfd = -1;
    node->wanted = config->ring_count;
    node->dial =
        (struct farm_dial){.name = config->address, .resolver = -1, .encrypted = config->key, .random = config->seed};
    node->offer = calloc(1, sizeof *node->offer);
    node->scratch = malloc(FARM_WIRE_MESSAGE_BYTES_MAX);
    enum farm_status status =
        node->offer && node->scratch ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for the bridge");
    if (!status && config->key) status = farm_tls_context_make(config->key, false, &node->tls, err);
    if (!status) status = open_rings(node, err);
    if (!status) status = open_boards(node, err);
    const bool serves = config->board_count && config->cache > 0;
    const uint32_t sockets = 1 + (serves ? FARM_CACHE_SOCKETS : config->board_count != 0);
    if (!status)
        status = config->ops ? config->ops->create(sockets, 1, config->ops_context, &node->engine, err)
                             : farm_engine_make(config->engine, sockets, 1, &node->ops, &node->engine, err);
    if (!status && config->board_count)
        status = farm_cache_make(
            &(struct farm_cache_config){node->ops, node->engine, SOCKET + 1, node->tls, &node->versions, &node->link},
            &node->cache, err);
    if (status) {
        farm_node_free(node, false);
        return status;
    }
    if (serves) node->ops->listen(node->engine, config->cache);
    if (config->cache > 0 && !serves) farm_log_warn("--cache: the learner infers: there are no parameters to pass on");
    if (config->bell >= 0) farm_engine_watch_counter(node->ops, node->engine, WATCH_BELL, config->bell);
    if (config->stats) { // a bridge before this one may have been killed
        farm_store_release(&config->stats->node[0].state, FARM_NODE_ABSENT);
        farm_store_relaxed(&config->stats->uring, strcmp(node->ops->name, "uring") == 0);
    }
    *out = node;
    return FARM_OK;
}

static bool is_closed(const struct farm_node *node) {
    return (!node->cache || farm_cache_close(node->cache)) && node->link.state == FARM_LINK_VACANT;
}

static void drain_links(struct farm_node *node, uint64_t most_ns) {
    for (uint64_t start_ns = farm_now_ns(); !is_closed(node) && farm_now_ns() - start_ns < most_ns;) {
        struct farm_engine_event events[EVENTS_MAX];
        const uint32_t count = node->ops->turn(node->engine, events, EVENTS_MAX);
        node->now_ns = farm_now_ns();
        for (uint32_t i = 0; i < count; i++)
            if (!handle_others_event(node, &events[i])) farm_link_event(&node->link, &events[i], node->now_ns);
        if (!count) node->ops->wait(node->engine, 1000000);
    }
}

void farm_node_free(struct farm_node *node, bool end) {
    if (!node) return;
    if (end && node->link.state == FARM_LINK_OPEN) {
        uint8_t out[64];
        farm_link_post(&node->link, FARM_WIRE_BYE, out,
                       farm_wire_put_reason(FARM_WIRE_BYE_END, "the node has ended", out, sizeof out), true);
        drain_links(node, 500000000);
    }
    if (node->engine) {
        farm_link_close(&node->link, NULL);
        drain_links(node, 1000000000);
        add_figures(node); // for the time since the last tick
        node->ops->destroy(node->engine);
    }
    for (uint32_t r = 0; r < node->ring_count && node->config.board_count; r++)
        farm_board_unwatch(board_of(node, r), &node->rings[r].up_control->using);
    farm_cache_free(node->cache);
    farm_version_receiver_free(&node->versions);
    farm_tls_context_free(node->tls);
    farm_doorbells_free(&node->bells);
    for (uint32_t r = 0; r < node->ring_count; r++) farm_ring_close(&node->rings[r]);
    free(node->rings);
    free(node->ring_list);
    free(node->rung);
    free(node->touched);
    free(node->lanes);
    free(node->list);
    free(node->actors);
    free(node->offer);
    free(node->scratch);
    free(node);
}

// ---- the worker ----

int farm_node_run(const struct farm_node_config *config, struct farm_error *err) {
    struct farm_node *node;
    uint64_t idle_ns = 0;
    farm_sigterm_catch();
    const int resolver = farm_dial_start_resolver(config->address);
    if (resolver < 0) return farm_fail_errno(err, FARM_E_LIMIT, "no process that resolves names"), 1;
    if (farm_node_make(config, &node, err)) return 1;
    node->dial.resolver = resolver;
    farm_worker_confine(true);
    while (!farm_sigterm_caught() && !is_over(node)) {
        const uint64_t now_ns = farm_now_ns();
        const bool busy = farm_node_turn(node, now_ns);
        if (!farm_worker_may_sleep(&idle_ns, busy, now_ns, config->spin_ns)) continue;
        farm_node_sleep(node, SLEEP_NS);
    }
    const enum farm_node_state state = node->state;
    const bool ended = is_over(node);
    if (state == FARM_NODE_REFUSED) farm_fail(err, FARM_E_INVALID, "the learner refuses this node: %s", node->why);
    farm_node_free(node, true);
    shutdown(resolver, SHUT_WR);
    (void)poll(&(struct pollfd){.fd = resolver}, 1, RESOLVER_MS); // its end, lest it be taken for an environment's
    if (!ended) farm_worker_die_of_sigterm(); // if the supervisor did not send it, it starts another bridge
    return state == FARM_NODE_REFUSED ? 1 : state == FARM_NODE_STRANGE ? FARM_NODE_EXIT_STRANGE : 0;
}
