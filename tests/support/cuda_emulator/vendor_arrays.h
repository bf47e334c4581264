// Shared by the emulators of cuDNN and cuBLASLt: counted descriptors, handles' memory, arrays of f32 or bf16.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_VENDOR_ARRAYS_H
#define TESTS_SUPPORT_CUDA_EMULATOR_VENDOR_ARRAYS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "kernels/layers.h"
#include "vendor_emulator.h"

static inline void *make_descriptor(size_t bytes) {
    farm_emulator_vendor.descriptors++;
    return calloc(1, bytes);
}
static inline void destroy_descriptor(void *memory) {
    farm_emulator_vendor.descriptors--;
    free(memory);
}
// Functions that create a kind's descriptor, of zeros, and destroy it. 0 is success in both libraries.
#define DESTROY(status, handle, kind)                                                                                  \
    static status destroy_##kind(handle made) {                                                                        \
        destroy_descriptor(made);                                                                                      \
        return (status)0;                                                                                              \
    }
#define CREATE_AND_DESTROY(status, handle, kind)                                                                       \
    static status create_##kind(handle *made) {                                                                        \
        *made = make_descriptor(sizeof **made);                                                                        \
        return (status)0;                                                                                              \
    }                                                                                                                  \
    DESTROY(status, handle, kind)
// Allocates a handle's device memory. Returns false if none is left.
static inline bool allocate_handle(void **memory) {
    *memory = NULL;
    if (!farm_emulator_vendor.handle_bytes || cudaMalloc(memory, farm_emulator_vendor.handle_bytes) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); // the libraries have a runtime of their own
    return false;
}
static inline size_t size_of(bool bf16) {
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}
static inline bool is_aligned(const void *address, size_t to) {
    return address != NULL && (uintptr_t)address % to == 0;
}
static inline void write_number(void *array, bool bf16, size_t i, double number) {
    if (bf16)
        ((uint16_t *)array)[i] = farm_bf16((float)number);
    else
        ((float *)array)[i] = (float)number;
}
static inline double read_number(const void *array, bool bf16, size_t i) {
    return (double)farm_number_at(array, bf16, i);
}

static inline float *numbers_of(const void *array, bool bf16, size_t count) {
    float *numbers = malloc((count + 1) * sizeof *numbers);
    for (size_t i = 0; i < count; i++) numbers[i] = farm_number_at(array, bf16, i);
    return numbers;
}

static inline void overwrite_workspace(void *workspace, size_t bytes) {
    farm_emulator_need(workspace, bytes, true, "a library's workspace");
    memset(workspace, 0xA5, bytes < 4096 ? bytes : 4096);
}

#endif
