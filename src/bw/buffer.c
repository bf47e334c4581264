// See buffer.h. mmap(2), madvise(2), proc(5), Documentation/admin-guide/mm/hugetlbpage.rst of the Linux sources.
#include "bw/buffer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/time.h"
#include "shm/limits.h"
#include "shm/place.h"

enum { LINE_BYTES = 512, HUGETLB_SHIFT = 26, LOG_2M = 21, LOG_1G = 30 };

static size_t page_bytes_of(enum farm_bw_pages pages) {
    if (pages == FARM_BW_PAGES_1G) return (size_t)1 << LOG_1G;
    return pages == FARM_BW_PAGES_SMALL ? (size_t)sysconf(_SC_PAGESIZE) : (size_t)1 << LOG_2M;
}

static bool is_pool(enum farm_bw_pages pages) {
    return pages == FARM_BW_PAGES_2M || pages == FARM_BW_PAGES_1G;
}

bool farm_bw_pages_available(const char *root, enum farm_bw_pages pages, char *reason, size_t reason_bytes) {
    char line[LINE_BYTES];
    reason[0] = 0;
    if (is_pool(pages)) {
        const int64_t bytes = farm_limits_huge_pool_bytes(root, page_bytes_of(pages));
        if (bytes > 0) return true;
        const size_t kib = page_bytes_of(pages) / 1024;
        if (bytes < 0)
            snprintf(reason, reason_bytes, "this kernel has no pages of %s", farm_bw_pages_name(pages));
        else
            snprintf(
                reason, reason_bytes,
                "the pool has no free page: as root, echo N > /sys/kernel/mm/hugepages/hugepages-%zukB/nr_hugepages",
                kib);
        return false;
    }
    if (pages != FARM_BW_PAGES_TRANSPARENT) return true;
    if (farm_file_line(line, sizeof line, "%s/sys/kernel/mm/transparent_hugepage/enabled", farm_file_root(root)))
        return true;
    snprintf(reason, reason_bytes, "this kernel has no transparent huge pages");
    return false;
}

__attribute__((format(printf, 2, 3))) static void note(struct farm_bw_buffer *buffer, const char *format, ...) {
    const size_t used = strlen(buffer->note);
    va_list args;
    va_start(args, format);
    if (used + 1 < sizeof buffer->note) vsnprintf(buffer->note + used, sizeof buffer->note - used, format, args);
    va_end(args);
}

// ---- mapping ----

// The last page stays inaccessible, so that the kernel merges no other mapping with it and smaps reports it alone.
static void *map_ordinary(struct farm_bw_buffer *buffer) {
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    buffer->mapped_bytes = buffer->bytes + guard;
    char *start = farm_place_map(-1, PROT_READ | PROT_WRITE, buffer->mapped_bytes, FARM_PLACE_HUGE_BYTES);
    if (!start) return NULL;
    if (mprotect(start + buffer->bytes, guard, PROT_NONE) ||
        madvise(start, buffer->bytes, buffer->pages == FARM_BW_PAGES_SMALL ? MADV_NOHUGEPAGE : MADV_HUGEPAGE))
        note(buffer, "The kernel does not let this memory choose a page size. ");
    return start;
}

