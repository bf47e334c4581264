// See obs_path.h.
#include "learner/cuda/obs_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"

// Pulling kernels have at most one multiprocessor in twenty; training needs the others.
enum { ROUNDS = 7, CANDIDATES = 5, MULTIPROCESSORS_PER_BLOCK = 20, BLOCKS_LEAST = 2 };

struct trial {
    struct CUstream_st *stream;
    const void *const *from;
    void *const *to;
    const size_t *sizes;
    uint32_t count;
    struct farm_cuda_pull pull; // the same pieces, lists in device memory
    // pieces that are not registered: a pinned bounce buffer, and device memory for all of them in a row
    char *bounce, *target;
    float *number; // in device memory
};

typedef enum farm_status transfer(const struct trial *trial, const struct farm_cuda_obs_path *by,
                                  struct farm_error *err);

enum farm_status farm_cuda_obs_path_copy(struct CUstream_st *stream, const void *const *from, void *const *to,
                                         const size_t *bytes, uint32_t count, struct farm_error *err) {
    // Sources do not change until the work is done; earlier work of the stream comes first.
    struct cudaMemcpyAttributes attributes;
    size_t first = 0;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    FARM_CUDA_TRY(cudaMemcpyBatchAsync(to, from, bytes, count, &attributes, &first, 1, stream));
    return FARM_OK;
}

static enum farm_status transfer_pieces(const struct trial *trial, const struct farm_cuda_obs_path *by,
                                        struct farm_error *err) {
    if (by->copies)
        return farm_cuda_obs_path_copy(trial->stream, trial->from, trial->to, trial->sizes, trial->count, err);
    struct farm_cuda_pull pull = trial->pull;
    pull.blocks = by->blocks;
    return farm_cuda_pull(trial->stream, by->way, &pull, err);
}

// A piece's place in the bounce buffer: with its target's remainder by 16.
static size_t bounce_offset(size_t bytes, uint32_t piece, const void *to) {
    return piece * farm_cuda_slot_bytes(bytes) + ((uintptr_t)to & 15);
}

// The host copies into the bounce buffer; then as transfer_pieces.
static enum farm_status transfer_bounced(const struct trial *trial, const struct farm_cuda_obs_path *by,
                                         struct farm_error *err) {
    const size_t bytes = trial->pull.bytes;
    for (uint32_t i = 0; i < trial->count; i++)
        memcpy(trial->bounce + bounce_offset(bytes, i, trial->to[i]), trial->from[i], bytes);
    return transfer_pieces(trial, by, err);
}

// One copy of as many bytes, from pinned memory.
static enum farm_status copy_once(const struct trial *trial, const struct farm_cuda_obs_path *by,
                                  struct farm_error *err) {
    (void)by;
    FARM_CUDA_TRY(cudaMemcpyAsync(trial->target, trial->bounce, trial->count * trial->pull.bytes,
                                  cudaMemcpyHostToDevice, trial->stream));
    return FARM_OK;
}

// A kernel that does next to nothing.
static enum farm_status launch_only(const struct trial *trial, const struct farm_cuda_obs_path *by,
                                    struct farm_error *err) {
    (void)by;
    return farm_cuda_scale(trial->stream, trial->number, 1, 1, NULL, err);
}

