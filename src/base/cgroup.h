// The limits that control groups set for this process (CPUs, CPU time, memory), and how often its quota stopped it.
// Reads cgroup v2, v1 and both mounted together, from the process's group up to the mount's root, and keeps the
// tightest limit of all levels, now. Runs in the supervisor, in tools and in each process that creates a segment.
#ifndef FARM_BASE_CGROUP_H
#define FARM_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitmap.h"

enum { FARM_CGROUP_PATH_BYTES = 4096 };

// The level with the least memory left, among all levels that limit it.
struct farm_cgroup_memory {
    uint64_t left_bytes;                // limit - used; UINT64_MAX: no limit, and the members below are unset
    uint64_t limit_bytes;               // UINT64_MAX: no limit
    uint64_t used_bytes;                // usage - page cache, which can be reclaimed
    bool v2;                            // the level is cgroup v2's
    const char *file;                   // with the limit: "memory.max", "memory.high", "memory.limit_in_bytes"
    char group[FARM_CGROUP_PATH_BYTES]; // below the mount: "/a/b"; "/" for the mount itself
};

struct farm_cgroup_limits {
    uint64_t pids_left, pids_limit; // processes and threads, at the level with the fewest left; UINT64_MAX: no limit
    double cpu_quota;               // CPUs' worth of time (3.5); 0: no quota
    struct farm_cgroup_memory memory;
    bool has_cpus;           // the cpuset controller names CPUs
    struct farm_bitmap cpus; // those CPUs
};

// root: prefix of every path; "" for the running system, or a folder with a recorded one: proc/self/cgroup,
// proc/self/mountinfo and the groups' files under its mount points. A missing file (containers hide some): no limit.
void farm_cgroup_read(const char *root, struct farm_cgroup_limits *out);

// Processes of this process's groups that the out-of-memory killer has killed since the groups were made: of the level
// with the most, which counts its members' too (v1: its own only). 0 if unknown too. `root` as in farm_cgroup_read.
uint64_t farm_cgroup_read_kills(const char *root);

// The counts of cpu.stat since the group was made, at the level that was throttled most.
struct farm_cgroup_throttling {
    uint64_t periods; // in which the quota stopped a process of the group
    uint64_t ns;
};

// `root` as in farm_cgroup_read.
void farm_cgroup_read_throttling(const char *root, struct farm_cgroup_throttling *out);

#endif
