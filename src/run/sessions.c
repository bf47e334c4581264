// See sessions.h.
#include "run/sessions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "shm/limits.h"

static const uint64_t SECOND_NS = 1000000000, AWAY_NS = 3000000000, REFUSED_NS = 30000000000;
enum { TURN_RINGS_MAX = 16, TURN_RING_BYTES = 64 << 20 }; // that a bridge is told in a turn

static struct farm_run_workers *workers_of(const struct farm_run_sessions *sessions) {
    return sessions->change->workers;
}

static const char *plural(uint32_t count) {
    return count == 1 ? "" : "s";
}

static uint32_t place_of(const struct farm_run_sessions *sessions, const struct farm_run_session *session) {
    return (uint32_t)(session - sessions->session);
}

static struct farm_bridge_node_stats *row_of(const struct farm_run_sessions *sessions,
                                             const struct farm_run_session *session) {
    return &sessions->bridges->bridge[session->bridge].stats->node[place_of(sessions, session)];
}

static bool is_away(const struct farm_run_sessions *sessions, const struct farm_run_session *session) {
    return farm_load_acquire(&row_of(sessions, session)->state) == FARM_NODE_ABSENT;
}

// `then` may be of a later moment of the same turn than `now`.
static uint64_t elapsed_ns(uint64_t now_ns, uint64_t then_ns) {
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

// ---- to the bridges ----

static struct farm_control_message make_message(const struct farm_run_sessions *sessions,
                                                const struct farm_run_session *session, enum farm_control_kind kind) {
    struct farm_control_message message = {.kind = kind,
                                           .session = place_of(sessions, session),
                                           .count = session->count,
                                           .machine = session->machine,
                                           .fds = {-1, -1}};
    memcpy(message.id, session->id, sizeof message.id);
    snprintf(message.text, sizeof message.text, "%s", session->name);
    return message;
}

static bool send_message(const struct farm_run_sessions *sessions, const struct farm_run_session *session,
                         const struct farm_control_message *message) {
    return farm_control_send(sessions->bridges->bridge[session->bridge].control, message);
}

static bool send_ring(const struct farm_run_sessions *sessions, const struct farm_run_session *session, uint32_t r) {
    const struct farm_run_workers *workers = workers_of(sessions);
    const uint32_t a = session->rings[r].actor;
    const struct farm_ring *ring = &workers->rings->ring[a];
    struct farm_control_message message = make_message(sessions, session, FARM_CONTROL_RING);
    message.ring = r;
    message.actor = a;
    message.shard = workers->ring_shard[a];
    message.fds[0] = ring->up.fd;
    message.fds[1] = ring->down.fd_readonly;
    return send_message(sessions, session, &message);
}

static bool send_generation(const struct farm_run_sessions *sessions, const struct farm_run_session *session,
                            uint32_t r) {
    const struct farm_ring *ring = &workers_of(sessions)->rings->ring[session->rings[r].actor];
    struct farm_control_message message = make_message(sessions, session, FARM_CONTROL_GENERATION_IS);
    message.ring = r;
    message.generation = farm_load_acquire(&ring->lanes[0].down->generation);
    return send_message(sessions, session, &message);
}

// To open a ring costs the bridge its page tables (0.1 to 0.3 ms a MB), and meanwhile it serves nobody. So a ring that
// the learner has let in is told at once, and after a bridge's start few of them in a turn. Making a ring costs more:
// with learner and bridge 0.8 ms of CPU and 1.6 ms a MB, so 256 rings come within 2 s if they have up to 4 MB each
// (native/catch: 0.3 s; Atari's of 14 MB: 6 s).
static void reset_ring_budget(struct farm_run_sessions *sessions) {
    const uint64_t rings = TURN_RING_BYTES / farm_run_actor_bytes(workers_of(sessions)->plan);
    sessions->ring_budget = rings < 1 ? 1 : rings < TURN_RINGS_MAX ? (uint32_t)rings : TURN_RINGS_MAX;
}

static bool send_ring_in_budget(struct farm_run_sessions *sessions, const struct farm_run_session *session,
                                uint32_t r) {
    if (!sessions->ring_budget || !send_ring(sessions, session, r)) return false;
    sessions->ring_budget--;
    return true;
}

// What its bridge does not know yet, as far as there is room now, and rings in this turn.
static void send_session(struct farm_run_sessions *sessions, struct farm_run_session *session) {
    const struct farm_control_message begin = make_message(sessions, session, FARM_CONTROL_SESSION),
                                      admitted = make_message(sessions, session, FARM_CONTROL_ADMITTED);
    if (!session->sent && !(session->sent = send_message(sessions, session, &begin))) return;
    for (uint32_t r = 0; r < session->count; r++) {
        struct farm_run_session_ring *ring = &session->rings[r];
        if (!ring->attached) continue;
        if (!ring->sent && !(ring->sent = send_ring_in_budget(sessions, session, r))) return;
        if (ring->generation_due && !send_generation(sessions, session, r)) return;
        ring->generation_due = false;
    }
    if (session->state == FARM_RUN_SESSION_JOINED && !session->admission_sent)
        session->admission_sent = send_message(sessions, session, &admitted);
}

static void vacate_session(struct farm_run_session *session) {
    free(session->rings);
    *session = (struct farm_run_session){0};
}

static bool send_refusal(const struct farm_run_sessions *sessions, const struct farm_run_refusal *refusal) {
    struct farm_control_message message = {.kind = FARM_CONTROL_REFUSED, .reason = refusal->reason, .fds = {-1, -1}};
    memcpy(message.id, refusal->id, sizeof message.id);
    memcpy(message.text, refusal->text, sizeof message.text);
    return farm_control_send(sessions->bridges->bridge[refusal->bridge].control, &message);
}

static void send_refusals(struct farm_run_sessions *sessions) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sessions->refusal_count; i++)
        if (!send_refusal(sessions, &sessions->refusals[i])) sessions->refusals[kept++] = sessions->refusals[i];
    sessions->refusal_count = kept;
}

