// The remote nodes of a run: their places and rings, and how long they have been away. Exchanges messages with the
// bridges (bridge/control.h): admits nodes (change.h attaches their rings one after another), writes the generations of
// their actors, and removes the rings of a node that leaves, has been away for node_grace_s, or was started anew. A
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
    uint64_t second_ns;           // of the last figures
    struct farm_sample_node nodes[FARM_BRIDGE_NODES_MAX];
    uint32_t node_count, away;
    char address_file[FARM_RUN_PATH_MAX + 16], status_file[FARM_RUN_PATH_MAX + 16]; // "": none
};

// After bridges, workers and the admission socket: registers with change.h and writes RUN/bridge.addr. No effect if the
// run does not listen.
enum farm_status farm_run_sessions_make(struct farm_run_sessions *sessions, struct farm_error *err);
void farm_run_sessions_free(struct farm_run_sessions *sessions); // safe on a zeroed one; removes the files

// From the supervisor's callbacks: bridge b has sent messages; a tick; bridge b is about to start or restart; all
// bridges are about to be stopped.
void farm_run_sessions_receive(struct farm_run_sessions *sessions, uint32_t b);
void farm_run_sessions_tick(struct farm_run_sessions *sessions, uint64_t now_ns);
void farm_run_sessions_before_bridge(struct farm_run_sessions *sessions, uint32_t b);
void farm_run_sessions_end(struct farm_run_sessions *sessions);
// Bridge b cannot be kept alive: the rings of its nodes leave. False: no actor is left, and none can join.
bool farm_run_sessions_lose_bridge(struct farm_run_sessions *sessions, uint32_t b, const char *why);

// Grows while bridge b moves steps or accepts connections.
uint64_t farm_run_sessions_progress(const struct farm_run_sessions *sessions, uint32_t b);

#endif
