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
    struct farm_cuda_registered *registered;
    uint32_t first_ring, end_ring; // whose pieces
    uint32_t count, next;          // next: atomic
    bool release, sides[2];        // those of these sides
};

// ---- pieces ----

static uint32_t count_parts(const struct farm_cuda_registered *registered, uint32_t first_ring, uint32_t end_ring) {
    uint32_t count = 0;
    for (uint32_t r = first_ring; r < end_ring; r++) count += registered->rings[r].part_count;
    return count;
}

static struct farm_cuda_registration *part_at(const struct work *work, uint32_t i) {
    const struct farm_cuda_ring *ring = &work->registered->rings[work->first_ring];
    while (i >= ring->part_count) i -= ring++->part_count;
    return &ring->parts[i];
}

static uint32_t pieces_of(const struct farm_segment *segment, size_t piece_bytes) {
    return (uint32_t)((segment->bytes + piece_bytes - 1) / piece_bytes);
}

static void cut(struct farm_cuda_ring *ring, const struct farm_segment *segment, enum farm_cuda_side side,
                size_t piece_bytes) {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    for (size_t at = 0; at < segment->bytes; at += piece_bytes) {
        const size_t left = segment->bytes - at;
        ring->parts[ring->part_count++] =
            (struct farm_cuda_registration){.host = (char *)segment->header + at,
                                            .bytes = left < piece_bytes ? left : piece_bytes,
                                            .side = side,
                                            .flags = side == FARM_CUDA_UP ? flags | cudaHostRegisterReadOnly : flags};
    }
}

static enum farm_status list(struct farm_cuda_registered *registered, const struct farm_ring *of, uint32_t r,
                             struct farm_error *err) {
    struct farm_cuda_ring *ring = &registered->rings[r];
    const uint32_t count = pieces_of(&of->up, registered->piece_bytes) + pieces_of(&of->down, registered->piece_bytes);
    ring->parts = calloc(count, sizeof *ring->parts);
    if (!ring->parts) return farm_fail(err, FARM_E_LIMIT, "no memory for the list of %u pieces of a ring", count);
    cut(ring, &of->up, FARM_CUDA_UP, registered->piece_bytes);
    cut(ring, &of->down, FARM_CUDA_DOWN, registered->piece_bytes);
    return FARM_OK;
}

static void forget(struct farm_cuda_ring *ring) {
    free(ring->parts);
    *ring = (struct farm_cuda_ring){0};
}

// ---- registering and releasing ----

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
    const cudaError_t code = cudaSetDevice(work->registered->device);
    for (uint32_t i; (i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count;) {
        struct farm_cuda_registration *part = part_at(work, i);
        if (!work->sides[part->side]) continue;
        if (work->release)
            release_part(part);
        else if (code)
            part->code = code;
        else
            register_part(part);
    }
    (void)cudaGetLastError(); // what was refused is in the parts; no later call shall be blamed for it
    return NULL;
}

