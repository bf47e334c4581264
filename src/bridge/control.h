// What a learner's bridge and its supervisor say to one another: nodes that come and go, their rings, generations.
// Messages keep their boundaries (SOCK_SEQPACKET); descriptors travel with RING. The supervisor owns sessions and
// places; the bridge only knows what it has been told, so a bridge that starts again is told all sessions and rings
// once more. Neither side ever waits for the other: what cannot be sent now is sent at a later turn, in order.
#ifndef FARM_BRIDGE_CONTROL_H
#define FARM_BRIDGE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "bridge/wire.h"

enum farm_control_kind {
    // bridge -> supervisor
    FARM_CONTROL_ADMIT = 1,   // a node wants places: id, machine, name, count (rings)
    FARM_CONTROL_GENERATION,  // ring `ring` of session `session` has a new actor: write `generation` into all of its
                              // lanes
    FARM_CONTROL_LEAVE,       // the session's ring `ring` leaves (UINT32_MAX: all; the node has ended). session
                              // UINT32_MAX: that of this id, also while it is being admitted
    FARM_CONTROL_RING_FAILED, // ring `ring` of `session`, which was told, cannot be used: text. The session is refused
    // supervisor -> bridge
    FARM_CONTROL_SESSION,  // session `session` (its place, < FARM_BRIDGE_NODES_MAX) has this id, machine and name, and
                           // count rings
    FARM_CONTROL_RING,     // ring `ring` of it: fds up (writable), down (read-only); actor's number, shard
    FARM_CONTROL_ADMITTED, // the session has all of its rings now
    FARM_CONTROL_REFUSED,  // an ADMIT cannot be met: id, reason, text. session: none
    FARM_CONTROL_GENERATION_IS, // of ring `ring` of `session`: written
    FARM_CONTROL_FORGET,        // the session is gone: close its rings and its connection
    FARM_CONTROL_END,           // the run ends: BYE to every node
};

struct farm_control_message {
    uint32_t kind;    // enum farm_control_kind
    uint32_t session; // place
    uint32_t ring, count;
    uint32_t actor, shard;
    uint32_t reason; // enum farm_wire_reason
    uint32_t zero;
    uint64_t generation, machine;
    uint8_t id[FARM_WIRE_ID_BYTES];
    char text[256]; // a node's name, or why
    int32_t fds[2]; // of RING: owned by the receiver, borrowed by the sender; else -1. Received as -1: they find no
                    // room in this process
};

// Both ends, non-blocking, close-on-exec. FARM_E_LIMIT.
enum farm_status farm_control_make(int *supervisor, int *bridge, struct farm_error *err);
// False: no room now (try again when the descriptor is writable) or the other side is gone.
bool farm_control_send(int fd, const struct farm_control_message *message);
// False: there is none. What makes no sense is dropped (and its descriptors closed).
bool farm_control_receive(int fd, struct farm_control_message *message);
// Before another bridge is started: nothing that was said to or by the one before reaches it.
void farm_control_clear(int supervisor, int bridge);

#endif
