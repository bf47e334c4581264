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
#include "run/settings.h"

static const uint64_t SECOND_NS = 1000000000, AWAY_NS = 3000000000, REFUSED_NS = 30000000000;

static const char *plural(uint32_t count) {
    return count == 1 ? "" : "s";
}

static bool is_away(const struct farm_run_sessions *sessions, const struct farm_run_session *session) {
    return farm_load_acquire(&farm_run_session_row(sessions, session)->state) == FARM_NODE_ABSENT;
}

// ---- whether training has enough rings ----

// Reports that no actor is present, or (more: after a node has joined) that training still waits or goes on. The
// learner reports that training waits because actors have left.
static void check_training(struct farm_run_sessions *sessions, bool more) {
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    const bool waited = sessions->training_waits;
    struct farm_error why;
    sessions->training_waits = false;
    for (uint32_t k = 0; k < workers->plan->shards && !sessions->training_waits; k++)
        sessions->training_waits = farm_run_update_fits(workers->plan, workers->in_shard[k], k, &why);
    if (sessions->ending) return;
    if (!workers->count)
        farm_run_note(workers->caller, "waiting for the first actor: run `farm bridge --connect %s %s` on a node",
                      sessions->bridges->address, sessions->bridges->key ? "--key FILE" : "--insecure");
    else if (sessions->training_waits && more)
        farm_run_note(workers->caller, "training waits for more actors: %s", why.message);
    else if (waited && more)
        farm_run_note(workers->caller, "training %s: %u actor%s",
                      farm_load_relaxed(&workers->rings->stats->updates) ? "goes on" : "begins", workers->count,
                      plural(workers->count));
}

// ---- nodes join ----

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

// Lets all attached rings leave.
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

// How many of a node's actors may join. text: what keeps the others out; the memory of each ring is checked as it
// joins.
static uint32_t count_admitted(const struct farm_run_workers *workers, uint32_t asked, char *text, size_t bytes) {
    const struct farm_run_plan *plan = workers->plan;
    const uint32_t by_lanes = FARM_WIRE_SESSION_LANES_MAX / plan->lanes, vacant = vacant_places(workers),
                   of_node = by_lanes < FARM_WIRE_RINGS_MAX ? by_lanes : FARM_WIRE_RINGS_MAX,
                   most = of_node < vacant ? of_node : vacant;
    text[0] = 0;
    if (asked > most && most == of_node)
        snprintf(text, bytes, "one node can have %u actors of %u lanes (start another node)", of_node, plan->lanes);
    else if (asked > most)
        snprintf(text, bytes, "%u of the learner's %u places are vacant%s", vacant, plan->places,
                 plan->places < FARM_PLAN_ACTORS_MAX ? " (a higher ulimit -n there, or --expect-actors, makes more)"
                                                     : "");
    return asked < most ? asked : most;
}

// Whether an earlier session of this node still has places, which it gets back instead of joining in part.
static bool holds_places(const struct farm_run_sessions *sessions, const struct farm_run_session *session,
                         uint64_t machine) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX && machine; s++)
        if (&sessions->session[s] != session && sessions->session[s].state && sessions->session[s].machine == machine)
            return true;
    return false;
}

static struct farm_run_session *vacant_session(struct farm_run_sessions *sessions) {
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (!sessions->session[s].state) return &sessions->session[s];
    return NULL;
}

// At most every REFUSED_NS, because nodes repeat their requests.
static void report_refusal(struct farm_run_sessions *sessions, const char *name, const char *why) {
    const uint64_t now_ns = farm_now_ns();
    if (sessions->refusal_reported_ns && now_ns - sessions->refusal_reported_ns < REFUSED_NS) return;
    sessions->refusal_reported_ns = now_ns;
    farm_run_warn(farm_run_sessions_workers(sessions)->caller, "node %.64s cannot join: %s", name, why);
}

