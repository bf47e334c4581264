// An emulator of GPUs and CUDA's runtime on the CPU, for tests of host code: order of calls, waits, leaks. cudart.c,
// memory.c and devices.c define the functions of cuda_runtime_api.h that this project calls;
// device/kernels/cuda/device.cuh runs the kernels of src/kernels/cuda unchanged, a thread at a time, over
// farm_emulator_launch (grid.h, access.h). It has no timing, and the CPU's memory order.
//
// Streams are queues. Unless `eager` is set, work stays queued until a thread waits for it: synchronises a stream or an
// event, or queries it repeatedly (a query runs one piece of work and returns "not ready" while there is more). So
// reading a result, or refilling a buffer, without a wait is wrong in every run. Only running work can access device
// memory. Misuse (an address outside all allocations, a double free) prints a message to stderr and aborts.
//
// One state per process, one lock; work runs under it, in the thread that waits.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_H
#define TESTS_SUPPORT_CUDA_EMULATOR_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FARM_EMULATOR_DEVICES_MAX = 4 };

// Set before use, after farm_emulator_reset, or by the environment variable FARM_CUDA_EMULATOR when the library loads:
// "devices=2 memory=1000000 fall_off_after=500 refuse_registration=1 ...".
struct farm_emulator_settings {
    int64_t devices;             // 1; 0: no GPU
    int64_t driver;              // 13000; less than the runtime's: too old
    int64_t major;               // 9: compute capability
    int64_t memory;              // bytes of each device: 1 GiB
    int64_t eager;               // 1: work runs when it is enqueued
    int64_t refuse_registration; // 1: cudaHostRegister fails with "out of memory"
    int64_t refuse_read_only;    // 1: the device cannot register read-only mappings
    int64_t refuse_peers;        // 1: no peer access
    int64_t no_batches;          // 1: no batches of asynchronous copies
    int64_t slow_loads;          // extra microseconds of each farm_cuda_pull by loads
    int64_t slow_bulk;           // the same by bulk copies
    int64_t fall_off_after;      // pieces of work before a device is lost; -1: never
    int64_t fall_off_device;     // the device that is lost: 0
    int64_t hang_after;          // pieces of work before a device hangs; -1: never
    int64_t hang_device;         // the device that hangs: 0
    int64_t no_start;            // error code of cudaGetDeviceCount; 0: it works
};
extern struct farm_emulator_settings farm_emulator;

// Called at the start of each cudaGraphLaunch, in its thread and outside the lock: may block, and call the runtime.
// NULL by default and after farm_emulator_reset.
extern void (*farm_emulator_before_launch)(void);

// How registered memory is read: by the loads of kernels, by their bulk copies, or by copies in a stream.
enum farm_emulator_way { FARM_EMULATOR_LOADS, FARM_EMULATOR_BULK, FARM_EMULATOR_COPIES, FARM_EMULATOR_WAYS };

// Resources in use, and work done.
struct farm_emulator_account {
    uint64_t allocations, pinned, registered, streams, events, graphs, graph_execs, peers; // now
    uint64_t device_bytes, pinned_bytes, registered_bytes;                                 // now
    uint64_t works, graph_launches;                                                        // so far
    uint64_t device_to_host_bytes;                                                         // by copies, so far
    uint64_t device_to_pageable_bytes; // the part that went into memory that is neither pinned nor registered
    uint64_t read[FARM_EMULATOR_WAYS]; // registered bytes, so far
};
struct farm_emulator_account farm_emulator_account(void);

// The existing streams, newest first, the default stream last. Returns their number, at most `most`.
struct farm_emulator_stream {
    int device, priority;
    unsigned flags;
    uint64_t works; // pieces of work that ran in it
};
size_t farm_emulator_streams(struct farm_emulator_stream *out, size_t most);

// The flags of a registration; 0: not registered.
unsigned farm_emulator_registration(const void *address);

// Frees and forgets everything, and restores the default settings.
void farm_emulator_reset(void);

// A kernel's launch: `work` runs later, once, with a copy of `bytes` of arguments; in a capturing stream it becomes
// part of the graph. `name`, for messages, must be static. `work` runs under the lock and must not call the runtime.
cudaError_t farm_emulator_launch(cudaStream_t stream, const char *name, void (*work)(const void *arguments),
                                 const void *arguments, size_t bytes);

// Runs the stream's work, dropping waits for lost devices.
void farm_emulator_give_up(cudaStream_t stream);

// Called by running work: aborts unless [address, address + bytes) lies in one live allocation of its device or a peer,
// in pinned memory or in registered memory (write: not registered read-only). `what` is for the message. Returns
// whether it is registered; a reader then calls farm_emulator_count_read.
bool farm_emulator_need(const void *address, size_t bytes, bool write, const char *what);
void farm_emulator_count_read(enum farm_emulator_way way, size_t bytes);

#endif
