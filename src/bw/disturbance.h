// What disturbs a measurement on this machine: others' CPU time, quotas and throttling, clock frequencies, SMT
// siblings, a hypervisor, the settings of pages. Reads /proc and /sys before and after; changes nothing. Every finding
// is a sentence that states a cause and a remedy.
#ifndef FARM_BW_DISTURBANCE_H
#define FARM_BW_DISTURBANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/machine.h"

enum { FARM_BW_FINDINGS_MAX = 16 };

struct farm_bw_finding {
    bool serious;     // figures are not to be trusted; else: good to know
    const char *name; // "load", "steal", "quota", ...: for JSON
    char text[256];
};

// Counters at one moment.
struct farm_bw_moment {
    uint64_t now_ns;
    uint64_t busy_ticks, idle_ticks, steal_ticks; // on the CPUs that this process may use, /proc/stat
    uint64_t own_ns;                              // CPU time of this process and its ended children
    uint64_t throttled_periods, throttled_ns;     // cpu.stat, all its control groups
    uint64_t thermal_throttles;                   // on all allowed CPUs, if the machine counts them
};

struct farm_bw_disturbance {
    int findings;
    struct farm_bw_finding finding[FARM_BW_FINDINGS_MAX];
    double others_cpus, steal_cpus; // CPUs' worth of time that others, the hypervisor took between the moments
    uint64_t throttled_periods;     // between the moments
    double ghz_least, ghz_most;     // among the allowed CPUs, as the kernel reports them now; 0: not known
    char governor[32];              // "": none (virtual machines)
    int smt;                        // threads of a core, at least 1
    char hypervisor[32];            // "" on bare metal, else "KVM", "Hyper-V", ... or "unknown"
    char thp[16];                   // "always", "madvise", "never"; "" not known
};

// root: NULL for the running system, or a folder with recorded proc/ and sys/.
void farm_bw_moment_now(const struct farm_machine *machine, const char *root, struct farm_bw_moment *moment);

// Judges what happened between two moments, and the settings. Both NULL: the settings only.
void farm_bw_disturbance_judge(const struct farm_machine *machine, const char *root, const struct farm_bw_moment *from,
                               const struct farm_bw_moment *to, struct farm_bw_disturbance *out);

// NULL: not found.
const struct farm_bw_finding *farm_bw_disturbance_find(const struct farm_bw_disturbance *disturbance, const char *name);

#endif