static void send_all(struct farm_run_sessions *sessions) {
    send_refusals(sessions);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state == FARM_RUN_SESSION_JOINED || session->state == FARM_RUN_SESSION_JOINING)
            send_session(sessions, session);
        if (session->state != FARM_RUN_SESSION_LEFT) continue;
        const struct farm_control_message forget = make_message(sessions, session, FARM_CONTROL_FORGET);
        const bool deaf = sessions->bridges->bridge[session->bridge].lost;
        if (!session->sent || deaf || send_message(sessions, session, &forget)) vacate_session(session);
    }
}

// One that a node waits for already is told once. If all of them wait, farm_run_sessions_hear hears no more.
static void queue_refusal(struct farm_run_sessions *sessions, uint32_t bridge, const uint8_t *id,
                          enum farm_wire_reason reason, const char *text) {
    struct farm_run_refusal refusal = {.bridge = bridge, .reason = reason};
    uint32_t i = 0;
    memcpy(refusal.id, id, sizeof refusal.id);
    snprintf(refusal.text, sizeof refusal.text, "%s", text);
    while (i < sessions->refusal_count &&
           (sessions->refusals[i].bridge != bridge || memcmp(sessions->refusals[i].id, id, sizeof refusal.id) != 0))
        i++;
    if (i == FARM_RUN_REFUSALS_MAX) return; // of a session that leaves: its bridge asks again
    sessions->refusals[i] = refusal;
    if (i == sessions->refusal_count) sessions->refusal_count++;
}

// ---- whether there are enough rings ----

// Says so when there is none, or when training still waits, or goes on, with a node that has come. (That it has to wait
// because one has gone is said by the learner.)
static void check_training(struct farm_run_sessions *sessions, bool more) {
    const struct farm_run_workers *workers = workers_of(sessions);
    const bool waited = sessions->training_waits;
    struct farm_error why;
    sessions->training_waits = false;
    for (uint32_t k = 0; k < workers->plan->shards && !sessions->training_waits; k++)
        sessions->training_waits = farm_run_update_fits(workers->plan, farm_run_workers_in_shard(workers, k), k, &why);
    if (sessions->ending) return;
    if (!workers->count)
        farm_run_note(workers->caller, "waiting for the first actor: `farm bridge --connect %s` brings some",
                      sessions->bridges->address);
    else if (sessions->training_waits && more)
        farm_run_note(workers->caller, "training waits for more actors: %s", why.message);
    else if (waited && more)
        farm_run_note(workers->caller, "training %s: %u actor%s",
                      farm_load_relaxed(&workers->rings->stats->updates) ? "goes on" : "begins", workers->count,
                      plural(workers->count));
}

