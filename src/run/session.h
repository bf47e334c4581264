// The state of a run's remote nodes, shared by sessions.c (which nodes there are), session_messages.c (what their
// bridges receive) and session_figures.c (what is reported of them). In the supervisor process.
#ifndef FARM_RUN_SESSION_H
#define FARM_RUN_SESSION_H

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
    char name[FARM_WIRE_NAME_BYTES];
    uint32_t bridge; // fixed when it joins
    uint32_t count, present;
    struct farm_run_session_ring *rings; // [count]
    bool cancelled;                      // while joining: it leaves when the learner has replied about the current ring
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
    char text[256];
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

#endif
