// Latency of memory: a chase of pointers, one random cycle through all lines of a piece of memory, each load's address
// the value of the one before. The cache ladder (working sets from the first cache to beyond the last), the reach of
// the TLB (one line a page), node by node, and under load: one thread chases while the others stream, with a pause
// between their lines. All latencies are nanoseconds of one load.
#ifndef FARM_BW_LATENCY_H
#define FARM_BW_LATENCY_H

#include "bw/figure.h"
#include "bw/memory.h"

// ---- the chase itself ----

// Writes one random cycle through `count` places, the i-th at start + offset(i): each place holds the address of the
// next. spacing_bytes: distance of places, a multiple of the pointer's size; jitter: within its space each place lies
// at a line of its own choice (so that places one page apart do not fall into the same sets of a cache); spacing_bytes
// is then a power of two >= 64. Returns the first place. order: the places in the order of the cycle, count entries
// (count < 2^32).
void *farm_bw_chase_make(void *start, size_t count, size_t spacing_bytes, bool jitter, uint32_t *order, uint64_t seed);

// Follows so many links from `from`; returns where it came to, which the caller hands in again (or compares).
void *farm_bw_chase_run(void *from, uint64_t links);

// Whether every place still holds the address that farm_bw_chase_make wrote there. Its loads do not wait for each
// other.
bool farm_bw_chase_is(void *start, size_t count, size_t spacing_bytes, bool jitter, const uint32_t *order,
                      uint64_t seed);

// ---- cache ladder and TLB ----

enum { FARM_BW_RUNGS_MAX = 96 };

struct farm_bw_rung {
    uint64_t bytes; // working set: places x 64, or pages x the base page
    struct farm_bw_figure ns;
    struct farm_bw_figure dense_ns; // TLB reach: as many lines side by side, in huge pages: what caches alone cost
};

struct farm_bw_ladder_config {
    uint64_t bytes_most;    // 0: 4 x the last-level cache (less where memory or time is short)
    int steps_per_doubling; // 0: 2
};

struct farm_bw_ladder_result {
    int rungs;
    struct farm_bw_rung rung[FARM_BW_RUNGS_MAX];
    int cpu, node;
    struct farm_bw_conditions conditions;
};

// dense_ns is not measured.
enum farm_status farm_bw_ladder(const struct farm_bw_setup *setup, const struct farm_bw_ladder_config *config,
                                struct farm_bw_ladder_result *result, struct farm_error *err);

// One line in each of ever more small pages, from 16 on.
enum farm_status farm_bw_tlb(const struct farm_bw_setup *setup, const struct farm_bw_ladder_config *config,
                             struct farm_bw_ladder_result *result, struct farm_error *err);

// ---- idle latency ----

// The latency of memory from one CPU, caches missed.
struct farm_bw_idle_config {
    uint64_t bytes; // 0: 4 x the last-level cache, at least 64 MiB (less where memory or time is short)
    enum farm_bw_pages pages;
};

struct farm_bw_idle_result {
    struct farm_bw_figure ns;
    uint64_t bytes;
    struct farm_bw_conditions conditions;
};

enum farm_status farm_bw_idle(const struct farm_bw_setup *setup, const struct farm_bw_idle_config *config,
                              struct farm_bw_idle_result *result, struct farm_error *err);

// ---- node x node: ns, from the row's first core to the column's memory ----

enum farm_status farm_bw_matrix_latency(const struct farm_bw_setup *setup, const struct farm_bw_matrix_config *config,
                                        struct farm_bw_matrix *matrix, struct farm_error *err);

// ---- loaded latency ----

enum { FARM_BW_DELAYS_MAX = 24 };

struct farm_bw_loaded_row {
    int delay;                         // turns of an empty loop for every eight lines of a streaming thread
    struct farm_bw_figure ns;          // of the chasing thread
    struct farm_bw_figure bytes_per_s; // of the streaming threads together
};

struct farm_bw_loaded_config {
    const int *delays; // delay_count 0: farm_bw_mlc_delays
    int delay_count;
    enum farm_bandwidth_op op; // that the others stream: READ, MIX21, ... (sequential, temporal)
    uint64_t array_bytes;      // of the streams, all threads together; 0: beyond caches
    uint64_t chase_bytes;      // 0: beyond caches
};

struct farm_bw_loaded_result {
    int rows;
    struct farm_bw_loaded_row row[FARM_BW_DELAYS_MAX];
    int streams; // threads; 0 on one CPU: then nothing is measured, and the note says so
    struct farm_bw_conditions conditions;
};

// 0 2 8 15 50 100 200 300 400 500 700 1000 1300 1700 2500 3500 5000 9000 20000
extern const int farm_bw_mlc_delays[19];

enum farm_status farm_bw_loaded(const struct farm_bw_setup *setup, const struct farm_bw_loaded_config *config,
                                struct farm_bw_loaded_result *result, struct farm_error *err);

#endif
