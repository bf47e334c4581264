// What inference and training of the CUDA backend share: the device, the rings' addresses on it, their mirror, the
// parameters. Made once, before either runs. Afterwards these change: the parameters; the entries of rings that join or
// leave, which no other thread reads meanwhile (backend.h); and `given_up`.
#ifndef FARM_LEARNER_CUDA_CONTEXT_H
#define FARM_LEARNER_CUDA_CONTEXT_H

#include "base/atomics.h"
#include "learner/cuda/mirror.h"
#include "learner/cuda/obs_path.h"
#include "learner/cuda/parameters.h"
#include "learner/cuda/registered.h"
#include "nn/cuda/executor.h"

struct farm_cuda_context {
    const struct farm_learner_config *learner;
    const struct farm_algo_plan *plan; // epochs 0: no training
    const struct farm_net *net;
    struct farm_head head;
    struct farm_sampler sampler;
    uint32_t columns_max; // windows of an iteration, in all shards
    const struct farm_lanes *lanes;
    uint32_t shard, shards; // this shard; how many
    int device;
    struct farm_cuda_vendor vendor;
    enum farm_precision precision; // F32 or BF16
    struct farm_cuda_registered registered;
    struct farm_cuda_mirror mirror;
    struct farm_cuda_parameters parameters;
    struct farm_cuda_obs_path obs_path;
    bool direct;        // the GPU reads frames in the rings, which are registered
    uint32_t images;    // frames of one environment's step
    size_t frame_bytes; // each frame's
    size_t flat_bytes;  // a row's flat input's, which the host writes
    size_t obs_bytes;   // all that crosses the bus for one environment's step
    void *zeros;        // device: a frame of zeros, with alignment
    void *sink;         // device: the target of padding rows
    uint64_t given_up;  // below; atomic
};

// Whether this shard serves a lane; and how many of an iteration's windows it trains on, at most.
static inline bool farm_cuda_serves(const struct farm_cuda_context *context, uint32_t lane) {
    return context->lanes->lanes[lane].lane && context->lanes->lanes[lane].shard == context->shard;
}
static inline uint32_t farm_cuda_share(const struct farm_cuda_context *context) {
    if (context->plan->sync) return context->columns_max; // any ring may join
    return farm_learner_share(context->columns_max, context->shards, context->shard);
}

// Units (algo/algo.h) of a pass, at most: this shard's.
static inline uint32_t farm_cuda_pass_units(const struct farm_cuda_context *context) {
    return context->plan->targets_once ? farm_algo_pass_units(context->plan, context->columns_max)
                                       : farm_cuda_share(context);
}

static inline struct farm_cuda_executor_config farm_cuda_executor_config(const struct farm_cuda_context *context,
                                                                         uint32_t rows, bool training) {
    return (struct farm_cuda_executor_config){.net = context->net,
                                              .batch_max = (int)rows,
                                              .training = training,
                                              .precision = context->precision,
                                              .vendor = &context->vendor};
}

// A lane's ring, and the device address of one of its host addresses.
static inline uint32_t farm_cuda_ring_of(const struct farm_cuda_context *context, uint32_t lane) {
    return (uint32_t)(context->lanes->lanes[lane].ring - context->lanes->rings);
}
static inline void *farm_cuda_up(const struct farm_cuda_context *context, uint32_t lane, const void *host) {
    return farm_cuda_address(&context->registered, farm_cuda_ring_of(context, lane), FARM_CUDA_UP, host);
}
static inline void *farm_cuda_down(const struct farm_cuda_context *context, uint32_t lane, const void *host) {
    return farm_cuda_address(&context->registered, farm_cuda_ring_of(context, lane), FARM_CUDA_DOWN, host);
}

// ---- how long the host waits for the GPU (device_wait.c) ----

// A lost GPU returns an error; a hanging GPU returns nothing and never ends its work. A thread that has waited longer
// than the learner's device.limit_s gives the GPU up for all threads: none waits for it again, its resources are leaked
// on purpose (freeing them could block), and the process ends.
double farm_cuda_limit_s(const struct farm_learner_config *learner);
static inline void farm_cuda_give_up(struct farm_cuda_context *context) {
    farm_store_relaxed(&context->given_up, 1);
}
static inline bool farm_cuda_given_up(const struct farm_cuda_context *context) {
    return farm_load_relaxed(&context->given_up) != 0;
}

// Called while `what`, for which the thread has waited since start_ns, has not ended. FARM_E_DEAD after the limit, or
// if another thread has given the GPU up.
enum farm_status farm_cuda_wait_expired(struct farm_cuda_context *context, uint64_t start_ns, const char *what,
                                        struct farm_error *err);

// Sleeps a 64th of the time since start_ns: at least 20 us, at most 1 ms.
void farm_cuda_nap(uint64_t start_ns);

#endif
