// Private memory on a NUMA node, for what one process keeps hot (a learner's activations, optimiser state, staging
// areas): large, aligned, long-lived blocks. Where the executable is linked with jemalloc, blocks come from an arena of
// their own whose extents are bound to the node as they are mapped; elsewhere (sanitizers, programs that use libfarm
// without jemalloc) each block is a mapping of its own, bound in the same way. libfarm does not link jemalloc: it looks
// whether it is there. The node is preferred, not forced: where it is full the kernel takes another rather than end the
// process; segments (segment.h) are strict, and check before. Does not replace malloc.
#ifndef FARM_SHM_HEAP_H
#define FARM_SHM_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct farm_heap;

// A heap on `node` (-1: anywhere). Threads may share it. FARM_E_LIMIT: no such node, no memory.
enum farm_status farm_heap_open(int node, struct farm_heap **out, struct farm_error *err);

// After every block has been freed. NULL is permitted.
void farm_heap_close(struct farm_heap *heap);

// `bytes` > 0, aligned to `align` (a power of two). Contents undefined. NULL where memory runs out.
void *farm_heap_alloc(struct farm_heap *heap, size_t bytes, size_t align);

// `bytes` and `align` as allocated; NULL is permitted.
void farm_heap_free(struct farm_heap *heap, void *block, size_t bytes, size_t align);

// Whether jemalloc serves it, and whether this process may bind at all (containers: first touch decides instead).
bool farm_heap_uses_jemalloc(const struct farm_heap *heap);
bool farm_heap_is_bound(const struct farm_heap *heap);

#endif
