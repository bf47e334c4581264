// Threads that run bandwidth kernels together: a team of pinned threads, each with its own arrays on a node, opened
// once and used for many figures. Private to src/bw and to benchmarks; the thread that opened the workers uses them.
#ifndef FARM_BW_WORKERS_H
#define FARM_BW_WORKERS_H

#include "bw/buffer.h"
#include "bw/clock.h"
#include "bw/team.h"

struct farm_bw_kernel {
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores;
    enum farm_bandwidth_pattern pattern;
    uint64_t stride_bytes; // STRIDED: a multiple of 64
};

struct farm_bw_worker { // one thread
    struct farm_bw_buffer buffer;
    double *array[3];
    uint32_t *order;
    size_t lines; // in each array
    bool filled_a, filled_b;
    struct farm_bandwidth_work work;
    uint64_t start_ns, end_ns, sum;
    bool good;
    size_t wrong_line;
    enum farm_status status;
    struct farm_error err;
};

struct farm_bw_workers_config {
    const int *cpus; // one thread each; CPUs that this process may use
    int cpu_count;
    int node;   // where the memory lies; -1: each thread's own
    int arrays; // 1 to 3
    enum farm_bw_pages pages;
    uint64_t array_bytes; // each, all threads together, in whole lines a thread. 0: farm_bw_array_bytes, or
                          // what memory and `seconds` suffice for
    double seconds;       // with array_bytes 0: for opening and for one sample each of `figures` figures
    int figures;
    bool shuffled; // makes an order for LISTED
};

struct farm_bw_workers {
    const struct farm_bw_setup *setup;
    struct farm_bw_workers_config config; // array_bytes: those in use
    struct farm_bw_team *team;
    uint64_t cache_bytes;          // last-level caches that the threads reach
    struct farm_bw_worker *worker; // [config.cpu_count]
    uint64_t passes_done;          // since the arrays were filled
    uint64_t passes;               // in a sample
    enum farm_bandwidth_variant variant;
    double sample_s;
};

// For `figures` figures in the clock's remaining time, each thread on its own node.
struct farm_bw_workers_config farm_bw_workers_for(const struct farm_bw_clock *clock, int figures, const int *cpus,
                                                  int cpu_count, int arrays, uint64_t array_bytes);

// Refuses before it allocates. `conditions` receives how memory and threads came out. FARM_E_LIMIT: more than the
// machine, the control group or a node has left; FARM_E_INVALID: less than a line for each thread.
enum farm_status farm_bw_workers_open(const struct farm_bw_setup *setup, const struct farm_bw_workers_config *config,
                                      struct farm_bw_workers *workers, struct farm_bw_conditions *conditions,
                                      struct farm_error *err);
void farm_bw_workers_close(struct farm_bw_workers *workers);

// Before a kernel's samples, on all threads: fills the arrays, warms up, chooses the passes of a sample.
enum farm_status farm_bw_workers_prepare(struct farm_bw_workers *workers, const struct farm_bw_kernel *kernel,
                                         struct farm_error *err);
// One sample, from the first thread's start to the last one's end: bytes per second as the program counts them.
double farm_bw_workers_sample(struct farm_bw_workers *workers);
// After the samples: FARM_E_IO if data are wrong.
enum farm_status farm_bw_workers_verify(struct farm_bw_workers *workers, struct farm_error *err);

// prepare, samples within the clock, verify.
enum farm_status farm_bw_workers_figure(struct farm_bw_workers *workers, struct farm_bw_clock *clock,
                                        const struct farm_bw_kernel *kernel, struct farm_bw_figure *figure,
                                        struct farm_error *err);

// One figure by workers opened only for it; node -1: each thread's own.
enum farm_status farm_bw_bandwidth(struct farm_bw_clock *clock, const struct farm_bw_kernel *kernel, const int *cpus,
                                   int cpu_count, int node, uint64_t array_bytes, struct farm_bw_figure *figure,
                                   struct farm_error *err);

#endif
