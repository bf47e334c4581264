// See registered.h.
#include "learner/cuda/registered.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"

enum { THREADS_MAX = 8 };
static const size_t PIECE_BYTES = 64ull << 30;

struct farm_cuda_registration {
    char *host, *device;
    size_t bytes;
    enum farm_cuda_side side;
    unsigned flags;
    bool registered;
    cudaError_t code;
};

// What the threads share: each takes the next piece until none is left.
struct work {
    struct farm_cuda_registration *parts;
    uint32_t count, next; // next: atomic
    int device;
    bool release, sides[2]; // release: those of these sides
};

static void register_part(struct farm_cuda_registration *part) {
    void *device = NULL;
    part->code = cudaHostRegister(part->host, part->bytes, part->flags);
    part->registered = part->code == cudaSuccess;
    if (!part->code) part->code = cudaHostGetDevicePointer(&device, part->host, 0);
    part->device = device;
}

static void release_part(struct farm_cuda_registration *part) {
    if (part->registered) (void)cudaHostUnregister(part->host);
    part->registered = false;
}

static void *run(void *argument) {
    struct work *work = argument;
    const cudaError_t code = cudaSetDevice(work->device);
    for (uint32_t i; (i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count;) {
        if (!work->release) work->parts[i].code = code;
        if (work->release && work->sides[work->parts[i].side])
            release_part(&work->parts[i]);
        else if (!work->release && !code)
            register_part(&work->parts[i]);
    }
    (void)cudaGetLastError(); // what was refused is in the parts; no later call shall be blamed for it
    return NULL;
}

static void run_in_parallel(struct work work) {
    pthread_t threads[THREADS_MAX];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t started = 0;
    while (started + 1 < THREADS_MAX && started + 1 < (uint32_t)cores && started + 1 < work.count &&
           pthread_create(&threads[started], NULL, run, &work) == 0)
        started++;
    run(&work); // a thread that did not start is no loss
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

static uint32_t pieces_of(const struct farm_segment *segment, size_t piece_bytes) {
    return (uint32_t)((segment->bytes + piece_bytes - 1) / piece_bytes);
}

static void cut(struct farm_cuda_registered *registered, const struct farm_segment *segment, enum farm_cuda_side side,
                size_t piece_bytes) {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    for (size_t at = 0; at < segment->bytes; at += piece_bytes) {
        const size_t left = segment->bytes - at;
        registered->parts[registered->part_count++] =
            (struct farm_cuda_registration){.host = (char *)segment->header + at,
                                            .bytes = left < piece_bytes ? left : piece_bytes,
                                            .side = side,
                                            .flags = side == FARM_CUDA_UP ? flags | cudaHostRegisterReadOnly : flags};
    }
}

static bool served(const struct farm_lanes *lanes, uint32_t ring, uint32_t shard) {
    return lanes->lanes[lanes->first_lane[ring]].shard == shard;
}

static enum farm_status list(const struct farm_lanes *lanes, uint32_t shard, size_t piece_bytes,
                             struct farm_cuda_registered *registered, struct farm_error *err) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < lanes->ring_count; r++)
        count += pieces_of(&lanes->rings[r].up, piece_bytes) + pieces_of(&lanes->rings[r].down, piece_bytes);
    registered->parts = calloc(count, sizeof *registered->parts);
    registered->segments = calloc(lanes->ring_count, sizeof *registered->segments);
    registered->ring_count = lanes->ring_count;
    if (!registered->parts || !registered->segments)
        return farm_fail(err, FARM_E_LIMIT, "no memory for the list of %u segments", 2 * lanes->ring_count);
    for (uint32_t r = 0; r < lanes->ring_count; r++) {
        if (!served(lanes, r, shard)) continue;
        cut(registered, &lanes->rings[r].up, FARM_CUDA_UP, piece_bytes);
        cut(registered, &lanes->rings[r].down, FARM_CUDA_DOWN, piece_bytes);
    }
    return FARM_OK;
}

static void release(struct farm_cuda_registered *registered, bool up, bool down) {
    int device = 0;
    (void)cudaGetDevice(&device);
    run_in_parallel((struct work){.parts = registered->parts,
                                  .count = registered->part_count,
                                  .device = device,
                                  .release = true,
                                  .sides = {up, down}});
}