static void run_in_parallel(struct work work) {
    pthread_t threads[THREADS_MAX];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t started = 0;
    work.count = count_parts(work.registered, work.first_ring, work.end_ring);
    while (started + 1 < THREADS_MAX && started + 1 < (uint32_t)cores && started + 1 < work.count &&
           pthread_create(&threads[started], NULL, run, &work) == 0)
        started++;
    run(&work); // a thread that did not start is no loss
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

static void release(struct farm_cuda_registered *registered, uint32_t first_ring, uint32_t end_ring, bool up,
                    bool down) {
    run_in_parallel((struct work){.registered = registered,
                                  .first_ring = first_ring,
                                  .end_ring = end_ring,
                                  .release = true,
                                  .sides = {up, down}});
}

// Why a side of a ring cannot be used: a part was refused, or the parts do not lie side by side. NULL: it can.
static const char *refusal(const struct farm_cuda_ring *ring, enum farm_cuda_side side) {
    const struct farm_cuda_registration *before = NULL;
    for (uint32_t i = 0; i < ring->part_count; i++) {
        const struct farm_cuda_registration *part = &ring->parts[i];
        if (part->side != side) continue;
        if (part->code) return cudaGetErrorString(part->code);
        if (before && before->device + before->bytes != part->device) return "its parts do not lie side by side";
        before = part;
    }
    return NULL;
}

// A segment's addresses are those of its first part.
static void note_addresses(struct farm_cuda_ring *ring) {
    for (uint32_t i = ring->part_count; i-- > 0;) {
        const struct farm_cuda_registration *part = &ring->parts[i];
        ring->segments[part->side].host = part->host;
        ring->segments[part->side].device = part->device;
        ring->segments[part->side].bytes += part->bytes;
    }
}

static const char *name_of(enum farm_cuda_side side) {
    return side == FARM_CUDA_UP ? "up" : "down";
}

// ---- all of them, at the start ----

static void settle(struct farm_cuda_registered *registered) {
    static const char *const what[] = {"observations", "answers"};
    for (int side = FARM_CUDA_UP; side <= FARM_CUDA_DOWN; side++) {
        const char *why = NULL;
        for (uint32_t r = 0; r < registered->ring_count && !why; r++)
            why = refusal(&registered->rings[r], (enum farm_cuda_side)side);
        registered->staged[side] = why != NULL;
        if (why)
            farm_log_warn(
                "CUDA refuses to register the actors' %s segments (%s; perhaps ulimit -l): %s are copied once "
                "more, through pinned memory",
                name_of((enum farm_cuda_side)side), why, what[side]);
    }
    if (registered->staged[FARM_CUDA_UP] || registered->staged[FARM_CUDA_DOWN])
        release(registered, 0, registered->ring_count, registered->staged[FARM_CUDA_UP],
                registered->staged[FARM_CUDA_DOWN]);
}

static void say(const struct farm_cuda_registered *registered, uint32_t first_ring, uint32_t end_ring,
                uint64_t took_ns) {
    const double seconds = (double)(took_ns + 1) * 1e-9;
    size_t bytes = 0, parts = 0;
    for (uint32_t r = first_ring; r < end_ring; r++)
        for (uint32_t i = 0; i < registered->rings[r].part_count; i++) {
            const struct farm_cuda_registration *part = &registered->rings[r].parts[i];
            bytes += part->registered ? part->bytes : 0;
            parts += part->registered;
        }
    if (parts)
        farm_log_info("registered %zu pieces of memory, %.1f MB, in %.3f s (%.1f GB/s)", parts, (double)bytes / 1e6,
                      seconds, (double)bytes / 1e9 / seconds);
}

static bool served(const struct farm_lanes *lanes, uint32_t ring, uint32_t shard) {
    return farm_lanes_has(lanes, ring) && lanes->lanes[lanes->first_lane[ring]].shard == shard;
}

enum farm_status farm_cuda_register(const struct farm_lanes *lanes, uint32_t shard, int device, size_t piece_bytes,
                                    struct farm_cuda_registered *out, struct farm_error *err) {
    *out = (struct farm_cuda_registered){.device = device, .piece_bytes = piece_bytes ? piece_bytes : PIECE_BYTES};
    enum farm_status status = FARM_OK;
    out->rings = calloc(lanes->ring_count, sizeof *out->rings);
    if (!out->rings) return farm_fail(err, FARM_E_LIMIT, "no memory for the list of %u rings", lanes->ring_count);
    out->ring_count = lanes->ring_count;
    for (uint32_t r = 0; r < lanes->ring_count && !status; r++)
        if (served(lanes, r, shard)) status = list(out, &lanes->rings[r], r, err);
    if (status) {
        farm_cuda_unregister(out);
        return status;
    }
    const uint64_t start = farm_now_ns();
    run_in_parallel((struct work){.registered = out, .end_ring = out->ring_count, .sides = {true, true}});
    const uint64_t took = farm_now_ns() - start;
    settle(out);
    for (uint32_t r = 0; r < out->ring_count; r++) note_addresses(&out->rings[r]);
    say(out, 0, out->ring_count, took);
    return FARM_OK;
}

void farm_cuda_unregister(struct farm_cuda_registered *registered) {
    if (registered->rings) release(registered, 0, registered->ring_count, true, true);
    for (uint32_t r = 0; r < registered->ring_count; r++) forget(&registered->rings[r]);
    free(registered->rings);
    *registered = (struct farm_cuda_registered){0};
}

// ---- one of them, later ----

enum farm_status farm_cuda_register_ring(struct farm_cuda_registered *registered, const struct farm_lanes *lanes,
                                         uint32_t r, struct farm_error *err) {
    struct farm_cuda_ring *ring = &registered->rings[r];
    enum farm_status status = list(registered, &lanes->rings[r], r, err);
    if (status) return status;
    const uint64_t start = farm_now_ns();
    run_in_parallel((struct work){.registered = registered,
                                  .first_ring = r,
                                  .end_ring = r + 1,
                                  .sides = {!registered->staged[FARM_CUDA_UP], !registered->staged[FARM_CUDA_DOWN]}});
    for (int side = FARM_CUDA_UP; side <= FARM_CUDA_DOWN && !status; side++) {
        const char *why = registered->staged[side] ? NULL : refusal(ring, (enum farm_cuda_side)side);
        if (why)
            status = farm_fail(err, FARM_E_LIMIT,
                               "CUDA refuses to register the %s segment of actor %u (%s; perhaps ulimit -l)",
                               name_of((enum farm_cuda_side)side), r, why);
    }
    if (status) {
        farm_cuda_unregister_ring(registered, r);
        return status;
    }
    say(registered, r, r + 1, farm_now_ns() - start);
    note_addresses(ring);
    return FARM_OK;
}

void farm_cuda_unregister_ring(struct farm_cuda_registered *registered, uint32_t r) {
    release(registered, r, r + 1, true, true);
    forget(&registered->rings[r]);
}

void *farm_cuda_address(const struct farm_cuda_registered *registered, uint32_t ring, enum farm_cuda_side side,
                        const void *host) {
    assert(!registered->staged[side] && ring < registered->ring_count);
    const size_t offset = (size_t)((const char *)host - registered->rings[ring].segments[side].host);
    assert(offset < registered->rings[ring].segments[side].bytes);
    return registered->rings[ring].segments[side].device + offset;
}
