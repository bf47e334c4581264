// The supervisor's part of a remote actor's restart, for rigs without one.
#ifndef TESTS_SUPPORT_GENERATION_H
#define TESTS_SUPPORT_GENERATION_H

#include "bridge/control.h"

// Writes the generation of a GENERATION message into the ring's lanes and sends GENERATION_IS.
static inline bool write_generation(int fd, const struct farm_ring *ring, const struct farm_control_message *message) {
    struct farm_control_message reply = *message;
    for (uint32_t l = 0; l < ring->spec.lanes; l++)
        farm_store_release(&ring->lanes[l].down->generation, message->generation);
    reply.kind = FARM_CONTROL_GENERATION_IS;
    return farm_control_send(fd, &reply);
}

#endif
