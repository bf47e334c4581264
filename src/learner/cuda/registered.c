// See registered.h.
#include "learner/cuda/registered.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

// Shared by the threads: each takes the next piece until the last.
struct work {
    struct farm_cuda_registered *registered;
    uint32_t first_ring, end_ring; // whose pieces
    uint32_t count, next;          // next: atomic
    bool release, sides[2];        // only these sides
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

static void split_segment(struct farm_cuda_ring *ring, void *start, size_t bytes, enum farm_cuda_side side,
                          size_t piece_bytes) {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    const bool read_only = side == FARM_CUDA_UP && !ring->again;
    for (size_t at = 0; at < bytes; at += piece_bytes) {
        const size_t left = bytes - at;
        ring->parts[ring->part_count++] =
            (struct farm_cuda_registration){.host = (char *)start + at,
                                            .bytes = left < piece_bytes ? left : piece_bytes,
                                            .side = side,
                                            .flags = read_only ? flags | cudaHostRegisterReadOnly : flags};
    }
}

static enum farm_status map_again(struct farm_cuda_ring *ring, const struct farm_ring *of, int fd,
                                  struct farm_error *err) {
    void *memory = mmap(NULL, of->up.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return farm_fail_errno(err, FARM_E_LIMIT, "a second mapping of %zu bytes for the GPU", of->up.bytes);
    ring->again = memory;
    ring->bytes_again = of->up.bytes;
    return FARM_OK;
}

static enum farm_status list_parts(struct farm_cuda_registered *registered, const struct farm_lanes *lanes, uint32_t r,
                                   struct farm_error *err) {
    struct farm_cuda_ring *ring = &registered->rings[r];
    const struct farm_ring *of = &lanes->rings[r];
    if (registered->again) {
        const enum farm_status status = map_again(ring, of, lanes->up_writable[r], err);
        if (status) return status;
    }
    const uint32_t count = pieces_of(&of->up, registered->piece_bytes) + pieces_of(&of->down, registered->piece_bytes);
    void *up = ring->again ? ring->again : (void *)of->up.header;
    ring->parts = calloc(count, sizeof *ring->parts);
    if (!ring->parts) return farm_fail(err, FARM_E_LIMIT, "no memory for the list of %u pieces of a ring", count);
    split_segment(ring, up, of->up.bytes, FARM_CUDA_UP, registered->piece_bytes);
    split_segment(ring, of->down.header, of->down.bytes, FARM_CUDA_DOWN, registered->piece_bytes);
    return FARM_OK;
}

static void unmap_again(struct farm_cuda_ring *ring) {
    if (ring->again) munmap(ring->again, ring->bytes_again);
    ring->again = NULL;
}

// The ring's pieces must be released.
static void forget_ring(struct farm_cuda_ring *ring) {
    unmap_again(ring);
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

static void *run_work(void *argument) {
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
    (void)cudaGetLastError(); // the parts hold the refusals; a later call must not return them
    return NULL;
}

static void run_in_parallel(struct work work) {
    pthread_t threads[THREADS_MAX];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t started = 0;
    work.count = count_parts(work.registered, work.first_ring, work.end_ring);
    while (started + 1 < THREADS_MAX && started + 1 < (uint32_t)cores && started + 1 < work.count &&
           pthread_create(&threads[started], NULL, run_work, &work) == 0)
        started++;
    run_work(&work); // even if no thread has started
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

static void release_parts(struct farm_cuda_registered *registered, uint32_t first_ring, uint32_t end_ring, bool up,
                          bool down) {
    run_in_parallel((struct work){.registered = registered,
                                  .first_ring = first_ring,
                                  .end_ring = end_ring,
                                  .release = true,
                                  .sides = {up, down}});
}

// Whether a side of a ring is unusable, and why: CUDA refused a part, or the parts are not contiguous.
static bool is_refused(const struct farm_cuda_ring *ring, enum farm_cuda_side side, char *why, size_t bytes) {
    const struct farm_cuda_registration *before = NULL;
    for (uint32_t i = 0; i < ring->part_count; i++) {
        const struct farm_cuda_registration *part = &ring->parts[i];
        if (part->side != side) continue;
        if (part->code) {
            const char *hint = part->code == cudaErrorNotSupported ? "" : "; perhaps ulimit -l";
            snprintf(why, bytes, "%s%s", cudaGetErrorString(part->code), hint);
            return true;
        }
        if (before && before->device + before->bytes != part->device) {
            snprintf(why, bytes, "its parts are not contiguous on the device");
            return true;
        }
        before = part;
    }
    return false;
}

// Pinned memory stays pinned whatever the mapping allows. From here on only the GPU could write through it.
static void write_protect(const struct farm_cuda_ring *ring) {
    if (ring->again && mprotect(ring->again, ring->bytes_again, PROT_READ) < 0)
        farm_log_warn("could not write-protect the GPU's mapping of an actor's memory: %s", strerror(errno));
}

// A segment's device address is its first part's.
static void record_addresses(struct farm_cuda_ring *ring, const struct farm_ring *of) {
    for (uint32_t i = ring->part_count; i-- > 0;) ring->segments[ring->parts[i].side].device = ring->parts[i].device;
    ring->segments[FARM_CUDA_UP].host = (const char *)of->up.header;
    ring->segments[FARM_CUDA_UP].bytes = of->up.bytes;
    ring->segments[FARM_CUDA_DOWN].host = (const char *)of->down.header;
    ring->segments[FARM_CUDA_DOWN].bytes = of->down.bytes;
}

static const char *side_name(enum farm_cuda_side side) {
    return side == FARM_CUDA_UP ? "up" : "down";
}

// ---- all rings, at the start ----

static void bounce_refused_sides(struct farm_cuda_registered *registered) {
    static const char *const what[] = {"observations", "answers"};
    for (int side = FARM_CUDA_UP; side <= FARM_CUDA_DOWN; side++) {
        char why[160];
        for (uint32_t r = 0; r < registered->ring_count && !registered->bounced[side]; r++)
            registered->bounced[side] = is_refused(&registered->rings[r], (enum farm_cuda_side)side, why, sizeof why);
        if (registered->bounced[side])
            farm_log_warn("CUDA refuses to register the actors' %s segments (%s): %s are copied once more, through "
                          "pinned memory",
                          side_name((enum farm_cuda_side)side), why, what[side]);
    }
    if (registered->bounced[FARM_CUDA_UP] || registered->bounced[FARM_CUDA_DOWN])
        release_parts(registered, 0, registered->ring_count, registered->bounced[FARM_CUDA_UP],
                      registered->bounced[FARM_CUDA_DOWN]);
    if (registered->bounced[FARM_CUDA_UP]) registered->again = false;
    for (uint32_t r = 0; r < registered->ring_count && !registered->again; r++) unmap_again(&registered->rings[r]);
}

static void log_registration(const struct farm_cuda_registered *registered, uint32_t first_ring, uint32_t end_ring,
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
        farm_log_info("registered %zu pieces of memory, %.1f MB, in %.3f s (%.1f GB/s)%s", parts, (double)bytes / 1e6,
                      seconds, (double)bytes / 1e9 / seconds,
                      registered->again
                          ? "; observations through a second mapping: this device cannot pin read-only memory"
                          : "");
}

// Whether the device pins memory that is mapped read-only: tries one page of a ring. A device that does not returns
// cudaErrorNotSupported, or cudaErrorInvalidValue for the flag.
static bool pins_read_only(const struct farm_ring *ring) {
    void *page = ring->up.header;
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    const cudaError_t code = cudaHostRegister(page, (size_t)sysconf(_SC_PAGESIZE), flags);
    if (!code) (void)cudaHostUnregister(page);
    (void)cudaGetLastError();                                              // clears the trial's
    return code != cudaErrorNotSupported && code != cudaErrorInvalidValue; // other errors have another cause
}

// Whether `up` needs a second mapping for the device, and all descriptors for it are lent.
static bool map_up_again(const struct farm_lanes *lanes, uint32_t shard) {
    const struct farm_ring *first = NULL;
    for (uint32_t r = 0; r < lanes->ring_count; r++) {
        if (!farm_lanes_serves(lanes, r, shard)) continue;
        if (lanes->up_writable[r] < 0) return false;
        if (!first) first = &lanes->rings[r];
    }
    return first && !pins_read_only(first);
}

enum farm_status farm_cuda_register(const struct farm_lanes *lanes, uint32_t shard, int device, size_t piece_bytes,
                                    struct farm_cuda_registered *out, struct farm_error *err) {
    *out = (struct farm_cuda_registered){.device = device, .piece_bytes = piece_bytes ? piece_bytes : PIECE_BYTES};
    enum farm_status status = FARM_OK;
    out->rings = calloc(lanes->ring_count, sizeof *out->rings);
    if (!out->rings) return farm_fail(err, FARM_E_LIMIT, "no memory for the list of %u rings", lanes->ring_count);
    out->ring_count = lanes->ring_count;
    out->again = map_up_again(lanes, shard);
    for (uint32_t r = 0; r < lanes->ring_count && !status; r++)
        if (farm_lanes_serves(lanes, r, shard)) status = list_parts(out, lanes, r, err);
    if (status) {
        farm_cuda_unregister(out);
        return status;
    }
    const uint64_t start = farm_now_ns();
    run_in_parallel((struct work){.registered = out, .end_ring = out->ring_count, .sides = {true, true}});
    const uint64_t took = farm_now_ns() - start;
    bounce_refused_sides(out);
    for (uint32_t r = 0; r < out->ring_count; r++) {
        write_protect(&out->rings[r]);
        if (out->rings[r].parts) record_addresses(&out->rings[r], &lanes->rings[r]);
    }
    log_registration(out, 0, out->ring_count, took);
    return FARM_OK;
}

void farm_cuda_unregister(struct farm_cuda_registered *registered) {
    if (registered->rings) release_parts(registered, 0, registered->ring_count, true, true);
    for (uint32_t r = 0; r < registered->ring_count; r++) forget_ring(&registered->rings[r]);
    free(registered->rings);
    *registered = (struct farm_cuda_registered){0};
}

// ---- one ring, later ----

enum farm_status farm_cuda_register_ring(struct farm_cuda_registered *registered, const struct farm_lanes *lanes,
                                         uint32_t r, struct farm_error *err) {
    struct farm_cuda_ring *ring = &registered->rings[r];
    if (registered->again && lanes->up_writable[r] < 0)
        return farm_fail(err, FARM_E_INVALID, "actor %u: the GPU needs a writable descriptor of its segment", r);
    enum farm_status status = list_parts(registered, lanes, r, err);
    if (status) {
        forget_ring(ring);
        return status;
    }
    const uint64_t start = farm_now_ns();
    run_in_parallel((struct work){.registered = registered,
                                  .first_ring = r,
                                  .end_ring = r + 1,
                                  .sides = {!registered->bounced[FARM_CUDA_UP], !registered->bounced[FARM_CUDA_DOWN]}});
    for (int side = FARM_CUDA_UP; side <= FARM_CUDA_DOWN && !status; side++) {
        char why[160];
        if (!registered->bounced[side] && is_refused(ring, (enum farm_cuda_side)side, why, sizeof why))
            status = farm_fail(err, FARM_E_LIMIT, "CUDA refuses to register the %s segment of actor %u (%s)",
                               side_name((enum farm_cuda_side)side), r, why);
    }
    if (status) {
        farm_cuda_unregister_ring(registered, r);
        return status;
    }
    log_registration(registered, r, r + 1, farm_now_ns() - start);
    write_protect(ring);
    record_addresses(ring, &lanes->rings[r]);
    return FARM_OK;
}

void farm_cuda_unregister_ring(struct farm_cuda_registered *registered, uint32_t r) {
    release_parts(registered, r, r + 1, true, true);
    forget_ring(&registered->rings[r]);
}

void *farm_cuda_address(const struct farm_cuda_registered *registered, uint32_t ring, enum farm_cuda_side side,
                        const void *host) {
    assert(!registered->bounced[side] && ring < registered->ring_count);
    const size_t offset = (size_t)((const char *)host - registered->rings[ring].segments[side].host);
    assert(offset < registered->rings[ring].segments[side].bytes);
    return registered->rings[ring].segments[side].device + offset;
}
