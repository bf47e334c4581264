// See place.h. mbind(2), move_pages(2), madvise(2), numa(7), proc(5).
#include "shm/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bitmap.h"
#include "base/file.h"

enum { NODES_MAX = 1024, PAGES_AT_ONCE = 4096, LINE_BYTES = 4096, SMALL_BYTES = 4096, RESERVE_BYTES = 256 << 20 };
enum { CPULIST_BYTES = 5 * FARM_BITMAP_BITS / 2 }; // the longest: every second CPU, with four digits and a comma

void *farm_place_map(int fd, int protection, size_t bytes, size_t align) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    // Reserve address space first, then map at an aligned place in it.
    uint8_t *reserved = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return NULL;
    uint8_t *start = (uint8_t *)(((uintptr_t)reserved + align - 1) & ~(uintptr_t)(align - 1));
    if (mmap(start, bytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int saved = errno;
        munmap(reserved, bytes + align);
        errno = saved;
        return NULL;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *end = (uint8_t *)(((uintptr_t)start + bytes + page - 1) & ~(uintptr_t)(page - 1));
    if (start > reserved) munmap(reserved, (size_t)(start - reserved));
    if (reserved + bytes + align > end) munmap(end, (size_t)(reserved + bytes + align - end));
    return start;
}

// Whether the kernel lists NUMA nodes, but not this one.
static bool node_is_missing(int node) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
    return access("/sys/devices/system/node/online", F_OK) == 0 && access(path, F_OK) != 0;
}

enum farm_status farm_place_bind(void *start, size_t bytes, int node, bool strict, bool *refused,
                                 struct farm_error *err) {
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    const size_t bits = 8 * sizeof nodes[0];
    *refused = false;
    if (node < 0 || node >= NODES_MAX) return farm_fail(err, FARM_E_INVALID, "NUMA node %d does not exist", node);
    nodes[(size_t)node / bits] = 1ul << ((size_t)node % bits);
    if (mbind(start, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, nodes, NODES_MAX + 1, 0) == 0) return FARM_OK;
    int error = errno;
    if ((error == EPERM || error == ENOSYS) && !node_is_missing(node)) {
        *refused = true;
        return FARM_OK;
    }
    errno = error;
    if (error == ENOMEM)
        return farm_fail_errno(err, FARM_E_LIMIT, "cannot bind %zu bytes to NUMA node %d", bytes, node);
    return farm_fail_errno(err, error == EINVAL || error == EPERM || error == ENOSYS ? FARM_E_LIMIT : FARM_E_IO,
                           "cannot bind %zu bytes to NUMA node %d: it has no memory, does not exist, or cpuset.mems "
                           "(Mems_allowed_list in /proc/self/status) leaves it out",
                           bytes, node);
}

// ---- populate ----

struct populate {
    uint8_t *start; // NULL: reserves only
    size_t bytes;
    int fd;
    int error; // errno, 0: all pages are there
};

