// What control groups allow this process: CPUs, CPU time, memory; and how its quota stopped it. Reads cgroup v2, v1 and
// both mounted together, from the process's own group up to the mount's root, and keeps the tightest limit of all
// levels. Runs in the supervisor, in tools and in whoever creates a segment; no state. Does not watch for later
// changes, does not change anything.
#ifndef FARM_BASE_CGROUP_H
#define FARM_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitmap.h"

enum { FARM_CGROUP_PATH_BYTES = 4096 };

// The level with the least memory left, among all levels that limit it.
struct farm_cgroup_memory {
    uint64_t left_bytes;                // limit - used; UINT64_MAX: no level limits, and nothing below means anything
    uint64_t limit_bytes;               // UINT64_MAX: no limit
    uint64_t used_bytes;                // usage - page cache, which gives way
    bool v2;                            // the level is cgroup v2's
    const char *file;                   // that holds the limit: "memory.max", "memory.high", "memory.limit_in_bytes"
    char group[FARM_CGROUP_PATH_BYTES]; // below the mount: "/a/b"; "/" for the mount itself
};

struct farm_cgroup_limits {
    double cpu_quota; // CPUs' worth of time (3.5); 0: no quota
    struct farm_cgroup_memory memory;
    bool has_cpus;           // the cpuset controller names CPUs
    struct farm_bitmap cpus; // those CPUs
};

// `root` is put before every path: "" for the running system, a folder for a recorded one, which then holds
// proc/self/cgroup, proc/self/mountinfo and the groups' files under the mount points that mountinfo names.
// Missing or unreadable files mean no limit: containers hide what they like.
void farm_cgroup_read(const char *root, struct farm_cgroup_limits *out);

// What cpu.stat has counted since the group was made, of the level that counted most.
struct farm_cgroup_throttling {
    uint64_t periods; // in which the quota stopped somebody of the group
    uint64_t ns;
};

// As above.
void farm_cgroup_read_throttling(const char *root, struct farm_cgroup_throttling *out);

#endif
