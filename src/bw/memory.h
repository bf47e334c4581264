// Memory bandwidth: how many bytes a second kernels (kernels/bandwidth.h) move on given CPUs from given nodes, and the
// tables made of it: all kernels, node by node, ratio of reads to writes, number of cores, size of pages. All rates are
// bytes per second as the program sees them (STREAM's count); times bus_factor they count write-allocate traffic too.
// One figure is one team of pinned threads, started together, each on arrays of its own on its node, first touched by
// itself; a sample is as many whole passes as last sample_s, from the first thread's start to the last one's end; data
// are checked after the last sample, outside the time. In configs 0 and NULL stand for a sensible default, but CPUs and
// nodes are numbers, of which -1 stands for it. Arrays without a given size have farm_bw_array_bytes, or as much less
// as lets setup->seconds hold, the time to make memory present counted in; a figure whose arrays then fit into the
// last-level caches has in_cache set.
#ifndef FARM_BW_MEMORY_H
#define FARM_BW_MEMORY_H

#include "bw/buffer.h"

// ---- one figure ----

struct farm_bw_memory_config {
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores;
    enum farm_bandwidth_pattern pattern; // LISTED: shuffled lines
    uint64_t stride_bytes;               // STRIDED: a multiple of 64; 0: 4096 + 64
    uint64_t array_bytes;                // of each array, all threads together; 0: beyond caches
    const int *cpus;                     // one thread each, kernel's numbers
    int cpu_count;                       // 0: the first allowed CPU alone
    int node;                            // of the memory; -1: each thread's own
};

struct farm_bw_memory_result {
    struct farm_bw_figure bytes_per_s; // program's count
    double bus_factor;                 // bytes on the bus for one that the program sees
    uint64_t array_bytes;              // that were used, of each array
    int arrays, threads;
    uint64_t passes; // of the last sample
    enum farm_bandwidth_variant variant;
    enum farm_bandwidth_stores stores; // that were made
    struct farm_bw_conditions conditions;
};

// Errors: FARM_E_LIMIT, larger than the memory, the control group or the node let us have: before anything is
// allocated; FARM_E_INVALID, a config that makes no sense; FARM_E_UNSUPPORTED, kernels or page size that this machine
// lacks; FARM_E_IO, data found wrong after a run.
enum farm_status farm_bw_memory(const struct farm_bw_setup *setup, const struct farm_bw_memory_config *config,
                                struct farm_bw_memory_result *result, struct farm_error *err);

// ---- all kernels ----

enum { FARM_BW_KERNELS_MAX = 48 };

struct farm_bw_kernel_row {
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores;
    enum farm_bandwidth_pattern pattern;
    uint64_t stride_bytes;       // STRIDED
    struct farm_bw_figure one;   // bytes_per_s of one core
    struct farm_bw_figure cores; // of all cores
    double bus_factor;
};

// Read, copy and triad come first, on all cores and on one: they are taken even when the time is over.
enum farm_bw_kernels_extent {
    FARM_BW_KERNELS_FEW,        // these three alone, in order, with non-temporal stores
    FARM_BW_KERNELS_SEQUENTIAL, // the six STREAM-like ops with both stores, in order
    FARM_BW_KERNELS_ALL         // the six in order, at a stride and shuffled
};

struct farm_bw_kernels_config {
    uint64_t array_bytes; // 0: beyond caches
    enum farm_bw_kernels_extent extent;
};

struct farm_bw_kernels_result {
    int rows;
    struct farm_bw_kernel_row row[FARM_BW_KERNELS_MAX];
    int cores;                             // threads of `cores`
    uint64_t array_bytes, one_array_bytes; // of `cores`, of `one`
    enum farm_bandwidth_variant variant;
    struct farm_bw_conditions conditions;
};

enum farm_status farm_bw_kernels(const struct farm_bw_setup *setup, const struct farm_bw_kernels_config *config,
                                 struct farm_bw_kernels_result *result, struct farm_error *err);

// ---- node x node ----

// Rows: nodes with CPUs that this process may use. Columns: nodes with memory that it may use, CPU-less ones (CXL)
// too. cell[row * columns + column] and placed, whether all pages of that cell were found on its column's node, are
// owned: farm_bw_matrix_free.
struct farm_bw_matrix {
    int rows, columns;
    int row_node[FARM_NODES_MAX], column_node[FARM_NODES_MAX];
    int threads[FARM_NODES_MAX]; // of each row
    struct farm_bw_figure *cell;
    bool *placed;
    struct farm_bw_conditions conditions;
};
// NULL and already freed are permitted.
void farm_bw_matrix_free(struct farm_bw_matrix *matrix);

struct farm_bw_matrix_config {
    enum farm_bandwidth_op op; // of the bandwidth matrix: READ
    uint64_t array_bytes;      // of each array (bandwidth), of the chase (latency); 0: beyond caches
};

// Rows, columns and threads alone, cells not measured (samples 0): what the others start with.
enum farm_status farm_bw_matrix_shape(const struct farm_machine *machine, struct farm_bw_matrix *matrix,
                                      struct farm_error *err);

// bytes_per_s, all cores of the row's node on memory of the column's.
enum farm_status farm_bw_matrix_bandwidth(const struct farm_bw_setup *setup, const struct farm_bw_matrix_config *config,
                                          struct farm_bw_matrix *matrix, struct farm_error *err);

// ---- reads to writes ----

enum { FARM_BW_MIXES = 5 };

struct farm_bw_mix_row {
    const char *name; // "all reads", "3:1", "2:1", "1:1", "triad-like"
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores; // triad-like: non-temporal, where there are such
    struct farm_bw_figure bytes_per_s; // program's count: that of the bus as well
};

struct farm_bw_mix_config {
    uint64_t array_bytes;
};

struct farm_bw_mix_result {
    struct farm_bw_mix_row row[FARM_BW_MIXES];
    int threads;
    struct farm_bw_conditions conditions;
};

enum farm_status farm_bw_mix(const struct farm_bw_setup *setup, const struct farm_bw_mix_config *config,
                             struct farm_bw_mix_result *result, struct farm_error *err);

// ---- number of cores ----

enum { FARM_BW_CORES_STEPS_MAX = 48 };

struct farm_bw_cores_step {
    int cores;
    struct farm_bw_figure bytes_per_s;
};

// One node: its own cores on its own memory.
struct farm_bw_cores_curve {
    int node;
    int steps;
    struct farm_bw_cores_step step[FARM_BW_CORES_STEPS_MAX]; // 1, 2, 3, 4, 6, 8, 12, ... all
    int saturated_cores; // the fewest that reach 95 % of the most; 0: nothing measured
};

struct farm_bw_cores_config {
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores;
    uint64_t array_bytes;
};

struct farm_bw_cores_result {
    int curves;
    struct farm_bw_cores_curve *curve; // owned: farm_bw_cores_free
    enum farm_bandwidth_op op;
    struct farm_bw_conditions conditions;
};

enum farm_status farm_bw_cores(const struct farm_bw_setup *setup, const struct farm_bw_cores_config *config,
                               struct farm_bw_cores_result *result, struct farm_error *err);
void farm_bw_cores_free(struct farm_bw_cores_result *result);

// The steps of a curve over so many cores; returns their number.
int farm_bw_cores_steps(int cores, int *steps, int most);

#endif
