// Private memory on a NUMA node for large, aligned, long-lived blocks that one process keeps hot (parameters, optimiser
// state). If the executable links jemalloc, blocks come from an arena whose extents are bound to the node; otherwise
// (sanitizers, users of libfarm) each block is its own bound mapping. The node is preferred: if it is full, the kernel
// uses another one (segments are strict, and check before). Does not replace malloc.
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

// `bytes` > 0, aligned to `align` (a power of two). Contents undefined. NULL if memory runs out.
void *farm_heap_alloc(struct farm_heap *heap, size_t bytes, size_t align);

// `bytes` and `align` as allocated; NULL is permitted.
void farm_heap_free(struct farm_heap *heap, void *block, size_t bytes, size_t align);

// Whether this process may bind memory (in containers first touch decides).
bool farm_heap_is_bound(const struct farm_heap *heap);

// Bytes that malloc has handed out and not taken back, in the whole process; 0 without jemalloc. Costs about 10 us.
size_t farm_heap_malloc_bytes(void);

#endif