// ---- nodes come ----

static struct farm_run_session *find_session(struct farm_run_sessions *sessions, const uint8_t *id) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state && memcmp(session->id, id, sizeof session->id) == 0) return session;
    }
    return NULL;
}

static uint32_t vacant_places(const struct farm_run_workers *workers) {
    uint32_t vacant = 0;
    for (uint32_t a = 0; a < workers->plan->places; a++)
        vacant += !workers->actors[a].attached && !workers->actors[a].remote;
    return vacant;
}

// Has all rings that are there leave.
static void remove_rings(struct farm_run_session *session) {
    session->state = FARM_RUN_SESSION_LEAVING;
    for (uint32_t r = 0; r < session->count; r++) session->rings[r].leaves = true;
}

static void reserve_places(struct farm_run_workers *workers, struct farm_run_session *session, int wake) {
    uint32_t r = 0;
    for (uint32_t a = 0; a < workers->plan->places && r < session->count; a++) {
        struct farm_run_actor *actor = &workers->actors[a];
        if (actor->attached || actor->remote) continue;
        actor->remote = true;
        actor->wake = wake;
        session->rings[r++].actor = a;
    }
}

// Whether so many more can come. reason, text: why not.
static bool has_room(struct farm_run_sessions *sessions, uint32_t count, enum farm_wire_reason *reason, char *text,
                     size_t bytes) {
    const struct farm_run_workers *workers = workers_of(sessions);
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_limits_request limits = {
        .shared_bytes = count * farm_run_actor_bytes(plan), .huge = plan->recipe.huge_pages, .root = "/"};
    const uint32_t vacant = vacant_places(workers);
    struct farm_error err;
    *reason = FARM_WIRE_REFUSE_LATER;
    if (!count || count > FARM_WIRE_RINGS_MAX || count > plan->places) {
        *reason = FARM_WIRE_REFUSE_FOR_GOOD;
        snprintf(text, bytes,
                 "%u actors: the learner has places for %u in all (fewer --actors, or a larger --expect-actors there)",
                 count, plan->places < FARM_WIRE_RINGS_MAX ? plan->places : FARM_WIRE_RINGS_MAX);
        return false;
    }
    if ((uint64_t)count * plan->lanes > FARM_WIRE_SESSION_LANES_MAX) {
        *reason = FARM_WIRE_REFUSE_FOR_GOOD;
        snprintf(text, bytes, "%u actors of %u lanes: one node can have %u of them (%d lanes; fewer --actors)", count,
                 plan->lanes, FARM_WIRE_SESSION_LANES_MAX / plan->lanes, FARM_WIRE_SESSION_LANES_MAX);
        return false;
    }
    if (count > vacant)
        snprintf(
            text, bytes,
            "%u actors: %u of the learner's %u places are vacant (fewer --actors, or a larger --expect-actors there)",
            count, vacant, plan->places);
    else if (farm_limits_check(&limits, &err))
        snprintf(text, bytes, "the learner has no memory for the rings of %u actors: %.180s", count, err.message);
    else
        return true;
    return false;
}

static struct farm_run_session *vacant_session(struct farm_run_sessions *sessions) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (!sessions->session[s].state) return &sessions->session[s];
    return NULL;
}

// Nodes ask again and again.
static void report_refusal(struct farm_run_sessions *sessions, const char *name, const char *why) {
    const uint64_t now_ns = farm_now_ns();
    if (sessions->refusal_reported_ns && now_ns - sessions->refusal_reported_ns < REFUSED_NS) return;
    sessions->refusal_reported_ns = now_ns;
    farm_run_warn(workers_of(sessions)->caller, "node %.64s cannot join: %s", name, why);
}

