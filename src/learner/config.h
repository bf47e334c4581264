// What the learner process is given: rings, devices, hyperparameters, limits. Plain data that the parts of the learner
// share; the process that starts the learner fills it in. No functions but one of sizes.
#ifndef FARM_LEARNER_CONFIG_H
#define FARM_LEARNER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "algo/algo.h"
#include "base/bitmap.h"
#include "base/status.h"
#include "learner/stats.h"
#include "nn/executor.h"
#include "ring/spec.h"

struct farm_backend_ops; // backend.h

enum farm_device { FARM_DEVICE_AUTO, FARM_DEVICE_CPU, FARM_DEVICE_CUDA };

// What a GPU keeps of the rings in its own memory.
enum farm_mirror {
    FARM_MIRROR_FULL,   // every step as long as its ring has it: an observation crosses the bus once
    FARM_MIRROR_WINDOW, // the newest frames, for inference; windows cross a second time when they are trained on
    FARM_MIRROR_OFF,    // the newest frames; training reads the registered rings, each frame of a stack for itself
};

enum { FARM_LEARNER_SHARDS_MAX = 32 };

// An inference thread with the rings that it answers.
struct farm_learner_shard {
    int eventfd;                    // its bell: what the actors of its rings ring
    const char *gpu;                // PCI bus id; NULL: CUDA's device of the shard's number
    const struct farm_bitmap *cpus; // where its thread runs; NULL: wherever the process may
    int node;                       // of the CPUs; -1: any. Counts if there are several shards on CPUs
};

struct farm_learner_config {
    // Handed over by the supervisor. The learner owns the descriptors.
    const int (*ring_fds)[2]; // [ring_count]: up, down; -1: a place for one that comes later
    const int *up_writable;   // [ring_count] up once more, for a GPU that registers no read-only memory; NULL: not lent
    const int *wake_fds;      // [ring_count] of remote actors' bridges (farm_ring.wake_fd); -1: local; NULL: all are.
                              // One descriptor may stand for several rings; these stay the caller's
    uint32_t ring_count;
    const struct farm_ring_spec *ring_spec; // every ring's shape; NULL: the first ring's
    int admission;                          // socket by which rings join and leave (admission.h); 0: none do
    struct farm_learner_shard shards[FARM_LEARNER_SHARDS_MAX];
    uint32_t shard_count;                   // GPUs, or inference threads on CPUs; 0: one
    const uint32_t *ring_shard;             // [ring_count] whose ring it is; NULL: all are shard 0's
    struct farm_stats *stats;               // shared, writable
    const struct farm_backend_ops *backend; // what computes; NULL: what `device` says
    enum farm_device device;                // AUTO: cuda where its library loads and finds a GPU, else cpu
    const char *cuda_library;               // path of the CUDA backend; NULL: there is none
    enum farm_mirror mirror;                // the most; less where the device's memory does not suffice

    uint64_t seed;
    struct farm_net_spec net;
    struct farm_net_io io;
    struct farm_algo_config algo;
    enum farm_precision precision;
    const char *cpu_name, *arithmetic_run_file, *arithmetic_user_file; // nn/arithmetic.h; NULL: unknown, none
    uint32_t train_threads;                                            // >= 1
    uint32_t infer_batch_max;                                          // observations of one forward pass
    double infer_wait_ms;                                              // most time that a ready lane waits for company
    uint64_t spin_ns;                                                  // before sleeping
    uint64_t nap_ns;      // how long inference sleeps at most before it looks whether it shall stop; 0: 50 ms
    uint32_t micro_batch; // windows of one forward/backward; 0: chosen
    double state_every_s; // a GPU's state is copied to the host so often, the most that a lost one takes; 0: 10 s
    double gpu_limit_s;   // the most that an inference or an update may take before its GPU hangs; 0: 600 s
    uint32_t frames_per_step;

    int memory_node; // NUMA node of parameters, gradients and optimiser state; -1: anywhere

    uint64_t frames_target; // ends when reached; 0: no limit
    uint64_t frames_start;  // counted before this run (resume)

    const char *checkpoint_dir; // NULL: none are written
    double checkpoint_every_s;
    const char *checkpoint_load; // file to start from, NULL: fresh parameters
    // Text pairs put into each checkpoint's metadata (env, net, ... ), so that `farm eval` needs nothing else.
    const char *const (*metadata)[2];
    uint32_t metadata_count;

    bool evaluate; // no training: greedy or sampled play, `episodes_target` games
    bool greedy;
    uint64_t episodes_target; // evaluate: ends when so many games have ended
};

// How many of an iteration's windows are a shard's: the batch divided evenly, the first shards have what is over.
static inline uint32_t farm_learner_share(uint32_t batch, uint32_t shards, uint32_t shard) {
    return batch / shards + (shard < batch % shards);
}

#endif
