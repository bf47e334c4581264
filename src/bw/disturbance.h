// Whether this machine is fit to measure now: who else takes CPU time, quotas and throttling, clock frequencies, SMT
// siblings, a hypervisor, the settings of huge pages. Looks at /proc and /sys before and after a measurement; changes
// nothing. Every finding is a sentence with what to do about it, and figures to print.
#ifndef FARM_BW_DISTURBANCE_H
#define FARM_BW_DISTURBANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "topo/machine.h"

enum { FARM_BW_FINDINGS_MAX = 16 };

enum farm_bw_finding_kind {
    FARM_BW_FOUND_LOAD,           // others took CPU time on the CPUs measured
    FARM_BW_FOUND_STEAL,          // the hypervisor took CPU time away
    FARM_BW_FOUND_QUOTA,          // the control group's CPU quota is less than its CPUs
    FARM_BW_FOUND_THROTTLED,      // the quota stopped this group meanwhile
    FARM_BW_FOUND_GOVERNOR,       // frequency governor other than performance
    FARM_BW_FOUND_TURBO,          // frequencies may change with load and heat
    FARM_BW_FOUND_THERMAL,        // the CPU throttled for heat meanwhile
    FARM_BW_FOUND_SMT,            // cores have several threads, which share caches and load ports
    FARM_BW_FOUND_HYPERVISOR,     // a virtual machine: neighbours are not seen, placement may be made up
    FARM_BW_FOUND_THP,            // transparent huge pages are off
    FARM_BW_FOUND_NO_HUGE_POOL,   // no 2 MiB pages in the pool
    FARM_BW_FOUND_NUMA_BALANCING, // the kernel may move pages while they are measured
    FARM_BW_FOUND_MEMORY,         // too little free memory for arrays beyond the caches
    FARM_BW_FOUND_PARTIAL,        // this process may use only some of the machine's CPUs
};

struct farm_bw_finding {
    enum farm_bw_finding_kind kind;
    bool serious;     // figures are not to be trusted; else: good to know
    const char *name; // "load", "steal", "quota", ...: for JSON
    char text[256];   // a sentence: what it is, what to do
};

// Counters at one moment.
struct farm_bw_moment {
    uint64_t now_ns;
    uint64_t busy_ticks, idle_ticks, steal_ticks; // of the CPUs this process may use, /proc/stat
    uint64_t own_ns;                              // CPU time of this process and its ended children
    uint64_t throttled_periods, throttled_ns;     // cpu.stat, the whole chain of groups
    uint64_t thermal_throttles;                   // of all allowed CPUs, where the machine counts them
};

struct farm_bw_disturbance {
    int findings;
    struct farm_bw_finding finding[FARM_BW_FINDINGS_MAX];
    double others_cpus; // CPUs' worth of time that others took between the moments
    double steal_cpus;
    double cpu_quota;                         // CPUs; 0: none
    uint64_t throttled_periods, throttled_ns; // between the moments
    double ghz_least, ghz_most;               // of the allowed CPUs as the kernel reports them now; 0: not known
    char governor[32];                        // "" where there is none (virtual machines)
    int turbo;                                // 1 on, 0 off, -1 not known
    int smt;                                  // threads of a core; 1: none
    char hypervisor[32];                      // "" on bare metal, else "KVM", "Hyper-V", ... or "unknown"
    char thp[16];                             // "always", "madvise", "never"; "" not known
    uint64_t huge_2m_free_bytes;              // free and unreserved
};

// root: "/" or NULL for the running system, or a folder with recorded proc/ and sys/.
void farm_bw_moment_now(const struct farm_machine *machine, const char *root, struct farm_bw_moment *moment);

// Judges what lies between two moments and what is set. from == to (or NULL both): settings alone, no load.
void farm_bw_disturbance_judge(const struct farm_machine *machine, const char *root, const struct farm_bw_moment *from,
                               const struct farm_bw_moment *to, struct farm_bw_disturbance *fit);

#endif
