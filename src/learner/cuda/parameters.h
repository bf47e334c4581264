// Parameters, gradient and optimiser state in device memory; two copies of the parameters for inference, each with its
// normalisation of the observation; a copy in host memory for checkpoints, where statistics (normalise.*) are
// kept too. Owned by the training thread, except `use` and `unuse`, which the inference thread calls.
//
// Inference reads one of two copies, training writes the other one and then makes it current. Neither waits for the
// other, except that training waits while an inference outlasts a whole update.
#ifndef FARM_LEARNER_CUDA_PARAMETERS_H
#define FARM_LEARNER_CUDA_PARAMETERS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/kernels.h"
#include "learner/backend.h"

struct farm_cuda_parameters {
    const struct farm_net *net;
    const struct farm_algo_plan *plan;
    size_t count; // elements of each vector, in device order
    bool bf16;    // forward and backward read bf16
    struct farm_cuda_optimiser optimiser;
    float *gradients;
    float *sets[FARM_ALGO_SETS_MAX]; // the plan's
    float *trainable; // device: 1, or 0 for what the optimiser leaves (farm_net_trainable); NULL: all ones
    int16_t *scale;   // the newest copy's, for training
    uint64_t version; // newest published
    struct farm_cuda_published {
        void *params; // bf16 or f32
        uint64_t *version;
        float *mean, *inverse; // host: [io.flat] as farm_inputs_write takes them; NULL: nothing is normalised
        int16_t *scale;        // farm_inputs_scale_pixels's; NULL: frames are not normalised
        int16_t *scale_host;   // pinned: on its way into `scale`
    } copies[2];
    struct {
        uint16_t *params;      // bf16; NULL: sets[0] are
        float *mean, *inverse; // as a copy's
        int16_t *scale, *scale_host;
    } target;                 // the plan's first set as forward reads it, with the set's own statistics
    uint32_t newest;          // the copy published last, current or about to be
    uint64_t current, in_use; // atomic. in_use: 1 + the copy that an inference reads; 0: none
    uint64_t *versions;       // [2] pinned: on their way into copies[].version
    uint64_t *step;           // pinned: on its way into host.optimiser_step
    struct {
        float *params, *first, *second; // PyTorch's order; first NULL for RMSProp
        float *sets[FARM_ALGO_SETS_MAX];
        uint64_t optimiser_step, version;
    } host;             // the device's state at host.version; statistics: of the newest version
    float *ordered;     // [3 + sets][count] device order, pinned
    uint64_t copied_ns; // when `host` was taken
};

// Device memory that farm_cuda_parameters_make takes.
size_t farm_cuda_parameters_bytes(const struct farm_net *net, const struct farm_learner_config *learner,
                                  const struct farm_algo_plan *plan, bool bf16);

// Initial parameters from the learner's seed, version 0, published. Waits for the work.
enum farm_status farm_cuda_parameters_make(const struct farm_net *net, const struct farm_learner_config *learner,
                                           const struct farm_algo_plan *plan, bool bf16, struct CUstream_st *stream,
                                           struct farm_cuda_parameters *out, struct farm_error *err);
void farm_cuda_parameters_free(struct farm_cuda_parameters *parameters); // safe on a zeroed one

// What forward and backward of training read; and forward by the plan's first set.
const void *farm_cuda_parameters_trained(const struct farm_cuda_parameters *parameters);
const void *farm_cuda_parameters_target(const struct farm_cuda_parameters *parameters);

// Whether the first set normalises flat observations by statistics of its own.
static inline bool farm_cuda_target_scales(const struct farm_net *net, const struct farm_algo_plan *plan) {
    return farm_algo_sets(plan) > 0 && net->normalise >= 0 && net->io.flat > 0;
}

// host -> device, published as host.version; waits.
enum farm_status farm_cuda_parameters_upload(struct farm_cuda_parameters *parameters, struct CUstream_st *stream,
                                             struct farm_error *err);
// device -> host; waits. On an error `host` is unchanged.
enum farm_status farm_cuda_parameters_download(struct farm_cuda_parameters *parameters, struct CUstream_st *stream,
                                               struct farm_error *err);

// Takes another one's host copy of all vectors.
void farm_cuda_parameters_take(struct farm_cuda_parameters *parameters, const struct farm_cuda_parameters *from);

// farm_backend_bad_tensor of the gradients; waits.
enum farm_status farm_cuda_parameters_bad_tensor(struct farm_cuda_parameters *parameters, struct CUstream_st *stream,
                                                 const char **out, struct farm_error *err);

// The set becomes equal to the one in training (backend.h): enqueues a copy on the device; copies the statistics, of
// `statistics` ([parameter_count], PyTorch's order), which change between iterations only.
enum farm_status farm_cuda_parameters_copy(struct farm_cuda_parameters *parameters, struct CUstream_st *stream,
                                           uint32_t set, const float *statistics, struct farm_error *err);

// Enqueues a copy of a set, as it is after the stream's work, as `version`, with those statistics. The caller calls
// farm_cuda_parameters_published after the end of that work.
enum farm_status farm_cuda_parameters_publish(struct farm_cuda_parameters *parameters, struct CUstream_st *stream,
                                              uint32_t set, const float *statistics, uint64_t version,
                                              struct farm_error *err);
void farm_cuda_parameters_published(struct farm_cuda_parameters *parameters);

// Inference thread: the copy to read, until unuse.
uint32_t farm_cuda_parameters_use(struct farm_cuda_parameters *parameters);
void farm_cuda_parameters_unuse(struct farm_cuda_parameters *parameters);

#endif
