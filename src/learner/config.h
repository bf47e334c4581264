// The learner's configuration: rings, devices, hyperparameters, limits. Plain data; the process that starts the learner
// fills it in, and all parts of the learner read it.
#ifndef FARM_LEARNER_CONFIG_H
#define FARM_LEARNER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "algo/algo.h"
#include "base/bitmap.h"
#include "base/status.h"
#include "base/totals.h"
#include "intake/stats.h"
#include "learner/pool.h"
#include "nn/executor.h"
#include "replay/source.h"
#include "ring/spec.h"

struct farm_backend_ops; // backend.h

enum farm_device { FARM_DEVICE_AUTO, FARM_DEVICE_CPU, FARM_DEVICE_CUDA };

// What a GPU keeps of the rings in its own memory.
enum farm_mirror {
    FARM_MIRROR_FULL,   // every step that the ring holds: an observation crosses the bus once
    FARM_MIRROR_WINDOW, // the newest frames, for inference; windows cross a second time for training
    FARM_MIRROR_OFF,    // the newest frames; training reads every frame of a stack from the registered rings
};

enum { FARM_LEARNER_SHARDS_MAX = FARM_WINDOW_SHARDS_MAX };

// A shard: an inference thread and the rings that it answers.
struct farm_learner_shard {
    int eventfd;                    // its bell, which the actors of its rings ring
    const char *gpu;                // PCI bus id; NULL: CUDA's device of the shard's number
    const struct farm_bitmap *cpus; // where its threads run; NULL: on all of the process
    int node;                       // the CPUs'; -1: any. Only for several shards on CPUs
};

// -1 stands for no descriptor. The learner owns those that it is given.
struct farm_learner_rings {
    const int (*fds)[2];    // [count]: up, down; -1: a vacant place
    const int *up_writable; // [count] a writable up, for a GPU that registers no read-only memory; NULL: none
    const int *wake_fds;    // [count] bridges' eventfds (farm_ring.wake_fd); -1: a local actor; NULL: all local.
                            // Several rings may share one; the caller keeps them
    const uint32_t *shard;  // [count] each ring's; NULL: 0
    const struct farm_ring_spec *spec; // every ring's shape; NULL: the first ring's
    uint32_t count;
    int admission; // the learner's end (admission.h); -1: no ring joins or leaves
};

struct farm_learner_device {
    enum farm_device kind;                  // AUTO: CUDA if it loads and finds a GPU, else the CPU
    const struct farm_backend_ops *backend; // NULL: the one of `kind`
    const char *cuda_library;               // path of the CUDA backend; NULL: none
    enum farm_mirror mirror;                // an upper bound: less if the device's memory is too small
    double state_every_s;                   // period of a GPU's copies of its state to the host; 0: 10 s
    double limit_s;                         // a GPU hangs if an inference or update takes longer; 0: 600 s
};

struct farm_learner_inference {
    uint32_t batch_max; // observations of one forward pass; with boards: of an actor's
    double wait_ms;     // longest wait of a ready lane for others in its batch
    uint64_t spin_ns;   // before sleeping
    uint64_t nap_ns;    // longest sleep before it checks for the end; 0: 50 ms
};

struct farm_learner_training {
    uint32_t threads;                                    // >= 1
    bool threads_chosen;                                 // by the plan, so that fewer may train if that is faster
    struct farm_pool_group groups[FARM_POOL_GROUPS_MAX]; // [group_count] of the threads, by node
    uint32_t group_count;                                // 0: one, on any node
#define LEARNER_KEY(kind, key, ...) farm_setting_##kind key;
#include "config/keys.h" // micro_batch, sync_grace_s (0: 5), ...
};

// Boards of actors that infer: the learner publishes every version on each, and infers nothing itself.
struct farm_learner_boards {
    int fds[FARM_POOL_GROUPS_MAX]; // one a NUMA node
    uint32_t count;                // 0: the learner infers
    uint32_t refresh;              // an actor takes up newer parameters at steps that are multiples of this
};

struct farm_learner_target {
    uint64_t frames; // the run ends there; 0: no limit
    double seconds;  // all sessions together: the supervisor ends the run then; 0: no limit
};

struct farm_learner_checkpoints {
    const char *dir; // NULL: none are written
    double every_s;
    uint64_t every_frames; // one also at the first update at or after each multiple; 0: none
    uint32_t keep;         // newest files that stay, beside the best; 0: all
    const char *replay;    // folder of the saved replay (replay/store.h); NULL: it is not saved
    uint32_t replay_rings; // saved: the first ones
    const char *load;      // file to start from, NULL: fresh parameters
    const char *init;      // file whose parameters the first ones are, as far as they fit; NULL: none, or `load`
    const char *held;      // /proc/PID/fd/N of the same file, read if it has been removed; NULL: none
    // Text pairs of each checkpoint's metadata (env, net, ...), all that `farm eval` needs.
    const char *const (*metadata)[2];
    uint32_t metadata_count;
};

// Every batch, sum and moment is the same in each run of this recipe on a machine: synchronous, on the CPU. After every
// checkpoint_every_updates the learner writes a checkpoint, the only ones, and ends, as it does at the target; the next
// one starts with new rings. After every metrics_every_updates, and before each checkpoint, all its threads stand still
// until the other end of sample_fd has taken a sample. Updates count from the run's start.
struct farm_learner_deterministic {
    bool on;
    uint64_t checkpoint_every_updates, metrics_every_updates;
    int sample_fd; // a stream socket: a byte there, a byte back; -1: no samples
};

struct farm_learner_config {
    struct farm_learner_rings rings;
    struct farm_learner_boards boards;
    struct farm_learner_shard shards[FARM_LEARNER_SHARDS_MAX];
    uint32_t shard_count;     // GPUs, or inference threads on CPUs; 0: one
    struct farm_stats *stats; // shared, writable
    struct farm_learner_device device;

    uint64_t seed;
    enum farm_net_init init;
    struct farm_net_spec net;
    struct farm_net_io io;
    struct farm_head_options head;
    struct farm_sampler sampler; // exploration only: farm_learner_sampler adds the rest
    struct farm_algo_config algo;
    struct farm_arithmetic_request arithmetic; // precision, CPU and files; parts.h fills in the rest
    struct farm_replay_config replay;          // its start to importance_end, if the algorithm replays
    bool first_stored; // first priorities from stored answers (iteration.h); else the highest so far
    struct farm_learner_inference inference;
    struct farm_learner_training training;
    uint32_t frames_per_step;
    int memory_node; // NUMA node of parameters, gradients and optimiser state; -1: anywhere

    struct farm_learner_target target;
    struct farm_totals before; // sums over the sessions before this one (resume)
    struct farm_learner_checkpoints checkpoints;
    struct farm_learner_deterministic deterministic;
};

static inline struct farm_sampler farm_learner_sampler(const struct farm_learner_config *config, bool greedy) {
    struct farm_sampler sampler = config->sampler;
    sampler.seed = config->seed;
    sampler.greedy = greedy;
    return sampler;
}

// A shard's share of an iteration's windows. The first shards take the remainder.
static inline uint32_t farm_learner_share(uint32_t batch, uint32_t shards, uint32_t shard) {
    return batch / shards + (shard < batch % shards);
}

#endif
