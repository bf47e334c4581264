// The machine's limits, read before memory is populated: memory control groups (v1 and v2, the tightest level), free
// memory on the machine and on a NUMA node, free 2 MiB pages, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_MEMLOCK,
// RLIMIT_FSIZE, RLIMIT_AS, pids.max, kernel.pid_max, vm.max_map_count. (The size of /dev/shm does not limit memfds.)
// Run by the supervisor, creators of segments and `farm doctor`.
#ifndef FARM_SHM_LIMITS_H
#define FARM_SHM_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// `root` below: "/" or NULL, or a folder with recorded proc/ and sys/. A missing file (containers hide some): no limit.

struct farm_limits_request {
    uint64_t shared_bytes; // all segments together
    uint64_t locked_bytes; // locked or registered with a GPU
    uint64_t descriptors;  // in the process that needs most
    uint64_t mappings;     // in that process
    uint64_t processes;    // that the run starts, with their threads
    bool huge;             // segments use 2 MiB pages: what the free pool covers counts against no other limit
    const char *root;
};

// FARM_E_LIMIT names the limit, the request, what is available, and the setting to change. On the running system the
// soft NOFILE and MEMLOCK limits are raised as requested, up to the hard limits.
enum farm_status farm_limits_check(const struct farm_limits_request *request, struct farm_error *err);

// Memory only: whether `bytes` fit every limit and, with node >= 0, that node. FARM_E_LIMIT as above.
enum farm_status farm_limits_check_memory(const char *root, uint64_t bytes, int node, struct farm_error *err);

// Whether a run fits that takes `bytes` of memory in all its processes together, and maps process_bytes in one of them
// besides what this process has mapped, from which it is forked (RLIMIT_AS). FARM_E_LIMIT as above.
enum farm_status farm_limits_check_run(const char *root, uint64_t bytes, uint64_t process_bytes,
                                       struct farm_error *err);

// Whether RLIMIT_FSIZE allows a file of `bytes` bytes; memfds count. A longer one would raise SIGXFSZ. FARM_E_LIMIT
// names both figures. The soft limit is not raised: it bounds other files of the process too.
enum farm_status farm_limits_check_file(const char *root, uint64_t bytes, struct farm_error *err);

// Available memory: the least of MemAvailable and each cgroup's rest (with page cache), less 1/32, at most 1 GiB.
uint64_t farm_limits_memory_available_bytes(const char *root);

// Free and unreserved bytes of the pool of pages of that size, on all nodes; -1: the kernel has no such pages.
int64_t farm_limits_huge_pool_bytes(const char *root, size_t page_bytes);

// Free and unreserved bytes of the pool of 2 MiB pages, on one node or (node -1) on all.
uint64_t farm_limits_huge_available_bytes(const char *root, int node);

#endif