static void begin_session(struct farm_run_sessions *sessions, uint32_t b, const struct farm_control_message *asked) {
    struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    struct farm_run_session *session = vacant_session(sessions);
    struct farm_run_session_ring *rings = NULL;
    char why[sizeof session->short_why], text[sizeof asked->text];
    const uint32_t count = count_admitted(workers, asked->count, why, sizeof why);
    if (!count || (count < asked->count && holds_places(sessions, session, asked->machine))) {
        snprintf(text, sizeof text, "%u actors: %s", asked->count, why);
        farm_run_messages_refuse(sessions, b, asked->id,
                                 asked->count ? FARM_WIRE_REFUSE_LATER : FARM_WIRE_REFUSE_FOR_GOOD, text);
        report_refusal(sessions, asked->text, text);
        return;
    }
    if (session) rings = calloc(count, sizeof *rings);
    if (!rings) {
        farm_run_messages_refuse(sessions, b, asked->id, FARM_WIRE_REFUSE_LATER,
                                 "the learner has no place for another node");
        return;
    }
    *session = (struct farm_run_session){.state = FARM_RUN_SESSION_JOINING,
                                         .machine = asked->machine,
                                         .bridge = b,
                                         .asked = asked->count,
                                         .count = count,
                                         .rings = rings};
    memcpy(session->short_why, why, sizeof why);
    memcpy(session->id, asked->id, sizeof session->id);
    memcpy(session->key, asked->key, sizeof session->key);
    snprintf(session->name, sizeof session->name, "%.*s", (int)sizeof session->name - 1, asked->text);
    memset(farm_run_session_row(sessions, session), 0,
           sizeof *farm_run_session_row(sessions, session)); // the previous session's
    reserve_places(workers, session, sessions->bridges->bridge[b].wake);
}

static void admit_node(struct farm_run_sessions *sessions, uint32_t b, const struct farm_control_message *asked) {
    struct farm_run_session *session = find_session(sessions, asked->id);
    if (farm_key_names_have(&sessions->bridges->withdrawn, asked->key)) return; // its bridge will know it too
    if (session && session->bridge != b)
        farm_run_messages_refuse(sessions, b, asked->id, FARM_WIRE_REFUSE_AGAIN, "another bridge has this session");
    else if (session && session->state == FARM_RUN_SESSION_JOINED)
        session->admission_sent = false; // its bridge has received the rest already
    else if (session && session->state == FARM_RUN_SESSION_JOINING)
        return; // the reply follows when its rings are attached
    else if (session || asked->ring)
        farm_run_messages_refuse(sessions, b, asked->id, FARM_WIRE_REFUSE_SESSION,
                                 "the learner does not know this node any more");
    else
        begin_session(sessions, b, asked);
}

// ---- messages from bridges ----

// The session that a message names: by its place, or by its id if the bridge does not know the place yet.
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
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    if (message->ring >= session->count || !session->rings[message->ring].attached ||
        message->generation > FARM_WIRE_GENERATION_MAX)
        return;
    struct farm_run_session_ring *ring = &session->rings[message->ring];
    const struct farm_ring *shared = &workers->rings->ring[ring->actor];
    for (uint32_t l = 0; l < shared->spec.lanes; l++) {
        uint64_t *generation = &shared->lanes[l].down->generation;
        if (message->generation > farm_load_relaxed(generation)) farm_store_release(generation, message->generation);
    }
    ring->generation_due = true;
}

// Removes a session that is present. While it joins, its attached rings leave after the learner has replied about the
// current ring.
static void end_session(struct farm_run_sessions *sessions, struct farm_run_session *session) {
    const struct farm_run_change *change = sessions->change;
    struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    if (session->state != FARM_RUN_SESSION_JOINING && session->state != FARM_RUN_SESSION_JOINED) return;
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
    farm_run_messages_refuse(sessions, session->bridge, session->id, FARM_WIRE_REFUSE_LATER, why);
    end_session(sessions, session);
}

