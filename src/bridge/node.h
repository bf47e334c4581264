// A remote node's side of the bridge: connects to a learner's bridge, sends the steps of this machine's actors and
// writes the answers into their lanes, as an inference thread would. Holds each ring's `up` read-only and `down`
// writable. One thread, in a worker process, a benchmark, or a supervisor without workers (to fetch the offer and
// join). May be killed at any moment: the counters are in the rings.
#ifndef FARM_BRIDGE_NODE_H
#define FARM_BRIDGE_NODE_H

#include "bridge/engine.h"
#include "bridge/key.h"
#include "bridge/stats.h"
#include "bridge/wire.h"

struct farm_board;
struct farm_node;

enum farm_node_state {
    FARM_NODE_TRYING,  // no connection, or no OFFER yet
    FARM_NODE_OFFERED, // farm_node_offer is valid; farm_node_join was not called
    FARM_NODE_JOINING,
    FARM_NODE_JOINED,  // steps flow, or the connection was cut after that (farm_node_connected)
    FARM_NODE_ENDED,   // the learner's run has ended (BYE)
    FARM_NODE_REFUSED, // finally: farm_node_why
    FARM_NODE_STRANGE, // the learner has another run or does not know this session: begin a new one
};

struct farm_node_config {
    const char *address;        // "HOST:PORT", "[v6]:PORT", or "@FILE" that holds one (read at each attempt)
    const struct farm_key *key; // borrowed; NULL: in the clear
    uint8_t session[FARM_WIRE_ID_BYTES];
    uint8_t run[FARM_WIRE_ID_BYTES]; // zero: any
    uint64_t machine;
    const char *name;
    // The session's rings: descriptors up (read-only), down; owned. ring_count 0: none yet.
    const int (*ring_fds)[2];
    uint32_t ring_count;
    // LOCAL: where the actors find the parameters (farm_board_near); borrowed. The first one receives them. 0: CENTRAL.
    struct farm_board *const *boards;
    uint32_t board_count;
    int cache;                         // socket that listens for nodes to pass versions on to; 0 or less: none
    const char *cache_address;         // by which they reach it: struct farm_wire_source
    int bell;                          // eventfd that the actors ring; -1: none
    struct farm_bridge_stats *stats;   // row 0 is used; may be NULL
    const char *engine;                // uring, poll, auto
    const struct farm_engine_ops *ops; // instead of `engine`: the memory engine, which needs no address
    void *ops_context;
    uint64_t spin_ns, seed; // seed: for the jitter
};

enum farm_status farm_node_make(const struct farm_node_config *config, struct farm_node **out, struct farm_error *err);
// Sends BYE first if `end`, which gives the session up; else the session waits for another connection.
void farm_node_free(struct farm_node *node, bool end); // NULL is allowed

// As in hub.h: one turn, without blocking; waits without and with the actors' wake-ups.
bool farm_node_turn(struct farm_node *node, uint64_t now_ns);
void farm_node_wait(struct farm_node *node, uint64_t timeout_ns);
void farm_node_sleep(struct farm_node *node, uint64_t timeout_ns);

enum farm_node_state farm_node_state(const struct farm_node *node);
bool farm_node_connected(const struct farm_node *node);
const struct farm_wire_offer *farm_node_offer(const struct farm_node *node); // NULL before OFFERED
// In OFFERED: requests `rings` places. A node that was made with rings does so itself.
void farm_node_join(struct farm_node *node, uint32_t rings);
// [ring_count] numbers of the actors in the run; NULL before JOINED.
const uint32_t *farm_node_actors(const struct farm_node *node);
uint32_t farm_node_places(const struct farm_node *node); // in JOINED; fewer than requested: farm_node_why
// Cause of the last failure or refusal, or why fewer have joined; "": none.
const char *farm_node_why(const struct farm_node *node);

// The worker's body: turns and waits until SIGTERM or an end. Exit status 0: SIGTERM (sends BYE) or the run has ended;
// FARM_NODE_EXIT_STRANGE: begin a new session; 1: *err.
enum { FARM_NODE_EXIT_STRANGE = 4 };
int farm_node_run(const struct farm_node_config *config, struct farm_error *err);

#endif
