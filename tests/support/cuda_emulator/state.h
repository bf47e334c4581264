// The emulator's state and what its files share. memory.c has device, pinned and registered memory; cudart.c streams,
// events, graphs and copies; devices.c settings, devices, peers and errors. See emulator.h.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_STATE_H
#define TESTS_SUPPORT_CUDA_EMULATOR_STATE_H

#include <pthread.h>
#include <time.h>

#include "emulator.h"

enum { BLOCKS_MAX = 4096, JOINED_MAX = 16, PAGES = 256 };

struct item {
    struct item *next;
    const char *name;
    void (*work)(const void *arguments); // NULL: the item is a record, a wait or a launch
    struct CUevent_st *record;           // the event to complete
    uint64_t ticket;                     // the record's
    struct CUevent_st *wait;             // the event whose record `ticket` must be done first
    struct CUgraphExec_st *graph;        // the graph to run
    int device;
    size_t bytes;
    _Alignas(16) unsigned char arguments[];
};

struct CUstream_st {
    struct CUstream_st *next;
    int device, priority;
    unsigned flags;
    uint64_t works; // pieces of work that have run
    struct item *first, **last;
    struct CUgraph_st *capture; // NULL: work runs
};

struct CUevent_st {
    struct CUevent_st *next;
    bool timing;
    uint64_t recorded, done;   // tickets
    struct CUstream_st *where; // the newest record's
    struct CUgraph_st *capture;
    struct timespec time;
};

struct CUgraph_st {
    struct item *first, **last;
    struct CUstream_st *origin, *joined[JOINED_MAX];
    int joined_count;
    bool broken;
};

struct CUgraphExec_st {
    struct item *first;
};

enum kind { DEVICE, PINNED, REGISTERED };
struct block {
    char *start;
    size_t bytes;
    enum kind kind;
    int device;
    unsigned flags; // the registration's
    bool read_only, mapped;
};

// The state of the process.
extern struct gpu {
    pthread_mutex_t lock;
    char *arena;
    size_t arena_high; // the highest end of an allocation in the lower half
    int running;       // nested calls of open_memory
    int key;           // the arena's protection key; not above 0: none
    int running_device;
    struct CUstream_st *running_stream;
    struct block blocks[BLOCKS_MAX];
    size_t block_count;
    size_t block_of_page[PAGES]; // a page's low bits: the block in which it was found last
    struct CUstream_st *streams;
    struct CUstream_st standard;
    struct CUevent_st *events;
    struct farm_emulator_account account;
    bool peers[FARM_EMULATOR_DEVICES_MAX][FARM_EMULATOR_DEVICES_MAX]; // access of the first to the second
    cudaError_t lost[FARM_EMULATOR_DEVICES_MAX];
} gpu;

extern _Thread_local int current_device;

// Each call locks the state first, and ends with end_call, which unlocks it and returns the code, or the error of the
// current device if that is lost.
void lock_gpu(void);
cudaError_t end_call(cudaError_t code);

// Whether the current device exists and works.
cudaError_t check_device(void);

// Takes the lock, or returns from the calling function if the device is lost or missing.
#define LOCK_USABLE()                                                                                                  \
    do {                                                                                                               \
        lock_gpu();                                                                                                    \
        if (check_device()) return end_call(check_device());                                                           \
    } while (0)

// Prints the misuse and aborts. where: the call.
_Noreturn void abort_misuse(const char *what, const void *address, size_t bytes, const char *where);

// ---- memory.c ----

// The block that holds these bytes, or NULL.
struct block *find_block(const void *address, size_t bytes);
bool is_in_arena(const void *address);

// Device memory is accessible between these two, which nest.
void open_memory(void);
void close_memory(void);

// ---- cudart.c ----

void run_everything(void);
void free_items(struct item *items);

#endif
