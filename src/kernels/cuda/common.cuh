// Sizes of grids, numbers of either type, and sums over a block in a fixed order. For .cu files only.
#ifndef FARM_KERNELS_CUDA_COMMON_CUH
#define FARM_KERNELS_CUDA_COMMON_CUH

// System headers before kernels.h, which takes the project's C headers as extern "C".
#include <assert.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kernels.h"

// Blocks of `threads` that cover `count` elements.
static inline unsigned farm_cuda_blocks(size_t count, unsigned threads) {
    return (unsigned)((count + threads - 1) / threads);
}

// A number, f32 or bf16.
template <typename T> static __device__ inline float load(const T *x) {
    return farm_number_at(x, sizeof(T) == sizeof(uint16_t), 0);
}
static __device__ inline void store(uint16_t *x, float number) {
    *x = farm_cuda_bf16(number);
}
static __device__ inline void store(float *x, float number) {
    *x = number;
}

// The sum over a warp, in lane 0. Always the same tree.
static __device__ inline double farm_cuda_warp_sum(double x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_down_sync(0xffffffffu, x, step);
    return x;
}

// The sum over a block of THREADS (a multiple of 32, at most 1024), in thread 0. Called by all its threads.
template <int THREADS> static __device__ double farm_cuda_block_sum(double x) {
    __shared__ double part[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = farm_cuda_warp_sum(x);
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = warp == 0 && lane < THREADS / 32 ? part[lane] : 0;
    if (warp == 0) x = farm_cuda_warp_sum(x);
    __syncthreads(); // `part` may be written again
    return x;
}

#endif