static void begin_session(struct farm_run_sessions *sessions, uint32_t b, const struct farm_control_message *asked) {
    struct farm_run_workers *workers = workers_of(sessions);
    struct farm_run_session *session = vacant_session(sessions);
    struct farm_run_session_ring *rings = NULL;
    enum farm_wire_reason reason;
    char text[sizeof asked->text];
    if (!has_room(sessions, asked->count, &reason, text, sizeof text)) {
        queue_refusal(sessions, b, asked->id, reason, text);
        report_refusal(sessions, asked->text, text);
        return;
    }
    if (session) rings = calloc(asked->count, sizeof *rings);
    if (!rings) {
        queue_refusal(sessions, b, asked->id, FARM_WIRE_REFUSE_LATER, "the learner has no place for another node");
        return;
    }
    *session = (struct farm_run_session){.state = FARM_RUN_SESSION_JOINING,
                                         .machine = asked->machine,
                                         .bridge = b,
                                         .count = asked->count,
                                         .rings = rings};
    memcpy(session->id, asked->id, sizeof session->id);
    snprintf(session->name, sizeof session->name, "%.*s", (int)sizeof session->name - 1, asked->text);
    memset(row_of(sessions, session), 0, sizeof *row_of(sessions, session)); // of the session before
    reserve_places(workers, session, sessions->bridges->bridge[b].wake);
}

static void admit_node(struct farm_run_sessions *sessions, uint32_t b, const struct farm_control_message *asked) {
    struct farm_run_session *session = find_session(sessions, asked->id);
    if (session && session->bridge != b)
        queue_refusal(sessions, b, asked->id, FARM_WIRE_REFUSE_AGAIN, "another bridge has this session");
    else if (session && session->state == FARM_RUN_SESSION_JOINED)
        session->admission_sent = false; // what it has been told before, it knows
    else if (session && session->state == FARM_RUN_SESSION_JOINING)
        return; // the answer comes
    else if (session || asked->ring)
        queue_refusal(sessions, b, asked->id, FARM_WIRE_REFUSE_SESSION, "the learner does not know this node any more");
    else
        begin_session(sessions, b, asked);
}

// ---- what bridges say ----

// By its place, or by its id from a bridge that does not know the place yet.
static struct farm_run_session *find_named_session(struct farm_run_sessions *sessions, uint32_t b,
                                                   const struct farm_control_message *message) {
    struct farm_run_session *session = message->session == UINT32_MAX             ? find_session(sessions, message->id)
                                       : message->session < FARM_BRIDGE_NODES_MAX ? &sessions->session[message->session]
                                                                                  : NULL;
    if (!session || session->bridge != b) return NULL;
    return session->state == FARM_RUN_SESSION_JOINED || session->state == FARM_RUN_SESSION_JOINING ? session : NULL;
}

static void raise_generation(struct farm_run_sessions *sessions, struct farm_run_session *session,
                             const struct farm_control_message *message) {
    const struct farm_run_workers *workers = workers_of(sessions);
    if (message->ring >= session->count || !session->rings[message->ring].attached) return;
    struct farm_run_session_ring *ring = &session->rings[message->ring];
    const struct farm_ring *shared = &workers->rings->ring[ring->actor];
    for (uint32_t l = 0; l < shared->spec.lanes; l++) {
        uint64_t *generation = &shared->lanes[l].down->generation;
        if (message->generation > farm_load_relaxed(generation)) farm_store_release(generation, message->generation);
    }
    ring->generation_due = true;
}

// Its rings leave: of one that comes, those that the learner has, when it has answered for the one that it is asked
// for.
static void end_session(struct farm_run_sessions *sessions, struct farm_run_session *session) {
    const struct farm_run_change *change = sessions->change;
    struct farm_run_workers *workers = workers_of(sessions);
    if (session->state == FARM_RUN_SESSION_JOINING) {
        session->cancelled = true;
        if (change->state == FARM_RUN_CHANGE_JOINING && change->actor == session->rings[session->present].actor) return;
        for (uint32_t r = session->present; r < session->count; r++)
            workers->actors[session->rings[r].actor].remote = false;
    }
    remove_rings(session);
    if (!session->present) session->state = FARM_RUN_SESSION_LEFT;
}

static void refuse_session(struct farm_run_sessions *sessions, struct farm_run_session *session, const char *why) {
    report_refusal(sessions, session->name, why);
    queue_refusal(sessions, session->bridge, session->id, FARM_WIRE_REFUSE_LATER, why);
    end_session(sessions, session);
}

