// Blocks of CUDA threads on the CPU: each thread of a block has its own stack and runs to the next barrier; blocks run
// one after another. device/kernels/cuda/device.cuh implements CUDA's built-ins with it, in C and C++.
//
// Misuse with a hang or undefined behaviour on a GPU (a barrier that not all threads of the block reach at the same
// line, missing lanes when their warp synchronises, a bulk copy without a wait) prints a message to stderr and aborts.
// In every other block the last thread starts first, so an order that holds by chance fails.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_GRID_H
#define TESTS_SUPPORT_CUDA_EMULATOR_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct farm_emulator_extent {
    unsigned x, y, z;
};

// Of the running thread: threadIdx, blockIdx, blockDim, gridDim.
extern struct farm_emulator_place {
    struct farm_emulator_extent thread, block, block_size, grid_size;
} farm_emulator_place;

struct farm_emulator_grid {
    const char *name;
    struct farm_emulator_extent blocks;
    unsigned threads;      // in a block: 1 to 1024, in one dimension
    unsigned shared_bytes; // size of farm_emulator_shared
    const void *kernel;
};

// Whether a device would launch it. farm_emulator_allow allows a kernel more than 48 KB of shared memory. Shared memory
// of fixed size and __launch_bounds__ are not checked.
bool farm_emulator_grid_fits(const struct farm_emulator_grid *grid);
bool farm_emulator_allow(const void *kernel, unsigned shared_bytes); // false: more than there is

// Calls body(arguments) once for each thread. Under the emulator's lock: one grid at a time.
void farm_emulator_grid_run(const struct farm_emulator_grid *grid, void (*body)(const void *arguments),
                            const void *arguments);

// Called by the running thread.
uint8_t *farm_emulator_shared(void);
bool farm_emulator_is_shared(const void *address, size_t bytes); // within farm_emulator_shared
void farm_emulator_sync_threads(int line);
void farm_emulator_sync_warp(int line);
double farm_emulator_shuffle_from(double x, unsigned from, int line); // lane `from`'s x; from >= 32: the own
void farm_emulator_mma(float d[4], const uint32_t a[4], const uint32_t b[2], int line); // as farm_cuda_mma

// The copy engine. A load happens at the wait for its barrier, a store at the wait for stores: the latest moments that
// a device may choose.
void farm_emulator_barrier_init(uint64_t *barrier);
void farm_emulator_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *barrier);
void farm_emulator_barrier_wait(const uint64_t *barrier, uint32_t parity);
void farm_emulator_bulk_store(void *to, const void *shared, uint32_t bytes);
void farm_emulator_bulk_stores_done(void);

// A thread's copies of 4, 8 or 16 bytes (NULL: zeros) happen at its wait, one after another: 0 after the last.
void farm_emulator_copy_async(void *shared, const void *from, uint32_t bytes);
uint32_t farm_emulator_next_copy(void **shared, const void **from);

// The current moment, to compare accesses of two threads of a block. Each barrier starts a new number, over all blocks
// and grids: accesses with the same number are unordered.
struct farm_emulator_moment {
    unsigned thread, warp;
    uint64_t of_block, of_warp;
};
struct farm_emulator_moment farm_emulator_now(void);

// The threads' stacks, from [0] to [1]. Code that runs on one of them is a kernel.
extern char *farm_emulator_stacks[2];

#ifdef __cplusplus
}
#endif
#endif