static void handle_leave(struct farm_run_sessions *sessions, struct farm_run_session *session, uint32_t r) {
    if (r == UINT32_MAX) {
        farm_run_note(farm_run_sessions_workers(sessions)->caller, "node %s leaves", session->name);
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

static void receive(void *owner, uint32_t b) {
    struct farm_run_sessions *sessions = owner;
    struct farm_control_message message;
    while (farm_run_messages_have_room(sessions) &&
           farm_control_receive(sessions->bridges->bridge[b].control, &message))
        handle_message(sessions, b, &message);
    if (!sessions->ending) farm_run_change_advance(sessions->change);
    farm_run_messages_send(sessions);
}

// Messages that a bridge sent before it died. Requests to join are dropped: the node repeats them at the next bridge.
static void handle_last_messages(struct farm_run_sessions *sessions, uint32_t b) {
    struct farm_control_message message;
    while (farm_control_receive(sessions->bridges->bridge[b].control, &message))
        if (message.kind != FARM_CONTROL_ADMIT) handle_message(sessions, b, &message);
}

// ---- rings, one at a time ----

// Leaving rings go first, because they make room.
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

// The learner has no room for the rest of the session's rings.
static void shorten_session(struct farm_run_sessions *sessions, struct farm_run_session *session, const char *why) {
    struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    for (uint32_t r = session->present; r < session->count; r++)
        workers->actors[session->rings[r].actor].remote = false;
    session->count = session->present;
    snprintf(session->short_why, sizeof session->short_why, "%.*s", (int)sizeof session->short_why - 1, why);
}

static void complete_session(struct farm_run_sessions *sessions, struct farm_run_session *session) {
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    session->state = FARM_RUN_SESSION_JOINED;
    session->joined_ns = session->away_ns = farm_now_ns();
    session->figures.round_trip_ms = (double)NAN;
    snprintf(session->figures.name, sizeof session->figures.name, "%s", session->name);
    snprintf(session->figures.key, sizeof session->figures.key, "%s", session->key);
    farm_run_figures_list_nodes(sessions);
    if (session->count < session->asked)
        farm_run_warn(workers->caller, "node %s has joined with %u of its %u actors: %u now. The others: %s",
                      session->name, session->count, session->asked, workers->count, session->short_why);
    else
        farm_run_note(workers->caller, "node %s has joined with %u actor%s: %u now", session->name, session->count,
                      plural(session->count), workers->count);
    check_training(sessions, true);
}

static void on_joined(void *context, uint32_t a, const struct farm_error *why) {
    struct farm_run_sessions *sessions = context;
    uint32_t r;
    struct farm_run_session *session = find_owner(sessions, a, &r);
    if (!session) return;
    const bool all = !session->present || session->cancelled || holds_places(sessions, session, session->machine);
    if (why && all) {
        refuse_session(sessions, session, why->message);
    } else if (why) {
        shorten_session(sessions, session, why->message);
    } else {
        session->rings[r].attached = true;
        session->present++;
        sessions->ring_budget++;
        if (session->cancelled) end_session(sessions, session);
    }
    if (session->state == FARM_RUN_SESSION_JOINING && session->present == session->count)
        complete_session(sessions, session);
    farm_run_messages_send(sessions);
}

static void on_left(void *context, uint32_t a, const struct farm_error *why) {
    struct farm_run_sessions *sessions = context;
    struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
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
    farm_run_note(workers->caller, "node %s has left: %u actor%s now", session->name, workers->count,
                  plural(workers->count));
    session->state = FARM_RUN_SESSION_LEFT;
    farm_run_figures_list_nodes(sessions);
    check_training(sessions, false);
    farm_run_messages_send(sessions);
}

// ---- nodes that are away ----

// Warns that a node has been away for a while, and whether training can go on.
static void report_away(const struct farm_run_sessions *sessions, const struct farm_run_session *session) {
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    const struct farm_run_plan *plan = workers->plan;
    struct farm_error why;
    farm_run_warn(workers->caller, "node %s is away: its %u actor%s wait%s, and lose the places after %.3g s",
                  session->name, session->present, plural(session->present), session->present == 1 ? "s" : "",
                  plan->recipe.node_grace_s);
    for (uint32_t k = 0; k < plan->shards && !plan->passes.sync; k++) {
        uint32_t left = workers->in_shard[k];
        for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
            const struct farm_run_session *other = &sessions->session[s];
            for (uint32_t r = 0; other->away_ns && r < other->count; r++)
                left -= other->rings[r].attached && workers->ring_shard[other->rings[r].actor] == k;
        }
        if (!farm_run_update_fits(plan, left, k, &why)) continue;
        farm_run_warn(workers->caller, "training waits for it, or for more actors: %s",
                      left ? why.message : "no other actor has joined");
        return;
    }
}

// Whether its node was restarted: a session with the same identity (run/node.h) joined after this one, and this one
// has been away long enough for its bridge to notice a living node.
static bool is_replaced(const struct farm_run_sessions *sessions, const struct farm_run_session *session,
                        uint64_t now_ns) {
    const uint64_t bridge_ns = sessions->bridges->bridge[session->bridge].start_ns,
                   since_ns = session->away_ns > bridge_ns ? session->away_ns : bridge_ns;
    for (uint32_t s = 0;
         s < FARM_BRIDGE_NODES_MAX && session->machine && farm_run_elapsed_ns(now_ns, since_ns) >= AWAY_NS; s++) {
        const struct farm_run_session *other = &sessions->session[s];
        if (other != session && other->state == FARM_RUN_SESSION_JOINED && other->machine == session->machine &&
            other->joined_ns > session->joined_ns)
            return true;
    }
    return false;
}

static void watch_session(struct farm_run_sessions *sessions, struct farm_run_session *session, uint64_t now_ns) {
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    const double grace_s = workers->plan->recipe.node_grace_s;
    const bool away = is_away(sessions, session);
    if (!away) {
        if (session->away_reported)
            farm_run_note(workers->caller, "node %s is back after %.3g s", session->name,
                          (double)(farm_run_elapsed_ns(now_ns, session->away_ns)) * 1e-9);
        session->away_ns = 0;
        session->away_reported = false;
        return;
    }
    if (!session->away_ns) session->away_ns = now_ns;
    if (is_replaced(sessions, session, now_ns)) {
        farm_run_note(workers->caller, "node %s was restarted: its old places are free", session->name);
        remove_rings(session);
        return;
    }
    if (!session->away_reported && farm_run_elapsed_ns(now_ns, session->away_ns) > AWAY_NS) {
        session->away_reported = true;
        report_away(sessions, session);
    }
    if ((double)(farm_run_elapsed_ns(now_ns, session->away_ns)) * 1e-9 < grace_s) return;
    farm_run_warn(workers->caller, "node %s has been away for %.3g s (--node-grace-s): it loses its places",
                  session->name, grace_s);
    remove_rings(session);
}

// ---- withdrawn keys ----

// Each second.
static void check_keys(struct farm_run_sessions *sessions) {
    if (!farm_run_bridges_read_withdrawn(sessions->bridges)) return;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (farm_key_names_have(&sessions->bridges->withdrawn, sessions->session[s].key))
            end_session(sessions, &sessions->session[s]);
}

// ---- from the supervisor ----

void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns) {
    if (!sessions->bridges->count || sessions->ending) return;
    farm_run_messages_begin_tick(sessions);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (sessions->session[s].state == FARM_RUN_SESSION_JOINED)
            watch_session(sessions, &sessions->session[s], now_ns);
    if (farm_run_elapsed_ns(now_ns, sessions->second_ns) >= SECOND_NS) check_keys(sessions);
    farm_run_figures_update(sessions, now_ns);
    farm_run_messages_send(sessions);
}

