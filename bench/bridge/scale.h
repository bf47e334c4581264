// Many nodes at one bridge: 64 sessions of 256 lanes (64 a ring), from a load generator that is all of their nodes and
// actors. The bridge is one thread, and answers come from the same thread.
#ifndef BENCH_BRIDGE_SCALE_H
#define BENCH_BRIDGE_SCALE_H

#include "net.h"

struct bench_scale {
    double join_s;             // from the first connection to the last session's first step
    double lane_steps_per_s;   // of all lanes
    double cpu_ns;             // of the bridge, for a lane step
    double memory_mb, ring_mb; // the bridge's own; its rings'
    double slowest;            // lane's rate ÷ mean
};

void bench_scale_run(const struct bench_net *net, const char *engine, double seconds, struct bench_scale *scale);

#endif
