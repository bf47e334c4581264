// Replaces src/kernels/cuda/device.cuh on the CPU: its functions and CUDA's built-ins, over ../../../grid.h and the
// emulator's streams. The host compiler compiles the kernels with it, as C++ and unchanged.
#ifndef FARM_KERNELS_CUDA_DEVICE_CUH
#define FARM_KERNELS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/grid.cuh"

#include "access.h"
#include "grid.h"

extern "C" {
#include "emulator.h"
#include "kernels/bf16.h"
}

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

#define threadIdx                     farm_emulator_place.thread
#define blockIdx                      farm_emulator_place.block
#define blockDim                      farm_emulator_place.block_size
#define gridDim                       farm_emulator_place.grid_size
#define __syncthreads()               farm_emulator_sync_threads(__LINE__)
#define __syncwarp()                  farm_emulator_sync_warp(__LINE__)
#define __shfl_down_sync(mask, x, by) farm_emulator_shuffle(x, threadIdx.x % 32 + (unsigned)(by), __LINE__)
#define __shfl_sync(mask, x, from)    farm_emulator_shuffle(x, (unsigned)(from), __LINE__)

template <typename T> static inline T farm_emulator_shuffle(T x, unsigned from, int line) {
    static_assert(std::is_floating_point<T>::value || sizeof(T) <= 4, "the emulator shuffles doubles");
    return (T)farm_emulator_shuffle_from((double)x, from, line);
}
template <typename T> static inline T __ldcs(const T *address) {
    return *address;
}
static inline uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

// A launch in a stream. Reads of the arguments are not the kernel's loads.
template <typename... Parameters> struct farm_emulator_call {
    void (*kernel)(Parameters...);
    struct farm_emulator_grid grid;
    std::tuple<std::remove_cv_t<Parameters>...> arguments;

    template <size_t... Is>
    __attribute__((no_sanitize("kernel-address"))) void thread(std::index_sequence<Is...>) const {
        kernel(std::get<Is>(arguments)...);
    }
    __attribute__((no_sanitize("kernel-address"))) static void thread(const void *call) {
        static_cast<const farm_emulator_call *>(call)->thread(std::index_sequence_for<Parameters...>{});
    }
    static void run(const void *call) {
        farm_emulator_grid_run(&static_cast<const farm_emulator_call *>(call)->grid, thread, call);
    }
};

template <typename... Parameters, typename... Arguments>
static enum farm_status farm_cuda_launch(const struct farm_cuda_grid &grid, struct farm_error *err,
                                         void (*kernel)(Parameters...), Arguments... arguments) {
    const farm_emulator_call<Parameters...> call = {kernel,
                                                    {grid.name,
                                                     {grid.blocks.x, grid.blocks.y, grid.blocks.z},
                                                     grid.threads,
                                                     grid.shared_bytes,
                                                     (const void *)kernel},
                                                    {arguments...}};
    cudaError_t code = cudaErrorInvalidConfiguration;
    if (farm_emulator_grid_fits(&call.grid))
        code = farm_emulator_launch(grid.stream, grid.name, call.run, &call, sizeof call);
    return code == cudaSuccess ? FARM_OK : farm_cuda_fail(err, code, grid.name, grid.file, grid.line);
}

static inline uint8_t *farm_cuda_shared() {
    return farm_emulator_shared();
}
static inline uint16_t farm_cuda_bf16(float x) {
    return farm_bf16(x);
}
static inline void farm_cuda_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    farm_emulator_mma(d, a, b, __LINE__);
}
template <int BYTES> static inline void farm_cuda_copy_async(void *shared, const void *from, bool there) {
    farm_emulator_copy_async(shared, there ? from : NULL, BYTES);
}
static inline void farm_cuda_copies_done() {
    void *to;
    const void *from;
    for (uint32_t bytes; (bytes = farm_emulator_next_copy(&to, &from));)
        for (uint32_t k = 0; k < bytes / 4; k++) ((uint32_t *)to)[k] = from ? ((const uint32_t *)from)[k] : 0;
}
static inline void farm_cuda_store_release_system(uint64_t *word, uint64_t value) {
    farm_emulator_release(word);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static inline void farm_cuda_barrier_init(uint64_t *barrier) {
    farm_emulator_barrier_init(barrier);
}
static inline void farm_cuda_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *barrier) {
    farm_emulator_bulk_load(shared, from, bytes, barrier);
}
static inline void farm_cuda_barrier_wait(const uint64_t *barrier, uint32_t parity) {
    farm_emulator_barrier_wait(barrier, parity);
}
static inline void farm_cuda_bulk_store(void *to, const void *shared, uint32_t bytes) {
    farm_emulator_bulk_store(to, shared, bytes);
}
static inline void farm_cuda_bulk_stores_read() {
    farm_emulator_bulk_stores_done();
}
static inline void farm_cuda_bulk_stores_done() {
    farm_emulator_bulk_stores_done();
}

#endif