static void *map_pool(struct farm_bw_buffer *buffer) {
    const int log = buffer->pages == FARM_BW_PAGES_1G ? LOG_1G : LOG_2M;
    buffer->mapped_bytes = (buffer->bytes + buffer->page_bytes - 1) / buffer->page_bytes * buffer->page_bytes;
    void *start = mmap(NULL, buffer->mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | log << HUGETLB_SHIFT, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static bool is_over(uint64_t until_ns) {
    return until_ns && farm_now_ns() >= until_ns;
}

// Piece by piece until the time is over; the pages that are missing then become inaccessible.
static enum farm_status populate(struct farm_bw_buffer *buffer, int toucher, uint64_t until_ns,
                                 struct farm_error *err) {
    const size_t least = buffer->page_bytes > FARM_BW_BUFFER_PIECE ? buffer->page_bytes : FARM_BW_BUFFER_PIECE;
    const size_t wanted = buffer->bytes, piece = until_ns && least < wanted ? least : wanted;
    char *start = buffer->start;
    enum farm_status status = FARM_OK;
    buffer->bytes = 0;
    do {
        const size_t left = wanted - buffer->bytes, bytes = left < piece ? left : piece;
        status = farm_place_populate(start + buffer->bytes, bytes, -1, toucher, err);
        buffer->bytes += bytes;
    } while (!status && buffer->bytes < wanted && !is_over(until_ns));
    if (!status && buffer->bytes < wanted && !is_pool(buffer->pages) &&
        mprotect(start + buffer->bytes, wanted - buffer->bytes, PROT_NONE))
        status = farm_fail_errno(err, FARM_E_LIMIT, "mprotect");
    return status;
}

static enum farm_status bind_and_fill(struct farm_bw_buffer *buffer, uint64_t until_ns, struct farm_error *err) {
    bool refused = false;
    enum farm_status status = FARM_OK;
    buffer->bound = true;
    if (buffer->node >= 0) {
        status = farm_place_bind(buffer->start, buffer->bytes, buffer->node, true, &refused, err);
        buffer->bound = !refused;
    }
    if (status) return status;
    if (refused)
        note(buffer, "No right to bind memory to node %d (mbind): first touch decides where it is. ", buffer->node);
    const int toucher = refused ? buffer->node : -1;
    return populate(buffer, toucher, until_ns, err);
}

static void collect_huge_pages(struct farm_bw_buffer *buffer, uint64_t until_ns) {
    buffer->huge_bytes = is_pool(buffer->pages) ? buffer->bytes : 0;
    if (buffer->pages != FARM_BW_PAGES_TRANSPARENT) return;
    buffer->huge_bytes = farm_place_transparent_bytes(buffer->start);
    const size_t could_be = buffer->bytes / FARM_PLACE_HUGE_BYTES * FARM_PLACE_HUGE_BYTES;
    if (buffer->huge_bytes < could_be) {
        const size_t piece = until_ns ? FARM_BW_BUFFER_PIECE : could_be;
        for (size_t at = 0; at < could_be && !is_over(until_ns); at += piece)
            farm_place_collapse((char *)buffer->start + at, could_be - at < piece ? could_be - at : piece);
        buffer->huge_bytes = farm_place_transparent_bytes(buffer->start);
    }
}

static void verify_placement(struct farm_bw_buffer *buffer) {
    size_t elsewhere = 0;
    const size_t step = is_pool(buffer->pages) ? buffer->page_bytes : (size_t)sysconf(_SC_PAGESIZE);
    const bool known = farm_place_verify(buffer->start, buffer->bytes, step, buffer->node, &elsewhere);
    buffer->placed = known && elsewhere == 0;
    if (!known)
        note(buffer, "The node of the pages is unknown: the kernel refuses move_pages and numa_maps. ");
    else if (elsewhere)
        note(buffer, "%zu pages are elsewhere than on node %d. ", elsewhere, buffer->node);
}

// ---- opening ----

static enum farm_status open_with_pages(const char *root, size_t bytes, int node, enum farm_bw_pages pages,
                                        uint64_t until_ns, struct farm_bw_buffer *buffer, struct farm_error *err) {
    *buffer = (struct farm_bw_buffer){.bytes = bytes, .node = node, .pages = pages, .page_bytes = page_bytes_of(pages)};
    char reason[256];
    if (!farm_bw_pages_available(root, pages, reason, sizeof reason))
        return farm_fail(err, FARM_E_UNSUPPORTED, "pages of %s: %s", farm_bw_pages_name(pages), reason);
    if (is_pool(pages)) {
        const int64_t pool = farm_limits_huge_pool_bytes(root, page_bytes_of(pages));
        if ((uint64_t)pool < bytes)
            return farm_fail(err, FARM_E_LIMIT, "%zu bytes in pages of %s: the pool has %" PRId64 " free", bytes,
                             farm_bw_pages_name(pages), pool);
    } else {
        enum farm_status status = farm_limits_check_memory(root, bytes, node, err);
        if (status) return status;
    }
    buffer->start = is_pool(pages) ? map_pool(buffer) : map_ordinary(buffer);
    if (!buffer->start) {
        buffer->mapped_bytes = 0;
        return farm_fail_errno(err, FARM_E_LIMIT, "cannot map %zu bytes in pages of %s", bytes,
                               farm_bw_pages_name(pages));
    }
    enum farm_status status = bind_and_fill(buffer, until_ns, err);
    if (status) {
        farm_bw_buffer_close(buffer);
        return status;
    }
    collect_huge_pages(buffer, until_ns);
    verify_placement(buffer);
    return FARM_OK;
}

enum farm_status farm_bw_buffer_open(const char *root, size_t bytes, int node, enum farm_bw_pages pages,
                                     uint64_t until_ns, struct farm_bw_buffer *buffer, struct farm_error *err) {
    *buffer = (struct farm_bw_buffer){0};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0) return farm_fail(err, FARM_E_INVALID, "an empty buffer");
    if (bytes > SIZE_MAX / 4) return farm_fail(err, FARM_E_LIMIT, "%zu bytes: more than any machine has", bytes);
    bytes = (bytes + page - 1) / page * page;
    if (pages != FARM_BW_PAGES_AUTO) return open_with_pages(root, bytes, node, pages, until_ns, buffer, err);
    const int64_t pool = farm_limits_huge_pool_bytes(root, page_bytes_of(FARM_BW_PAGES_2M));
    if (pool > 0 && (uint64_t)pool >= bytes &&
        !open_with_pages(root, bytes, node, FARM_BW_PAGES_2M, until_ns, buffer, NULL))
        return FARM_OK;
    enum farm_status status = open_with_pages(root, bytes, node, FARM_BW_PAGES_TRANSPARENT, until_ns, buffer, err);
    if (status == FARM_E_UNSUPPORTED)
        return open_with_pages(root, bytes, node, FARM_BW_PAGES_SMALL, until_ns, buffer, err);
    if (!status && buffer->huge_bytes < buffer->bytes / FARM_PLACE_HUGE_BYTES * FARM_PLACE_HUGE_BYTES / 2) {
        buffer->pages = FARM_BW_PAGES_SMALL;
        buffer->page_bytes = page;
        note(buffer, "No huge pages: the pool is empty and the kernel collected no transparent ones. ");
    }
    return status;
}

void farm_bw_buffer_close(struct farm_bw_buffer *buffer) {
    if (buffer->start) munmap(buffer->start, buffer->mapped_bytes);
    *buffer = (struct farm_bw_buffer){0};
}

void farm_bw_buffer_add_conditions(const struct farm_bw_buffer *buffer, struct farm_bw_conditions *conditions) {
    conditions->bound &= buffer->bound;
    conditions->placed &= buffer->placed;
    // The kinds are in the order of their sizes, AUTO before all.
    if (conditions->pages == FARM_BW_PAGES_AUTO || buffer->pages < conditions->pages) conditions->pages = buffer->pages;
    farm_bw_conditions_note(conditions, "%s", buffer->note);
}

// ---- CPUs and sizes ----

static const uint64_t ARRAY_BYTES_LEAST = 64u << 20;

int farm_bw_cpus(const struct farm_machine *machine, int node, int *cpus, int most) {
    struct farm_bitmap cores = {0};
    int count = 0;
    for (int i = 0; i < machine->cpu_count && count < most; i++) {
        const struct farm_cpu *cpu = &machine->cpu[i];
        if (!farm_bitmap_has(&machine->allowed, cpu->cpu) || (node >= 0 && cpu->node != node)) continue;
        if (cpu->core >= 0 && farm_bitmap_has(&cores, cpu->core)) continue;
        if (cpu->core >= 0 && cpu->core < FARM_BITMAP_BITS) farm_bitmap_set(&cores, cpu->core);
        cpus[count++] = cpu->cpu;
    }
    return count;
}

int farm_bw_node_of(const struct farm_machine *machine, int cpu) {
    const struct farm_cpu *entry = farm_machine_cpu(machine, cpu);
    return entry ? farm_machine_memory_node(machine, entry->node) : -1;
}

uint64_t farm_bw_cache_bytes(const struct farm_machine *machine, const int *cpus, int cpu_count) {
    struct farm_bitmap caches = {0};
    for (int i = 0; i < cpu_count; i++) {
        const struct farm_cpu *cpu = farm_machine_cpu(machine, cpus[i]);
        if (cpu && cpu->l3 >= 0 && cpu->l3 < FARM_BITMAP_BITS) farm_bitmap_set(&caches, cpu->l3);
    }
    const int found = farm_bitmap_count(&caches);
    return machine->l3_bytes * (uint64_t)(found ? found : 1);
}

uint64_t farm_bw_array_bytes(const struct farm_bw_setup *setup, const int *cpus, int cpu_count) {
    uint64_t bytes = FARM_BW_CACHES * farm_bw_cache_bytes(setup->machine, cpus, cpu_count);
    if (bytes < ARRAY_BYTES_LEAST) bytes = ARRAY_BYTES_LEAST;
    const uint64_t room = farm_limits_memory_available_bytes(setup->root) / 2 / FARM_BW_ARRAYS_MAX;
    if (bytes > room) bytes = room;
    const uint64_t granule = (uint64_t)(cpu_count > 0 ? cpu_count : 1) * FARM_BANDWIDTH_LINE;
    return bytes / granule * granule;
}