void farm_run_sessions_end(struct farm_run_sessions *sessions) {
    const struct farm_control_message end = {.kind = FARM_CONTROL_END, .fds = {-1, -1}};
    sessions->ending = true;
    if (sessions->address_file[0])
        unlink(sessions->address_file); // a node that finds no file knows that the run is over
    for (uint32_t b = 0; b < sessions->bridges->count; b++)
        if (!farm_control_send(sessions->bridges->bridge[b].control, &end)) continue; // SIGTERM ends it as well
}

// ---- the bridges' events ----

static void before_start(void *owner, uint32_t b, uint64_t starts) {
    struct farm_run_sessions *sessions = owner;
    struct farm_run_bridge *bridge = &sessions->bridges->bridge[b];
    bridge->engine =
        farm_run_next_engine(bridge->engine, &bridge->start_ns, farm_run_sessions_workers(sessions)->caller);
    handle_last_messages(sessions, b);
    farm_control_clear(bridge->control, bridge->end);
    farm_run_messages_forget_refusals(sessions, b);
    farm_key_lend(sessions->bridges->key, &bridge->keep[0]);
    bridge->withdrawn_sent = sessions->bridges->withdrawn.count; // its process has a copy of these
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (!session->state || session->bridge != b) continue;
        farm_store_release(&farm_run_session_row(sessions, session)->state,
                           FARM_NODE_ABSENT); // its connection ended with the bridge
        session->sent = session->admission_sent = false;
        for (uint32_t r = 0; r < session->count; r++) session->rings[r].sent = session->rings[r].generation_due = false;
    }
    farm_run_messages_begin_tick(sessions);
    farm_run_messages_send(sessions);
}

