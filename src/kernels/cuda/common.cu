// See common.cuh.
#include "kernels/cuda/common.cuh"

static enum farm_status status_of(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation:
        return FARM_E_LIMIT;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported:
        return FARM_E_UNSUPPORTED;
    default:
        return FARM_E_IO;
    }
}

static const char *advice(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation:
        return "; device memory is full: fewer lanes, a smaller batch, or mirror off";
    case cudaErrorInsufficientDriver:
        return "; the driver is older than this build needs: update it, or use --device cpu";
    case cudaErrorNoKernelImageForDevice:
        return "; this build has no code for this GPU: add its architecture to CUDA_ARCHES in the Makefile";
    default:
        return "";
    }
}

enum farm_status farm_cuda_fail(struct farm_error *err, cudaError_t code, const char *call, const char *file,
                                int line) {
    return farm_fail(err, status_of(code), "%s:%d: %s: %s (%d, %s)%s", file, line, call, cudaGetErrorString(code),
                     (int)code, cudaGetErrorName(code), advice(code));
}
