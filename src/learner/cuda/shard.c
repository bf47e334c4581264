// See backend.h. Chooses the device, divides its memory, and assembles registration, mirror, parameters, inference and
// training.
#include "learner/cuda/backend.h"

#include <stdlib.h>

#include "base/log.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"

enum { RESERVE_SHARE = 64 };                // this share of device memory stays free for CUDA and its libraries
static const size_t NCCL_BYTES = 512 << 20; // stays free for NCCL, which connects the GPUs later: a guess

// ---- the device ----

// A planned GPU that CUDA does not show, or NULL. A container, a Slurm job or CUDA_VISIBLE_DEVICES may hide GPUs; then
// every shard uses CUDA's numbers, so no GPU is used twice.
static const char *unknown_gpu(const struct farm_cuda_context *context) {
    for (uint32_t k = 0; k < context->shards; k++) {
        const char *bus_id = context->learner->shards[k].gpu;
        int device;
        if (!bus_id || cudaDeviceGetByPCIBusId(&device, bus_id) == cudaSuccess) continue;
        (void)cudaGetLastError();
        return bus_id;
    }
    return NULL;
}

static enum farm_status find_device(const struct farm_cuda_context *context, int *device, struct farm_error *err) {
    const char *bus_id = context->learner->shards[context->shard].gpu;
    int count;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorUnknown) { // the driver has not started: no GPU is lost
        (void)cudaGetLastError();
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "cudaGetDeviceCount: %s (%d): the driver does not start (see nvidia-smi and dmesg; is "
                         "nvidia-uvm loaded?); or --device cpu",
                         cudaGetErrorString(code), (int)code);
    }
    if (code) return farm_cuda_fail(err, code, "cudaGetDeviceCount", __FILE__, __LINE__);
    if (count < 1) return farm_cuda_fail(err, cudaErrorNoDevice, "cudaGetDeviceCount", __FILE__, __LINE__);
    if ((int)context->shards > count)
        return farm_fail(err, FARM_E_UNSUPPORTED, "--gpus %u, but CUDA shows %d%s", context->shards, count,
                         getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES)" : "");
    const char *unknown = unknown_gpu(context);
    if (unknown && context->shard == 0)
        farm_log_warn("CUDA does not show the GPU at %s: using its first %u; actors may be far from them", unknown,
                      context->shards);
    *device = (int)context->shard;
    if (bus_id && !unknown) FARM_CUDA_TRY(cudaDeviceGetByPCIBusId(device, bus_id));
    FARM_CUDA_TRY(cudaSetDevice(*device));
    return FARM_OK;
}

static enum farm_status open_device(struct farm_cuda_context *context, struct farm_error *err) {
    enum farm_status status = find_device(context, &context->device, err);
    if (!status) status = farm_cuda_vendor_open(&context->vendor, err);
    if (status) return status;
    struct cudaDeviceProp properties;
    char libraries[256];
    int driver = 0;
    FARM_CUDA_TRY(cudaGetDeviceProperties(&properties, context->device));
    FARM_CUDA_TRY(cudaDriverGetVersion(&driver));
    farm_cuda_vendor_describe(&context->vendor, libraries, sizeof libraries);
    const enum farm_precision precision = context->learner->arithmetic.precision;
    const bool f32 = precision == FARM_PRECISION_F32 || (precision == FARM_PRECISION_AUTO && !context->images);
    context->precision = f32 ? FARM_PRECISION_F32 : FARM_PRECISION_BF16;
    farm_log_info("device cuda: %s, compute capability %d.%d, driver for CUDA %d.%d, %s; arithmetic in %s",
                  properties.name, properties.major, properties.minor, driver / 1000, driver % 1000 / 10, libraries,
                  context->precision == FARM_PRECISION_F32 ? "f32" : "bf16 with f32 sums");
    return FARM_OK;
}

// ---- dividing its memory ----

struct budget {
    size_t parameters, inference, training, mirror;
};

static struct budget budget_of(const struct farm_cuda_context *context, enum farm_mirror mode) {
    const struct farm_learner_config *learner = context->learner;
    const struct farm_cuda_mirror mirror = farm_cuda_mirror_plan(&context->net->io, mode);
    return (struct budget){.parameters = farm_cuda_parameters_bytes(context->net, learner, context->plan,
                                                                    context->precision == FARM_PRECISION_BF16),
                           .inference = farm_cuda_inference_bytes(context),
                           .training = context->plan->epochs ? farm_cuda_training_bytes(context, mode) : 0,
                           .mirror = farm_cuda_mirror_bytes(&mirror, context->lanes, context->shard)};
}

static size_t total_bytes(const struct budget *budget) {
    return budget->parameters + budget->inference + budget->training + budget->mirror;
}

static double megabytes(size_t bytes) {
    return (double)bytes / 1e6;
}

// Without windows, training cannot read rings that are not registered.
static enum farm_mirror smallest_mirror(const struct farm_cuda_context *context) {
    const bool bounced = !context->direct && context->images > 0;
    return bounced ? FARM_MIRROR_WINDOW : FARM_MIRROR_OFF;
}