// As inference has it: the copy engines, then the graph's first kernel.
static enum farm_status transfer_before_graph(const struct trial *trial, const struct farm_cuda_obs_path *by,
                                              struct farm_error *err) {
    const enum farm_status status = transfer_pieces(trial, by, err);
    return status || !by->copies ? status : launch_only(trial, by, err);
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Median of several rounds, in seconds, from the first call to the end of the work.
static enum farm_status measure(const struct trial *trial, transfer *run, const struct farm_cuda_obs_path *by,
                                double *seconds, struct farm_error *err) {
    uint64_t times[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) { // the first one warms up
        const uint64_t start = farm_now_ns();
        const enum farm_status status = run(trial, by, err);
        if (status) return status;
        FARM_CUDA_TRY(cudaStreamSynchronize(trial->stream));
        if (i >= 0) times[i] = farm_now_ns() - start + 1;
    }
    qsort(times, ROUNDS, sizeof *times, by_value);
    *seconds = (double)times[ROUNDS / 2] * 1e-9;
    return FARM_OK;
}

static double bytes_per_s(const struct trial *trial, double seconds) {
    return (double)trial->pull.bytes * trial->count / seconds;
}

static const char *name_of(const struct farm_cuda_obs_path *obs_path) {
    return obs_path->copies ? "copy engines" : obs_path->way == FARM_CUDA_PULL_BULK ? "bulk copies" : "loads";
}

struct text {
    char at[512];
    size_t used;
};

// Appends a way, its number of blocks (0: it has none) and its figures.
static void append_figures(struct text *text, const struct trial *trial, const char *what, uint32_t blocks,
                           double seconds) {
    char count[16] = "";
    if (blocks) snprintf(count, sizeof count, " %u", blocks);
    const int length = snprintf(text->at + text->used, sizeof text->at - text->used, "%s%s%s %.3g GB/s %.1f us",
                                text->used ? ", " : "", what, count, bytes_per_s(trial, seconds) / 1e9, seconds * 1e6);
    const size_t left = sizeof text->at - 1 - text->used;
    text->used += (size_t)length < left ? (size_t)length : left;
}

// Loads and bulk copies with half the allowed blocks and with all; the copy engines.
static enum farm_status list_candidates(struct farm_cuda_obs_path *candidates, struct farm_error *err) {
    int device, count;
    FARM_CUDA_TRY(cudaGetDevice(&device));
    FARM_CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    const uint32_t share = (uint32_t)count / MULTIPROCESSORS_PER_BLOCK,
                   most = share > BLOCKS_LEAST ? share : BLOCKS_LEAST;
    const struct farm_cuda_obs_path all[CANDIDATES] = {{.way = FARM_CUDA_PULL_LOADS, .blocks = most / 2},
                                                       {.way = FARM_CUDA_PULL_LOADS, .blocks = most},
                                                       {.way = FARM_CUDA_PULL_BULK, .blocks = most / 2},
                                                       {.way = FARM_CUDA_PULL_BULK, .blocks = most},
                                                       {.copies = true}};
    memcpy(candidates, all, sizeof all);
    return FARM_OK;
}

static enum farm_status try_all(const struct trial *trial, struct farm_cuda_obs_path *out, struct farm_error *err) {
    struct farm_cuda_obs_path candidates[CANDIDATES];
    struct text text = {.used = 0};
    double launch_s, s;
    enum farm_status ready = list_candidates(candidates, err);
    if (!ready) ready = measure(trial, launch_only, out, &launch_s, err);
    if (ready) return ready;
    for (int i = 0; i < CANDIDATES; i++) {
        struct farm_cuda_obs_path by = candidates[i];
        struct farm_error why;
        if (!by.copies && farm_cuda_pull_supported(by.way, &why)) continue;
        const enum farm_status status = measure(trial, transfer_before_graph, &by, &s, err);
        // A driver or device without batches of copies has one way less.
        if (status && by.copies && status != FARM_E_DEAD) continue;
        if (status) return status;
        s = s - launch_s > s / 8 ? s - launch_s : s / 8; // both are noisy
        by.bytes_per_s = bytes_per_s(trial, s);
        append_figures(&text, trial, name_of(&by), by.blocks, s);
        if (by.bytes_per_s > out->bytes_per_s * 1.05) *out = by;
    }
    farm_log_info("observations of %zu bytes cross the bus by %s (%u at once: %s; without the graph's launch, %.1f us)",
                  trial->pull.bytes, name_of(out), trial->count, text.at, launch_s * 1e6);
    return FARM_OK;
}

static enum farm_status try_bounced(const struct trial *trial, struct farm_cuda_obs_path *out, struct farm_error *err) {
    struct text text = {.used = 0};
    double both_s, once_s;
    enum farm_status status = measure(trial, transfer_bounced, out, &both_s, err);
    if (!status) status = measure(trial, copy_once, out, &once_s, err);
    if (status) return status;
    out->bytes_per_s = bytes_per_s(trial, both_s);
    append_figures(&text, trial, "both together", 0, both_s);
    append_figures(&text, trial, "one copy of as many bytes from pinned memory", 0, once_s);
    farm_log_info("observations of %zu bytes are copied into pinned memory and cross the bus by %s (%u at once: %s)",
                  trial->pull.bytes, name_of(out), trial->count, text.at);
    return FARM_OK;
}

// Copies the lists of the pieces into device memory.
static enum farm_status upload_lists(struct trial *trial, const void *const *from, void *lists,
                                     struct farm_error *err) {
    const size_t bytes = trial->count * sizeof *from;
    enum farm_status status = farm_cuda_upload(lists, from, bytes, err);
    if (!status) status = farm_cuda_upload((char *)lists + bytes, trial->to, bytes, err);
    trial->pull.from = (const void *const *)lists;
    trial->pull.to = (void *const *)((char *)lists + bytes);
    return status;
}

static enum farm_status try_registered(struct trial *trial, void *lists, struct farm_cuda_obs_path *out,
                                       struct farm_error *err) {
    size_t sizes[FARM_CUDA_OBS_PATH_PIECES];
    for (uint32_t i = 0; i < trial->count; i++) sizes[i] = trial->pull.bytes;
    trial->sizes = sizes;
    const enum farm_status status = upload_lists(trial, trial->from, lists, err);
    return status ? status : try_all(trial, out, err);
}

static enum farm_status try_with_bounce_buffer(struct trial *trial, void *lists, struct farm_cuda_obs_path *out,
                                               struct farm_error *err) {
    const size_t bytes = trial->pull.bytes;
    const void *from[FARM_CUDA_OBS_PATH_PIECES];
    void *bounce = NULL, *target = NULL, *mapped = NULL;
    enum farm_status status = farm_cuda_host_memory(trial->count * farm_cuda_slot_bytes(bytes),
                                                    "a trial of copies needs", NULL, &bounce, err);
    if (!status) status = farm_cuda_mapped(bounce, &mapped, err);
    if (!status) status = farm_cuda_device_memory(trial->count * bytes, "a trial of copies needs", NULL, &target, err);
    for (uint32_t i = 0; i < trial->count && !status; i++)
        from[i] = (const char *)mapped + bounce_offset(bytes, i, trial->to[i]);
    trial->bounce = bounce;
    trial->target = target;
    if (!status) status = upload_lists(trial, from, lists, err);
    if (!status) status = try_bounced(trial, out, err);
    (void)cudaFree(target);
    (void)cudaFreeHost(bounce);
    return status;
}

enum farm_status farm_cuda_obs_path_choose(struct CUstream_st *stream, const struct farm_cuda_pieces *pieces,
                                           struct farm_cuda_obs_path *out, struct farm_error *err) {
    *out = (struct farm_cuda_obs_path){.way = FARM_CUDA_PULL_LOADS, .blocks = FARM_CUDA_PULL_BLOCKS};
    if (pieces->count == 0) return FARM_OK;
    struct trial trial = {.stream = stream,
                          .from = pieces->from,
                          .to = pieces->to,
                          .count = pieces->count,
                          .pull = {.count = pieces->count, .bytes = pieces->bytes, .blocks = out->blocks}};
    const size_t bytes = 2 * pieces->count * sizeof(void *);
    void *lists = NULL;
    enum farm_status status =
        farm_cuda_device_memory(bytes + sizeof *trial.number, "a list of pieces needs", NULL, &lists, err);
    if (status) return status;
    trial.number = (float *)(void *)((char *)lists + bytes);
    status =
        pieces->bounced ? try_with_bounce_buffer(&trial, lists, out, err) : try_registered(&trial, lists, out, err);
    (void)cudaFree(lists);
    return status;
}
