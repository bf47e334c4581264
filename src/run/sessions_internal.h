// Shared by the three files of sessions.h: sessions.c (which nodes there are), session_messages.c (what their bridges
// receive) and session_figures.c (what is reported of them). Runs in the supervisor process.
#ifndef FARM_RUN_SESSIONS_INTERNAL_H
#define FARM_RUN_SESSIONS_INTERNAL_H

#include "run/sessions.h"

static inline struct farm_run_workers *farm_run_sessions_workers(const struct farm_run_sessions *sessions) {
    return sessions->change->workers;
}

static inline uint32_t farm_run_session_place(const struct farm_run_sessions *sessions,
                                              const struct farm_run_session *session) {
    return (uint32_t)(session - sessions->session);
}

// The figures that the session's bridge writes.
static inline struct farm_bridge_node_stats *farm_run_session_row(const struct farm_run_sessions *sessions,
                                                                  const struct farm_run_session *session) {
    return &sessions->bridges->bridge[session->bridge].stats->node[farm_run_session_place(sessions, session)];
}

// 0 if then_ns lies after now_ns, as it may within one tick.
static inline uint64_t farm_run_elapsed_ns(uint64_t now_ns, uint64_t then_ns) {
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

// ---- session_messages.c ----

// Limits how many rings the bridges receive until the next call.
void farm_run_messages_begin_tick(struct farm_run_sessions *sessions);
// Sends the bridges what they have not received yet, as far as their sockets have room; frees sessions that have left.
void farm_run_messages_send(struct farm_run_sessions *sessions);
// Queues a refusal of the node `id`; replaces one that waits already.
void farm_run_messages_refuse(struct farm_run_sessions *sessions, uint32_t bridge, const uint8_t *id,
                              enum farm_wire_reason reason, const char *text);
// Whether another refusal can be queued.
bool farm_run_messages_have_room(struct farm_run_sessions *sessions);
// Drops the refusals that wait for bridge b.
void farm_run_messages_forget_refusals(struct farm_run_sessions *sessions, uint32_t b);

// ---- session_figures.c ----

// Writes the list of joined nodes for samples.
void farm_run_figures_list_nodes(struct farm_run_sessions *sessions);
// Once a second: every node's rates, the list, and RUN/bridge.json.
void farm_run_figures_update(struct farm_run_sessions *sessions, uint64_t now_ns);

#endif
