// A learner's side (hub, and a learner that answers at once) and the nodes' side (nodes, and actors that step at once):
// one process, thread, CPU and network namespace a side. Each environment's observation is stamped with its step's
// number at both ends, which the learner's side checks; CRC32C or TLS protects the bytes between, and the last step of
// each lane is compared byte by byte.
#ifndef BENCH_BRIDGE_PAIR_H
#define BENCH_BRIDGE_PAIR_H

#include <stdint.h>

#include "net.h"

enum { BENCH_CUTS_MAX = 64 };

struct bench_pair {
    const char *engine;
    bool sealed;
    uint32_t nodes, rings, lanes, width, pixels; // rings: of each node
    uint32_t steps;                              // in the learner's rings
    double warm_s, seconds;                      // before the measurement, and measured
    uint64_t spin_ns;                            // before a side sleeps
    uint32_t cuts;                               // not 0: how often the learner's bridge ends and restarts
    bool link;                                   // the link goes down instead of the bridge
    uint32_t away_ms;                            // longest outage; the shortest is 10 ms
    bool beside;                                 // both sides on the learner's CPU
    bool floods;                                 // strangers flood the bridge from the node's CPU (flood.h)
    uint32_t flood_hz;
};

struct bench_pair_result {
    uint64_t ns, lane_steps, payload_bytes; // measured on the learner's side
    uint64_t cpu_ns[BENCH_SIDES];
    uint64_t calls[BENCH_SIDES], call_steps[BENCH_SIDES]; // system calls of the engine, and environment steps meanwhile
    uint64_t answering_ns;                                // CPU time of the learner's side that is not the bridge's
    uint64_t least_lane_steps;                            // the slowest lane's
    double join_s;                                        // until every lane has stepped
    double bridge_mb, ring_mb;                            // memory of the learner's side beside its rings; of its rings
    double trip_ns;                  // median, from publish to the answer seen, if there is one lane
    double flood_hz;                 // connections a second of strangers
    double again_ms[BENCH_CUTS_MAX]; // from the path's return to the first step
};

void bench_pair_run(const struct bench_net *net, const struct bench_pair *pair, struct bench_pair_result *result);

// A round trip by plain blocking sockets with these bytes each way; the median in nanoseconds.
double bench_plain_trip(const struct bench_net *net, uint32_t out_bytes, uint32_t back_bytes, double seconds);

#endif
