// Where the pages of a mapping lie: binding them to a NUMA node, making every page present, and asking the kernel where
// they came to lie. Run by whoever creates memory (segment.c, heap.c), once, before anybody else sees it. Asks, never
// assumes: what is bound is verified too. Does not move pages that are already there.
#ifndef FARM_SHM_PLACE_H
#define FARM_SHM_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { FARM_PLACE_HUGE_BYTES = 2 << 20 };

// Maps `bytes` at a multiple of `align` (a power of two, >= a page): of fd, shared, or of anonymous private memory
// where fd is -1. NULL with errno set where that fails. munmap(2) gives it back.
void *farm_place_map(int fd, int protection, size_t bytes, size_t align);

// Binds pages of [start, start + bytes) that do not exist yet to `node`; strict: the kernel rather fails than takes
// another node's memory (else it prefers the node). mbind on a shared mapping binds the object, for every mapper.
// *refused (not NULL) is set, with FARM_OK, where this process may not call mbind at all (containers: EPERM, ENOSYS).
// Errors: FARM_E_LIMIT, the node does not exist or is not allowed here.
enum farm_status farm_place_bind(void *start, size_t bytes, int node, bool strict, bool *refused,
                                 struct farm_error *err);

// Makes every page of a writable mapping present. touch_node >= 0: from a thread pinned to that node's CPUs, where
// first touch decides (from this thread where there are none such). FARM_E_LIMIT where memory runs out.
enum farm_status farm_place_populate(void *start, size_t bytes, int fd, int touch_node, struct farm_error *err);

// Has the kernel put each whole, aligned 2 MiB block of a shared writable mapping together as one transparent page, on
// the node where pages of the block lie already or, where there are none, `farm_place_bind` bound them to. What it does
// without rights or settings (MADV_COLLAPSE, Linux 6.1; shmem_enabled may be `never`, not `deny`), and eight times as
// fast as it gives as many small pages. What cannot be put together stays as it is (farm_place_transparent_bytes
// tells); after want of memory, or of the call itself, the rest is not tried.
void farm_place_collapse(void *start, size_t bytes);

// Counts pages of 4 KiB (`page_bytes` is the step in which the kernel is asked) that are present on another node than
// `node`, or not present at all, with move_pages(2) or, where that is refused, /proc/self/numa_maps (start must then be
// the mapping's). node -1: any will do. False where neither can be asked.
bool farm_place_verify(const void *start, size_t bytes, size_t page_bytes, int node, size_t *elsewhere);

// Bytes of the mapping at `start`, shared or anonymous, that the page table maps with transparent 2 MiB entries, from
// /proc/self/smaps.
size_t farm_place_transparent_bytes(const void *start);

#endif
