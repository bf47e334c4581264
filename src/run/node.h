// A remote node's run: reads the learner's offer, plans this machine's actors for it, joins, and runs them with a
// bridge (bridge/node.h) in the learner's place, session after session. Runs in the supervisor process, which holds the
// connection until the session has its places; after that the worker `bridge` holds it.
#ifndef FARM_RUN_NODE_H
#define FARM_RUN_NODE_H

#include <signal.h>

#include "bridge/address.h"
#include "bridge/node.h"
#include "policy/describe.h"
#include "run/run.h"

struct farm_run_node_request {
    struct farm_node_config node;     // address, key, name, engine; the remaining fields are filled in here
    const struct farm_recipe *recipe; // this machine's flags; not settled
    const char *cache;                // address to feed other nodes on; NULL: none
    double retry_s;                   // how long to try without a connection; 0: no limit
    bool quiet;
    struct farm_run_caller caller;
};

enum farm_run_node_state {
    FARM_RUN_NODE_JOINED,  // farm_run_node_execute may follow
    FARM_RUN_NODE_ENDED,   // the learner's run has ended
    FARM_RUN_NODE_STOPPED, // by a signal
    FARM_RUN_NODE_STRANGE, // the learner does not know the session (any more): join again
};

// Over all sessions.
struct farm_run_node_figures {
    double wall_s; // since the first answered step
    uint64_t steps, lane_steps, bytes_in, bytes_out, copied_bytes, frames, system_calls;
    uint64_t sessions, reconnects, actor_restarts, bridge_restarts;
    // now
    bool connected;
    double away_s;
    uint32_t actors;
    // last known
    bool uring;
    double round_trip_s; // 0: unknown
};

struct farm_run_node_shared {
    struct farm_bridge_stats stats; // row 0; writer: the worker `bridge`
    uint64_t strange;               // 1: it ended because the learner does not know the session any more
    uint64_t bridge_ns;             // when the present process began; 0: none has
    bool poll;                      // it uses poll(2), because a process before it died at once
};

struct farm_run_node {
    struct farm_run_node_request request;
    struct farm_run run; // the present session's; zeroed: no session
    struct farm_recipe recipe;
    struct farm_wire_offer offer;
    struct farm_policy_description policy; // LOCAL: the offer's
    struct farm_run_remote remote;
    uint32_t actors[FARM_WIRE_RINGS_MAX]; // their numbers in the learner's run
    uint8_t session[FARM_WIRE_ID_BYTES];
    struct farm_run_node_shared *shared;
    struct farm_run_node_figures past; // sums over the sessions before the present one
    uint64_t connected_ns;             // the last tick that saw the present session connected, or when it joined
    bool given_up, over; // no connection for too long; the learner's run ended while this node was cut off
    struct farm_address learner[FARM_ADDRESSES_MAX]; // where it was when this session began
    uint32_t learner_count, probes;
    int probe_fd;       // a connection that tests whether the learner's port is open; -1: none
    uint64_t probed_ns; // when it was opened
    int cache;          // listening socket; -1: none
    char cache_address[FARM_WIRE_NAME_BYTES];
    int key;     // pipe with the key for the next `bridge`; -1: none
    int slot_fd; // holds this node's slot on the machine; -1: no slot
    sigset_t mask_before;
};

// Blocks SIGINT, SIGTERM, SIGHUP (unless ignored) and SIGPIPE until farm_run_node_free. Takes an identity
// (node.machine) that no living node has; a restarted node has the identity of the dead one.
enum farm_status farm_run_node_make(const struct farm_run_node_request *request, struct farm_run_node **out,
                                    struct farm_error *err);
void farm_run_node_free(struct farm_run_node *node); // NULL is allowed

// Waits for the learner's offer, plans, and joins. *state: JOINED, ENDED, STOPPED or STRANGE. Errors: FARM_E_DEAD no
// connection within retry_s, or the learner refuses, with its reason; FARM_E_USAGE, FARM_E_INVALID the offer does not
// fit this machine; those of farm_run_make and farm_run_build.
enum farm_status farm_run_node_join(struct farm_run_node *node, enum farm_run_node_state *state,
                                    struct farm_error *err);
// Runs the session to its end. *state: ENDED, STOPPED or STRANGE.
enum farm_status farm_run_node_execute(struct farm_run_node *node, enum farm_run_node_state *state,
                                       struct farm_error *err);
// Ends the session, joined or not. Its figures stay in the totals.
void farm_run_node_leave(struct farm_run_node *node);

void farm_run_node_figures(const struct farm_run_node *node, uint64_t now_ns, struct farm_run_node_figures *figures);

#endif
