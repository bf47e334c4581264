// Registers the rings with a GPU, which then reads and writes them in place: the `up` segment of every actor of its
// shard portable, mapped and read-only, every `down` segment portable and mapped. A segment is registered when the
// learner opens it, before its first answer, and released when its actor leaves or the learner ends. A restarted actor
// gets the same segment.
//
// Many devices cannot pin memory that is mapped read-only (cudaDevAttrHostRegisterReadOnlySupported). For those `up` is
// mapped again, writable, through a descriptor that the supervisor lends; this mapping is registered, then
// write-protected, so the learner's threads still cannot write there. If CUDA refuses to register a side, it is
// `bounced` for the whole run: host threads copy through pinned memory, the bounce buffer.
#ifndef FARM_LEARNER_CUDA_REGISTERED_H
#define FARM_LEARNER_CUDA_REGISTERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "intake/lanes.h"

enum farm_cuda_side { FARM_CUDA_UP, FARM_CUDA_DOWN };

struct farm_cuda_registered {
    bool bounced[2]; // [up, down]: not registered
    bool again;      // `up` is registered through a second mapping
    int device;
    size_t piece_bytes;
    uint32_t ring_count;
    struct farm_cuda_ring {
        struct farm_cuda_registration *parts; // [part_count] pieces of both segments; NULL: another shard's, or vacant
        uint32_t part_count;
        void *again; // the second mapping of `up`, or NULL
        size_t bytes_again;
        struct {
            const char *host;
            char *device; // the device address of `host`
            size_t bytes;
        } segments[2]; // [up, down]
    } * rings;         // [ring_count]
};

// Registers the shard's rings on `device` in parallel, in pieces of at most `piece_bytes` (0: 64 GiB; larger calls fail
// with recent drivers), and logs the time. A refusal is no error: it is logged, and `bounced` is set. FARM_E_LIMIT if
// the host's memory does not suffice.
enum farm_status farm_cuda_register(const struct farm_lanes *lanes, uint32_t shard, int device, size_t piece_bytes,
                                    struct farm_cuda_registered *out, struct farm_error *err);
void farm_cuda_unregister(struct farm_cuda_registered *registered); // safe on a zeroed one, and twice

// A ring that joins: its sides that are not bounced; after a refusal, FARM_E_LIMIT, it is not registered. And a ring
// that leaves, after its last kernel. Another thread may use the other rings' addresses meanwhile.
enum farm_status farm_cuda_register_ring(struct farm_cuda_registered *registered, const struct farm_lanes *lanes,
                                         uint32_t ring, struct farm_error *err);
void farm_cuda_unregister_ring(struct farm_cuda_registered *registered, uint32_t ring);

// The device address of a host address within a ring's segment.
void *farm_cuda_address(const struct farm_cuda_registered *registered, uint32_t ring, enum farm_cuda_side side,
                        const void *host);

#endif
