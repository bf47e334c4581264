// See heap.h. jemalloc(3) 5.x: "arenas.create", "arena.<i>.destroy", extent_hooks_t.
#include "shm/heap.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/place.h"

// The part of jemalloc's interface used here, declared weak: NULL if the executable does not link it.
struct extent_hooks {
    void *(*alloc)(struct extent_hooks *hooks, void *wanted, size_t bytes, size_t align, bool *zero, bool *commit,
                   unsigned arena);
    bool (*dalloc)(struct extent_hooks *hooks, void *start, size_t bytes, bool committed, unsigned arena);
    void (*destroy)(struct extent_hooks *hooks, void *start, size_t bytes, bool committed, unsigned arena);
    void *commit, *decommit, *purge_lazy, *purge_forced; // functions; NULL: not offered
    bool (*split)(struct extent_hooks *hooks, void *start, size_t bytes, size_t first, size_t second, bool committed,
                  unsigned arena);
    bool (*merge)(struct extent_hooks *hooks, void *first, size_t first_bytes, void *second, size_t second_bytes,
                  bool committed, unsigned arena);
};
int mallctl(const char *name, void *old, size_t *old_bytes, void *new_value, size_t new_bytes) __attribute__((weak));
void *mallocx(size_t bytes, int flags) __attribute__((weak));
void sdallocx(void *block, size_t bytes, int flags) __attribute__((weak));

struct farm_heap {
    struct extent_hooks hooks; // first: jemalloc hands this address back to the hooks
    int node;
    unsigned arena;
    bool jemalloc, bound;
};

// Maps untouched memory on the heap's node, from 2 MiB on in transparent huge pages. Errors of binding do not matter.
static void *map_bound(const struct farm_heap *heap, size_t bytes, size_t align) {
    size_t page = bytes < FARM_PLACE_HUGE_BYTES ? (size_t)sysconf(_SC_PAGESIZE) : FARM_PLACE_HUGE_BYTES;
    bool refused;
    void *start = farm_place_map(-1, PROT_READ | PROT_WRITE, bytes, align > page ? align : page);
    if (start && bytes >= FARM_PLACE_HUGE_BYTES) (void)madvise(start, bytes, MADV_HUGEPAGE);
    if (start && heap->bound) (void)farm_place_bind(start, bytes, heap->node, false, &refused, NULL);
    return start;
}

static void *hook_alloc(struct extent_hooks *hooks, void *wanted, size_t bytes, size_t align, bool *zero, bool *commit,
                        unsigned arena) {
    if (wanted) return NULL; // no growing in place
    void *start = map_bound((struct farm_heap *)hooks, bytes, align);
    if (start) *zero = *commit = true;
    return start;
}

static bool hook_dalloc(struct extent_hooks *hooks, void *start, size_t bytes, bool committed, unsigned arena) {
    return munmap(start, bytes) != 0;
}

static void hook_destroy(struct extent_hooks *hooks, void *start, size_t bytes, bool committed, unsigned arena) {
    munmap(start, bytes);
}

// Mappings can be split and merged freely: false means success.
static bool hook_split(struct extent_hooks *hooks, void *start, size_t bytes, size_t first, size_t second,
                       bool committed, unsigned arena) {
    return false;
}
static bool hook_merge(struct extent_hooks *hooks, void *first, size_t first_bytes, void *second, size_t second_bytes,
                       bool committed, unsigned arena) {
    return false;
}

// MALLOCX_ALIGN, MALLOCX_TCACHE_NONE and MALLOCX_ARENA of jemalloc 5: a thread's cache would mix nodes.
static int flags_for(const struct farm_heap *heap, size_t align) {
    return __builtin_ctzll(align) | 1 << 8 | (int)((heap->arena + 1) << 20);
}

// Tries on a page whether this process may bind memory to the node.
static enum farm_status try_bind(struct farm_heap *heap, struct farm_error *err) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool refused = true;
    void *probe = farm_place_map(-1, PROT_READ | PROT_WRITE, page, page);
    if (!probe) return farm_fail_errno(err, FARM_E_LIMIT, "no address space left");
    enum farm_status status = farm_place_bind(probe, page, heap->node, false, &refused, err);
    munmap(probe, page);
    heap->bound = !status && !refused;
    return status;
}

enum farm_status farm_heap_open(int node, struct farm_heap **out, struct farm_error *err) {
    *out = NULL;
    struct farm_heap *heap = calloc(1, sizeof *heap);
    if (!heap) return farm_fail(err, FARM_E_LIMIT, "no memory for the heap of node %d", node);
    heap->node = node;
    heap->hooks = (struct extent_hooks){
        .alloc = hook_alloc, .dalloc = hook_dalloc, .destroy = hook_destroy, .split = hook_split, .merge = hook_merge};
    enum farm_status status = node >= 0 ? try_bind(heap, err) : FARM_OK;
    if (!status && mallctl && mallocx && sdallocx) {
        struct extent_hooks *hooks = &heap->hooks;
        size_t bytes = sizeof heap->arena;
        int error = mallctl("arenas.create", &heap->arena, &bytes, (void *)&hooks, sizeof hooks);
        heap->jemalloc = error == 0;
        if (error)
            status = farm_fail(err, FARM_E_LIMIT, "jemalloc gives no arena for node %d: %s", node, strerror(error));
    }
    if (status) {
        free(heap);
        return status;
    }
    *out = heap;
    return FARM_OK;
}

void farm_heap_close(struct farm_heap *heap) {
    if (!heap) return;
    if (heap->jemalloc) {
        char name[48];
        snprintf(name, sizeof name, "arena.%u.destroy", heap->arena);
        int error = mallctl(name, NULL, NULL, NULL, 0);
        assert(error == 0);
        (void)error;
    }
    free(heap);
}

void *farm_heap_alloc(struct farm_heap *heap, size_t bytes, size_t align) {
    assert(bytes > 0 && align > 0 && (align & (align - 1)) == 0);
    return heap->jemalloc ? mallocx(bytes, flags_for(heap, align)) : map_bound(heap, bytes, align);
}

void farm_heap_free(struct farm_heap *heap, void *block, size_t bytes, size_t align) {
    if (!block) return;
    if (heap->jemalloc)
        sdallocx(block, bytes, flags_for(heap, align));
    else
        munmap(block, bytes);
}

bool farm_heap_is_bound(const struct farm_heap *heap) {
    return heap->bound;
}

size_t farm_heap_malloc_bytes(void) {
    uint64_t epoch = 1; // refreshes the statistics
    size_t allocated = 0, bytes = sizeof allocated;
    if (!mallctl || mallctl("epoch", NULL, NULL, &epoch, sizeof epoch)) return 0;
    return mallctl("stats.allocated", &allocated, &bytes, NULL, 0) ? 0 : allocated;
}
