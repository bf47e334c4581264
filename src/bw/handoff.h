// How long a cache line takes from one core to another: two pinned threads, one word each in a line of its own (and
// without a neighbour, which prefetchers would fetch along), ping and pong; half a round trip. Nanoseconds.
#ifndef FARM_BW_HANDOFF_H
#define FARM_BW_HANDOFF_H

#include "bw/figure.h"

struct farm_bw_handoff_config {
    int cpus_most; // one CPU a core, at most so many, spread evenly over the machine; 0: 64
};

// What two CPUs have in common, the nearest that holds.
enum farm_bw_nearness {
    FARM_BW_SAME_CORE,  // SMT siblings
    FARM_BW_SAME_CACHE, // a last-level cache
    FARM_BW_SAME_NODE,
    FARM_BW_SAME_SOCKET,
    FARM_BW_OTHER_SOCKET,
    FARM_BW_NEARNESSES
};
const char *farm_bw_nearness_name(enum farm_bw_nearness nearness); // "same core", "same last-level cache", ...
enum farm_bw_nearness farm_bw_nearness_of(const struct farm_machine *machine, int cpu_a, int cpu_b);

struct farm_bw_handoff_result {
    int cpus;
    int *cpu;           // [cpus] kernel's numbers
    float *ns, *spread; // [cpus x cpus], symmetric; NaN on the diagonal and where nothing was measured
    struct farm_bw_figure by_nearness[FARM_BW_NEARNESSES]; // of the pairs' medians (evenly chosen where they are many)
    struct farm_bw_conditions conditions;
};

// Where there are fewer than two CPUs: FARM_OK, cpus <= 1, and the note says so.
enum farm_status farm_bw_handoff(const struct farm_bw_setup *setup, const struct farm_bw_handoff_config *config,
                                 struct farm_bw_handoff_result *result, struct farm_error *err);
// Frees what the result owns; a result of zeros is permitted.
void farm_bw_handoff_free(struct farm_bw_handoff_result *result);

#endif
