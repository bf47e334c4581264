// What this machine lets us have, asked before anything is populated: memory control groups (v1 and v2, the tightest of
// all levels), free memory, free memory of a NUMA node, free 2 MiB pages, RLIMIT_NOFILE, RLIMIT_MEMLOCK. The size of
// /dev/shm does not matter: it does not limit memfd. Run by the supervisor, and by whoever creates a segment. Keeps no
// state, reserves nothing: what is free now may be taken by somebody else a moment later.
#ifndef FARM_SHM_LIMITS_H
#define FARM_SHM_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// `root` below: "/" or NULL for the running system, or a folder with recorded proc/ and sys/ (tests). Files that are
// not there mean no limit: containers hide what they like.

struct farm_limits_request {
    uint64_t shared_bytes; // of all segments together
    uint64_t locked_bytes; // that will be locked or registered with a GPU; 0 where none
    uint64_t descriptors;  // that the hungriest process will hold
    bool huge;             // segments ask for 2 MiB pages: what the free pool covers counts against nothing else
    const char *root;
};

// FARM_E_LIMIT names the limit, what was wanted, what is there, and the setting to change. On the running system it
// raises the soft NOFILE and MEMLOCK limits as far as wanted where the hard ones allow it.
enum farm_status farm_limits_check(const struct farm_limits_request *request, struct farm_error *err);

// Memory alone: `bytes` fit below every limit and, with node >= 0, into that node. FARM_E_LIMIT as above.
enum farm_status farm_limits_check_memory(const char *root, uint64_t bytes, int node, struct farm_error *err);

// The memory that may still be taken: the least of MemAvailable and every memory cgroup level's limit - usage (page
// cache counted as free), less a reserve of 1/32 (at most 1 GiB), so that whoever takes all of it does not wake the OOM
// killer.
uint64_t farm_limits_memory_available_bytes(const char *root);

// Free and unreserved bytes of the pool of pages of that size, of all nodes together; -1: the kernel has no such pages.
int64_t farm_limits_huge_pool_bytes(const char *root, size_t page_bytes);

// Free and unreserved pages of the 2 MiB pool, of one node or (node -1) of all, in bytes.
uint64_t farm_limits_huge_available_bytes(const char *root, int node);

#endif
