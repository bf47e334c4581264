// The latency of memory from one CPU, caches missed: nanoseconds of one load in a chase of pointers (bw/chase.h).
#ifndef FARM_BW_LATENCY_H
#define FARM_BW_LATENCY_H

#include "bw/figure.h"

struct farm_bw_idle {
    struct farm_bw_figure ns;
    uint64_t bytes; // size of the chase
};

// From the first allowed CPU. bytes 0: 4 x the last-level cache, at least 64 MiB, less if memory or time is short.
enum farm_status farm_bw_idle_latency(const struct farm_bw_setup *setup, uint64_t bytes, enum farm_bw_pages pages,
                                      struct farm_bw_idle *result, struct farm_bw_conditions *conditions,
                                      struct farm_error *err);

#endif
