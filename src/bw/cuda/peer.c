// From one GPU to another. See node_to_gpu.h.
#include <stdlib.h>

#include "bw/cuda/node_to_gpu.h"
#include "bw/cuda/timer.h"
#include "kernels/cuda/check.h"

enum { POISON = 0xC3 };

struct peer {
    const struct farm_bw_gpu_config *config;
    struct farm_bw_gpu_peer *out;
    int from, to;
    bool enabled[2]; // `from` to `to`, and back
    struct farm_bw_timer timer;
    void *source, *target, *host;
};

static enum farm_status queue_copy(void *context, uint32_t pass, struct farm_error *err) {
    const struct peer *p = context;
    FARM_CUDA_TRY(cudaMemcpyPeerAsync(p->target, p->to, p->source, p->from, p->config->bytes, p->timer.stream[0]));
    return FARM_OK;
}

// Peer access from `from` to `to` during the measurement. Without it CUDA copies through the host.
static enum farm_status enable_access(int from, int to, bool *enabled, struct farm_error *err) {
    int can = 0;
    FARM_CUDA_TRY(cudaDeviceCanAccessPeer(&can, from, to));
    if (!can) return FARM_OK;
    FARM_CUDA_TRY(cudaSetDevice(from));
    *enabled = cudaDeviceEnablePeerAccess(to, 0) == cudaSuccess;
    (void)cudaGetLastError();
    return FARM_OK;
}

static enum farm_status open_peer(struct peer *p, struct farm_error *err) {
    const size_t bytes = p->config->bytes;
    p->host = malloc(bytes);
    if (!p->host) return farm_fail(err, FARM_E_LIMIT, "no memory for %zu bytes", bytes);
    enum farm_status status = enable_access(p->to, p->from, &p->enabled[1], err);
    if (!status) status = enable_access(p->from, p->to, &p->enabled[0], err);
    if (status) return status;
    p->out->access = p->enabled[0] && p->enabled[1];
    FARM_CUDA_TRY(cudaSetDevice(p->to));
    FARM_CUDA_TRY(cudaMalloc(&p->target, bytes));
    FARM_CUDA_TRY(cudaMemsetAsync(p->target, POISON, bytes, NULL));
    FARM_CUDA_TRY(cudaDeviceSynchronize());
    FARM_CUDA_TRY(cudaSetDevice(p->from));
    FARM_CUDA_TRY(cudaMalloc(&p->source, bytes));
    farm_bw_gpu_fill(p->host, bytes, 0);
    FARM_CUDA_TRY(cudaMemcpy(p->source, p->host, bytes, cudaMemcpyHostToDevice));
    return farm_bw_timer_open(&p->timer, err);
}

static void close_peer(struct peer *p) {
    farm_bw_timer_close(&p->timer);
    (void)cudaFree(p->source);
    (void)cudaFree(p->target);
    if (p->enabled[0] && !cudaSetDevice(p->from)) (void)cudaDeviceDisablePeerAccess(p->to);
    if (p->enabled[1] && !cudaSetDevice(p->to)) (void)cudaDeviceDisablePeerAccess(p->from);
    (void)cudaGetLastError();
    free(p->host);
}

static enum farm_status measure_copy(struct peer *p, struct farm_error *err) {
    const struct farm_bw_timed_work work = {
        .what = "GPU to GPU", .queue = queue_copy, .context = p, .bytes = p->config->bytes};
    p->timer.clock = farm_bw_clock_start(&p->config->setup, 1, 1, &p->out->conditions);
    const enum farm_status status = farm_bw_timer_figure(&p->timer, &work, &p->out->bytes_per_s, err);
    if (status || !farm_bw_figure_is(&p->out->bytes_per_s)) return status;
    FARM_CUDA_TRY(cudaSetDevice(p->to));
    FARM_CUDA_TRY(cudaMemcpy(p->host, p->target, p->config->bytes, cudaMemcpyDeviceToHost));
    return farm_bw_timer_check(p->host, p->config->bytes, 0, "GPU to GPU", err);
}

enum farm_status farm_bw_cuda_peer(const struct farm_bw_gpu_config *config, int to, struct farm_bw_gpu_peer *out,
                                   struct farm_error *err) {
    struct peer p = {.config = config, .out = out, .from = config->device, .to = to};
    *out = (struct farm_bw_gpu_peer){.bytes_per_s = farm_bw_figure_of(NULL, 0), .conditions = {.verified = true}};
    if (config->device == to || config->bytes < FARM_BW_GPU_BYTES_LEAST || config->bytes % 8)
        return farm_fail(err, FARM_E_INVALID, "from GPU %d to GPU %d with %zu bytes", config->device, to,
                         config->bytes);
    enum farm_status status = open_peer(&p, err);
    if (!status) status = measure_copy(&p, err);
    close_peer(&p);
    if (status) out->conditions.verified = false;
    return status;
}
