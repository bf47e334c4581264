// The rings' observations in device memory. A lane of the mirror has the ring's environments and, in mode FULL, its
// steps (else as many as a stack has frames); step n lies at n mod steps, as in the ring. Inference fills it (except
// the last steps of windows in the synchronous regime, which training copies), training reads it. No locks: inference
// fills only slots that training has released (pair C), and training's work starts after the host has seen inference's
// end.
#ifndef FARM_LEARNER_CUDA_MIRROR_H
#define FARM_LEARNER_CUDA_MIRROR_H

#include "learner/config.h"
#include "learner/lanes.h"

struct farm_cuda_mirror {
    enum farm_mirror mode;
    size_t obs_bytes;
    uint32_t stack;
    struct farm_cuda_mirror_lane {
        char *start; // NULL: of another shard, or a vacant ring
        uint32_t steps, width;
    } * lanes;     // [lane_count] of the farm
    void **memory; // [ring_count]; NULL: likewise
    uint32_t ring_count;
};

// Device memory of a mode, for the lanes of `shard`. stack: frames of the network's input.
size_t farm_cuda_mirror_bytes(const struct farm_lanes *lanes, uint32_t shard, enum farm_mirror mode, uint32_t stack);

// Allocates the memory of all rings of the shard.
enum farm_status farm_cuda_mirror_make(const struct farm_lanes *lanes, uint32_t shard, enum farm_mirror mode,
                                       uint32_t stack, struct farm_cuda_mirror *out, struct farm_error *err);
void farm_cuda_mirror_free(struct farm_cuda_mirror *mirror); // safe on a zeroed one

// A ring that joins; and one that leaves, after its last kernel. Another thread may use other rings' lanes meanwhile.
enum farm_status farm_cuda_mirror_add(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring,
                                      struct farm_error *err);
void farm_cuda_mirror_remove(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring);

// Copies the steps of a ring that are already answered: after a restart of the learner.
enum farm_status farm_cuda_mirror_fill(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring,
                                       struct farm_error *err);

// The place of environment `env` of step n of a lane.
static inline void *farm_cuda_mirror_at(const struct farm_cuda_mirror *mirror, uint32_t lane, uint64_t n,
                                        uint32_t env) {
    const struct farm_cuda_mirror_lane *l = &mirror->lanes[lane];
    return l->start + ((size_t)(n % l->steps) * l->width + env) * mirror->obs_bytes;
}

const char *farm_mirror_name(enum farm_mirror mode);

#endif
