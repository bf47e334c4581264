// Private to hub.c and hub_session.c: the hub's connections (peers) and sessions. A session is a node's places: its
// rings outlive connections and belong to the supervisor. One thread.
#ifndef FARM_BRIDGE_HUB_SESSION_H
#define FARM_BRIDGE_HUB_SESSION_H

#include "bridge/control.h"
#include "bridge/hub_config.h"
#include "bridge/link.h"
#include "bridge/sources.h"
#include "bridge/versions.h"
#include "ring/ring.h"

enum {
    HUB_STRANGERS_MAX = 64,
    HUB_STRANGERS_EACH = 16, // from an address
    HUB_PEERS_MAX = FARM_BRIDGE_NODES_MAX + HUB_STRANGERS_MAX,
    HUB_SHARDS_MAX = 1024
};
_Static_assert((int)HUB_PEERS_MAX <= (int)FARM_ENGINE_SOCKETS_MAX, "a socket for each peer");

struct hub_lane {
    struct farm_lane *lane;
    uint64_t placed, arrived; // steps whose frame has begun; that are complete. Published ones: lane->produced_local
    uint64_t replied;         // steps in ANSWERS so far; LOCAL: in CREDITS
    uint64_t credited;        // `consumed` as last sent to the node
    uint64_t granted;         // LOCAL: as last sent
    uint16_t ring, number;
    bool listed;
};

struct hub_ring {
    struct farm_ring ring; // lanes NULL: not opened
    uint32_t actor, shard;
    uint64_t wanted, requested; // generations: the newest that arrived; that the supervisor was asked to write
    bool touched;               // published to in this turn
    struct hub_ring *next_touched;
    struct hub_lane *lanes;
};

struct hub_session {
    uint8_t id[FARM_WIRE_ID_BYTES];
    char name[FARM_WIRE_NAME_BYTES];
    char note[FARM_WIRE_TEXT_BYTES]; // why it has fewer rings than its node requested; "": it has all
    bool admitted;
    bool forgotten; // its place is free; the rings live until the connection is closed
    uint32_t place, ring_count, lane_count;
    struct hub_ring *rings;
    struct hub_lane **list; // lanes that wait for an answer or for room
    uint32_t listed;
    struct hub_peer *peer, *next; // its connection; a newer one, which waits until the old one is closed
    uint32_t turn;                // the last frame was of a version (0), CREDITS (1), ANSWERS (2)
    uint64_t env_steps, lane_steps;
};

// GREETED: its OFFER waits until the learner has described its board.
enum hub_peer_state { HUB_PEER_CONNECTED, HUB_PEER_GREETED, HUB_PEER_OFFERED, HUB_PEER_JOINING, HUB_PEER_ATTACHED };

struct hub_peer {
    struct farm_link link;
    struct farm_hub *hub;
    enum hub_peer_state state;
    struct hub_session *session;
    struct farm_wire_hello hello; // its counters are in `counters`
    uint8_t *counters;
    struct farm_version_sender versions;
    int fd;       // 0: none; accepted, and `link` is vacant until the peer's whole hello has arrived and its turn comes
    bool greeted; // it has arrived
    uint32_t address_hash;
    uint64_t accepted_ns;
    uint64_t requested_ns; // time of the last ADMIT
    uint32_t requested_rings;
};

struct farm_hub {
    struct farm_hub_config config;
    struct farm_tls_context *tls;                        // for all connections; NULL: in the clear
    struct farm_wire_offer *offer;                       // own
    struct farm_version_source versions;                 // board NULL: none
    struct farm_source_node tree[FARM_BRIDGE_NODES_MAX]; // by place: who takes versions from whom
    bool replan;          // the tree, because nodes have joined, left, or lost their source
    uint64_t forgiven_ns; // when failures of sources were last forgotten
    const struct farm_engine_ops *ops;
    struct farm_engine *engine;
    struct hub_peer *peers[HUB_PEERS_MAX];               // by socket; allocated at their first use
    struct hub_session *sessions[FARM_BRIDGE_NODES_MAX]; // by place; NULL: free
    struct hub_session *active[HUB_PEERS_MAX];           // with a connection
    uint32_t active_count;
    struct hub_ring *touched;               // a list
    uint64_t now_ns, tick_ns, looked_ns;    // looked: for the strangers' hellos
    bool strangers_wait;                    // for a hello or a handshake
    bool hello_waits;                       // a stranger's, for its handshake
    uint64_t handshakes, paid_ns;           // begun so far; the time whose budget they have used up
    uint64_t served[4 * HUB_STRANGERS_MAX]; // by address: `handshakes` at its last one
    uint64_t reported_ns;                   // when closed strangers were last reported
    uint32_t unreported;
    bool ends; // END has come
    uint64_t ends_ns;
    struct farm_control_message unsent[256]; // to the supervisor, in order
    uint32_t unsent_count;
    uint8_t *scratch; // [FARM_WIRE_MESSAGE_BYTES_MAX] for messages
};

// False: the supervisor does not read. Messages without room wait, in order, for hub_flush_control.
bool hub_send_control(struct farm_hub *hub, const struct farm_control_message *message);
void hub_flush_control(struct farm_hub *hub);
void hub_refuse(struct hub_peer *peer, enum farm_wire_reason reason, const char *text);

// A lane step's entry: places its payload. farm_link_owner.place.
bool hub_place_entry(void *context, const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                     struct iovec *parts, uint32_t room, uint32_t *count, struct farm_error *err);
// The steps of a verified frame: publishes those whose actor's generation is written.
void hub_take_steps(struct hub_peer *peer, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries);
void hub_publish_ring(struct farm_hub *hub, struct hub_session *session, uint32_t ring);
// Asks the supervisor to write the generation of the ring's newest actor, unless it was asked before.
void hub_request_generation(struct farm_hub *hub, struct hub_session *session, uint32_t ring);
// Wakes the inference threads that sleep, once each, after all that this turn has published.
void hub_wake_shards(struct farm_hub *hub);
// Sends one frame if there is any: a chunk of a version, in turn with answers or credits. Returns whether it did.
bool hub_send_answers(struct hub_session *session);
bool hub_has_answers(const struct hub_session *session);
// VERSION_HAVE has come: the node takes versions, and its source, if it had one, has failed.
bool hub_take_have(struct hub_peer *peer, struct farm_error *err);
void hub_announce_sleep(const struct hub_session *session, bool asleep);

struct farm_bridge_node_stats *hub_row(const struct farm_hub *hub, const struct hub_session *session);
void hub_add_figures(struct hub_peer *peer);

void hub_begin_session(struct farm_hub *hub, const struct farm_control_message *message);
void hub_add_ring(struct farm_hub *hub, const struct farm_control_message *message);
void hub_free_session(struct hub_session *session); // NULL is allowed
// Gives the session to this connection as soon as the one before is closed.
void hub_attach(struct hub_peer *peer, struct hub_session *session);
// The connection is closed.
void hub_detach(struct hub_peer *peer);
// Frees the place at once.
void hub_forget_session(struct farm_hub *hub, struct hub_session *session);

#endif
