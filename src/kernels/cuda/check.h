// Checked calls of CUDA's runtime, for C17 and CUDA C++. An error's message names call, code and place.
#ifndef FARM_KERNELS_CUDA_CHECK_H
#define FARM_KERNELS_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

// Fills *err from a CUDA error code: call, code, place, remedy. Clears CUDA's last error (a permanent error returns).
// FARM_E_LIMIT for memory, FARM_E_UNSUPPORTED for operations that device or driver lack, FARM_E_BUSY for a device in
// use by another process, FARM_E_DEAD for a lost device, else FARM_E_IO.
enum farm_status farm_cuda_fail(struct farm_error *err, cudaError_t code, const char *call, const char *file, int line);

// Returns from the calling function, and fills its `err`, if the call fails.
#define FARM_CUDA_TRY(call)                                                                                            \
    do {                                                                                                               \
        const cudaError_t farm_code = (call);                                                                          \
        if (farm_code != cudaSuccess) return farm_cuda_fail(err, farm_code, #call, __FILE__, __LINE__);                \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
