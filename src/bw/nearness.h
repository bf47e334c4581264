// What two CPUs share, and pairs of CPUs chosen by it. Pure functions of a machine.
#ifndef FARM_BW_NEARNESS_H
#define FARM_BW_NEARNESS_H

#include "topo/machine.h"

// The nearest that holds.
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

// An actor's and a learner's CPU, by the kernel's numbers.
struct farm_bw_pair {
    int actor_cpu, learner_cpu;
    int node; // holds the ring's memory: the actor's; -1: anywhere (the machine has one node)
    enum farm_bw_nearness nearness;
};

// One pair for each nearness among the CPUs that this process may use, nearest first. Returns how many; 0: one CPU.
size_t farm_bw_pairs_by_nearness(const struct farm_machine *machine, struct farm_bw_pair pairs[FARM_BW_NEARNESSES]);

// Pairs of neighbours in the machine's order, one hardware thread a core, no CPU in two pairs. Returns their number.
size_t farm_bw_pairs_apart(const struct farm_machine *machine, struct farm_bw_pair *pairs, size_t most);

#endif
