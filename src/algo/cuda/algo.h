// The algorithms of all.h on the calling thread's current GPU, over rows.h in device memory. Calls enqueue work, as in
// kernels/cuda/kernels.h. The order of sums depends on the number of rows only, so the same input gives the same bits.
#ifndef FARM_ALGO_CUDA_ALGO_H
#define FARM_ALGO_CUDA_ALGO_H

#ifdef __cplusplus
extern "C" {
#endif

#include "algo/rows.h"
#include "base/status.h"

struct CUstream_st; // what cudaStream_t points to

// FARM_E_UNSUPPORTED if all.h does not list the algorithm.
enum farm_status farm_cuda_algo_check(const char *name, struct farm_error *err);

// farm_algo_differentiate (targets true) or farm_algo_gradients: gradients of all rows; ADDS their terms to terms
// [FARM_ALGO_TERMS_MAX] (device memory, zero it before the first call). scratch: farm_cuda_algo_scratch_bytes(rows) of
// device memory, 8-byte aligned, unused after the work.
enum farm_status farm_cuda_algo_differentiate(struct CUstream_st *stream, const char *name,
                                              const struct farm_algo_rows *rows, bool targets, void *scratch,
                                              double *terms, struct farm_error *err);
size_t farm_cuda_algo_scratch_bytes(int rows);

#ifdef __cplusplus
}
#endif
#endif
