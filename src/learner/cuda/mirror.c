// See mirror.h.
#include "learner/cuda/mirror.h"

#include <stdlib.h>

#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"

static const size_t LANE_ALIGNMENT = 256; // leaves the same remainder by 16 as the rings' arrays do

const char *farm_mirror_name(enum farm_mirror mode) {
    static const char *const names[] = {"full", "window", "off"};
    return names[mode];
}

static uint32_t steps_of(const struct farm_lane *lane, enum farm_mirror mode, uint32_t stack) {
    return mode == FARM_MIRROR_FULL || lane->steps < stack ? lane->steps : stack;
}

static size_t lane_bytes(const struct farm_learner_lane *of, uint32_t shard, enum farm_mirror mode, uint32_t stack) {
    const struct farm_lane *lane = of->lane;
    if (of->shard != shard) return 0;
    const size_t bytes = (size_t)steps_of(lane, mode, stack) * lane->width * lane->obs_bytes[0];
    return (bytes + LANE_ALIGNMENT - 1) / LANE_ALIGNMENT * LANE_ALIGNMENT;
}

size_t farm_cuda_mirror_bytes(const struct farm_lanes *lanes, uint32_t shard, enum farm_mirror mode, uint32_t stack) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < lanes->lane_count; i++) bytes += lane_bytes(&lanes->lanes[i], shard, mode, stack);
    return bytes;
}

enum farm_status farm_cuda_mirror_make(const struct farm_lanes *lanes, uint32_t shard, enum farm_mirror mode,
                                       uint32_t stack, struct farm_cuda_mirror *out, struct farm_error *err) {
    *out = (struct farm_cuda_mirror){.mode = mode,
                                     .obs_bytes = lanes->lanes[0].lane->obs_bytes[0],
                                     .lane_count = lanes->lane_count,
                                     .bytes = farm_cuda_mirror_bytes(lanes, shard, mode, stack)};
    out->lanes = calloc(lanes->lane_count, sizeof *out->lanes);
    if (!out->lanes) return farm_fail(err, FARM_E_LIMIT, "no memory for the mirror of %u lanes", lanes->lane_count);
    void *memory;
    const enum farm_status status = farm_cuda_device_memory(out->bytes, "the mirror of the rings wants",
                                                            "ring-steps (or --mirror off)", &memory, err);
    if (status) {
        farm_cuda_mirror_free(out);
        return status;
    }
    out->memory = memory;
    char *at = memory;
    for (uint32_t i = 0; i < lanes->lane_count; i++) {
        const struct farm_lane *lane = lanes->lanes[i].lane;
        if (lanes->lanes[i].shard != shard) continue;
        out->lanes[i] =
            (struct farm_cuda_mirror_lane){.start = at, .steps = steps_of(lane, mode, stack), .width = lane->width};
        at += lane_bytes(&lanes->lanes[i], shard, mode, stack);
    }
    return FARM_OK;
}

// Step after step from the learner's view, by plain copies: this happens once in a learner's life, and in most not at
// all.
enum farm_status farm_cuda_mirror_fill(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes,
                                       struct farm_error *err) {
    for (uint32_t i = 0; i < lanes->lane_count; i++) {
        const struct farm_lane *lane = lanes->lanes[i].lane;
        const uint64_t end = lanes->lanes[i].answered, steps = mirror->lanes[i].steps;
        if (!mirror->lanes[i].start) continue;
        for (uint64_t n = end > steps ? end - steps : 0; n < end; n++)
            FARM_CUDA_TRY(cudaMemcpy(farm_cuda_mirror_at(mirror, i, n, 0), farm_lane_obs(lane, 0, n, 0),
                                     lane->width * mirror->obs_bytes, cudaMemcpyHostToDevice));
    }
    return FARM_OK;
}

void farm_cuda_mirror_free(struct farm_cuda_mirror *mirror) {
    (void)cudaFree(mirror->memory);
    free(mirror->lanes);
    *mirror = (struct farm_cuda_mirror){0};
}
