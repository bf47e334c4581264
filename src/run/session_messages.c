// Messages to the bridges of sessions.h.
#include "run/sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_RINGS_MAX = 16, TICK_RING_BYTES = 64 << 20 }; // sent to the bridges in a tick

static struct farm_control_message make_message(const struct farm_run_sessions *sessions,
                                                const struct farm_run_session *session, enum farm_control_kind kind) {
    struct farm_control_message message = {.kind = kind,
                                           .session = farm_run_session_place(sessions, session),
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
    const struct farm_run_workers *workers = farm_run_sessions_workers(sessions);
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
    const struct farm_ring *ring = &farm_run_sessions_workers(sessions)->rings->ring[session->rings[r].actor];
    struct farm_control_message message = make_message(sessions, session, FARM_CONTROL_GENERATION_IS);
    message.ring = r;
    message.generation = farm_load_acquire(&ring->lanes[0].down->generation);
    return send_message(sessions, session, &message);
}

// Opening a ring costs the bridge its page tables (0.1 to 0.3 ms a MB), and it serves no node meanwhile. A ring that
// the learner has just attached is sent at once; after a restart the bridge receives a few in each tick. Making a ring
// costs more: with learner and bridge 0.8 ms of CPU and 1.6 ms a MB. So 256 rings join within 2 s if each has up to 4
// MB (native/catch: 0.3 s; Atari's 14 MB: 6 s).
void farm_run_messages_begin_tick(struct farm_run_sessions *sessions) {
    const uint64_t rings = TICK_RING_BYTES / farm_run_actor_bytes(farm_run_sessions_workers(sessions)->plan);
    sessions->ring_budget = rings < 1 ? 1 : rings < TICK_RINGS_MAX ? (uint32_t)rings : TICK_RINGS_MAX;
}

static bool send_ring_in_budget(struct farm_run_sessions *sessions, const struct farm_run_session *session,
                                uint32_t r) {
    if (!sessions->ring_budget || !send_ring(sessions, session, r)) return false;
    sessions->ring_budget--;
    return true;
}

// Sends what the bridge has not received, within the socket's room and the ring budget.
static void send_session(struct farm_run_sessions *sessions, struct farm_run_session *session) {
    const struct farm_control_message begin = make_message(sessions, session, FARM_CONTROL_SESSION);
    struct farm_control_message admitted = make_message(sessions, session, FARM_CONTROL_ADMITTED);
    snprintf(admitted.text, sizeof admitted.text, "%s", session->short_why);
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

static void send_withdrawn(const struct farm_run_bridges *bridges, struct farm_run_bridge *bridge) {
    struct farm_control_message message = {.kind = FARM_CONTROL_WITHDRAWN, .fds = {-1, -1}};
    for (; bridge->withdrawn_sent < bridges->withdrawn.count; bridge->withdrawn_sent++) {
        memcpy(message.key, bridges->withdrawn.name[bridge->withdrawn_sent], sizeof message.key);
        if (!farm_control_send(bridge->control, &message)) return;
    }
}

void farm_run_messages_send(struct farm_run_sessions *sessions) {
    for (uint32_t b = 0; b < sessions->bridges->count; b++)
        send_withdrawn(sessions->bridges, &sessions->bridges->bridge[b]);
    send_refusals(sessions);
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state == FARM_RUN_SESSION_JOINED || session->state == FARM_RUN_SESSION_JOINING)
            send_session(sessions, session);
        if (session->state != FARM_RUN_SESSION_LEFT) continue;
        const struct farm_control_message forget = make_message(sessions, session, FARM_CONTROL_FORGET);
        const bool lost = sessions->bridges->bridge[session->bridge].lost;
        if (!session->sent || lost || send_message(sessions, session, &forget)) vacate_session(session);
    }
}

// If all entries are in use, sessions.c reads no more messages.
void farm_run_messages_refuse(struct farm_run_sessions *sessions, uint32_t bridge, const uint8_t *id,
                              enum farm_wire_reason reason, const char *text) {
    struct farm_run_refusal refusal = {.bridge = bridge, .reason = reason};
    uint32_t i = 0;
    memcpy(refusal.id, id, sizeof refusal.id);
    snprintf(refusal.text, sizeof refusal.text, "%s", text);
    while (i < sessions->refusal_count &&
           (sessions->refusals[i].bridge != bridge || memcmp(sessions->refusals[i].id, id, sizeof refusal.id) != 0))
        i++;
    if (i == FARM_RUN_REFUSALS_MAX) return; // for a session that leaves: its bridge repeats the request
    sessions->refusals[i] = refusal;
    if (i == sessions->refusal_count) sessions->refusal_count++;
}

bool farm_run_messages_have_room(struct farm_run_sessions *sessions) {
    if (sessions->refusal_count == FARM_RUN_REFUSALS_MAX) send_refusals(sessions);
    return sessions->refusal_count < FARM_RUN_REFUSALS_MAX;
}

void farm_run_messages_forget_refusals(struct farm_run_sessions *sessions, uint32_t b) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sessions->refusal_count; i++)
        if (sessions->refusals[i].bridge != b) sessions->refusals[kept++] = sessions->refusals[i];
    sessions->refusal_count = kept;
}
