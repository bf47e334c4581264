// The rings as memory that a GPU reads and writes where it lies: the `up` segment of every actor of its shard
// registered portable, mapped and read-only, every `down` portable and mapped. A segment is registered when the learner
// opens it, before anybody answers it, and released when its actor goes or the learner ends, on every way out; an actor
// that is started again gets the same one.
//
// Many devices pin nothing that is mapped read-only (cudaDevAttrHostRegisterReadOnlySupported). For those `up` is
// mapped once more, for writing, by the descriptor that the supervisor lends for it; that mapping is registered, and
// then write-protected, so that the learner's threads still cannot write there. Where the registration of a side is
// refused all the same, that side is `bounced` for good: host threads copy through pinned memory of the backend's.
#ifndef FARM_LEARNER_CUDA_REGISTERED_H
#define FARM_LEARNER_CUDA_REGISTERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "learner/lanes.h"

enum farm_cuda_side { FARM_CUDA_UP, FARM_CUDA_DOWN };

struct farm_cuda_registered {
    bool bounced[2]; // [up, down]: nothing of it is registered
    bool again;      // `up` is registered through a mapping of its own
    int device;
    size_t piece_bytes;
    uint32_t ring_count;
    struct farm_cuda_ring {
        struct farm_cuda_registration
            *parts; // [part_count]: pieces of both segments; NULL: of another shard, or vacant
        uint32_t part_count;
        void *again; // the second mapping of `up`; NULL: there is none
        size_t bytes_again;
        struct {
            const char *host;
            char *device; // that host address as the GPU sees it
            size_t bytes;
        } segments[2]; // [up, down]
    } * rings;         // [ring_count]
};

// Registers the shard's rings in parallel, in pieces of at most `piece_bytes` (0: 64 GiB; larger calls fail with recent
// drivers), on `device`, and says how long it took. Refusal is no error: it is said aloud, and `bounced` is set.
// FARM_E_LIMIT without memory of the host's.
enum farm_status farm_cuda_register(const struct farm_lanes *lanes, uint32_t shard, int device, size_t piece_bytes,
                                    struct farm_cuda_registered *out, struct farm_error *err);
void farm_cuda_unregister(struct farm_cuda_registered *registered); // safe on a zeroed one, and twice

// One ring that comes later, the sides that are not bounced: a refusal is FARM_E_LIMIT, and nothing of it is
// registered. And one that goes, which no kernel uses any more. Another thread may ask for addresses of the other rings
// meanwhile.
enum farm_status farm_cuda_register_ring(struct farm_cuda_registered *registered, const struct farm_lanes *lanes,
                                         uint32_t ring, struct farm_error *err);
void farm_cuda_unregister_ring(struct farm_cuda_registered *registered, uint32_t ring);

// A host address within a ring's segment as the GPU sees it.
void *farm_cuda_address(const struct farm_cuda_registered *registered, uint32_t ring, enum farm_cuda_side side,
                        const void *host);

#endif