static void handle_leave(struct farm_run_sessions *sessions, struct farm_run_session *session, uint32_t r) {
    if (r == UINT32_MAX) {
        farm_run_note(workers_of(sessions)->caller, "node %s leaves", session->name);
        end_session(sessions, session);
    } else if (r < session->count && session->state == FARM_RUN_SESSION_JOINED) {
        session->rings[r].leaves = true;
    }
}

static void handle_message(struct farm_run_sessions *sessions, uint32_t b, const struct farm_control_message *message) {
    struct farm_run_session *session = find_named_session(sessions, b, message);
    if (message->kind == FARM_CONTROL_ADMIT) admit_node(sessions, b, message);
    if (session && message->kind == FARM_CONTROL_GENERATION) raise_generation(sessions, session, message);
    if (session && message->kind == FARM_CONTROL_LEAVE) handle_leave(sessions, session, message->ring);
    if (session && message->kind == FARM_CONTROL_RING_FAILED) refuse_session(sessions, session, message->text);
}

static bool can_refuse(struct farm_run_sessions *sessions) {
    if (sessions->refusal_count == FARM_RUN_REFUSALS_MAX) send_refusals(sessions);
    return sessions->refusal_count < FARM_RUN_REFUSALS_MAX;
}

void farm_run_sessions_receive(struct farm_run_sessions *sessions, uint32_t b) {
    struct farm_control_message message;
    while (can_refuse(sessions) && farm_control_receive(sessions->bridges->bridge[b].control, &message))
        handle_message(sessions, b, &message);
    if (!sessions->ending) farm_run_change_advance(sessions->change);
    send_all(sessions);
}

// What a bridge had said before it died, but for nodes that ask to come: those ask the next one.
static void handle_last_messages(struct farm_run_sessions *sessions, uint32_t b) {
    struct farm_control_message message;
    while (farm_control_receive(sessions->bridges->bridge[b].control, &message))
        if (message.kind != FARM_CONTROL_ADMIT) handle_message(sessions, b, &message);
}

// ---- figures ----

static void list_nodes(struct farm_run_sessions *sessions) {
    sessions->node_count = sessions->away = 0;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state != FARM_RUN_SESSION_JOINED) continue;
        session->figures.actors = session->present;
        session->figures.lanes = (uint64_t)session->present * workers_of(sessions)->plan->lanes;
        sessions->nodes[sessions->node_count++] = session->figures;
        sessions->away += session->figures.away;
    }
}

// Over the time since the figures before.
static void update_figures(struct farm_run_sessions *sessions, struct farm_run_session *session, uint64_t now_ns) {
    const struct farm_bridge_node_stats *row = row_of(sessions, session);
    const double passed_s = (double)(elapsed_ns(now_ns, sessions->second_ns)) * 1e-9;
    const uint64_t steps = farm_load_relaxed(&row->steps), in = farm_load_relaxed(&row->bytes_in),
                   out = farm_load_relaxed(&row->bytes_out), connections = farm_load_relaxed(&row->connections),
                   round_trip_ns = farm_load_relaxed(&row->round_trip_ns);
    struct farm_sample_node *node = &session->figures;
    node->env_steps_per_s = (double)(steps - session->steps) / passed_s;
    node->bytes_in_per_s = (double)(in - session->bytes_in) / passed_s;
    node->bytes_out_per_s = (double)(out - session->bytes_out) / passed_s;
    node->round_trip_ms = round_trip_ns ? (double)round_trip_ns * 1e-6 : (double)NAN;
    node->reconnects = connections ? connections - 1 : 0;
    node->away = session->away_ns;
    node->away_s = session->away_ns ? (double)(elapsed_ns(now_ns, session->away_ns)) * 1e-9 : 0;
    node->env_steps = session->steps = steps;
    node->bytes_in = session->bytes_in = in;
    node->bytes_out = session->bytes_out = out;
    node->copied_bytes = farm_load_relaxed(&row->copied_bytes);
    node->present_s = (double)(elapsed_ns(now_ns, session->joined_ns)) * 1e-9;
}

// ---- rings, one after another ----

