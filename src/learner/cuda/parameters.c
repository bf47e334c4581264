// See parameters.h.
#include "learner/cuda/parameters.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomics.h"
#include "base/time.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"
#include "nn/cuda/executor.h"
#include "nn/inputs.h"

enum { VECTORS_MAX = 3 + FARM_ALGO_SETS_MAX };

// A vector of the state, in device order and in PyTorch's.
struct vector {
    float *device, *host;
};
static uint32_t list_vectors(const struct farm_cuda_parameters *p, struct vector out[VECTORS_MAX]) {
    uint32_t count = 0;
    out[count++] = (struct vector){p->optimiser.params, p->host.params};
    out[count++] = (struct vector){p->optimiser.second, p->host.second};
    if (p->host.first) out[count++] = (struct vector){p->optimiser.first, p->host.first};
    for (uint32_t k = 0; k < farm_algo_sets(p->plan); k++) out[count++] = (struct vector){p->sets[k], p->host.sets[k]};
    return count;
}

static size_t copy_bytes(size_t count, bool bf16) {
    return count * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

static size_t scale_bytes(const struct farm_net *net) {
    return 2 * (size_t)farm_net_pixels(&net->io) * sizeof(int16_t);
}

size_t farm_cuda_parameters_bytes(const struct farm_net *net, const struct farm_learner_config *learner,
                                  const struct farm_algo_plan *plan, bool bf16) {
    const size_t count = farm_cuda_parameter_count(net);
    const size_t vectors = // and the gradient, and the mask
        (learner->algo.optimiser == FARM_OPTIMISER_ADAM ? 5 : 4) + farm_algo_sets(plan);
    return count * sizeof(float) * vectors + 2 * copy_bytes(count, true) + 2 * copy_bytes(count, bf16) +
           4 * scale_bytes(net);
}

static enum farm_status allocate_vector(size_t bytes, void *out, struct farm_error *err) {
    return farm_cuda_device_memory(bytes, "a vector of parameters needs", NULL, out, err);
}

static enum farm_status allocate_on_device(struct farm_cuda_parameters *p, bool adam, struct farm_error *err) {
    struct farm_cuda_optimiser *o = &p->optimiser;
    const size_t bytes = p->count * sizeof(float);
    enum farm_status status = allocate_vector(bytes, &o->params, err);
    if (!status) status = allocate_vector(bytes, &p->gradients, err);
    if (!status && adam) status = allocate_vector(bytes, &o->first, err);
    if (!status) status = allocate_vector(bytes, &o->second, err);
    for (uint32_t k = 0; k < farm_algo_sets(p->plan) && !status; k++) status = allocate_vector(bytes, &p->sets[k], err);
    if (!status && p->bf16 && p->sets[0]) status = allocate_vector(copy_bytes(p->count, true), &p->target.params, err);
    if (!status && scale_bytes(p->net) && p->sets[0])
        status = allocate_vector(scale_bytes(p->net), &p->target.scale, err);
    if (!status && p->bf16) status = allocate_vector(copy_bytes(p->count, true), &o->params_bf16, err);
    if (!status) status = allocate_vector(sizeof *o->control, &o->control, err);
    if (!status) status = allocate_vector(FARM_CUDA_OPTIMISER_SCRATCH_BYTES, &o->scratch, err);
    for (int i = 0; i < 2 && !status; i++) {
        status = allocate_vector(copy_bytes(p->count, p->bf16), &p->copies[i].params, err);
        if (!status) status = allocate_vector(sizeof *p->copies[i].version, &p->copies[i].version, err);
        if (!status && scale_bytes(p->net)) status = allocate_vector(scale_bytes(p->net), &p->copies[i].scale, err);
    }
    if (!status && scale_bytes(p->net)) status = allocate_vector(scale_bytes(p->net), &p->scale, err);
    o->gradients = p->gradients;
    o->count = p->count;
    return status;
}

static enum farm_status allocate_on_host(struct farm_cuda_parameters *p, bool adam, struct farm_error *err) {
    enum farm_status status = farm_cuda_host_memory(3 * sizeof *p->versions, "versions need", NULL, &p->versions, err);
    if (!status)
        status = farm_cuda_host_memory((3 + farm_algo_sets(p->plan)) * p->count * sizeof *p->ordered,
                                       "a copy of the parameters needs", NULL, &p->ordered, err);
    for (int i = 0; i < 3 && !status && scale_bytes(p->net); i++)
        status = farm_cuda_host_memory(scale_bytes(p->net), "statistics need", NULL,
                                       i < 2 ? &p->copies[i].scale_host : &p->target.scale_host, err);
    if (status) return status;
    p->step = p->versions + 2;
    p->host.params = calloc(p->net->parameter_count, sizeof(float));
    p->host.first = adam ? calloc(p->net->parameter_count, sizeof(float)) : NULL;
    p->host.second = calloc(p->net->parameter_count, sizeof(float));
    bool complete = p->host.params && p->host.second && (!adam || p->host.first);
    for (uint32_t k = 0; k < farm_algo_sets(p->plan); k++)
        complete &= (p->host.sets[k] = calloc(p->net->parameter_count, sizeof(float))) != NULL;
    for (int i = 0; i < 2 && p->net->normalise >= 0 && p->net->io.flat > 0; i++) {
        p->copies[i].mean = calloc((size_t)p->net->io.flat, sizeof(float));
        p->copies[i].inverse = calloc((size_t)p->net->io.flat, sizeof(float));
        complete = complete && p->copies[i].mean && p->copies[i].inverse;
    }
    if (farm_cuda_target_scales(p->net, p->plan)) {
        p->target.mean = calloc(2 * (size_t)p->net->io.flat, sizeof(float));
        p->target.inverse = p->target.mean + p->net->io.flat;
        complete = complete && p->target.mean;
    }
    if (complete) return FARM_OK;
    return farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", p->net->parameter_count);
}

// Uses the host's parameters, which are not set yet.
static enum farm_status make_mask(struct farm_cuda_parameters *p, struct farm_error *err) {
    if (!farm_net_trainable(p->net, p->host.params)) return FARM_OK;
    const enum farm_status status = allocate_vector(p->count * sizeof(float), &p->trainable, err);
    if (status) return status;
    farm_cuda_to_device_layout(p->net, p->host.params, p->ordered);
    return farm_cuda_upload(p->trainable, p->ordered, p->count * sizeof(float), err);
}

enum farm_status farm_cuda_parameters_make(const struct farm_net *net, const struct farm_learner_config *learner,
                                           const struct farm_algo_plan *plan, bool bf16, struct CUstream_st *stream,
                                           struct farm_cuda_parameters *out, struct farm_error *err) {
    const bool adam = learner->algo.optimiser == FARM_OPTIMISER_ADAM;
    *out =
        (struct farm_cuda_parameters){.net = net, .plan = plan, .count = farm_cuda_parameter_count(net), .bf16 = bf16};
    out->optimiser.config = farm_algo_optimiser(&learner->algo);
    enum farm_status status = allocate_on_device(out, adam, err);
    if (!status) status = allocate_on_host(out, adam, err);
    if (!status) status = make_mask(out, err);
    if (!status) {
        struct farm_optimiser_state state;
        farm_optimiser_init(&out->optimiser.config, net->parameter_count, out->host.first, out->host.second, &state);
        if (!learner->checkpoints.load) farm_net_init(net, learner->init, learner->seed, out->host.params);
        for (uint32_t k = 0; k < farm_algo_sets(plan); k++)
            memcpy(out->host.sets[k], out->host.params, net->parameter_count * sizeof(float));
        status = farm_cuda_parameters_upload(out, stream, err);
    }
    if (status) farm_cuda_parameters_free(out);
    return status;
}

void farm_cuda_parameters_free(struct farm_cuda_parameters *p) {
    void *const device[] = {
        p->optimiser.params,      p->gradients,         p->optimiser.first,  p->optimiser.second, p->optimiser.control,
        p->optimiser.params_bf16, p->optimiser.scratch, p->copies[0].params, p->copies[1].params, p->copies[0].version,
        p->copies[1].version,     p->trainable,         p->copies[0].scale,  p->copies[1].scale,  p->scale,
        p->target.params,         p->target.scale};
    void *const host[] = {p->host.params,    p->host.first,        p->host.second,       p->copies[0].mean,
                          p->copies[1].mean, p->copies[0].inverse, p->copies[1].inverse, p->target.mean};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) (void)cudaFree(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    for (int k = 0; k < FARM_ALGO_SETS_MAX; k++) {
        (void)cudaFree(p->sets[k]);
        free(p->host.sets[k]);
    }
    (void)cudaFreeHost(p->ordered);
    (void)cudaFreeHost(p->versions);
    for (int i = 0; i < 2; i++) (void)cudaFreeHost(p->copies[i].scale_host);
    (void)cudaFreeHost(p->target.scale_host);
    *p = (struct farm_cuda_parameters){0};
}

const void *farm_cuda_parameters_trained(const struct farm_cuda_parameters *p) {
    return p->bf16 ? (const void *)p->optimiser.params_bf16 : p->optimiser.params;
}

const void *farm_cuda_parameters_target(const struct farm_cuda_parameters *p) {
    return p->bf16 ? (const void *)p->target.params : p->sets[0];
}

// After a change of the first set: what forward reads of it.
static enum farm_status prepare_target(struct farm_cuda_parameters *p, struct CUstream_st *stream,
                                       struct farm_error *err) {
    const float *statistics = p->host.sets[0];
    if (p->target.mean) farm_inputs_scale(p->net, statistics, p->target.mean, p->target.inverse);
    if (p->target.scale) {
        farm_inputs_scale_pixels(p->net, statistics, p->target.scale_host);
        FARM_CUDA_TRY(cudaMemcpyAsync(p->target.scale, p->target.scale_host, scale_bytes(p->net),
                                      cudaMemcpyHostToDevice, stream));
    }
    if (!p->target.params) return FARM_OK;
    return farm_cuda_round(stream, p->sets[0], p->target.params, p->count, err);
}

enum farm_status farm_cuda_parameters_upload(struct farm_cuda_parameters *p, struct CUstream_st *stream,
                                             struct farm_error *err) {
    const size_t bytes = p->count * sizeof(float);
    struct vector vectors[VECTORS_MAX];
    const uint32_t count = list_vectors(p, vectors);
    for (uint32_t v = 0; v < count; v++) {
        farm_cuda_to_device_layout(p->net, vectors[v].host, p->ordered);
        FARM_CUDA_TRY(cudaMemcpyAsync(vectors[v].device, p->ordered, bytes, cudaMemcpyHostToDevice, stream));
        FARM_CUDA_TRY(cudaStreamSynchronize(stream));
    }
    FARM_CUDA_TRY(cudaMemcpyAsync(&p->optimiser.control->step, &p->host.optimiser_step, sizeof p->host.optimiser_step,
                                  cudaMemcpyHostToDevice, stream));
    enum farm_status status = FARM_OK;
    if (p->bf16) status = farm_cuda_round(stream, p->optimiser.params, p->optimiser.params_bf16, p->count, err);
    if (!status && p->sets[0]) status = prepare_target(p, stream, err);
    if (!status)
        status = farm_cuda_parameters_publish(p, stream, FARM_SET_ONLINE, p->host.params, p->host.version, err);
    if (status) return status;
    FARM_CUDA_TRY(cudaStreamSynchronize(stream));
    farm_cuda_parameters_published(p);
    p->version = p->host.version;
    p->copied_ns = farm_now_ns();
    return FARM_OK;
}

enum farm_status farm_cuda_parameters_download(struct farm_cuda_parameters *p, struct CUstream_st *stream,
                                               struct farm_error *err) {
    const size_t bytes = p->count * sizeof(float);
    struct vector vectors[VECTORS_MAX];
    const uint32_t count = list_vectors(p, vectors);
    FARM_CUDA_TRY(
        cudaMemcpyAsync(p->step, &p->optimiser.control->step, sizeof *p->step, cudaMemcpyDeviceToHost, stream));
    for (uint32_t v = 0; v < count; v++)
        FARM_CUDA_TRY(
            cudaMemcpyAsync(p->ordered + v * p->count, vectors[v].device, bytes, cudaMemcpyDeviceToHost, stream));
    FARM_CUDA_TRY(cudaStreamSynchronize(stream));
    for (uint32_t v = 0; v < count; v++)
        farm_cuda_to_pytorch_layout(p->net, p->ordered + v * p->count, vectors[v].host);
    p->host.optimiser_step = *p->step;
    p->host.version = p->version;
    p->copied_ns = farm_now_ns();
    return FARM_OK;
}

void farm_cuda_parameters_take(struct farm_cuda_parameters *p, const struct farm_cuda_parameters *from) {
    struct vector to[VECTORS_MAX], theirs[VECTORS_MAX];
    (void)list_vectors(from, theirs);
    for (uint32_t v = list_vectors(p, to); v-- > 0;)
        memcpy(to[v].host, theirs[v].host, p->net->parameter_count * sizeof(float));
}

enum farm_status farm_cuda_parameters_bad_tensor(struct farm_cuda_parameters *p, struct CUstream_st *stream,
                                                 const char **out, struct farm_error *err) {
    FARM_CUDA_TRY(cudaMemcpyAsync(p->ordered, p->gradients, p->count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    FARM_CUDA_TRY(cudaStreamSynchronize(stream));
    float *gradients = calloc(p->net->parameter_count, sizeof *gradients); // those of statistics are 0
    if (!gradients) return farm_fail(err, FARM_E_LIMIT, "no memory for %zu gradients", p->net->parameter_count);
    farm_cuda_to_pytorch_layout(p->net, p->ordered, gradients);
    *out = farm_backend_bad_tensor(p->net, gradients);
    free(gradients);
    return FARM_OK;
}

enum farm_status farm_cuda_parameters_copy(struct farm_cuda_parameters *p, struct CUstream_st *stream, uint32_t set,
                                           const float *statistics, struct farm_error *err) {
    const int first = p->net->normalise >= 0 ? p->net->normalise : p->net->normalise_return;
    const size_t from = first < 0 ? p->net->parameter_count : p->net->tensors[first].offset; // statistics lie behind
    memcpy(p->host.sets[set - 1] + from, statistics + from, (p->net->parameter_count - from) * sizeof(float));
    FARM_CUDA_TRY(cudaMemcpyAsync(p->sets[set - 1], p->optimiser.params, p->count * sizeof(float),
                                  cudaMemcpyDeviceToDevice, stream));
    return set == 1 ? prepare_target(p, stream, err) : FARM_OK;
}

// ---- from training to inference ----

enum farm_status farm_cuda_parameters_publish(struct farm_cuda_parameters *p, struct CUstream_st *stream, uint32_t set,
                                              const float *statistics, uint64_t version, struct farm_error *err) {
    const uint64_t next = 1 - farm_load_relaxed(&p->current);
    // An inference that began before the last publication may still read this copy. Pairs with `use`.
    farm_fence_full();
    while (farm_load_acquire(&p->in_use) == 1 + next) sched_yield();
    p->versions[next] = version;
    p->newest = (uint32_t)next;
    struct farm_cuda_published *copy = &p->copies[next];
    if (copy->mean) farm_inputs_scale(p->net, statistics, copy->mean, copy->inverse);
    if (copy->scale) {
        farm_inputs_scale_pixels(p->net, statistics, copy->scale_host);
        for (int i = 0; i < 2; i++)
            FARM_CUDA_TRY(cudaMemcpyAsync(i ? p->scale : copy->scale, copy->scale_host, scale_bytes(p->net),
                                          cudaMemcpyHostToDevice, stream));
    }
    FARM_CUDA_TRY(cudaMemcpyAsync(copy->version, &p->versions[next], sizeof version, cudaMemcpyHostToDevice, stream));
    if (set && p->bf16) return farm_cuda_round(stream, p->sets[set - 1], copy->params, p->count, err);
    FARM_CUDA_TRY(cudaMemcpyAsync(copy->params, set ? p->sets[set - 1] : farm_cuda_parameters_trained(p),
                                  copy_bytes(p->count, p->bf16), cudaMemcpyDeviceToDevice, stream));
    return FARM_OK;
}

void farm_cuda_parameters_published(struct farm_cuda_parameters *p) {
    farm_store_release(&p->current, 1 - farm_load_relaxed(&p->current));
}

uint32_t farm_cuda_parameters_use(struct farm_cuda_parameters *p) {
    for (;;) {
        const uint64_t copy = farm_load_acquire(&p->current);
        farm_store_relaxed(&p->in_use, 1 + copy);
        farm_fence_full(); // the store of in_use before the load of `current`; publish has them in the other order
        if (farm_load_acquire(&p->current) == copy) return (uint32_t)copy;
    }
}

void farm_cuda_parameters_unuse(struct farm_cuda_parameters *p) {
    farm_store_release(&p->in_use, 0);
}
