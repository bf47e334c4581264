// Checked calls of CUDA's runtime, for C17 and CUDA C++ alike: what fails is named by call, code and place.
#ifndef FARM_KERNELS_CUDA_CHECK_H
#define FARM_KERNELS_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

// Fills *err from a CUDA error code: call, code, place, what to do. Takes the code back from CUDA (one that is for good
// comes again by itself). FARM_E_LIMIT for memory, FARM_E_UNSUPPORTED for what device or driver cannot do, FARM_E_BUSY
// for a device that others have, FARM_E_DEAD for one that is lost, else FARM_E_IO.
enum farm_status farm_cuda_fail(struct farm_error *err, cudaError_t code, const char *call, const char *file, int line);

// Returns from the calling function, whose `err` it fills, where the call fails.
#define FARM_CUDA_TRY(call)                                                                                            \
    do {                                                                                                               \
        const cudaError_t farm_code = (call);                                                                          \
        if (farm_code != cudaSuccess) return farm_cuda_fail(err, farm_code, #call, __FILE__, __LINE__);                \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