// Rings that leave go first: they make room.
static bool begin_next_change(void *context) {
    struct farm_run_sessions *sessions = context;
    const bool may_leave = farm_now_ns() >= sessions->retry_ns;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX && may_leave && !sessions->ending; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state != FARM_RUN_SESSION_LEAVING && session->state != FARM_RUN_SESSION_JOINED) continue;
        for (uint32_t r = 0; r < session->count; r++) {
            if (!session->rings[r].attached || !session->rings[r].leaves) continue;
            farm_run_change_remove_remote(sessions->change, session->rings[r].actor);
            return true;
        }
    }
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX && !sessions->ending; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state != FARM_RUN_SESSION_JOINING) continue;
        farm_run_change_add_remote(sessions->change, session->rings[session->present].actor);
        return true;
    }
    return false;
}

static struct farm_run_session *find_owner(struct farm_run_sessions *sessions, uint32_t a, uint32_t *r) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        for (*r = 0; session->state && session->state != FARM_RUN_SESSION_LEFT && *r < session->count; ++*r)
            if (session->rings[*r].actor == a &&
                (session->rings[*r].attached || session->state == FARM_RUN_SESSION_JOINING))
                return session;
    }
    return NULL;
}

static void complete_session(struct farm_run_sessions *sessions, struct farm_run_session *session) {
    const struct farm_run_workers *workers = workers_of(sessions);
    session->state = FARM_RUN_SESSION_JOINED;
    session->joined_ns = session->away_ns = farm_now_ns();
    session->figures.round_trip_ms = (double)NAN;
    snprintf(session->figures.name, sizeof session->figures.name, "%s", session->name);
    list_nodes(sessions);
    farm_run_note(workers->caller, "node %s has joined with %u actor%s: %u now", session->name, session->count,
                  plural(session->count), workers->count);
    check_training(sessions, true);
}

static void on_joined(void *context, uint32_t a, const struct farm_error *why) {
    struct farm_run_sessions *sessions = context;
    uint32_t r;
    struct farm_run_session *session = find_owner(sessions, a, &r);
    if (!session) return;
    if (why) {
        refuse_session(sessions, session, why->message);
    } else {
        session->rings[r].attached = true;
        session->present++;
        sessions->ring_budget++;
        if (session->cancelled)
            end_session(sessions, session);
        else if (session->present == session->count)
            complete_session(sessions, session);
    }
    send_all(sessions);
}

static void on_left(void *context, uint32_t a, const struct farm_error *why) {
    struct farm_run_sessions *sessions = context;
    struct farm_run_workers *workers = workers_of(sessions);
    uint32_t r;
    struct farm_run_session *session = find_owner(sessions, a, &r);
    if (!session) return;
    if (why) {
        sessions->retry_ns = farm_now_ns() + SECOND_NS;
        farm_run_warn(workers->caller, "a ring of node %s cannot leave yet: %s", session->name, why->message);
        return;
    }
    session->rings[r].attached = session->rings[r].leaves = false;
    if (--session->present) return;
    farm_run_note(workers->caller, "node %s has gone: %u actor%s now", session->name, workers->count,
                  plural(workers->count));
    session->state = FARM_RUN_SESSION_LEFT;
    list_nodes(sessions);
    check_training(sessions, false);
    send_all(sessions);
}

// ---- nodes that are away ----

// Not for a moment any more: says what that means.
static void report_away(const struct farm_run_sessions *sessions, const struct farm_run_session *session) {
    const struct farm_run_workers *workers = workers_of(sessions);
    const struct farm_run_plan *plan = workers->plan;
    struct farm_error why;
    farm_run_warn(workers->caller, "node %s is away: its %u actor%s wait%s, and give the places up after %.3g s",
                  session->name, session->present, plural(session->present), session->present == 1 ? "s" : "",
                  plan->recipe.node_grace_s);
    for (uint32_t k = 0; k < plan->shards && !plan->passes.sync; k++) {
        uint32_t left = farm_run_workers_in_shard(workers, k);
        for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
            const struct farm_run_session *other = &sessions->session[s];
            for (uint32_t r = 0; other->away_ns && r < other->count; r++)
                left -= other->rings[r].attached && workers->ring_shard[other->rings[r].actor] == k;
        }
        if (!farm_run_update_fits(plan, left, k, &why)) continue;
        farm_run_warn(workers->caller, "training waits for it, or for more actors: %s",
                      left ? why.message : "no other is there");
        return;
    }
}