// Why a side cannot be used: a part was refused, or the parts of a segment do not lie side by side. NULL: it can.
static const char *refusal(const struct farm_cuda_registered *registered, enum farm_cuda_side side) {
    const struct farm_cuda_registration *before = NULL;
    for (uint32_t i = 0; i < registered->part_count; i++) {
        const struct farm_cuda_registration *part = &registered->parts[i];
        if (part->side != side) continue;
        if (part->code) return cudaGetErrorString(part->code);
        if (before && before->host + before->bytes == part->host && before->device + before->bytes != part->device)
            return "its parts do not lie side by side";
        before = part;
    }
    return NULL;
}

// A segment's addresses are those of its first part.
static void note_addresses(struct farm_cuda_registered *registered, const struct farm_lanes *lanes, uint32_t shard) {
    const struct farm_cuda_registration *part = registered->parts;
    for (uint32_t r = 0; r < lanes->ring_count; r++)
        for (int side = FARM_CUDA_UP; side <= FARM_CUDA_DOWN && served(lanes, r, shard); side++) {
            const size_t bytes = side == FARM_CUDA_UP ? lanes->rings[r].up.bytes : lanes->rings[r].down.bytes;
            registered->segments[r][side].host = part->host;
            registered->segments[r][side].device = part->device;
            registered->segments[r][side].bytes = bytes;
            for (size_t at = 0; at < bytes; part++) at += part->bytes;
        }
}

static void settle(struct farm_cuda_registered *registered) {
    static const char *const what[] = {"observations", "answers"};
    for (int side = FARM_CUDA_UP; side <= FARM_CUDA_DOWN; side++) {
        const char *why = refusal(registered, (enum farm_cuda_side)side);
        registered->staged[side] = why != NULL;
        if (why)
            farm_log_warn(
                "CUDA refuses to register the actors' %s segments (%s; perhaps ulimit -l): %s are copied once "
                "more, through pinned memory",
                side == FARM_CUDA_UP ? "up" : "down", why, what[side]);
    }
    if (registered->staged[FARM_CUDA_UP] || registered->staged[FARM_CUDA_DOWN])
        release(registered, registered->staged[FARM_CUDA_UP], registered->staged[FARM_CUDA_DOWN]);
}

enum farm_status farm_cuda_register(const struct farm_lanes *lanes, uint32_t shard, int device, size_t piece_bytes,
                                    struct farm_cuda_registered *out, struct farm_error *err) {
    *out = (struct farm_cuda_registered){0};
    enum farm_status status = list(lanes, shard, piece_bytes ? piece_bytes : PIECE_BYTES, out, err);
    if (status) {
        farm_cuda_unregister(out);
        return status;
    }
    const uint64_t start = farm_now_ns();
    run_in_parallel((struct work){.parts = out->parts, .count = out->part_count, .device = device});
    const double seconds = (double)(farm_now_ns() - start + 1) * 1e-9;
    settle(out);
    note_addresses(out, lanes, shard);
    size_t bytes = 0, parts = 0;
    for (uint32_t i = 0; i < out->part_count; i++) {
        bytes += out->parts[i].registered ? out->parts[i].bytes : 0;
        parts += out->parts[i].registered;
    }
    if (parts)
        farm_log_info("registered %zu pieces of memory, %.1f MB, in %.3f s (%.1f GB/s)", parts, (double)bytes / 1e6,
                      seconds, (double)bytes / 1e9 / seconds);
    return FARM_OK;
}

void farm_cuda_unregister(struct farm_cuda_registered *registered) {
    if (registered->parts) release(registered, true, true);
    free(registered->parts);
    free(registered->segments);
    *registered = (struct farm_cuda_registered){0};
}

void *farm_cuda_address(const struct farm_cuda_registered *registered, uint32_t ring, enum farm_cuda_side side,
                        const void *host) {
    assert(!registered->staged[side] && ring < registered->ring_count);
    const size_t offset = (size_t)((const char *)host - registered->segments[ring][side].host);
    assert(offset < registered->segments[ring][side].bytes);
    return registered->segments[ring][side].device + offset;
}
