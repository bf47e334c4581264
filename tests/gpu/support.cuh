// Helpers of the GPU's tests: counted checks, random numbers, poisoned device memory with a guard behind it, memfd
// segments registered with CUDA as the learner registers rings. Without Criterion, which a machine with a GPU may lack.
#ifndef FARM_TESTS_GPU_SUPPORT_CUH
#define FARM_TESTS_GPU_SUPPORT_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/kernels.h"

// Ends the program if a CUDA call of the test itself fails.
#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        const cudaError_t code_ = (call);                                                                              \
        if (code_ != cudaSuccess) {                                                                                    \
            fprintf(stderr, "FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_));             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

// Ends the program if a function of ours fails unexpectedly.
#define FARM(call)                                                                                                     \
    do {                                                                                                               \
        struct farm_error err_ = {};                                                                                   \
        struct farm_error *err = &err_;                                                                                \
        if ((call) != FARM_OK) {                                                                                       \
            fprintf(stderr, "FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call, err_.message);                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

inline int checks_passed, checks_failed;

static inline void check(bool good, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf(good ? "ok   " : "FAIL ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
    *(good ? &checks_passed : &checks_failed) += 1;
}

// The program's last line, and its exit status.
static inline int checks_end(void) {
    printf("%d passed, %d failed\n", checks_passed, checks_failed);
    return checks_failed ? 1 : 0;
}

struct random {
    uint64_t seed, drawn;
};

static inline uint32_t random_bits(struct random *r) {
    return farm_random_block(r->seed, 7, r->drawn++).word[0];
}
static inline uint32_t random_below(struct random *r, uint32_t bound) {
    return (uint32_t)(((uint64_t)random_bits(r) * bound) >> 32);
}
// Uniform in (low, high).
static inline float random_float(struct random *r, float low, float high) {
    return low + (high - low) * farm_random_unit(random_bits(r));
}

enum { POISON = 0xA5, GUARD_BYTES = 256 };

struct device_array {
    uint8_t *at;
    size_t bytes; // without the guard behind it
};
template <typename T> struct list {
    T at[128];
    int count;
    T add(T item) {
        if (count == 128) abort();
        return at[count++] = item;
    }
};
inline struct list<void *> host_memory;
inline struct list<struct device_array> device_memory;

static inline bool is_guard_whole(const struct device_array &array) {
    uint8_t guard[GUARD_BYTES];
    CUDA(cudaMemcpy(guard, array.at + array.bytes, GUARD_BYTES, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != POISON) return false;
    return true;
}

// Arrays on the host and in device memory live until the end of the scope in which they are taken, which fails if a
// kernel has stored behind one. One scope at a time.
struct memory_scope {
    memory_scope() {}
    ~memory_scope() {
        while (host_memory.count) free(host_memory.at[--host_memory.count]);
        while (device_memory.count) {
            const struct device_array array = device_memory.at[--device_memory.count];
            if (!is_guard_whole(array)) check(false, "a store behind an array of %zu bytes", array.bytes);
            CUDA(cudaFree(array.at));
        }
    }
};
template <typename T> static T *host_array(size_t count) {
    return (T *)host_memory.add(calloc(count + 1, sizeof(T)));
}
static inline float *random_floats(struct random *r, size_t count, float low, float high) {
    float *x = host_array<float>(count);
    for (size_t i = 0; i < count; i++) x[i] = random_float(r, low, high);
    return x;
}

// Device memory full of poison, with a guard behind it.
template <typename T = uint8_t> static T *device_poisoned(size_t count) {
    struct device_array array = {NULL, count * sizeof(T)};
    CUDA(cudaMalloc(&array.at, array.bytes + GUARD_BYTES));
    CUDA(cudaMemset(array.at, POISON, array.bytes + GUARD_BYTES));
    return (T *)device_memory.add(array).at;
}
template <typename T> static T *device_of(const T *host, size_t count) {
    T *memory = device_poisoned<T>(count);
    if (count) CUDA(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}
template <typename T> static T *host_of(const T *device, size_t count) {
    T *host = host_array<T>(count);
    if (count) CUDA(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// Shared memory like the rings': a memfd, which the test writes through `host` and the GPU accesses at `device` through
// a second mapping: read-only if `read_only` and the driver can register such memory.
struct segment {
    uint8_t *host, *registered;
    uint8_t *device;
    size_t bytes;
    bool read_only;
};
struct segment segment_make(size_t bytes, bool read_only);
void segment_free(struct segment *segment);

// Prints the machine and device 0 as a JSON object, with whether it registers read-only mappings
// (cudaDevAttrHostRegisterReadOnlySupported), as `up` segments are.
void print_machine(void);

#endif
