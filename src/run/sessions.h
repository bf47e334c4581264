// The remote nodes of a run: which there are, with which places and rings, and which are away for how long. Speaks with
// the bridges by bridge/control.h: admits a node (its rings are let in one after another, by change.h), writes the
// generations of its actors, lets its rings leave when the node says so, has been away for node_grace_s, or was started
// anew; and tells a bridge that was restarted all of it once more. What cannot be sent is sent at a later turn: each
// thing remembers whether it has been told. Runs in the supervisor process.
#ifndef FARM_RUN_SESSIONS_H
#define FARM_RUN_SESSIONS_H

#include "report/metrics.h"
#include "run/bridges.h"
#include "run/change.h"

enum farm_run_session_state {
    FARM_RUN_SESSION_NONE,
    FARM_RUN_SESSION_JOINING, // it has places; the learner lets its rings in
    FARM_RUN_SESSION_JOINED,
    FARM_RUN_SESSION_LEAVING, // its rings leave; also one that came and was refused
    FARM_RUN_SESSION_LEFT,    // they have; its bridge is to be told
};

struct farm_run_session_ring {
    uint32_t actor; // its place
    bool attached;  // the learner has it
    bool leaves;
    bool sent;           // its bridge knows it
    bool generation_due; // an answer is due
};

struct farm_run_session {
    enum farm_run_session_state state;
    uint8_t id[FARM_WIRE_ID_BYTES];
    uint64_t machine;
    char name[FARM_WIRE_NAME_BYTES];
    uint32_t bridge; // that it came by, and stays with
    uint32_t count, present;
    struct farm_run_session_ring *rings; // [count]
    bool cancelled; // it comes and is not to stay: it leaves when the learner has answered for its present ring
    bool sent, admission_sent;
    uint64_t joined_ns; // since when
    uint64_t away_ns;   // since when; 0: it is connected
    bool away_reported;
    uint64_t steps, bytes_in, bytes_out; // at the figures before
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
    struct farm_run_refusal refusals[FARM_RUN_REFUSALS_MAX]; // that wait for room in the bridges' sockets
    uint32_t refusal_count;
    uint32_t ring_budget;         // that may still be told in this turn
    bool training_waits;          // training has too few rings
    bool ending;                  // no change any more
    uint64_t refusal_reported_ns; // when a refusal was last reported
    uint64_t retry_ns;            // when rings that could not leave are tried again
    uint64_t second_ns;           // of the last figures
    struct farm_sample_node nodes[FARM_BRIDGE_NODES_MAX];
    uint32_t node_count, away;
    char address_file[FARM_RUN_PATH_MAX + 16], status_file[FARM_RUN_PATH_MAX + 16]; // "": there is none
};

// When bridges, workers and the admission socket exist: has change.h ask here for the next ring, and writes
// RUN/bridge.addr. Nothing happens if the run does not listen.
enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err);
void farm_run_sessions_free(struct farm_run_sessions *sessions); // safe on a zeroed one; removes the files

// From the supervisor's callbacks: bridge b has said something; a tick; bridge b is about to start, for the first time
// or again; all bridges are about to be stopped.
void farm_run_sessions_receive(struct farm_run_sessions *sessions, uint32_t b);
void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns);
void farm_run_sessions_before_bridge(struct farm_run_sessions *sessions, uint32_t b);
void farm_run_sessions_end(struct farm_run_sessions *sessions);
// Bridge b cannot be kept alive: it serves nobody any more, and the rings of its nodes leave. False: then there is no
// actor left, here or to come.
bool farm_run_sessions_lose_bridge(struct farm_run_sessions *sessions, uint32_t b, const char *why);

// Grows while bridge b gets anything done.
uint64_t farm_run_sessions_progress(const struct farm_run_sessions *sessions, uint32_t b);

#endif
