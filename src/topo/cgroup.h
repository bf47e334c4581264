// What control groups allow this process: CPUs, CPU time, memory. Reads cgroup v2, v1 and both mounted together, from
// the process's own group up to the mount's root, and keeps the tightest limit of all levels. Runs in the supervisor
// and in tools; no state. Does not watch for later changes, does not change anything.
#ifndef FARM_TOPO_CGROUP_H
#define FARM_TOPO_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/bitmap.h"

struct farm_cgroup_limits {
    double cpu_quota;            // CPUs' worth of time (3.5); 0: no quota
    uint64_t memory_limit_bytes; // of the level with the least left; UINT64_MAX: no limit
    uint64_t memory_free_bytes;  // limit - (usage - page cache) of that level; UINT64_MAX: no limit
    bool has_cpus;               // the cpuset controller names CPUs
    struct farm_bitmap cpus;     // those CPUs
};

// `root` is put before every path: "" for the running system, a folder for a recorded one, which then holds
// proc/self/cgroup, proc/self/mountinfo and the groups' files under the mount points that mountinfo names.
// Missing or unreadable files mean no limit: containers hide what they like.
void farm_cgroup_read(const char *root, struct farm_cgroup_limits *out);

#endif