static bool has_actors(const struct farm_run_sessions *sessions) {
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    for (uint32_t a = 0; a < workers->plan->places; a++)
        if (workers->actors[a].attached && !workers->actors[a].remote) return true;
    return sessions->bridges->listening > 0;
}

static void lose_bridge(void *owner, uint32_t b, const char *why) {
    struct farm_run_sessions *sessions = owner;
    const struct farm_run_caller *caller = farm_run_sessions_workers(sessions)->caller;
    farm_run_bridges_lose(sessions->bridges, b);
    if (!has_actors(sessions)) {
        snprintf(sessions->change->failure, sizeof sessions->change->failure, "%s", why);
        return;
    }
    farm_run_warn(caller, "%s", why);
    farm_run_warn(caller, "training goes on without %s: the actors of its nodes leave",
                  sessions->bridges->listening ? "this bridge" : "other machines");
    if (!sessions->bridges->listening && sessions->address_file[0]) unlink(sessions->address_file);
    farm_run_messages_forget_refusals(sessions, b);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (sessions->session[s].bridge == b) end_session(sessions, &sessions->session[s]);
    farm_run_messages_send(sessions);
}

// Grows while bridge b moves steps or accepts connections.
static uint64_t progress(void *owner, uint32_t b) {
    const struct farm_run_sessions *sessions = owner;
    const struct farm_bridge_stats *stats = sessions->bridges->bridge[b].stats;
    uint64_t progress = 0;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        progress += farm_load_relaxed(&stats->node[s].lane_steps) + farm_load_relaxed(&stats->node[s].connections);
    return progress;
}

const struct farm_run_worker_ops farm_run_sessions_ops = {.name = "bridge",
                                                          .waits = "remote actors",
                                                          .before_start = before_start,
                                                          .loss = lose_bridge,
                                                          .progress = progress,
                                                          .readable = receive};

// ---- start and end ----

static enum farm_status write_address(const struct farm_run_sessions *sessions, struct farm_error *err) {
    char line[FARM_ADDRESS_TEXT_BYTES + 1];
    const int bytes = snprintf(line, sizeof line, "%s\n", sessions->bridges->address);
    return farm_file_replace_own(sessions->address_file, line, (size_t)bytes, true, err);
}

enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err) {
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
    if (!sessions->bridges->count) return FARM_OK;
    sessions->change->remote = (struct farm_run_change_remote){
        .context = sessions, .next = begin_next_change, .joined = on_joined, .left = on_left};
    sessions->second_ns = farm_now_ns();
    enum farm_status status = farm_run_bridges_add(sessions->bridges, &farm_run_sessions_ops, sessions, err);
    if (status) return status;
    if (!workers->plan->quiet)
        farm_log_info("listening on %s%s", sessions->bridges->address, sessions->bridges->key ? "" : ", in the clear");
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
