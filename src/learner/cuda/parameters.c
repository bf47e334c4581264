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

enum { VECTORS = 3 }; // params, first, second

static size_t copy_bytes(size_t count, bool bf16) {
    return count * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

static size_t scale_bytes(const struct farm_net *net) {
    return 2 * (size_t)farm_net_pixels(&net->io) * sizeof(int16_t);
}

size_t farm_cuda_parameters_bytes(const struct farm_net *net, const struct farm_learner_config *learner, bool bf16) {
    const size_t count = farm_cuda_parameter_count(net);
    const size_t vectors = learner->algo.optimiser == FARM_OPTIMISER_ADAM ? 5 : 4; // and the gradient, and the mask
    return count * sizeof(float) * vectors + copy_bytes(count, true) + 2 * copy_bytes(count, bf16) +
           3 * scale_bytes(net);
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
        status = farm_cuda_host_memory(VECTORS * p->count * sizeof *p->ordered, "a copy of the parameters needs", NULL,
                                       &p->ordered, err);
    for (int i = 0; i < 2 && !status && scale_bytes(p->net); i++)
        status = farm_cuda_host_memory(scale_bytes(p->net), "statistics need", NULL, &p->copies[i].scale_host, err);
    if (status) return status;
    p->step = p->versions + 2;
    p->host.params = calloc(p->net->parameter_count, sizeof(float));
    p->host.first = adam ? calloc(p->net->parameter_count, sizeof(float)) : NULL;
    p->host.second = calloc(p->net->parameter_count, sizeof(float));
    bool complete = p->host.params && p->host.second && (!adam || p->host.first);
    for (int i = 0; i < 2 && p->net->normalise >= 0 && p->net->io.flat > 0; i++) {
        p->copies[i].mean = calloc((size_t)p->net->io.flat, sizeof(float));
        p->copies[i].inverse = calloc((size_t)p->net->io.flat, sizeof(float));
        complete = complete && p->copies[i].mean && p->copies[i].inverse;
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
                                           bool bf16, struct CUstream_st *stream, struct farm_cuda_parameters *out,
                                           struct farm_error *err) {
    const bool adam = learner->algo.optimiser == FARM_OPTIMISER_ADAM;
    *out = (struct farm_cuda_parameters){.net = net, .count = farm_cuda_parameter_count(net), .bf16 = bf16};
    out->optimiser.config = farm_algo_optimiser(&learner->algo);
    enum farm_status status = allocate_on_device(out, adam, err);
    if (!status) status = allocate_on_host(out, adam, err);
    if (!status) status = make_mask(out, err);
    if (!status) {
        struct farm_optimiser_state state;
        farm_optimiser_init(&out->optimiser.config, net->parameter_count, out->host.first, out->host.second, &state);
        if (!learner->checkpoints.load) farm_net_init(net, learner->init, learner->seed, out->host.params);
        status = farm_cuda_parameters_upload(out, stream, err);
    }
    if (status) farm_cuda_parameters_free(out);
    return status;
}

void farm_cuda_parameters_free(struct farm_cuda_parameters *p) {
    void *const device[] = {
        p->optimiser.params,      p->gradients,         p->optimiser.first,  p->optimiser.second, p->optimiser.control,
        p->optimiser.params_bf16, p->optimiser.scratch, p->copies[0].params, p->copies[1].params, p->copies[0].version,
        p->copies[1].version,     p->trainable,         p->copies[0].scale,  p->copies[1].scale,  p->scale};
    void *const host[] = {p->host.params,    p->host.first,        p->host.second,      p->copies[0].mean,
                          p->copies[1].mean, p->copies[0].inverse, p->copies[1].inverse};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) (void)cudaFree(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    (void)cudaFreeHost(p->ordered);
    (void)cudaFreeHost(p->versions);
    for (int i = 0; i < 2; i++) (void)cudaFreeHost(p->copies[i].scale_host);
    *p = (struct farm_cuda_parameters){0};
}

const void *farm_cuda_parameters_trained(const struct farm_cuda_parameters *p) {
    return p->bf16 ? (const void *)p->optimiser.params_bf16 : p->optimiser.params;
}

enum farm_status farm_cuda_parameters_upload(struct farm_cuda_parameters *p, struct CUstream_st *stream,
                                             struct farm_error *err) {
    const size_t bytes = p->count * sizeof(float);
    const float *const from[VECTORS] = {p->host.params, p->host.first, p->host.second};
    float *const to[VECTORS] = {p->optimiser.params, p->optimiser.first, p->optimiser.second};
    for (int v = 0; v < VECTORS; v++) {
        if (!to[v]) continue;
        farm_cuda_to_device_layout(p->net, from[v], p->ordered);
        FARM_CUDA_TRY(cudaMemcpyAsync(to[v], p->ordered, bytes, cudaMemcpyHostToDevice, stream));
        FARM_CUDA_TRY(cudaStreamSynchronize(stream));
    }
    FARM_CUDA_TRY(cudaMemcpyAsync(&p->optimiser.control->step, &p->host.optimiser_step, sizeof p->host.optimiser_step,
                                  cudaMemcpyHostToDevice, stream));
    enum farm_status status = FARM_OK;
    if (p->bf16) status = farm_cuda_round(stream, p->optimiser.params, p->optimiser.params_bf16, p->count, err);
    if (!status) status = farm_cuda_parameters_publish(p, stream, p->host.params, p->host.version, err);
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
    const float *const from[VECTORS] = {p->optimiser.params, p->optimiser.first, p->optimiser.second};
    float *const to[VECTORS] = {p->host.params, p->host.first, p->host.second};
    FARM_CUDA_TRY(
        cudaMemcpyAsync(p->step, &p->optimiser.control->step, sizeof *p->step, cudaMemcpyDeviceToHost, stream));
    for (int v = 0; v < VECTORS; v++)
        if (from[v])
            FARM_CUDA_TRY(
                cudaMemcpyAsync(p->ordered + (size_t)v * p->count, from[v], bytes, cudaMemcpyDeviceToHost, stream));
    FARM_CUDA_TRY(cudaStreamSynchronize(stream));
    for (int v = 0; v < VECTORS; v++)
        if (to[v]) farm_cuda_to_pytorch_layout(p->net, p->ordered + (size_t)v * p->count, to[v]);
    p->host.optimiser_step = *p->step;
    p->host.version = p->version;
    p->copied_ns = farm_now_ns();
    return FARM_OK;
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

// ---- from training to inference ----

enum farm_status farm_cuda_parameters_publish(struct farm_cuda_parameters *p, struct CUstream_st *stream,
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
    FARM_CUDA_TRY(cudaMemcpyAsync(copy->params, farm_cuda_parameters_trained(p), copy_bytes(p->count, p->bf16),
                                  cudaMemcpyDeviceToDevice, stream));
    FARM_CUDA_TRY(cudaMemcpyAsync(copy->version, &p->versions[next], sizeof version, cudaMemcpyHostToDevice, stream));
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