// The largest mirror up to the requested one that fits, by the sizes that are known beforehand.
static enum farm_status choose_mirror(const struct farm_cuda_context *context, enum farm_mirror *mode,
                                      struct farm_error *err) {
    const enum farm_mirror requested = context->learner->device.mirror, smallest = smallest_mirror(context);
    const enum farm_mirror wanted = requested < smallest ? requested : smallest;
    size_t left, total;
    FARM_CUDA_TRY(cudaMemGetInfo(&left, &total));
    const size_t kept = total / RESERVE_SHARE + (context->shards > 1 ? NCCL_BYTES : 0);
    const size_t usable = left > kept ? left - kept : 0;
    struct budget budget = {0};
    if (wanted != requested)
        farm_log_warn("mirror %s in place of %s: the rings are not registered", farm_mirror_name(wanted),
                      farm_mirror_name(requested));
    for (*mode = wanted; *mode <= smallest; ++*mode) {
        budget = budget_of(context, *mode);
        if (total_bytes(&budget) > usable) continue;
        if (*mode != wanted)
            farm_log_warn("mirror %s in place of %s: device memory does not suffice", farm_mirror_name(*mode),
                          farm_mirror_name(wanted));
        farm_log_info("device memory: parameters %.1f MB, inference %.1f MB, training %.1f MB, mirror %s %.1f MB, of "
                      "%.1f MB that are free",
                      megabytes(budget.parameters), megabytes(budget.inference), megabytes(budget.training),
                      farm_mirror_name(*mode), megabytes(budget.mirror), megabytes(left));
        return FARM_OK;
    }
    return farm_fail(
        err, FARM_E_LIMIT,
        "device memory: parameters need %.1f MB (--net), inference %.1f MB (--infer-batch-max), training "
        "%.1f MB (--micro-batch, --unroll), the smallest mirror %.1f MB (--envs-per-actor): %.1f MB in all, "
        "and %.1f of the GPU's %.1f MB are free",
        megabytes(budget.parameters), megabytes(budget.inference), megabytes(budget.training), megabytes(budget.mirror),
        megabytes(total_bytes(&budget)), megabytes(left), megabytes(total));
}

// ---- start ----

static enum farm_status allocate_zeros(struct farm_cuda_context *context, struct farm_error *err) {
    const size_t bytes = farm_cuda_slot_bytes(context->frame_bytes);
    enum farm_status status = farm_cuda_device_memory(bytes, "an observation needs", NULL, &context->zeros, err);
    if (!status) status = farm_cuda_device_memory(bytes, "an observation needs", NULL, &context->sink, err);
    return status;
}

// Tries it with frames of the first image from the lanes to their places in the mirror, which is still empty.
static enum farm_status choose_obs_path(struct farm_cuda_context *context, struct CUstream_st *stream,
                                        struct farm_error *err) {
    struct farm_cuda_pieces pieces = {.bytes = context->frame_bytes, .bounced = !context->direct};
    for (uint32_t i = 0; i < context->lanes->lane_count && context->images > 0; i++) {
        if (!farm_cuda_serves(context, i)) continue;
        const struct farm_lane *lane = context->lanes->lanes[i].lane;
        for (uint32_t e = 0; e < lane->width && pieces.count < FARM_CUDA_OBS_PATH_PIECES; e++) {
            const void *frame = farm_cuda_frame(&context->mirror, lane, 0, 0, e);
            pieces.from[pieces.count] = pieces.bounced ? frame : farm_cuda_up(context, i, frame);
            pieces.to[pieces.count++] = farm_cuda_mirror_at(&context->mirror, i, 0, 0, e);
        }
    }
    return farm_cuda_obs_path_choose(stream, &pieces, &context->obs_path, err);
}

static enum farm_status make_stream(struct farm_cuda_shard *shard, struct farm_error *err) {
    FARM_CUDA_TRY(cudaStreamCreateWithFlags(&shard->stream, cudaStreamNonBlocking));
    return FARM_OK;
}

// All that depends on the mirror's mode or points into the mirror.
static enum farm_status make_halves(struct farm_cuda_shard *shard, enum farm_mirror mode, struct farm_error *err) {
    struct farm_cuda_context *context = &shard->context;
    context->mirror = farm_cuda_mirror_plan(&context->net->io, mode);
    enum farm_status status = farm_cuda_mirror_make(context->lanes, context->shard, &context->mirror, err);
    if (!status) status = choose_obs_path(context, shard->stream, err);
    for (uint32_t r = 0; r < context->lanes->ring_count && !status; r++)
        if (context->mirror.memory[r]) status = farm_cuda_mirror_fill(&context->mirror, context->lanes, r, err);
    if (!status) status = farm_cuda_inference_make(context, &shard->inference, err);
    if (!status && context->plan->epochs) status = farm_cuda_training_make(context, &shard->training, err);
    return status;
}

static void free_halves(struct farm_cuda_shard *shard) {
    farm_cuda_training_free(shard->training);
    farm_cuda_inference_free(shard->inference);
    farm_cuda_mirror_free(&shard->context.mirror);
    shard->training = NULL;
    shard->inference = NULL;
}

