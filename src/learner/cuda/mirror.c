// See mirror.h.
#include "learner/cuda/mirror.h"

#include <stdlib.h>

#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"

static const size_t LANE_ALIGNMENT = 256; // gives the same remainder by 16 as the rings' arrays

const char *farm_mirror_name(enum farm_mirror mode) {
    static const char *const names[] = {"full", "window", "off"};
    return names[mode];
}

static uint32_t steps_of(const struct farm_cuda_mirror *mirror, const struct farm_lane *lane) {
    const uint32_t stack = (uint32_t)mirror->io->stack;
    return mirror->mode == FARM_MIRROR_FULL || lane->steps < stack ? lane->steps : stack;
}

static size_t image_bytes(const struct farm_cuda_mirror *mirror, const struct farm_lane *lane) {
    const size_t bytes = (size_t)steps_of(mirror, lane) * lane->width * mirror->frame_bytes;
    return (bytes + LANE_ALIGNMENT - 1) / LANE_ALIGNMENT * LANE_ALIGNMENT;
}

static size_t ring_bytes(const struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t r) {
    size_t bytes = 0;
    for (uint32_t l = 0; l < lanes->rings[r].spec.lanes; l++)
        bytes += farm_cuda_images(mirror->io) * image_bytes(mirror, lanes->lanes[lanes->first_lane[r] + l].lane);
    return bytes;
}

size_t farm_cuda_mirror_bytes(const struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t shard) {
    size_t bytes = 0;
    for (uint32_t r = 0; r < lanes->ring_count; r++)
        if (farm_lanes_serves(lanes, r, shard)) bytes += ring_bytes(mirror, lanes, r);
    return bytes;
}

enum farm_status farm_cuda_mirror_add(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t r,
                                      struct farm_error *err) {
    const enum farm_status status =
        farm_cuda_device_memory(ring_bytes(mirror, lanes, r), "the mirror of the rings needs",
                                "ring-steps (or --mirror off)", &mirror->memory[r], err);
    if (status) return status;
    char *at = mirror->memory[r];
    for (uint32_t l = 0; l < lanes->rings[r].spec.lanes; l++) {
        const uint32_t id = lanes->first_lane[r] + l;
        const struct farm_lane *lane = lanes->lanes[id].lane;
        mirror->lanes[id] = (struct farm_cuda_mirror_lane){.start = at,
                                                           .steps = steps_of(mirror, lane),
                                                           .width = lane->width,
                                                           .image_bytes = image_bytes(mirror, lane)};
        at += farm_cuda_images(mirror->io) * image_bytes(mirror, lane);
    }
    return FARM_OK;
}

void farm_cuda_mirror_remove(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t r) {
    (void)cudaFree(mirror->memory[r]);
    mirror->memory[r] = NULL;
    for (uint32_t l = 0; l < lanes->rings[r].spec.lanes; l++)
        mirror->lanes[lanes->first_lane[r] + l] = (struct farm_cuda_mirror_lane){0};
}

enum farm_status farm_cuda_mirror_make(const struct farm_lanes *lanes, uint32_t shard, struct farm_cuda_mirror *out,
                                       struct farm_error *err) {
    out->ring_count = lanes->ring_count;
    out->lanes = calloc(lanes->lane_count, sizeof *out->lanes);
    out->memory = calloc(lanes->ring_count, sizeof *out->memory);
    enum farm_status status = FARM_OK;
    if (!out->lanes || !out->memory)
        status = farm_fail(err, FARM_E_LIMIT, "no memory for the mirror of %u lanes", lanes->lane_count);
    for (uint32_t r = 0; r < lanes->ring_count && !status; r++)
        if (farm_lanes_serves(lanes, r, shard)) status = farm_cuda_mirror_add(out, lanes, r, err);
    if (status) farm_cuda_mirror_free(out);
    return status;
}

static enum farm_status fill_lane(struct farm_cuda_mirror *mirror, const struct farm_intake_lane *of,
                                  struct farm_error *err) {
    const uint64_t end = of->answered, steps = mirror->lanes[of->id].steps;
    enum farm_status status = FARM_OK;
    for (uint32_t image = 0; image < farm_cuda_images(mirror->io); image++)
        for (uint64_t n = end > steps ? end - steps : 0; n < end && !status; n++)
            status = farm_cuda_upload(farm_cuda_mirror_at(mirror, of->id, image, n, 0),
                                      farm_cuda_frame(mirror, of->lane, image, n, 0),
                                      of->lane->width * mirror->frame_bytes, err);
    return status;
}

// Step after step, by plain copies: at most once in a ring's life.
enum farm_status farm_cuda_mirror_fill(struct farm_cuda_mirror *mirror, const struct farm_lanes *lanes, uint32_t r,
                                       struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t l = 0; l < lanes->rings[r].spec.lanes && !status; l++)
        status = fill_lane(mirror, &lanes->lanes[lanes->first_lane[r] + l], err);
    return status;
}

void farm_cuda_mirror_free(struct farm_cuda_mirror *mirror) {
    for (uint32_t r = 0; r < mirror->ring_count && mirror->memory; r++) (void)cudaFree(mirror->memory[r]);
    free(mirror->memory);
    free(mirror->lanes);
    *mirror = (struct farm_cuda_mirror){0};
}
