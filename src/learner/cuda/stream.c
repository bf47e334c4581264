// See stream.h.
#include "learner/cuda/stream.h"

#include "kernels/cuda/check.h"

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
