// See gpu.h. Names and contents are for both sides of libfarm_cuda.so.
#include "bw/gpu.h"

#include <string.h>

#include "base/cuda_module.h"
#include "farm_build.h"
#include "kernels/random.h"

const uint32_t farm_bw_gpu_blocks[FARM_BW_GPU_BLOCKS] = {4, 6, 8, 16};
const size_t farm_bw_gpu_piece_bytes[FARM_BW_GPU_PIECES] = {4096, 7056, 28224};
const uint32_t farm_bw_gpu_piece_counts[FARM_BW_GPU_PIECES] = {2048, 2048, 512};

const char *const farm_bw_gpu_memory_names[] = {"pinned", "registered"};
const char *const farm_bw_gpu_direction_names[] = {"h2d", "d2h", "both"};
const char *const farm_bw_gpu_way_names[] = {"loads", "bulk"};
const char *const farm_bw_gpu_gatherer_names[] = {"one_copy", "loads", "bulk", "copies", "batch"};

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

enum farm_status farm_bw_gpu_open(const char *path, const struct farm_bw_gpu_ops **ops, struct farm_error *err) {
    farm_bw_gpu_entry *entry;
    const char *commit = "";
    *ops = NULL;
    const enum farm_status status = farm_cuda_module_open(path, "farm_bw_cuda", &entry, err);
    if (status) return status;
    *ops = entry(FARM_COMMIT, &commit);
    return *ops ? FARM_OK : farm_cuda_module_foreign(path, commit, err);
}