static int reserve(int fd, size_t bytes) {
    for (size_t at = 0, some; at < bytes;) {
        some = bytes - at < RESERVE_BYTES ? bytes - at : RESERVE_BYTES; // a signal undoes one call
        if (fallocate(fd, 0, (off_t)at, (off_t)some) == 0)
            at += some;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

static void *populate(void *argument) {
    struct populate *work = argument;
    work->error = work->start ? 0 : reserve(work->fd, work->bytes);
    if (!work->start) return NULL;
    if (madvise(work->start, work->bytes, MADV_POPULATE_WRITE) == 0) return NULL;
    work->error = errno;
    if (errno != EINVAL && errno != ENOSYS) return NULL;
    // Before Linux 5.14. Allocate a file first, so that a lack of memory is an error and not a SIGBUS.
    work->error = work->fd < 0 ? 0 : reserve(work->fd, work->bytes);
    if (work->error && work->error != EOPNOTSUPP && work->error != ENOSYS) return NULL;
    // An atomic write that changes nothing.
    for (size_t at = 0; at < work->bytes; at += SMALL_BYTES) __atomic_fetch_or(work->start + at, 0, __ATOMIC_RELAXED);
    work->error = 0;
    return NULL;
}

// Work for a thread on a node's CPUs; without them it does nothing.
struct node_work {
    struct populate *work;
    struct farm_bitmap cpus;
    bool pinned;
};

static void *populate_pinned(void *argument) {
    struct node_work *on_node = argument;
    on_node->pinned = farm_bitmap_pin(&on_node->cpus, NULL) == FARM_OK;
    return on_node->pinned ? populate(on_node->work) : NULL;
}

// False if the node has no known CPUs or no thread can be pinned to them: then nothing is touched.
static bool populate_on(int node, struct populate *work) {
    char list[CPULIST_BYTES];
    struct node_work on_node = {.work = work};
    pthread_t thread;
    if (!farm_file_line(list, sizeof list, "/sys/devices/system/node/node%d/cpulist", node)) return false;
    if (farm_bitmap_parse(list, &on_node.cpus, NULL) || !farm_bitmap_count(&on_node.cpus)) return false;
    if (pthread_create(&thread, NULL, populate_pinned, &on_node)) return false;
    return pthread_join(thread, NULL) == 0 && on_node.pinned;
}

static enum farm_status populate_from(int touch_node, struct populate *work, struct farm_error *err) {
    if (touch_node < 0 || !populate_on(touch_node, work)) populate(work);
    if (!work->error) return FARM_OK;
    errno = work->error;
    const bool unsupported = errno == EOPNOTSUPP || errno == ENOSYS;
    return farm_fail_errno(err, unsupported ? FARM_E_UNSUPPORTED : FARM_E_LIMIT,
                           "cannot get %zu bytes of memory page by page", work->bytes);
}

enum farm_status farm_place_populate(void *start, size_t bytes, int fd, int touch_node, struct farm_error *err) {
    return populate_from(touch_node, &(struct populate){.start = start, .bytes = bytes, .fd = fd}, err);
}

enum farm_status farm_place_reserve(size_t bytes, int fd, int touch_node, struct farm_error *err) {
    return populate_from(touch_node, &(struct populate){.bytes = bytes, .fd = fd}, err);
}

// ---- collapse ----

enum { COLLAPSE = 25 }; // MADV_COLLAPSE, which older headers lack

size_t farm_place_collapse(void *start, size_t bytes) {
    const size_t whole = bytes / FARM_PLACE_HUGE_BYTES * FARM_PLACE_HUGE_BYTES;
    // The kernel refuses an empty block; the page decides on the block's node.
    for (size_t at = 0; at < whole; at += FARM_PLACE_HUGE_BYTES)
        if (madvise((uint8_t *)start + at, SMALL_BYTES, MADV_POPULATE_WRITE)) return 0;
    // One call, because each drains per-CPU lists of pages on all CPUs, one call after another.
    return whole && madvise(start, whole, COLLAPSE) == 0 ? whole : 0;
}

// ---- verify ----

static bool count_by_move_pages(const uint8_t *start, size_t bytes, size_t page_bytes, int node, size_t *elsewhere) {
    void **pages = malloc(PAGES_AT_ONCE * sizeof *pages);
    int *nodes = malloc(PAGES_AT_ONCE * sizeof *nodes);
    bool known = pages && nodes;
    size_t misplaced = 0;
    for (size_t at = 0; known && at < bytes;) {
        unsigned long count = 0;
        for (; count < PAGES_AT_ONCE && at < bytes; at += page_bytes) {
            nodes[count] = -ENOENT;
            pages[count++] = (void *)(uintptr_t)(start + at);
        }
        known = move_pages(0, count, pages, NULL, nodes, 0) == 0;
        for (unsigned long i = 0; i < count; i++) misplaced += node < 0 ? nodes[i] < 0 : nodes[i] != node;
    }
    free(pages);
    free(nodes);
    if (known) *elsewhere = misplaced * (page_bytes / SMALL_BYTES);
    return known;
}

// Adds up the pages on `node` (-1: on any) in "N0=12 N1=3" of a line of numa_maps.
static void count_pages(char *line, int node, size_t *right, size_t *bytes_a_page) {
    *right = 0;
    *bytes_a_page = SMALL_BYTES;
    for (char *word; (word = strsep(&line, " \n"));) {
        int on;
        size_t count;
        if (sscanf(word, "N%d=%zu", &on, &count) == 2 && (node < 0 || on == node)) *right += count;
        if (sscanf(word, "kernelpagesize_kB=%zu", &count) == 1) *bytes_a_page = count * 1024;
    }
}

static bool count_by_numa_maps(const void *start, size_t bytes, int node, size_t *elsewhere) {
    char line[LINE_BYTES];
    bool known = false;
    FILE *file = fopen("/proc/self/numa_maps", "re");
    if (!file) return false;
    while (!known && fgets(line, sizeof line, file)) {
        if (strtoull(line, NULL, 16) != (uintptr_t)start) continue;
        size_t right, bytes_a_page;
        count_pages(line, node, &right, &bytes_a_page);
        size_t right_bytes = right * bytes_a_page;
        *elsewhere = right_bytes < bytes ? (bytes - right_bytes) / SMALL_BYTES : 0;
        known = true;
    }
    fclose(file);
    return known;
}

bool farm_place_verify(const void *start, size_t bytes, size_t page_bytes, int node, size_t *elsewhere) {
    return count_by_move_pages(start, bytes, page_bytes, node, elsewhere) ||
           count_by_numa_maps(start, bytes, node, elsewhere);
}

size_t farm_place_transparent_bytes(const void *start) {
    char line[LINE_BYTES];
    bool ours = false, done = false;
    size_t kib = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return 0;
    while (!done && fgets(line, sizeof line, file)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
            done = ours;
            ours = from == (uintptr_t)start;
        } else if (ours && (sscanf(line, "AnonHugePages: %zu kB", &kib) == 1 ||
                            sscanf(line, "ShmemPmdMapped: %zu kB", &kib) == 1)) {
            done = kib > 0; // a mapping has one kind
        }
    }
    fclose(file);
    return kib * 1024;
}
