// See memory.h.
#include "learner/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/check.h"

static enum farm_status no_memory(cudaError_t code, const char *kind, size_t bytes, const char *what, const char *key,
                                  struct farm_error *err) {
    size_t left = 0, total = 0;
    (void)cudaGetLastError();
    if (code != cudaErrorMemoryAllocation) return farm_cuda_fail(err, code, what, __FILE__, __LINE__);
    (void)cudaMemGetInfo(&left, &total);
    return farm_fail(err, FARM_E_LIMIT,
                     "%s memory: %s %.1f MB, more than is left (%.1f of the GPU's %.1f MB are free)%s%s", kind, what,
                     (double)bytes / 1e6, (double)left / 1e6, (double)total / 1e6, key ? ": try a smaller --" : "",
                     key ? key : "");
}

enum farm_status farm_cuda_device_memory(size_t bytes, const char *what, const char *key, void *out,
                                         struct farm_error *err) {
    const size_t size = bytes ? bytes : 1;
    void *memory = NULL;
    const cudaError_t code = cudaMalloc(&memory, size);
    if (code) memory = NULL;
    memcpy(out, &memory, sizeof memory);
    if (code) return no_memory(code, "device", bytes, what, key, err);
    FARM_CUDA_TRY(cudaMemsetAsync(memory, 0, size, NULL));
    FARM_CUDA_TRY(cudaStreamSynchronize(NULL));
    return FARM_OK;
}

enum farm_status farm_cuda_upload(void *to, const void *from, size_t bytes, struct farm_error *err) {
    FARM_CUDA_TRY(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    FARM_CUDA_TRY(cudaStreamSynchronize(NULL));
    return FARM_OK;
}

enum farm_status farm_cuda_places(void *start, size_t stride, size_t count, const char *what, const char *key,
                                  void ***out, struct farm_error *err) {
    enum farm_status status = farm_cuda_device_memory(count * sizeof **out, what, key, out, err);
    if (status) return status;
    void **places = malloc(count * sizeof *places + 1);
    if (!places) return farm_fail(err, FARM_E_LIMIT, "no memory for a list of %zu places", count);
    for (size_t i = 0; i < count; i++) places[i] = (char *)start + i * stride;
    status = farm_cuda_upload(*out, places, count * sizeof *places, err);
    free(places);
    return status;
}

enum farm_status farm_cuda_host_memory(size_t bytes, const char *what, const char *key, void *out,
                                       struct farm_error *err) {
    const size_t size = bytes ? bytes : 1;
    void *memory = NULL;
    const cudaError_t code = cudaHostAlloc(&memory, size, cudaHostAllocPortable | cudaHostAllocMapped);
    if (code) memory = NULL;
    memcpy(out, &memory, sizeof memory);
    if (code) return no_memory(code, "pinned", bytes, what, key, err);
    memset(memory, 0, size);
    return FARM_OK;
}

enum farm_status farm_cuda_mapped(void *host, void *out, struct farm_error *err) {
    void *device;
    FARM_CUDA_TRY(cudaHostGetDevicePointer(&device, host, 0));
    memcpy(out, &device, sizeof device);
    return FARM_OK;
}

enum farm_status farm_cuda_stream_make(bool highest, cudaStream_t *stream, cudaEvent_t *done, struct farm_error *err) {
    int least, greatest;
    FARM_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    FARM_CUDA_TRY(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest ? greatest : least));
    if (done) FARM_CUDA_TRY(cudaEventCreateWithFlags(done, cudaEventDisableTiming));
    return FARM_OK;
}

enum farm_status farm_cuda_stream_end_capture(cudaStream_t stream, enum farm_status status, cudaGraphExec_t *out,
                                              struct farm_error *err) {
    cudaGraph_t graph = NULL;
    const cudaError_t code = cudaStreamEndCapture(stream, &graph);
    if (status || code) {
        (void)cudaGetLastError();
        if (graph) (void)cudaGraphDestroy(graph);
        return status ? status : farm_cuda_fail(err, code, "cudaStreamEndCapture", __FILE__, __LINE__);
    }
    const cudaError_t made = cudaGraphInstantiate(out, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (made) return farm_cuda_fail(err, made, "cudaGraphInstantiate", __FILE__, __LINE__);
    return FARM_OK;
}
