// The rings' observations in device memory: a lane of the mirror has the lane's environments and, in mode FULL, its
// steps (else as many as a stack has frames), step n at n mod steps as there, so that nothing has to be looked up.
// Inference's gather fills it (but for the last steps of windows in the synchronous regime, which training brings),
// training reads it. No locks: a slot that inference fills is one that training has let go
// of (pair C), and training's work starts after the host has seen inference's end.
#ifndef FARM_LEARNER_CUDA_MIRROR_H
#define FARM_LEARNER_CUDA_MIRROR_H

#include "learner/config.h"
#include "learner/lanes.h"

struct farm_cuda_mirror {
    enum farm_mirror mode;
    size_t obs_bytes;
    uint32_t stack;
    struct farm_cuda_mirror_lane {
        char *start; // NULL: of another shard, or of a ring that is not there
        uint32_t steps, width;
    } * lanes;     // of all lanes of the farm
    void **memory; // [ring_count] of each ring; NULL: likewise
    uint32_t ring_count;
};

// Device memory that a mode wants. Of the lanes of `shard`; the others have no place here. stack: frames of an
// observation.
size_t farm_cuda_mirror_bytes(const struct farm_lanes *lanes, uint32_t shard, enum farm_mirror mode, uint32_t stack);

// Takes the memory of all rings of the shard.
enum farm_status farm_cuda_mirror_make(const struct farm_lanes *lanes, uint32_t shard, enum farm_mirror mode,
                                       uint32_t stack, struct farm_cuda_mirror *out, struct farm_error *err);
void farm_cuda_mirror_free(struct farm_cuda_mirror *mirror); // safe on a zeroed one

// One ring that comes later, and one that goes, which no kernel uses any more. Another thread may use the lanes of the
// others meanwhile.
enum farm_status farm_cuda_mirror_add(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring,
                                      struct farm_error *err);
void farm_cuda_mirror_remove(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring);

// Copies the steps of a ring that are answered already: a learner has come back to it.
enum farm_status farm_cuda_mirror_fill(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring,
                                       struct farm_error *err);

// Where environment `env` of step n of a lane has its place.
static inline void *farm_cuda_mirror_at(const struct farm_cuda_mirror *mirror, uint32_t lane, uint64_t n,
                                        uint32_t env) {
    const struct farm_cuda_mirror_lane *l = &mirror->lanes[lane];
    return l->start + ((size_t)(n % l->steps) * l->width + env) * mirror->obs_bytes;
}

const char *farm_mirror_name(enum farm_mirror mode);

#endif
