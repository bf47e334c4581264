// Blocks of CUDA threads on the CPU: each thread of a block has a stack of its own and runs until it meets a barrier;
// blocks run one after another. What device/kernels/cuda/device.cuh makes CUDA's built-ins of, in C and C++.
//
// A misuse that a GPU would answer with a hang or with anything (a barrier that not all threads of the block reach at
// the same line, lanes that are gone when their warp synchronises, a bulk copy that nobody waits for) is said on stderr
// and aborts. Every other block's threads start from the last, so that an order that holds by chance does not always.
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

// Of the thread that runs: threadIdx, blockIdx, blockDim, gridDim.
extern struct farm_emulator_place {
    struct farm_emulator_extent thread, block, block_size, grid_size;
} farm_emulator_place;

struct farm_emulator_grid {
    const char *name;
    struct farm_emulator_extent blocks;
    unsigned threads;      // of a block: 1 to 1024, in one dimension
    unsigned shared_bytes; // what farm_emulator_shared gives
    const void *kernel;
};

// Whether a device would launch it: farm_emulator_allow says what shared memory a kernel may have beyond 48 KB. Nothing
// is known of its shared memory of fixed size, nor of __launch_bounds__.
bool farm_emulator_grid_fits(const struct farm_emulator_grid *grid);
bool farm_emulator_allow(const void *kernel, unsigned shared_bytes); // false: more than there is

// Calls body(arguments) once for each thread. Under the emulator's lock: one grid at a time.
void farm_emulator_grid_run(const struct farm_emulator_grid *grid, void (*body)(const void *arguments),
                            const void *arguments);

// For the thread that runs.
uint8_t *farm_emulator_shared(void);
bool farm_emulator_is_shared(const void *address, size_t bytes); // within what farm_emulator_shared gives
void farm_emulator_sync_threads(int line);
void farm_emulator_sync_warp(int line);
double farm_emulator_shuffle_down(double x, unsigned by, int line);

// The copy engine. A load happens when its barrier is waited for and a store when stores are waited for, the latest
// moments that a device may choose.
void farm_emulator_barrier_init(uint64_t *barrier);
void farm_emulator_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *barrier);
void farm_emulator_barrier_wait(const uint64_t *barrier, uint32_t parity);
void farm_emulator_bulk_store(void *to, const void *shared, uint32_t bytes);
void farm_emulator_bulk_stores_done(void);

// The moment, for who compares accesses of two threads of a block. Barriers number what lies between them anew, over
// all blocks and grids: accesses of the same number are in no order.
struct farm_emulator_moment {
    unsigned thread, warp;
    uint64_t of_block, of_warp;
};
struct farm_emulator_moment farm_emulator_now(void);

// The threads' stacks: [0] up to [1]. Whoever stands on one of them is a kernel.
extern char *farm_emulator_stacks[2];

#ifdef __cplusplus
}
#endif
#endif