// Whether its node has been started anew: one that is the same (run/node.h) came after it had gone away. Its bridge has
// had the time to hear of it, if it is still alive.
static bool is_replaced(const struct farm_run_sessions *sessions, const struct farm_run_session *session,
                        uint64_t now_ns) {
    const uint64_t bridge_ns = sessions->bridges->bridge[session->bridge].start_ns,
                   since_ns = session->away_ns > bridge_ns ? session->away_ns : bridge_ns;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX && session->machine && elapsed_ns(now_ns, since_ns) >= AWAY_NS;
         s++) {
        const struct farm_run_session *other = &sessions->session[s];
        if (other != session && other->state == FARM_RUN_SESSION_JOINED && other->machine == session->machine &&
            other->joined_ns > session->joined_ns)
            return true;
    }
    return false;
}

static void watch_session(struct farm_run_sessions *sessions, struct farm_run_session *session, uint64_t now_ns) {
    const struct farm_run_workers *workers = workers_of(sessions);
    const double grace_s = workers->plan->recipe.node_grace_s;
    const bool away = is_away(sessions, session);
    if (!away) {
        if (session->away_reported)
            farm_run_note(workers->caller, "node %s is back after %.3g s", session->name,
                          (double)(elapsed_ns(now_ns, session->away_ns)) * 1e-9);
        session->away_ns = 0;
        session->away_reported = false;
        return;
    }
    if (!session->away_ns) session->away_ns = now_ns;
    if (is_replaced(sessions, session, now_ns)) {
        farm_run_note(workers->caller, "node %s was started anew: its old places are given up", session->name);
        remove_rings(session);
        return;
    }
    if (!session->away_reported && elapsed_ns(now_ns, session->away_ns) > AWAY_NS) {
        session->away_reported = true;
        report_away(sessions, session);
    }
    if ((double)(elapsed_ns(now_ns, session->away_ns)) * 1e-9 < grace_s) return;
    farm_run_warn(workers->caller, "node %s has been away for %.3g s (--node-grace-s): its places are given up",
                  session->name, grace_s);
    remove_rings(session);
}

// ---- for farm bridge status ----

// Not durable: it is old after a second.
static void write_status(struct farm_run_sessions *sessions) {
    char temporary[sizeof sessions->status_file + 8];
    if (!sessions->status_file[0]) return;
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "address", sessions->bridges->address);
    farm_json_set(document, "nodes", farm_sample_nodes_json(sessions->nodes, sessions->node_count));
    snprintf(temporary, sizeof temporary, "%s.new", sessions->status_file);
    FILE *file = fopen(temporary, "we");
    struct farm_error err;
    bool written = file && !farm_json_print(document, file, &err);
    if (file) written &= fclose(file) == 0;
    if (!written || rename(temporary, sessions->status_file)) unlink(temporary); // a full disk must not end a training
    json_decref(document);
}

// ---- from the supervisor ----

void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns) {
    if (!sessions->bridges->count || sessions->ending) return;
    const bool second = elapsed_ns(now_ns, sessions->second_ns) >= SECOND_NS;
    reset_ring_budget(sessions);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state != FARM_RUN_SESSION_JOINED) continue;
        watch_session(sessions, session, now_ns);
        if (second) update_figures(sessions, session, now_ns);
    }
    if (second) {
        list_nodes(sessions);
        write_status(sessions);
        sessions->second_ns = now_ns;
    }
    send_all(sessions);
}

static void forget_refusals(struct farm_run_sessions *sessions, uint32_t b) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sessions->refusal_count; i++)
        if (sessions->refusals[i].bridge != b) sessions->refusals[kept++] = sessions->refusals[i];
    sessions->refusal_count = kept;
}

// One that dies at once may have been killed for using io_uring, which some seccomp filters do instead of refusing it.
static void choose_engine(const struct farm_run_sessions *sessions, struct farm_run_bridge *bridge) {
    const uint64_t now_ns = farm_now_ns();
    if (bridge->start_ns && now_ns - bridge->start_ns < SECOND_NS && strcmp(bridge->engine, "auto") == 0) {
        bridge->engine = "poll";
        farm_run_warn(workers_of(sessions)->caller,
                      "the bridge died within its first second: it uses poll(2) from now on, with more system calls");
    }
    bridge->start_ns = now_ns;
}

