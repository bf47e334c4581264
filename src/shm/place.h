// The NUMA node of a mapping's pages: binding, making every page present, and verifying the node. Run by the creator of
// memory (segment.c, heap.c) before it is shared. Moves no page that is present.
#ifndef FARM_SHM_PLACE_H
#define FARM_SHM_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { FARM_PLACE_HUGE_BYTES = 2 << 20 };

// Maps `bytes` at a multiple of `align` (a power of two, >= a page): fd, shared, or private memory (-1). NULL: errno.
void *farm_place_map(int fd, int protection, size_t bytes, size_t align);

// Binds absent pages of [start, start + bytes) to `node`; strict: no other node may serve them (else the node is
// preferred). On a shared mapping it binds the object, for all processes. Sets *refused (not NULL) and returns FARM_OK
// if this process may not call mbind (containers: EPERM, ENOSYS). FARM_E_LIMIT: the node is missing or forbidden.
enum farm_status farm_place_bind(void *start, size_t bytes, int node, bool strict, bool *refused,
                                 struct farm_error *err);

// Makes every page of a writable mapping present. touch_node >= 0: from a thread on that node's CPUs, for first touch
// (from this thread if the node has none). FARM_E_LIMIT if memory runs out.
enum farm_status farm_place_populate(void *start, size_t bytes, int fd, int touch_node, struct farm_error *err);

// Takes the memory of a shared mapping's file, without clearing it or filling a page table (a tenth of the time): no
// later access can fail. touch_node as above. FARM_E_UNSUPPORTED: the kernel cannot; FARM_E_LIMIT as above.
enum farm_status farm_place_reserve(size_t bytes, int fd, int touch_node, struct farm_error *err);

// Collapses each aligned 2 MiB block of a shared writable mapping into a transparent page, on the node of its pages or
// else its binding. MADV_COLLAPSE (Linux 6.1) needs no rights, and works with shmem_enabled `never`, not `deny`; it is
// eight times as fast as populating small pages. Stops when memory is short. Returns the bytes of all blocks, or 0: not
// every block is collapsed, farm_place_transparent_bytes counts.
size_t farm_place_collapse(void *start, size_t bytes);

// Counts 4 KiB pages (in steps of `page_bytes`) that are absent or on another node than `node` (-1: any), with
// move_pages(2) or else /proc/self/numa_maps (for which start is the mapping's). False if neither is available.
bool farm_place_verify(const void *start, size_t bytes, size_t page_bytes, int node, size_t *elsewhere);

// Bytes of the mapping at `start` in transparent 2 MiB pages, from /proc/self/smaps.
size_t farm_place_transparent_bytes(const void *start);

#endif
