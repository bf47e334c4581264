// The rings' frames in device memory. A lane of the mirror has the ring's environments, the fields that are the
// network's images, one array after another, and, in mode FULL, the ring's steps (else as many as a stack has frames);
// step n lies at n mod steps, as in the ring. Inference fills it (except the last steps of windows in the synchronous
// regime, which training copies), training reads it. No locks: inference fills only slots that training has released
// (pair C), and training's work starts after the host has seen inference's end.
#ifndef FARM_LEARNER_CUDA_MIRROR_H
#define FARM_LEARNER_CUDA_MIRROR_H

#include "intake/lanes.h"
#include "learner/config.h"
#include "nn/net.h"

struct farm_cuda_mirror {
    enum farm_mirror mode;
    const struct farm_net_io *io;
    size_t frame_bytes;
    struct farm_cuda_mirror_lane {
        char *start; // NULL: of another shard, or a vacant ring
        uint32_t steps, width;
        size_t image_bytes; // one image's array's
    } * lanes;              // [lane_count] of the farm
    void **memory;          // [ring_count]; NULL: the same
    uint32_t ring_count;
};

// Images of a network's input; 0: it takes no frames.
static inline uint32_t farm_cuda_images(const struct farm_net_io *io) {
    return io->frame_channels > 0 ? (uint32_t)io->images : 0;
}

// An empty mirror, with what its size depends on. io: of a made network; borrowed.
static inline struct farm_cuda_mirror farm_cuda_mirror_plan(const struct farm_net_io *io, enum farm_mirror mode) {
    return (struct farm_cuda_mirror){
        .mode = mode, .io = io, .frame_bytes = (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width};
}

// Device memory of a mirror as planned, for the lanes of `shard`.
size_t farm_cuda_mirror_bytes(const struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t shard);

// Allocates the memory of all rings of the shard; `out` is planned.
enum farm_status farm_cuda_mirror_make(const struct farm_lanes *lanes, uint32_t shard, struct farm_cuda_mirror *out,
                                       struct farm_error *err);
void farm_cuda_mirror_free(struct farm_cuda_mirror *mirror); // safe on a zeroed one

// A ring that joins; and one that leaves, after its last kernel. Another thread may use other rings' lanes meanwhile.
enum farm_status farm_cuda_mirror_add(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring,
                                      struct farm_error *err);
void farm_cuda_mirror_remove(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring);

// Copies the steps of a ring that are already answered: after a restart of the learner.
enum farm_status farm_cuda_mirror_fill(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t ring,
                                       struct farm_error *err);

// The place of an image of environment `env` of step n of a lane; and that frame in the lane.
static inline void *farm_cuda_mirror_at(const struct farm_cuda_mirror *mirror, uint32_t lane, uint32_t image,
                                        uint64_t n, uint32_t env) {
    const struct farm_cuda_mirror_lane *l = &mirror->lanes[lane];
    return l->start + image * l->image_bytes + ((size_t)(n % l->steps) * l->width + env) * mirror->frame_bytes;
}
static inline const void *farm_cuda_frame(const struct farm_cuda_mirror *mirror, const struct farm_lane *lane,
                                          uint32_t image, uint64_t n, uint32_t env) {
    return farm_lane_obs(lane, (uint32_t)mirror->io->image_source[image], n, env);
}

const char *farm_mirror_name(enum farm_mirror mode);

#endif
