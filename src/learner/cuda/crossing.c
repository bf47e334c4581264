// See crossing.h.
#include "learner/cuda/crossing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"

enum { ROUNDS = 7, CANDIDATES = 7 };

static const struct farm_cuda_crossing candidates[CANDIDATES] = {
    {.way = FARM_CUDA_PULL_LOADS, .blocks = 4},
    {.way = FARM_CUDA_PULL_LOADS, .blocks = 8},
    {.way = FARM_CUDA_PULL_LOADS, .blocks = 16},
    {.way = FARM_CUDA_PULL_BULK, .blocks = 4},
    {.way = FARM_CUDA_PULL_BULK, .blocks = 8},
    {.way = FARM_CUDA_PULL_BULK, .blocks = 16},
    {.copies = true},
};

struct trial {
    struct CUstream_st *stream;
    const void *const *from;
    void *const *to;
    const size_t *sizes;
    uint32_t count;
    struct farm_cuda_pull pull; // the same pieces, lists in device memory
};

enum farm_status farm_cuda_crossing_copy(struct CUstream_st *stream, const void *const *from, void *const *to,
                                         const size_t *bytes, uint32_t count, struct farm_error *err) {
    // The sources stay as they are until the work is done, and earlier work of the stream comes first.
    struct cudaMemcpyAttributes attributes;
    size_t first = 0;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    FARM_CUDA_TRY(cudaMemcpyBatchAsync(to, from, bytes, count, &attributes, &first, 1, stream));
    return FARM_OK;
}

static enum farm_status cross(const struct trial *trial, const struct farm_cuda_crossing *by, struct farm_error *err) {
    if (by->copies)
        return farm_cuda_crossing_copy(trial->stream, trial->from, trial->to, trial->sizes, trial->count, err);
    struct farm_cuda_pull pull = trial->pull;
    pull.blocks = by->blocks;
    return farm_cuda_pull(trial->stream, by->way, &pull, err);
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Median of several rounds, from the first call to the end of the work, as inference sees it.
static enum farm_status measure(const struct trial *trial, const struct farm_cuda_crossing *by, double *bytes_per_s,
                                struct farm_error *err) {
    uint64_t times[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) { // the first one warms up
        const uint64_t start = farm_now_ns();
        const enum farm_status status = cross(trial, by, err);
        if (status) return status;
        FARM_CUDA_TRY(cudaStreamSynchronize(trial->stream));
        if (i >= 0) times[i] = farm_now_ns() - start + 1;
    }
    qsort(times, ROUNDS, sizeof *times, by_value);
    *bytes_per_s = (double)trial->pull.bytes * trial->count / ((double)times[ROUNDS / 2] * 1e-9);
    return FARM_OK;
}

static const char *name_of(const struct farm_cuda_crossing *crossing) {
    return crossing->copies ? "copy engines" : crossing->way == FARM_CUDA_PULL_BULK ? "bulk copies" : "loads";
}

static enum farm_status try_all(const struct trial *trial, struct farm_cuda_crossing *out, struct farm_error *err) {
    char text[256] = "";
    for (int i = 0; i < CANDIDATES; i++) {
        struct farm_cuda_crossing by = candidates[i];
        struct farm_error why;
        if (!by.copies && farm_cuda_pull_supported(by.way, &why)) continue;
        const enum farm_status status = measure(trial, &by, &by.bytes_per_s, err);
        // Driver or device without batches of copies: one way less.
        if (status && by.copies && status != FARM_E_DEAD) continue;
        if (status) return status;
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", name_of(&by));
        if (by.blocks) snprintf(text + strlen(text), sizeof text - strlen(text), " %u", by.blocks);
        snprintf(text + strlen(text), sizeof text - strlen(text), " %.1f", by.bytes_per_s / 1e9);
        if (by.bytes_per_s > out->bytes_per_s * 1.05) *out = by;
    }
    farm_log_info("observations of %zu bytes cross the bus by %s (GB/s, %u at once: %s)", trial->pull.bytes,
                  name_of(out), trial->count, text);
    return FARM_OK;
}

enum farm_status farm_cuda_crossing_choose(struct CUstream_st *stream, const void *const *from, void *const *to,
                                           uint32_t count, size_t bytes, struct farm_cuda_crossing *out,
                                           struct farm_error *err) {
    *out = candidates[0];
    void *lists = NULL;
    size_t *sizes = malloc(count * sizeof *sizes);
    if (!sizes) return farm_fail(err, FARM_E_LIMIT, "no memory for a list of %u copies", count);
    for (uint32_t i = 0; i < count; i++) sizes[i] = bytes;
    const size_t list_bytes = count * sizeof *from;
    enum farm_status status = farm_cuda_device_memory(2 * list_bytes, "a list of pieces wants", NULL, &lists, err);
    if (!status) {
        const cudaError_t a = cudaMemcpy(lists, from, list_bytes, cudaMemcpyHostToDevice);
        const cudaError_t b = cudaMemcpy((char *)lists + list_bytes, to, list_bytes, cudaMemcpyHostToDevice);
        if (a || b) status = farm_cuda_fail(err, a ? a : b, "cudaMemcpy", __FILE__, __LINE__);
    }
    if (!status) {
        const struct trial trial = {.stream = stream,
                                    .from = from,
                                    .to = to,
                                    .sizes = sizes,
                                    .count = count,
                                    .pull = {.from = (const void *const *)lists,
                                             .to = (void *const *)((char *)lists + list_bytes),
                                             .count = count,
                                             .bytes = bytes}};
        status = try_all(&trial, out, err);
    }
    (void)cudaFree(lists);
    free(sizes);
    return status;
}