// cuDNN, cuBLASLt, kernels and graphs take memory whose size is unknown beforehand, and a library without memory may
// report another error (FARM_E_IO): then tries the next smaller mirror.
static enum farm_status make_with_smaller_mirror(struct farm_cuda_shard *shard, enum farm_mirror mode,
                                                 struct farm_error *err) {
    const struct farm_cuda_context *context = &shard->context;
    enum farm_status status = make_halves(shard, mode, err);
    for (; (status == FARM_E_LIMIT || status == FARM_E_IO) && mode < smallest_mirror(context); mode++) {
        const enum farm_mirror next = mode + 1;
        free_halves(shard);
        (void)cudaGetLastError(); // the next try must not return it
        farm_log_warn("mirror %s, %.1f MB, in place of %s: %s", farm_mirror_name(next),
                      megabytes(budget_of(context, next).mirror), farm_mirror_name(mode),
                      err ? err->message : "device memory does not suffice");
        status = make_halves(shard, next, err);
    }
    return status;
}

static enum farm_status start_shard(struct farm_cuda_shard *shard, struct farm_error *err) {
    struct farm_cuda_context *context = &shard->context;
    enum farm_mirror mode = context->learner->device.mirror;
    enum farm_status status = open_device(context, err);
    if (!status)
        status = farm_cuda_register(context->lanes, context->shard, context->device, 0, &context->registered, err);
    if (status) return status;
    context->direct = !context->registered.bounced[FARM_CUDA_UP];
    status = choose_mirror(context, &mode, err);
    if (!status) status = make_stream(shard, err);
    if (!status) status = allocate_zeros(context, err);
    if (!status)
        status = farm_cuda_parameters_make(context->net, context->learner, context->plan,
                                           context->precision == FARM_PRECISION_BF16, shard->stream,
                                           &context->parameters, err);
    return status ? status : make_with_smaller_mirror(shard, mode, err);
}

void farm_cuda_shard_free(struct farm_cuda_shard *shard) {
    if (!shard) return;
    struct farm_cuda_context *context = &shard->context;
    (void)cudaSetDevice(context->device);
    free_halves(shard);
    farm_cuda_parameters_free(&context->parameters);
    (void)cudaFree(context->zeros);
    (void)cudaFree(context->sink);
    if (shard->stream) (void)cudaStreamDestroy(shard->stream);
    farm_cuda_unregister(&context->registered);
    (void)cudaGetLastError();
    free(shard);
}

enum farm_status farm_cuda_shard_make(const struct farm_backend_config *config, uint32_t number,
                                      struct farm_cuda_shard **out, struct farm_error *err) {
    struct farm_cuda_shard *shard = calloc(1, sizeof *shard);
    if (!shard) return farm_fail(err, FARM_E_LIMIT, "no memory for the CUDA backend");
    shard->context = (struct farm_cuda_context){.learner = config->learner,
                                                .plan = config->plan,
                                                .net = config->net,
                                                .head = config->head,
                                                .sampler = farm_learner_sampler(config->learner, config->greedy),
                                                .columns_max = config->columns_max,
                                                .lanes = config->lanes,
                                                .shard = number,
                                                .shards = config->shards,
                                                .images = farm_cuda_images(&config->net->io),
                                                .flat_bytes = (size_t)config->net->io.flat * sizeof(float)};
    struct farm_cuda_context *context = &shard->context;
    context->frame_bytes = farm_cuda_mirror_plan(&config->net->io, FARM_MIRROR_FULL).frame_bytes;
    context->obs_bytes = context->images * context->frame_bytes + context->flat_bytes;
    const enum farm_status status = start_shard(shard, err);
    if (status) {
        farm_cuda_shard_free(shard);
        return status;
    }
    *out = shard;
    return FARM_OK;
}

void farm_cuda_shard_leave(struct farm_cuda_shard *shard, uint32_t ring) {
    struct farm_cuda_context *context = &shard->context;
    farm_cuda_mirror_remove(&context->mirror, context->lanes, ring);
    farm_cuda_unregister_ring(&context->registered, ring);
    (void)cudaGetLastError(); // a later call must not return errors of this one
}

enum farm_status farm_cuda_shard_join(struct farm_cuda_shard *shard, uint32_t ring, struct farm_error *err) {
    struct farm_cuda_context *context = &shard->context;
    enum farm_status status = farm_cuda_register_ring(&context->registered, context->lanes, ring, err);
    if (status) return status;
    status = farm_cuda_mirror_add(&context->mirror, context->lanes, ring, err);
    if (!status) status = farm_cuda_mirror_fill(&context->mirror, context->lanes, ring, err);
    if (status) farm_cuda_shard_leave(shard, ring);
    return status;
}

enum farm_status farm_cuda_shard_enter(const struct farm_cuda_shard *shard, struct farm_error *err) {
    FARM_CUDA_TRY(cudaSetDevice(shard->context.device));
    return FARM_OK;
}

struct CUstream_st *farm_cuda_shard_stream(const struct farm_cuda_shard *shard) {
    return shard->training ? farm_cuda_training_stream(shard->training) : shard->stream;
}
