// Messages between a learner's bridge and its supervisor: nodes that come and go, their rings, generations. Messages
// keep their boundaries (SOCK_SEQPACKET); descriptors travel with RING. The supervisor owns sessions and places, and
// repeats all sessions and rings to a restarted bridge. Neither side waits: messages without room are sent later.
#ifndef FARM_BRIDGE_CONTROL_H
#define FARM_BRIDGE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "bridge/key.h"
#include "bridge/wire.h"
#include "ring/ring.h"

enum farm_control_kind {
    // bridge -> supervisor
    FARM_CONTROL_ADMIT = 1,   // a node requests places: id, machine, name, key, count (rings)
    FARM_CONTROL_GENERATION,  // ring `ring` of `session` has a new actor: write `generation` into all of its lanes
    FARM_CONTROL_LEAVE,       // ring `ring` of `session` leaves (UINT32_MAX: all; the node has ended). session
                              // UINT32_MAX: that of this id, also while it is being admitted
    FARM_CONTROL_RING_FAILED, // ring `ring` of `session` cannot be used: text. The session is refused
    // supervisor -> bridge
    FARM_CONTROL_SESSION,  // a session at place `session` (< FARM_BRIDGE_NODES_MAX): id, machine, name, count rings
    FARM_CONTROL_RING,     // its ring `ring`: fds up (writable), down (read-only); the actor's number, shard
    FARM_CONTROL_ADMITTED, // the session has its rings: count, maybe fewer than in SESSION; text: why they are fewer
    FARM_CONTROL_REFUSED,  // reply to ADMIT: id, reason, text. No session
    FARM_CONTROL_GENERATION_IS, // reply to GENERATION: written
    FARM_CONTROL_FORGET,        // the session has ended: close its rings and its connection
    FARM_CONTROL_WITHDRAWN,     // the key `key` is: refuse its nodes, close their connections
    FARM_CONTROL_END,           // the run ends: send BYE to every node
};

struct farm_control_message {
    uint32_t kind;    // enum farm_control_kind
    uint32_t session; // place
    uint32_t ring, count, actor, shard;
    uint32_t reason; // enum farm_wire_reason
    uint32_t zero;
    uint64_t generation, machine;
    uint8_t id[FARM_WIRE_ID_BYTES];
    char text[FARM_WIRE_TEXT_BYTES]; // a node's name, or why
    char key[FARM_KEY_NAME_BYTES];   // name of a node's key; "": in the clear
    int32_t fds[2]; // RING: the receiver owns them, the sender keeps its own; else -1. -1: no room for them here
};

// Both ends, non-blocking, close-on-exec. FARM_E_LIMIT.
enum farm_status farm_control_make(int *supervisor, int *bridge, struct farm_error *err);
// False: no room now (try again when the descriptor is writable), or the other side is closed.
bool farm_control_send(int fd, const struct farm_control_message *message);
// False: there is no message. Discards invalid ones and closes their descriptors.
bool farm_control_receive(int fd, struct farm_control_message *message);
// For benchmarks and tests without a supervisor. Sends SESSION, RING for each ring (actors from first_actor), ADMITTED.
bool farm_control_send_session(int fd, uint32_t place, const uint8_t *id, const struct farm_ring *rings, uint32_t count,
                               uint32_t first_actor);
// Before another bridge is started: discards all messages to and from the one before.
void farm_control_clear(int supervisor, int bridge);

#endif
