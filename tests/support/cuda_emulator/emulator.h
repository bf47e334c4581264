// An emulator for a GPU and its runtime, on the CPU, for tests of the host code that drives one: which call comes
// before which, who waits for whom, what is given back. cudart.c defines the functions of cuda_runtime_api.h that this
// project calls; on farm_emulator_launch stands device/kernels/cuda/device.cuh, over which the kernels of
// src/kernels/cuda run as they are written, a thread at a time (grid.h, access.h). Nothing is timed, memory is ordered
// as the CPU orders it.
//
// Streams are queues. Unless `eager` is set, work stays in its queue until somebody waits for it (synchronises a stream
// or an event, or asks for its state again and again: a query runs a piece of work and says "not ready" while there is
// more), so that a result that is read, or a buffer that is filled anew, without waiting is wrong in every run.
// Device memory cannot be touched but by work that runs. What goes wrong in the use of the emulator itself (an address
// outside all allocations, a double free) is said on stderr and aborts.
//
// State is of the process: one lock, under which all work runs, in the thread that waits.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_H
#define TESTS_SUPPORT_CUDA_EMULATOR_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FARM_EMULATOR_DEVICES_MAX = 4 };

// Set before use, after farm_emulator_reset. A library that a program loads takes them from the environment variable
// FARM_CUDA_EMULATOR: "devices=2 memory=1000000 fall_off_after=500 refuse_registration=1 ...".
struct farm_emulator_settings {
    int64_t devices;             // 1; 0: no GPU
    int64_t driver;              // 13000; below the runtime's: a driver that is too old
    int64_t major;               // 9: compute capability
    int64_t memory;              // bytes of each device: 1 GiB
    int64_t eager;               // 1: work runs as it is put into a stream
    int64_t refuse_registration; // 1: cudaHostRegister says that memory cannot be locked
    int64_t refuse_read_only;    // 1: the device cannot register memory that is mapped read-only
    int64_t refuse_peers;        // 1: no device reaches another's memory
    int64_t no_batches;          // 1: no batches of asynchronous copies
    int64_t slow_loads;          // microseconds that each of farm_cuda_pull's by loads takes longer
    int64_t slow_bulk;           // by bulk copies
    int64_t fall_off_after;      // pieces of work that run before a device is lost; -1: never
    int64_t fall_off_device;     // which: 0
    int64_t hang_after;          // pieces of work that run before a device stands still, without a word; -1: never
    int64_t hang_device;         // which: 0
    int64_t no_start;            // the code that cudaGetDeviceCount says; 0: none
};
extern struct farm_emulator_settings farm_emulator;

// Called by each cudaGraphLaunch, in its thread and outside the lock, before it does anything: may hold it as long as
// it likes, and call the runtime's functions. NULL, also after farm_emulator_reset: nobody.
extern void (*farm_emulator_before_launch)(void);

// How registered memory is read: by the loads of kernels, by their bulk copies, or by copies in a stream.
enum farm_emulator_way { FARM_EMULATOR_LOADS, FARM_EMULATOR_BULK, FARM_EMULATOR_COPIES, FARM_EMULATOR_WAYS };

// What has been asked for and not given back, and what has been done.
struct farm_emulator_account {
    uint64_t allocations, pinned, registered, streams, events, graphs, graph_execs, peers; // now
    uint64_t device_bytes, pinned_bytes, registered_bytes;                                 // now
    uint64_t works, graph_launches;                                                        // so far
    uint64_t host_to_device_bytes, device_to_host_bytes;                                   // by copies, so far
    uint64_t device_to_pageable_bytes; // of the latter those into memory that is neither pinned nor registered
    uint64_t read[FARM_EMULATOR_WAYS]; // registered bytes, so far
    uint64_t threads;                  // of kernels, so far
};
struct farm_emulator_account farm_emulator_account(void);

// The streams that are there, the newest first and the standard one last; returns how many, `most` at most.
struct farm_emulator_stream {
    int device, priority;
    unsigned flags;
    uint64_t works; // pieces of work that ran in it
};
size_t farm_emulator_streams(struct farm_emulator_stream *out, size_t most);

// The flags with which memory is registered; 0: it is not.
unsigned farm_emulator_registration(const void *address);

// Forgets everything (memory that was not given back too) and puts the settings back.
void farm_emulator_reset(void);

// What a kernel's launch is here: `work` runs later, once, with a copy of `bytes` of arguments; in a stream that is
// being captured it goes into the graph and runs at every launch of it. `name` is for messages and must live for ever.
// `work` runs under the emulator's lock and calls none of the runtime's functions.
cudaError_t farm_emulator_launch(cudaStream_t stream, const char *name, void (*work)(const void *arguments),
                                 const void *arguments, size_t bytes);

// Runs what the stream holds, but for its waits for devices that are lost, which it lets go.
void farm_emulator_give_up(cudaStream_t stream);

// For work that runs: aborts unless [address, address + bytes) lies in one live allocation of its device (or one whose
// memory that may use), in pinned memory or in registered memory (write: not in memory that was registered read-only).
// `what` is for the message. Returns whether it is registered: who reads it then says so.
bool farm_emulator_need(const void *address, size_t bytes, bool write, const char *what);
void farm_emulator_count_read(enum farm_emulator_way way, size_t bytes);
void farm_emulator_count_threads(uint64_t threads); // for a kernel that runs

#endif
