// What memory.c and latency.c measure on: a team of pinned threads, each with arrays of its own on a node, made once
// and used for many figures; and the time that is left. Private to src/bw. The thread that opened a workers uses it.
#ifndef FARM_BW_WORKERS_H
#define FARM_BW_WORKERS_H

#include "bw/buffer.h"
#include "bw/figure.h"
#include "bw/team.h"

// ---- time and stop ----

// The end of a measurement; what is left until then is shared evenly by the figures still to be taken.
struct farm_bw_clock {
    const struct farm_bw_setup *setup;
    uint64_t start_ns, end_ns, until_ns; // until_ns: of the current figure
    int figures, taken;
    int due;                               // so many figures are taken even when the time is over: 1
    struct farm_bw_conditions *conditions; // stopped and out_of_time are set here
};

struct farm_bw_clock farm_bw_clock_start(const struct farm_bw_setup *setup, double default_seconds, int figures,
                                         struct farm_bw_conditions *conditions);

// Before a figure: false if stopped, or if the time is over and no figure is due (then no later one is taken either).
bool farm_bw_clock_next(struct farm_bw_clock *clock, const char *what);
// Between samples of a figure: whether to take another, `done` of them taken (the first is always taken).
bool farm_bw_clock_more(struct farm_bw_clock *clock, int done);
// Before something that takes long and is for later figures alone: whether none will be taken.
bool farm_bw_clock_over(struct farm_bw_clock *clock);
// After a figure.
void farm_bw_clock_took(struct farm_bw_clock *clock);
// Seconds of what is left that belong to the next `figures` figures.
double farm_bw_clock_share(const struct farm_bw_clock *clock, int figures);

int farm_bw_samples(const struct farm_bw_setup *setup);

// ---- sizes ----

// How many of `bytes` can be worked on `times` times within `seconds` if working on `piece` bytes once takes `took_s`.
// Whole lines, at least one, at most `bytes`.
uint64_t farm_bw_bytes_in_time(uint64_t bytes, uint64_t piece, double took_s, double times, double seconds);

// ---- conditions ----

// Where memory did not suffice for one figure of many: makes a note of it and gives FARM_OK, so that the others are
// measured. Any other status is given back as it is, with *err set from `why`.
enum farm_status farm_bw_leave_out(enum farm_status status, const struct farm_error *why,
                                   struct farm_bw_conditions *conditions, struct farm_error *err);
// After the last figure, where none was taken: the last one's reason, FARM_OK where there was none (stopped).
enum farm_status farm_bw_all_left_out(const struct farm_error *why, struct farm_error *err);

// Marks a figure, and notes it, if the `bytes` it was taken on fit into the caches.
void farm_bw_mark_in_cache(struct farm_bw_figure *figure, uint64_t bytes, uint64_t cache_bytes,
                           struct farm_bw_conditions *conditions);

void farm_bw_conditions_add_buffer(struct farm_bw_conditions *conditions, const struct farm_bw_buffer *buffer);

// ---- threads ----

// FARM_E_INVALID where a CPU does not exist or is not this process's.
enum farm_status farm_bw_check_cpus(const struct farm_bw_setup *setup, const int *cpus, int count,
                                    struct farm_error *err);
// Checks the CPUs and opens a team on them; `conditions` learns whether its threads could be pinned.
enum farm_status farm_bw_workers_team(const struct farm_bw_setup *setup, const int *cpus, int count,
                                      struct farm_bw_team **team, struct farm_bw_conditions *conditions,
                                      struct farm_error *err);

// ---- workers ----

struct farm_bw_actor { // one thread
    struct farm_bw_buffer buffer;
    double *array[3];
    uint32_t *order;
    size_t lines; // of each array
    bool filled_a, filled_b;
    struct farm_bandwidth_work work;
    uint64_t start_ns, end_ns, sum;
    bool good;
    size_t wrong_line;
    enum farm_status status;
    struct farm_error err;
};

struct farm_bw_workers {
    const struct farm_bw_setup *setup;
    struct farm_bw_team *team;
    int threads;
    int node; // asked for
    enum farm_bw_pages pages;
    int arrays;           // there are, at most
    uint64_t array_bytes; // of each, all threads together
    uint64_t cache_bytes; // of the last-level caches that the threads reach
    struct farm_bw_actor *actor;
    uint64_t passes_done; // since the arrays were filled
    uint64_t passes;      // of a sample
    enum farm_bandwidth_variant variant;
    double sample_s;
};

struct farm_bw_workers_config {
    const int *cpus;
    int cpu_count;
    int node; // -1: each thread's own
    enum farm_bw_pages pages;
    int arrays;
    uint64_t array_bytes; // of each, all threads together; rounded to whole lines a thread. 0: farm_bw_array_bytes,
                          // or what memory and `seconds` suffice for
    double seconds;       // with array_bytes 0: for opening and for one sample each of `figures` figures
    int figures;
    bool shuffled; // an order for LISTED is wanted
};

// For so many figures of what is left of the clock's time, each thread on its own node.
static inline struct farm_bw_workers_config farm_bw_workers_for(const struct farm_bw_clock *clock, int figures,
                                                                const int *cpus, int cpu_count, int arrays,
                                                                uint64_t array_bytes) {
    const double seconds = farm_bw_clock_share(clock, figures);
    return (struct farm_bw_workers_config){cpus, cpu_count, -1, 0, arrays, array_bytes, seconds, figures, false};
}

// Refuses before it allocates. `conditions` learns how memory and threads came out.
enum farm_status farm_bw_workers_open(const struct farm_bw_setup *setup, const struct farm_bw_workers_config *config,
                                      struct farm_bw_workers *workers, struct farm_bw_conditions *conditions,
                                      struct farm_error *err);
void farm_bw_workers_close(struct farm_bw_workers *workers);

// Gets ready for a kernel on all threads: contents, a pass to warm up, passes of a sample chosen.
enum farm_status farm_bw_workers_prepare(struct farm_bw_workers *workers, enum farm_bandwidth_op op,
                                         enum farm_bandwidth_stores stores, enum farm_bandwidth_pattern pattern,
                                         uint64_t stride_bytes, struct farm_error *err);
// One sample: bytes per second as the program counts them.
double farm_bw_workers_sample(struct farm_bw_workers *workers);
// After the samples: FARM_E_IO where data are wrong.
enum farm_status farm_bw_workers_verify(struct farm_bw_workers *workers, struct farm_error *err);

// prepare, samples within the clock, verify.
enum farm_status farm_bw_workers_figure(struct farm_bw_workers *workers, struct farm_bw_clock *clock,
                                        enum farm_bandwidth_op op, enum farm_bandwidth_stores stores,
                                        enum farm_bandwidth_pattern pattern, uint64_t stride_bytes,
                                        struct farm_bw_figure *figure, struct farm_error *err);

#endif
