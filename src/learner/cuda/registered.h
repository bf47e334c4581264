// The rings as memory that a GPU reads and writes where it lies: the `up` segment of every actor of its shard
// registered portable, mapped and read-only, every `down` portable and mapped. Segments live as long as the learner (an
// actor that is started again gets the same ones), so they are registered once, before the first answer, and released
// at the end, on every way out. Where the registration of a side is refused, that side is `staged`: host threads copy
// through pinned memory of the backend's.
#ifndef FARM_LEARNER_CUDA_REGISTERED_H
#define FARM_LEARNER_CUDA_REGISTERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "learner/lanes.h"

enum farm_cuda_side { FARM_CUDA_UP, FARM_CUDA_DOWN };

struct farm_cuda_registered {
    bool staged[2];                       // [up, down]: nothing of it is registered
    struct farm_cuda_registration *parts; // [part_count]: pieces of segments
    uint32_t part_count;
    uint32_t ring_count;
    struct {
        const char *host;
        char *device; // that host address as the GPU sees it
        size_t bytes;
    } (*segments)[2]; // [ring_count][up, down]; no bytes: of another shard
};

// Registers the shard's rings in parallel, in pieces of at most `piece_bytes` (0: 64 GiB; larger calls fail with recent
// drivers), on `device`, and says how long it took. Refusal is no error: it is said aloud, and `staged` is set.
// FARM_E_LIMIT without memory of the host's.
enum farm_status farm_cuda_register(const struct farm_lanes *lanes, uint32_t shard, int device, size_t piece_bytes,
                                    struct farm_cuda_registered *out, struct farm_error *err);
void farm_cuda_unregister(struct farm_cuda_registered *registered); // safe on a zeroed one, and twice

// A host address within a ring's segment as the GPU sees it.
void *farm_cuda_address(const struct farm_cuda_registered *registered, uint32_t ring, enum farm_cuda_side side,
                        const void *host);

#endif
