// The remote nodes of a run: their places and rings, and how long they have been away. Exchanges messages with the
// bridges (bridge/control.h): admits nodes (change.h attaches their rings one after another), writes the generations of
// their actors, and removes the rings of a node that leaves, has been away for node_grace_s, or was restarted. A
// bridge that restarts receives all of it again. Messages wait while a socket is full: each object records whether its
// bridge has received it. Runs in the supervisor process.
#ifndef FARM_RUN_SESSIONS_H
#define FARM_RUN_SESSIONS_H

#include "report/metrics.h"
#include "run/bridges.h"
#include "run/change.h"

enum farm_run_session_state {
    FARM_RUN_SESSION_NONE,
    FARM_RUN_SESSION_JOINING, // it has places; the learner attaches its rings
    FARM_RUN_SESSION_JOINED,
    FARM_RUN_SESSION_LEAVING, // the learner detaches its rings; also after a refusal while joining
    FARM_RUN_SESSION_LEFT,    // all rings are detached; its bridge must still forget it
};

struct farm_run_session_ring {
    uint32_t actor; // its place
    bool attached;  // at the learner
    bool leaves;
    bool sent;           // to its bridge
    bool generation_due; // its bridge waits for the generation
};

struct farm_run_session {
    enum farm_run_session_state state;
    uint8_t id[FARM_WIRE_ID_BYTES];
    uint64_t machine;
    char name[FARM_WIRE_NAME_BYTES], key[FARM_KEY_NAME_BYTES]; // key: its name; "": in the clear
    uint32_t bridge;                                           // fixed when it joins
    uint32_t asked, count, present;                            // count: requested; after it has joined, its rings
    char short_why[480];                                       // why it has fewer than requested; "": it has all
    struct farm_run_session_ring *rings;                       // [count]
    bool cancelled; // while joining: it leaves when the learner has replied about the current ring
    bool sent, admission_sent;
    uint64_t joined_ns; // when
    uint64_t away_ns;   // since when; 0: it is connected
    bool away_reported;
    uint64_t steps, bytes_in, bytes_out; // at the previous figures
    struct farm_sample_node figures;     // name, lanes, rates
};

struct farm_run_refusal {
    uint32_t bridge;
    enum farm_wire_reason reason;
    uint8_t id[FARM_WIRE_ID_BYTES];
    char text[FARM_WIRE_TEXT_BYTES];
};

enum { FARM_RUN_REFUSALS_MAX = 512 }; // more than the connections of a bridge

struct farm_run_sessions {
    // farm_run_make
    struct farm_run_bridges *bridges;
    struct farm_run_change *change;

    struct farm_run_session session[FARM_BRIDGE_NODES_MAX];  // by place
    struct farm_run_refusal refusals[FARM_RUN_REFUSALS_MAX]; // waiting for room in the bridges' sockets
    uint32_t refusal_count;
    uint32_t ring_budget;         // rings that the bridges may still receive in this tick
    bool training_waits;          // training has too few rings
    bool ending;                  // no more changes
    uint64_t refusal_reported_ns; // when a refusal was last reported
    uint64_t retry_ns;            // when rings that could not be detached are tried again
    uint64_t second_ns;           // when the last figures came
    struct farm_sample_node nodes[FARM_BRIDGE_NODES_MAX];
    uint32_t node_count, away;
    char address_file[FARM_RUN_PATH_MAX + 16], status_file[FARM_RUN_PATH_MAX + 16]; // "": none
};

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

// After bridges, workers and the admission socket: registers with change.h, adds the bridges to the supervisor and
// writes RUN/bridge.addr. No effect if the run does not listen.
enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err);
void farm_run_sessions_free(struct farm_run_sessions *sessions); // safe on a zeroed one; removes the files

// The events of bridge b. When it cannot be kept alive, the rings of its nodes leave; if then no actor is left and none
// can join, the run ends.
extern const struct farm_run_worker_ops farm_run_sessions_ops;

// From the supervisor's callbacks: a tick; all bridges are about to be stopped.
void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns);
void farm_run_sessions_end(struct farm_run_sessions *sessions);

// ---- private: session_figures.c ----

// Writes the list of joined nodes for samples.
void farm_run_figures_list_nodes(struct farm_run_sessions *sessions);
// Once a second: every node's rates, the list, and RUN/bridge.json.
void farm_run_figures_update(struct farm_run_sessions *sessions, uint64_t now_ns);

// ---- private: session_messages.c ----

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

#endif
