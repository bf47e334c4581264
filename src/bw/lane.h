// What our own lanes carry on this machine: hop latency by placement of the two CPUs, and steps/s and bytes/s by
// payload, way of waiting and number of pairs. Every pair is an actor's and a learner's process, started and ended by
// the call (which forks, so nothing of CUDA may run meanwhile), with a ring of its own on the actor's node: two lanes,
// as farms have, of 16 MiB or 4 steps. They wait, publish, answer and release through the functions that actors and
// learners call. Orders of memory are the lane's. Every answer is checked, and every byte of a payload. Does not print
// and keeps no state.
#ifndef FARM_BW_LANE_H
#define FARM_BW_LANE_H

#include "bw/figure.h"
#include "bw/handoff.h"
#include "ring/wait.h"

enum { FARM_BW_LANE_PAYLOAD_MIN = 16, FARM_BW_LANE_PAYLOAD_MAX = 16 << 20 };

struct farm_bw_pair {
    int actor_cpu, learner_cpu; // kernel's numbers
    int node;                   // of the ring's memory: the actor's; -1: anywhere (one node only)
    enum farm_bw_nearness nearness;
};

// One pair for each nearness that the CPUs which this process may use allow, nearest first; returns how many: 0 where
// there is but one CPU.
size_t farm_bw_pairs_by_nearness(const struct farm_machine *machine, struct farm_bw_pair pairs[FARM_BW_NEARNESSES]);

// Pairs of neighbours in the machine's order, one hardware thread a core, no CPU in two pairs: the first n of them use
// 2n cores. Returns how many, at most `most`.
size_t farm_bw_pairs_apart(const struct farm_machine *machine, struct farm_bw_pair *pairs, size_t most);

struct farm_bw_lane_config {
    const struct farm_bw_pair *pairs; // all at once; of hops: one
    size_t pair_count;
    enum farm_wait_mode wait; // both sides': FARM_WAIT_SPIN, FARM_WAIT_SLEEP or FARM_WAIT_ADAPTIVE
    uint32_t payload_bytes;   // of rates: of a step's observation, a multiple of 8 from 16 B to 16 MiB
};

// Half the time from a step's publication to its answer seen, in nanoseconds, each round trip timed by itself, without
// the clock's own cost. No payload is written or read; three cache lines travel: doorbell and `produced` there, `acted`
// back. A sample of a figure is the percentile of so many trips as fit its time, at most 131,072.
struct farm_bw_lane_hop {
    struct farm_bw_figure p50_ns, p99_ns, p999_ns;
    uint64_t trips; // all samples'
    struct farm_bw_conditions conditions;
};

struct farm_bw_lane_rate {
    struct farm_bw_figure steps_per_s;   // all pairs' together
    struct farm_bw_figure payload_per_s; // bytes: steps_per_s * payload_bytes, each byte counted once
    double cpu_s_per_step;               // CPU time of both sides, user and system
    uint64_t ring_bytes;                 // of payload slots a pair, as made
    struct farm_bw_conditions conditions;
};

// setup: machine, variant and root are not looked at; seconds 0: 0.5. Stopped before the first sample was whole: no
// figure. Errors of both: FARM_E_INVALID a config that makes no sense (no pair: two CPUs are needed); FARM_E_LIMIT no
// memory or processes for it, or no CPU time for 20 s; FARM_E_FORMAT an answer or a payload that was not what the other
// side wrote; FARM_E_DEAD a side ended.
enum farm_status farm_bw_lane_hop(const struct farm_bw_setup *setup, const struct farm_bw_lane_config *config,
                                  struct farm_bw_lane_hop *result, struct farm_error *err);
enum farm_status farm_bw_lane_rate(const struct farm_bw_setup *setup, const struct farm_bw_lane_config *config,
                                   struct farm_bw_lane_rate *result, struct farm_error *err);

#endif