void farm_run_sessions_before_bridge(struct farm_run_sessions *sessions, uint32_t b) {
    struct farm_run_bridge *bridge = &sessions->bridges->bridge[b];
    choose_engine(sessions, bridge);
    handle_last_messages(sessions, b);
    farm_control_clear(bridge->control, bridge->end);
    forget_refusals(sessions, b);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (!session->state || session->bridge != b) continue;
        farm_store_release(&row_of(sessions, session)->state, FARM_NODE_ABSENT); // its connection has died with it
        session->sent = session->admission_sent = false;
        for (uint32_t r = 0; r < session->count; r++) session->rings[r].sent = session->rings[r].generation_due = false;
    }
    reset_ring_budget(sessions);
    send_all(sessions);
}

static bool has_actors(const struct farm_run_sessions *sessions) {
    const struct farm_run_workers *workers = workers_of(sessions);
    for (uint32_t a = 0; a < workers->plan->places; a++)
        if (workers->actors[a].attached && !workers->actors[a].remote) return true;
    return sessions->bridges->listening > 0;
}

bool farm_run_sessions_lose_bridge(struct farm_run_sessions *sessions, uint32_t b, const char *why) {
    const struct farm_run_caller *caller = workers_of(sessions)->caller;
    farm_run_bridges_lose(sessions->bridges, b);
    if (!has_actors(sessions)) return false;
    farm_run_warn(caller, "%s", why);
    farm_run_warn(caller, "training goes on without %s: the actors of its nodes leave",
                  sessions->bridges->listening ? "this bridge" : "other machines");
    if (!sessions->bridges->listening && sessions->address_file[0]) unlink(sessions->address_file);
    forget_refusals(sessions, b);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        const bool stays = session->state != FARM_RUN_SESSION_JOINING && session->state != FARM_RUN_SESSION_JOINED;
        if (!stays && session->bridge == b) end_session(sessions, session);
    }
    send_all(sessions);
    return true;
}

void farm_run_sessions_end(struct farm_run_sessions *sessions) {
    const struct farm_control_message end = {.kind = FARM_CONTROL_END, .fds = {-1, -1}};
    sessions->ending = true;
    if (sessions->address_file[0]) unlink(sessions->address_file); // a node that finds it gone knows that it is over
    for (uint32_t b = 0; b < sessions->bridges->count; b++)
        if (!farm_control_send(sessions->bridges->bridge[b].control, &end)) continue; // SIGTERM says it, too
}

uint64_t farm_run_sessions_progress(const struct farm_run_sessions *sessions, uint32_t b) {
    const struct farm_bridge_stats *stats = sessions->bridges->bridge[b].stats;
    uint64_t progress = 0;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        progress += farm_load_relaxed(&stats->node[s].lane_steps) + farm_load_relaxed(&stats->node[s].connections);
    return progress;
}

// ---- start and end ----

static enum farm_status write_address(const struct farm_run_sessions *sessions, struct farm_error *err) {
    char line[FARM_ADDRESS_TEXT_BYTES + 1];
    const int bytes = snprintf(line, sizeof line, "%s\n", sessions->bridges->address);
    return farm_file_replace(sessions->address_file, line, (size_t)bytes, err);
}

enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err) {
    const struct farm_run_workers *workers = workers_of(sessions);
    if (!sessions->bridges->count) return FARM_OK;
    sessions->change->remote = (struct farm_run_change_remote){
        .context = sessions, .next = begin_next_change, .joined = on_joined, .left = on_left};
    sessions->second_ns = farm_now_ns();
    if (!workers->plan->quiet)
        farm_log_info("listening on %s%s", sessions->bridges->address,
                      sessions->bridges->encrypted ? "" : ", in the clear");
    check_training(sessions, false);
    if (!workers->run_path) return FARM_OK;
    farm_run_dir_file(workers->run_path, "bridge.addr", sessions->address_file, sizeof sessions->address_file);
    farm_run_dir_file(workers->run_path, "bridge.json", sessions->status_file, sizeof sessions->status_file);
    return write_address(sessions, err);
}

void farm_run_sessions_free(struct farm_run_sessions *sessions) {
    if (sessions->address_file[0]) unlink(sessions->address_file);
    if (sessions->status_file[0]) unlink(sessions->status_file);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) free(sessions->session[s].rings);
}
