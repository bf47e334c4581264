// What crosses the bus between a NUMA node and a GPU, and between two GPUs: what is measured, and its results. Only
// bw/cuda/, in libfarm_cuda.so (farm_bw_gpu_open), includes CUDA. After that the process must not fork without exec.
//
// GB are 1e9 bytes and bytes are counted one way, as in nvbandwidth; a sample is as many whole passes as last about 10
// ms between two events of the GPU. Data are compared after the last sample, outside the time. Runs in one thread,
// which the caller has put on the node (CPUs and memory policy), because that places pinned memory.
#ifndef FARM_BW_GPU_H
#define FARM_BW_GPU_H

#include "bw/figure.h"

enum { FARM_BW_GPU_BLOCKS = 4, FARM_BW_GPU_PIECES = 3, FARM_BW_GPU_BYTES_LEAST = 64 << 10 };

enum farm_bw_gpu_memory { FARM_BW_GPU_PINNED, FARM_BW_GPU_REGISTERED, FARM_BW_GPU_MEMORIES };
// BOTH: at once; the bytes of both from the common start to the later end.
enum farm_bw_gpu_direction { FARM_BW_GPU_H2D, FARM_BW_GPU_D2H, FARM_BW_GPU_BOTH, FARM_BW_GPU_DIRECTIONS };
enum farm_bw_gpu_way { FARM_BW_GPU_LOADS, FARM_BW_GPU_BULK, FARM_BW_GPU_WAYS }; // kernels: kernels/cuda/kernels.h
// How pieces are fetched. ONE_COPY, the reference: in one. COPIES: cudaMemcpyAsync each; BATCH: cudaMemcpyBatchAsync.
enum farm_bw_gpu_gatherer {
    FARM_BW_GPU_ONE_COPY,
    FARM_BW_GPU_BY_LOADS,
    FARM_BW_GPU_BY_BULK,
    FARM_BW_GPU_BY_COPIES,
    FARM_BW_GPU_BY_BATCH,
    FARM_BW_GPU_GATHERERS
};

// As in names of figures: "pinned", "h2d", "loads", "copies".
extern const char *const farm_bw_gpu_memory_names[FARM_BW_GPU_MEMORIES],
    *const farm_bw_gpu_direction_names[FARM_BW_GPU_DIRECTIONS],
        *const farm_bw_gpu_way_names[FARM_BW_GPU_WAYS], *const farm_bw_gpu_gatherer_names[FARM_BW_GPU_GATHERERS];

extern const uint32_t farm_bw_gpu_blocks[FARM_BW_GPU_BLOCKS];       // 4, 6, 8, 16
extern const size_t farm_bw_gpu_piece_bytes[FARM_BW_GPU_PIECES];    // 4096, 7056, 28224
extern const uint32_t farm_bw_gpu_piece_counts[FARM_BW_GPU_PIECES]; // pieces of a pass, at most

struct farm_bw_gpu_device {
    char name[256], pci_bus_id[32];
    int major, minor; // compute capability
    uint64_t memory_bytes;
    int driver; // the newest CUDA that the driver knows: 13000 is 13.0
};

struct farm_bw_gpu_config {
    int device; // CUDA's number
    // The caller's host memory on the node, page-aligned, `bytes` each, to be registered as a ring's segments are: `up`
    // mapped read-only and filled by farm_bw_gpu_fill, `down` writable.
    const void *up;
    void *up_writable; // `up` mapped for writing, for a GPU that registers nothing read-only; NULL: none
    void *down;
    size_t bytes;               // a multiple of 4096, at least FARM_BW_GPU_BYTES_LEAST, below 2 GiB
    struct farm_bw_setup setup; // seconds, samples and control
};

struct farm_bw_gpu_gather {
    size_t piece_bytes;
    uint32_t pieces;                                 // in a pass
    struct farm_bw_figure by[FARM_BW_GPU_GATHERERS]; // bytes_per_s
};

// Figures that could not be measured have no samples.
struct farm_bw_gpu_node {
    struct farm_bw_figure copy[FARM_BW_GPU_MEMORIES][FARM_BW_GPU_DIRECTIONS]; // bytes_per_s, by copy engines
    struct farm_bw_figure pull[FARM_BW_GPU_WAYS][FARM_BW_GPU_BLOCKS]; // bytes_per_s, one large region by a kernel
    struct farm_bw_gpu_gather gather[FARM_BW_GPU_PIECES];
    struct farm_bw_figure registration; // bytes_per_s, for `up`
    struct farm_bw_figure flag_ns; // the host stores a word and launches a kernel that reads it and stores another,
                                   // until the host sees that: no kernel is resident, so the launch is in it
    bool registered;               // false: refused, kernels and pieces read pinned memory; conditions.note states why
    struct farm_bw_conditions conditions; // verified, stopped, out_of_time and note; the caller adds the others
};

struct farm_bw_gpu_peer {
    struct farm_bw_figure bytes_per_s; // cudaMemcpyPeerAsync
    bool access;                       // peer access was on: past the host's memory, by NVLink or the bus
    struct farm_bw_conditions conditions;
};

// What libfarm_cuda.so exports. No function leaves anything allocated or registered. Errors: FARM_E_IO wrong data and
// other errors of CUDA, FARM_E_LIMIT memory, FARM_E_UNSUPPORTED, FARM_E_DEAD a lost GPU, FARM_E_INVALID the config.
struct farm_bw_gpu_ops {
    // How many GPUs CUDA shows (none: an error), and one of them.
    enum farm_status (*count)(int *count, struct farm_error *err);
    enum farm_status (*describe)(int device, struct farm_bw_gpu_device *out, struct farm_error *err);
    enum farm_status (*node)(const struct farm_bw_gpu_config *config, struct farm_bw_gpu_node *out,
                             struct farm_error *err);
    // From config->device to `to`; reads neither the config's `up` nor `down`.
    enum farm_status (*peer)(const struct farm_bw_gpu_config *config, int to, struct farm_bw_gpu_peer *out,
                             struct farm_error *err);
};

// The symbol farm_bw_cuda of that library. NULL if the commits differ; *commit is then the library's.
typedef const struct farm_bw_gpu_ops *farm_bw_gpu_entry(const char *host_commit, const char **commit);

// path NULL: none. FARM_E_NOT_FOUND, FARM_E_UNSUPPORTED, with the reason. The library stays in the process.
enum farm_status farm_bw_gpu_open(const char *path, const struct farm_bw_gpu_ops **ops, struct farm_error *err);

// Contents that depend on their place: words first, first + 1, ... in one endless sequence. bytes: a multiple of 8.
void farm_bw_gpu_fill(void *memory, size_t bytes, uint64_t first);
// The offset of the first wrong word; `bytes`: all are right.
size_t farm_bw_gpu_check(const void *memory, size_t bytes, uint64_t first);

#endif
