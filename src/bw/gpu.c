// Names and contents of what gpu.h measures: for both sides of libfarm_cuda.so.
#include "bw/gpu.h"

#include <string.h>

#include "kernels/random.h"

const uint32_t farm_bw_gpu_blocks[FARM_BW_GPU_BLOCKS] = {4, 8, 16};
const size_t farm_bw_gpu_piece_bytes[FARM_BW_GPU_PIECES] = {4096, 7056, 28224};
const uint32_t farm_bw_gpu_piece_counts[FARM_BW_GPU_PIECES] = {2048, 2048, 512};

const char *farm_bw_gpu_memory_name(enum farm_bw_gpu_memory memory) {
    return memory == FARM_BW_GPU_PINNED ? "pinned" : "registered";
}

const char *farm_bw_gpu_direction_name(enum farm_bw_gpu_direction direction) {
    static const char *const names[FARM_BW_GPU_DIRECTIONS] = {"h2d", "d2h", "both"};
    return names[direction];
}

const char *farm_bw_gpu_way_name(enum farm_bw_gpu_way way) {
    return way == FARM_BW_GPU_LOADS ? "loads" : "bulk";
}

const char *farm_bw_gpu_gatherer_name(enum farm_bw_gpu_gatherer gatherer) {
    static const char *const names[FARM_BW_GPU_GATHERERS] = {"one_copy", "loads", "bulk", "copies", "batch"};
    return names[gatherer];
}

void farm_bw_gpu_fill(void *memory, size_t bytes, uint64_t first) {
    char *at = memory;
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t word = farm_random_mix(first + i / 8);
        memcpy(at + i, &word, 8);
    }
}

size_t farm_bw_gpu_check(const void *memory, size_t bytes, uint64_t first) {
    const char *at = memory;
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t word = farm_random_mix(first + i / 8);
        if (memcmp(at + i, &word, 8) != 0) return i;
    }
    return bytes;
}
