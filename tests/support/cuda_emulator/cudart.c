// The functions of CUDA's runtime, on the CPU. See emulator.h.
#include "emulator.h"

#include "grid.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS_MAX = 4096, JOINED_MAX = 16, PAGES = 256 };
static const size_t ARENA_BYTES = 16ull << 30, ALIGNMENT = 256, POISON_MAX = 1 << 20;
// Allocations larger than LARGE lie in the arena's upper half, which is not guarded: that would take too long.
static const size_t LARGE = 1 << 20, LOWER_BYTES = 8ull << 30;
#define DEFAULTS                                                                                                       \
    { .devices = 1, .driver = 13000, .major = 9, .memory = 1 << 30, .fall_off_after = -1, .hang_after = -1 }
struct farm_emulator_settings farm_emulator = DEFAULTS;

void (*farm_emulator_before_launch)(void);

// ---- work, streams, events ----

struct item {
    struct item *next;
    const char *name;
    void (*work)(const void *arguments); // NULL: one of the next
    struct CUevent_st *record;           // done once reached
    uint64_t ticket;                     // of the record
    struct CUevent_st *wait;             // stop until the event's record `ticket` is done
    struct CUgraphExec_st *graph;        // a launch of it
    int device;                          // where it runs
    size_t bytes;
    _Alignas(16) unsigned char arguments[];
};

struct CUstream_st {
    struct CUstream_st *next;
    int device, priority;
    unsigned flags;
    uint64_t works; // that ran
    struct item *first, **last;
    struct CUgraph_st *capture; // being captured
};

struct CUevent_st {
    struct CUevent_st *next;
    bool timing;
    uint64_t recorded, done;   // tickets
    struct CUstream_st *where; // of the newest record
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
    unsigned flags; // of the registration
    bool read_only, mapped;
};

static struct {
    pthread_mutex_t lock;
    char *arena;
    size_t arena_high; // the end of what was ever in use in the lower half
    int running;       // depth of work that runs
    int running_device;
    struct CUstream_st *running_stream;
    struct block blocks[BLOCKS_MAX];
    size_t block_count;
    size_t block_of_page[PAGES]; // by the low bits of its number: where the last one was found
    struct CUstream_st *streams;
    struct CUstream_st standard;
    struct CUevent_st *events;
    struct farm_emulator_account account;
    bool peers[FARM_EMULATOR_DEVICES_MAX][FARM_EMULATOR_DEVICES_MAX]; // access of the first to the second
    cudaError_t lost[FARM_EMULATOR_DEVICES_MAX];
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local cudaError_t last_error;
static _Thread_local int current_device;

static void lock(void) {
    pthread_mutex_lock(&gpu.lock);
    if (!gpu.standard.last) gpu.standard.last = &gpu.standard.first;
}

static cudaError_t result(cudaError_t code) {
    if (code == cudaSuccess) code = gpu.lost[current_device];
    if (code != cudaSuccess) last_error = code; // "not ready" too, as in CUDA
    pthread_mutex_unlock(&gpu.lock);
    return code;
}

static void broken(const char *what, const void *address, size_t bytes, const char *where) {
    fprintf(stderr, "CUDA emulator: %s: %p, %zu bytes (%s)\n", what, address, bytes, where);
    abort();
}

__attribute__((constructor)) static void read_environment(void) {
    static const struct {
        const char *name;
        int64_t *value; // NULL: vendor_open.c reads it
    } keys[] = {
#define KEY(name) {#name "=", &farm_emulator.name}
        KEY(devices),
        KEY(driver),
        KEY(major),
        KEY(memory),
        KEY(eager),
        KEY(refuse_registration),
        KEY(refuse_read_only),
        KEY(refuse_peers),
        KEY(no_batches),
        KEY(slow_loads),
        KEY(slow_bulk),
        KEY(fall_off_after),
        KEY(fall_off_device),
        KEY(hang_after),
        KEY(hang_device),
        KEY(no_start),
        {"no_libraries=", NULL},
        {"no_nccl=", NULL}};
    const char *text = getenv("FARM_CUDA_EMULATOR");
    for (const char *at = text; at && *at;) {
        size_t k = 0;
        while (k < sizeof keys / sizeof *keys && strncmp(at, keys[k].name, strlen(keys[k].name)) != 0) k++;
        if (k == sizeof keys / sizeof *keys) {
            fprintf(stderr, "CUDA emulator: FARM_CUDA_EMULATOR: no such setting: %s\n", at);
            abort();
        }
        if (keys[k].value) *keys[k].value = strtoll(at + strlen(keys[k].name), NULL, 10);
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
}

// ---- memory ----

static bool block_holds(const struct block *block, const char *at, size_t bytes) {
    return at >= block->start && at + bytes <= block->start + block->bytes;
}

static struct block *block_of(const void *address, size_t bytes) {
    size_t *recent = &gpu.block_of_page[(uintptr_t)address / 4096 % PAGES];
    if (*recent < gpu.block_count && block_holds(&gpu.blocks[*recent], address, bytes)) return &gpu.blocks[*recent];
    for (size_t i = 0; i < gpu.block_count; i++)
        if (block_holds(&gpu.blocks[i], address, bytes)) return &gpu.blocks[*recent = i];
    return NULL;
}

bool farm_emulator_need(const void *address, size_t bytes, bool write, const char *what) {
    if (!bytes) return false;
    const struct block *block = block_of(address, bytes);
    if (!block) broken("an address outside the GPU's memory", address, bytes, what);
    if (block->kind != DEVICE && !block->mapped) broken("memory that is not mapped for the GPU", address, bytes, what);
    if (block->kind == DEVICE && block->device != gpu.running_device && !gpu.peers[gpu.running_device][block->device])
        broken("memory of another GPU", address, bytes, what);
    if (write && block->read_only) broken("a store into memory registered read-only", address, bytes, what);
    return block->kind == REGISTERED;
}

void farm_emulator_count_read(enum farm_emulator_way way, size_t bytes) {
    gpu.account.read[way] += bytes;
}

static void add_block(struct block block) {
    if (gpu.block_count == BLOCKS_MAX) broken("too many blocks", block.start, block.bytes, "emulator");
    gpu.blocks[gpu.block_count++] = block;
}

static void remove_block(void *start, enum kind kind, const char *what) {
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].start == start && gpu.blocks[i].kind == kind) {
            gpu.blocks[i] = gpu.blocks[--gpu.block_count];
            return;
        }
    broken("no such memory, or freed twice", start, 0, what);
}

// Device memory is accessible only while work runs.
static void protect_arena(int protection) {
    if (gpu.arena_high && mprotect(gpu.arena, gpu.arena_high, protection))
        broken("mprotect", gpu.arena, gpu.arena_high, "emulator");
}

static void open_memory(void) {
    if (gpu.running++ == 0) protect_arena(PROT_READ | PROT_WRITE);
}
static void close_memory(void) {
    if (--gpu.running == 0) protect_arena(PROT_NONE);
}

// The lowest gap that is large enough.
static char *find_gap(size_t bytes) {
    char *at = gpu.arena + (bytes > LARGE ? LOWER_BYTES : 0);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < gpu.block_count; i++) {
            const struct block *block = &gpu.blocks[i];
            if (block->kind != DEVICE || at + bytes <= block->start || at >= block->start + block->bytes) continue;
            at = block->start + (block->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT +
                 ALIGNMENT; // a gap to catch overruns
            moved = true;
        }
    }
    return at;
}

static uint64_t bytes_of(int device) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].kind == DEVICE && gpu.blocks[i].device == device) bytes += gpu.blocks[i].bytes;
    return bytes;
}

static cudaError_t usable(void) {
    if (gpu.lost[current_device]) return gpu.lost[current_device];
    if (farm_emulator.driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
    return farm_emulator.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

// Takes the lock, or returns from the calling function if the device is lost or missing.
#define LOCK_USABLE()                                                                                                  \
    do {                                                                                                               \
        lock();                                                                                                        \
        if (usable()) return result(usable());                                                                         \
    } while (0)

cudaError_t cudaMalloc(void **out, size_t bytes) {
    LOCK_USABLE();
    if (bytes_of(current_device) + bytes > (uint64_t)farm_emulator.memory) return result(cudaErrorMemoryAllocation);
    if (!gpu.arena) {
        gpu.arena = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (gpu.arena == MAP_FAILED || mprotect(gpu.arena + LOWER_BYTES, LOWER_BYTES, PROT_READ | PROT_WRITE))
            broken("no address space", NULL, ARENA_BYTES, "cudaMalloc");
    }
    char *start = find_gap(bytes);
    size_t end = (size_t)(start - gpu.arena) + bytes;
    end = (end + 4095) / 4096 * 4096;
    if (end > (bytes > LARGE ? ARENA_BYTES : LOWER_BYTES)) return result(cudaErrorMemoryAllocation);
    if (bytes <= LARGE && end > gpu.arena_high) gpu.arena_high = end;
    add_block((struct block){.start = start, .bytes = bytes, .kind = DEVICE, .device = current_device});
    open_memory();
    // NaN, because the content is undefined. Large allocations are poisoned at their start only.
    memset(start, 0xff, bytes < POISON_MAX ? bytes : POISON_MAX);
    close_memory();
    *out = start;
    return result(cudaSuccess);
}

static void run_stream(struct CUstream_st *stream, const struct CUevent_st *until, uint64_t ticket);

// A device that hangs: its queues stay as they are.
static bool is_hanging(int device) {
    return farm_emulator.hang_after >= 0 && gpu.account.works >= (uint64_t)farm_emulator.hang_after &&
           device == (int)farm_emulator.hang_device;
}

static void run_everything(void) {
    run_stream(&gpu.standard, NULL, 0);
    for (struct CUstream_st *s = gpu.streams; s; s = s->next) {
        run_stream(s, NULL, 0);
        if (s->first && is_hanging(s->first->device)) broken("waits for ever for a GPU that hangs", s, 0, "");
    }
}

cudaError_t cudaFree(void *memory) {
    lock();
    if (!memory) return result(cudaSuccess);
    run_everything(); // cudaFree waits for the device
    remove_block(memory, DEVICE, "cudaFree");
    return result(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    LOCK_USABLE();
    if (posix_memalign(out, 4096, bytes ? bytes : 1)) return result(cudaErrorMemoryAllocation);
    memset(*out, 0x5a, bytes);
    add_block((struct block){.start = *out, .bytes = bytes, .kind = PINNED, .mapped = flags & cudaHostAllocMapped});
    return result(cudaSuccess);
}

cudaError_t cudaFreeHost(void *memory) {
    lock();
    if (!memory) return result(cudaSuccess);
    run_everything();
    remove_block(memory, PINNED, "cudaFreeHost");
    free(memory);
    return result(cudaSuccess);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    const unsigned known =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    LOCK_USABLE();
    if (flags & ~known || !memory || !bytes) return result(cudaErrorInvalidValue);
    if (flags & cudaHostRegisterReadOnly && farm_emulator.refuse_read_only) return result(cudaErrorNotSupported);
    if (farm_emulator.refuse_registration) return result(cudaErrorMemoryAllocation);
    for (size_t i = 0; i < gpu.block_count; i++) {
        const struct block *block = &gpu.blocks[i];
        if ((char *)memory < block->start + block->bytes && block->start < (char *)memory + bytes)
            return result(cudaErrorHostMemoryAlreadyRegistered);
    }
    add_block((struct block){.start = memory,
                             .bytes = bytes,
                             .kind = REGISTERED,
                             .flags = flags,
                             .read_only = flags & cudaHostRegisterReadOnly,
                             .mapped = flags & cudaHostRegisterMapped});
    return result(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *memory) {
    lock();
    run_everything();
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].start == memory && gpu.blocks[i].kind == REGISTERED) {
            remove_block(memory, REGISTERED, "cudaHostUnregister");
            return result(cudaSuccess);
        }
    return result(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags) {
    lock();
    const struct block *block = block_of(memory, 1);
    if (flags || !block || block->kind == DEVICE || !block->mapped) return result(cudaErrorInvalidValue);
    *out = memory;
    return result(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    LOCK_USABLE();
    *total = (size_t)farm_emulator.memory;
    *left = *total - (size_t)bytes_of(current_device);
    return result(cudaSuccess);
}

// ---- running ----

static void complete(struct CUevent_st *event, uint64_t ticket) {
    if (ticket > event->done) event->done = ticket;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
}

static void run_graph(const struct CUgraphExec_st *graph);

static void run_work(const struct item *item) {
    if (gpu.lost[gpu.running_device]) return;
    if (farm_emulator.fall_off_after >= 0 && gpu.account.works >= (uint64_t)farm_emulator.fall_off_after &&
        gpu.running_device == (int)farm_emulator.fall_off_device) {
        gpu.lost[gpu.running_device] = cudaErrorLaunchFailure;
        return;
    }
    gpu.account.works++;
    gpu.running_stream->works++;
    if (farm_emulator.slow_loads && strcmp(item->name, "pull_loads") == 0) usleep((useconds_t)farm_emulator.slow_loads);
    if (farm_emulator.slow_bulk && strcmp(item->name, "pull_bulk") == 0) usleep((useconds_t)farm_emulator.slow_bulk);
    item->work(item->arguments);
}

// False: it waits for another device, which is lost or hangs.
static bool run_item(const struct item *item) {
    if (item->work) {
        open_memory();
        run_work(item);
        close_memory();
    } else if (item->graph) {
        open_memory();
        run_graph(item->graph);
        close_memory();
    } else if (item->record && !gpu.lost[item->device]) {
        complete(item->record, item->ticket);
    } else if (item->wait && item->wait->done < item->ticket && item->wait->where && !gpu.lost[item->device]) {
        const int device = item->wait->where->device;
        run_stream(item->wait->where, item->wait, item->ticket);
        return item->wait->done >= item->ticket || !(gpu.lost[device] || is_hanging(device)) || gpu.lost[item->device];
    }
    return true;
}

static void run_graph(const struct CUgraphExec_st *graph) {
    for (const struct item *item = graph->first; item; item = item->next)
        if (item->work) run_work(item);
}

static void drop_first(struct CUstream_st *stream) {
    struct item *item = stream->first;
    stream->first = item->next;
    if (!stream->first) stream->last = &stream->first;
    free(item);
}

// Runs the first item. False: it stays, because it waits for ever.
static bool run_first(struct CUstream_st *stream) {
    const int before = gpu.running_device;
    struct CUstream_st *const stream_before = gpu.running_stream;
    if (is_hanging(stream->first->device)) return false;
    gpu.running_device = stream->first->device;
    gpu.running_stream = stream;
    const bool done = run_item(stream->first);
    gpu.running_device = before;
    gpu.running_stream = stream_before;
    if (done) drop_first(stream);
    return done;
}

// Runs a stream to its end, or until the event's record is done.
static void run_stream(struct CUstream_st *stream, const struct CUevent_st *until, uint64_t ticket) {
    open_memory();
    bool going = true;
    while (going && stream->first && !(until && until->done >= ticket)) going = run_first(stream);
    close_memory();
}

// As run_stream; aborts if that would never end.
static void wait_for(struct CUstream_st *stream, const struct CUevent_st *until, uint64_t ticket) {
    run_stream(stream, until, ticket);
    if (stream->first && !(until && until->done >= ticket))
        broken("waits for ever for a GPU that is lost or hangs", stream, 0, "");
}

void farm_emulator_give_up(cudaStream_t stream) {
    lock();
    while (run_stream(stream, NULL, 0), stream->first) drop_first(stream);
    (void)result(cudaSuccess);
}

static void free_items(struct item *item) {
    while (item) {
        struct item *next = item->next;
        free(item);
        item = next;
    }
}

static struct item *new_item(size_t bytes) {
    struct item *item = calloc(1, sizeof *item + bytes);
    if (!item) broken("no memory", NULL, bytes, "emulator");
    item->bytes = bytes;
    return item;
}

static cudaError_t enqueue(struct CUstream_st *stream, struct item *item) {
    if (!stream) stream = &gpu.standard;
    cudaError_t code = usable();
    item->device = stream == &gpu.standard ? current_device : stream->device;
    if (code) {
        free(item);
        return code;
    }
    if (stream->capture) {
        *stream->capture->last = item;
        stream->capture->last = &item->next;
        return cudaSuccess;
    }
    *stream->last = item;
    stream->last = &item->next;
    if (farm_emulator.eager) run_stream(stream, NULL, 0);
    return cudaSuccess;
}

static cudaError_t enqueue_work(struct CUstream_st *stream, const char *name, void (*work)(const void *arguments),
                                const void *arguments, size_t bytes) {
    struct item *item = new_item(bytes);
    item->name = name;
    item->work = work;
    memcpy(item->arguments, arguments, bytes);
    return enqueue(stream, item);
}

cudaError_t farm_emulator_launch(cudaStream_t stream, const char *name, void (*work)(const void *arguments),
                                 const void *arguments, size_t bytes) {
    lock();
    if (stream && stream->device != current_device) return result(cudaErrorInvalidResourceHandle);
    return result(enqueue_work(stream, name, work, arguments, bytes));
}

// ---- copies ----

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

static void count_copy(const struct copy *copy) {
    const struct block *to = block_of(copy->to, copy->bytes), *from = block_of(copy->from, copy->bytes);
    const bool to_device = to && to->kind == DEVICE, from_device = from && from->kind == DEVICE;
    if (to_device && !from_device) gpu.account.host_to_device_bytes += copy->bytes;
    if (!to_device && from_device) gpu.account.device_to_host_bytes += copy->bytes;
    if (from && from->kind == REGISTERED) farm_emulator_count_read(FARM_EMULATOR_COPIES, copy->bytes);
}

static void do_copy(const void *arguments) {
    const struct copy *copy = arguments;
    const struct block *to = block_of(copy->to, copy->bytes);
    if (to && to->read_only) broken("a copy into memory registered read-only", copy->to, copy->bytes, "copy");
    count_copy(copy);
    memcpy(copy->to, copy->from, copy->bytes);
}

static void do_set(const void *arguments) {
    const struct copy *copy = arguments;
    memset(copy->to, copy->value, copy->bytes);
}

static bool in_arena(const void *address) {
    return gpu.arena && (const char *)address >= gpu.arena && (const char *)address < gpu.arena + ARENA_BYTES;
}

// An end may be any memory of the host; in device memory it must be allocated.
static void check_end(const void *address, size_t bytes, const char *call) {
    if (in_arena(address) && !block_of(address, bytes)) broken("outside all device memory", address, bytes, call);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    lock();
    check_end(to, bytes, "cudaMemcpyAsync, to");
    check_end(from, bytes, "cudaMemcpyAsync, from");
    struct copy copy = {.to = to, .from = from, .bytes = bytes};
    const struct block *block = block_of(from, bytes);
    const bool pageable = !block && !(stream && stream->capture);
    if (block && block->kind == DEVICE && !block_of(to, bytes)) gpu.account.device_to_pageable_bytes += bytes;
    cudaError_t code = enqueue_work(stream, "cudaMemcpyAsync", do_copy, &copy, sizeof copy);
    if (!code && pageable)
        wait_for(stream ? stream : &gpu.standard, NULL, 0); // the call returns when it has read the memory
    return result(code);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return code ? code : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes, size_t count,
                                 struct cudaMemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                 cudaStream_t stream) {
    lock();
    const bool sound = attributes && indices && attribute_count == 1 && indices[0] == 0 && count > 0 && stream &&
                       attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderStream;
    if (!sound) return result(cudaErrorInvalidValue);
    if (farm_emulator.no_batches) return result(cudaErrorNotSupported);
    if (stream->capture) {
        stream->capture->broken = true;
        return result(cudaErrorStreamCaptureUnsupported);
    }
    pthread_mutex_unlock(&gpu.lock);
    cudaError_t code = cudaSuccess;
    for (size_t i = 0; i < count && !code; i++)
        code = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream);
    return code;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    lock();
    const struct block *target = block_of(to, bytes), *source = block_of(from, bytes);
    if (!target || target->kind != DEVICE || target->device != to_device)
        broken("not memory of that device", to, bytes, "cudaMemcpyPeerAsync, to");
    if (!source || source->kind != DEVICE || source->device != from_device)
        broken("not memory of that device", from, bytes, "cudaMemcpyPeerAsync, from");
    pthread_mutex_unlock(&gpu.lock);
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    lock();
    if (!block_of(to, bytes)) broken("outside all device memory", to, bytes, "cudaMemsetAsync");
    struct copy copy = {.to = to, .bytes = bytes, .value = value};
    return result(enqueue_work(stream, "cudaMemsetAsync", do_set, &copy, sizeof copy));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}

// ---- streams ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    LOCK_USABLE();
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) return result(cudaErrorInvalidValue);
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    stream->device = current_device;
    stream->priority = priority;
    stream->flags = flags;
    stream->next = gpu.streams;
    gpu.streams = stream;
    *out = stream;
    return result(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    lock();
    struct CUstream_st **at = &gpu.streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (!*at) broken("no such stream, or destroyed twice", stream, 0, "cudaStreamDestroy");
    run_stream(stream, NULL, 0);
    *at = stream->next;
    for (struct CUevent_st *event = gpu.events; event; event = event->next)
        if (event->where == stream) event->where = NULL;
    free(stream);
    return result(cudaSuccess);
}

static cudaError_t refuse_while_capturing(struct CUstream_st *stream) {
    if (!stream || !stream->capture) return cudaSuccess;
    stream->capture->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    lock();
    cudaError_t code = refuse_while_capturing(stream);
    if (!code) wait_for(stream ? stream : &gpu.standard, NULL, 0);
    return result(code);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    lock();
    if (!stream) stream = &gpu.standard;
    cudaError_t code = refuse_while_capturing(stream);
    if (!code && stream->first) {
        (void)run_first(stream);
        code = cudaErrorNotReady;
    }
    return result(gpu.lost[stream->device] ? gpu.lost[stream->device] : code);
}

cudaError_t cudaDeviceSynchronize(void) {
    lock();
    cudaError_t code = usable();
    if (!code) run_everything();
    return result(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    lock();
    if (flags) return result(cudaErrorInvalidValue);
    if (event->capture) { // joins the capture of the stream that recorded it
        if (stream->capture && stream->capture != event->capture) return result(cudaErrorStreamCaptureMerge);
        if (!stream->capture) {
            if (event->capture->joined_count == JOINED_MAX) broken("too many streams", stream, 0, "capture");
            event->capture->joined[event->capture->joined_count++] = stream;
        }
        stream->capture = event->capture;
        return result(cudaSuccess);
    }
    if (stream->capture) {
        stream->capture->broken = true;
        return result(cudaErrorStreamCaptureIsolation);
    }
    struct item *item = new_item(0);
    item->wait = event;
    item->ticket = event->recorded;
    return result(enqueue(stream, item));
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    LOCK_USABLE();
    struct CUevent_st *event = calloc(1, sizeof *event);
    event->timing = !(flags & cudaEventDisableTiming);
    event->next = gpu.events;
    gpu.events = event;
    *out = event;
    return result(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    lock();
    struct CUevent_st **at = &gpu.events;
    while (*at && *at != event) at = &(*at)->next;
    if (!*at) broken("no such event, or destroyed twice", event, 0, "cudaEventDestroy");
    run_everything(); // queued work points to it
    *at = event->next;
    free(event);
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    lock();
    if (!stream) stream = &gpu.standard;
    event->capture = stream->capture;
    if (stream->capture) return result(cudaSuccess);
    struct item *item = new_item(0);
    item->record = event;
    item->ticket = ++event->recorded;
    event->where = stream;
    return result(enqueue(stream, item));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    lock();
    const cudaError_t lost = event->where ? gpu.lost[event->where->device] : cudaSuccess;
    if (event->done < event->recorded && event->where && event->where->first && !lost) (void)run_first(event->where);
    cudaError_t code = event->done < event->recorded ? cudaErrorNotReady : cudaSuccess;
    return result(lost ? lost : code);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    lock();
    if (event->where) wait_for(event->where, event, event->recorded);
    return result(event->where ? gpu.lost[event->where->device] : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    lock();
    if (!start->timing || !end->timing || !start->done || !end->done) return result(cudaErrorInvalidResourceHandle);
    *milliseconds = (float)(end->time.tv_sec - start->time.tv_sec) * 1e3f +
                    (float)(end->time.tv_nsec - start->time.tv_nsec) * 1e-6f;
    if (*milliseconds < 1e-3f) *milliseconds = 1e-3f;
    return result(cudaSuccess);
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode;
    lock();
    if (!stream || stream->capture) return result(cudaErrorIllegalState);
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    graph->origin = stream;
    stream->capture = graph;
    gpu.account.graphs++;
    return result(cudaSuccess);
}

static void forget_capture(const struct CUgraph_st *graph) {
    for (struct CUstream_st *s = gpu.streams; s; s = s->next)
        if (s->capture == graph) s->capture = NULL;
    for (struct CUevent_st *event = gpu.events; event; event = event->next)
        if (event->capture == graph) event->capture = NULL;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    lock();
    struct CUgraph_st *graph = stream->capture;
    *out = NULL;
    if (!graph || graph->origin != stream) return result(cudaErrorIllegalState);
    forget_capture(graph);
    if (graph->broken || gpu.lost[stream->device]) {
        free_items(graph->first);
        free(graph);
        gpu.account.graphs--;
        return result(cudaErrorStreamCaptureInvalidated);
    }
    *out = graph;
    return result(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    lock();
    if (flags) return result(cudaErrorInvalidValue);
    struct CUgraphExec_st *exec = calloc(1, sizeof *exec);
    struct item **last = &exec->first;
    for (const struct item *item = graph->first; item; item = item->next) {
        struct item *copy = new_item(item->bytes);
        memcpy(copy, item, sizeof *item + item->bytes);
        copy->next = NULL;
        *last = copy;
        last = &copy->next;
    }
    gpu.account.graph_execs++;
    *out = exec;
    return result(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    lock();
    free_items(graph->first);
    free(graph);
    gpu.account.graphs--;
    return result(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    lock();
    run_everything();
    free_items(exec->first);
    free(exec);
    gpu.account.graph_execs--;
    return result(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)exec;
    (void)stream;
    lock();
    return result(usable());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (farm_emulator_before_launch) farm_emulator_before_launch();
    lock();
    if (stream && stream->device != current_device) return result(cudaErrorInvalidResourceHandle);
    struct item *item = new_item(0);
    item->name = "cudaGraphLaunch";
    item->graph = exec;
    gpu.account.graph_launches++;
    return result(enqueue(stream, item));
}

// ---- devices ----

cudaError_t cudaGetDeviceCount(int *count) {
    lock();
    cudaError_t code = farm_emulator.no_start ? (cudaError_t)farm_emulator.no_start : usable();
    *count = code ? 0 : (int)farm_emulator.devices;
    return result(code);
}

cudaError_t cudaSetDevice(int device) {
    lock();
    if (farm_emulator.driver < CUDART_VERSION || farm_emulator.devices < 1) return result(usable());
    if (device < 0 || device >= farm_emulator.devices) return result(cudaErrorInvalidDevice);
    current_device = device; // also from a lost device to another one
    return result(usable());
}

cudaError_t cudaGetDevice(int *device) {
    lock();
    *device = current_device;
    return result(usable());
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = (int)farm_emulator.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    LOCK_USABLE();
    if (device < 0 || device >= farm_emulator.devices) return result(cudaErrorInvalidDevice);
    const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } known[] = {{cudaDevAttrComputeCapabilityMajor, (int)farm_emulator.major},
                 {cudaDevAttrComputeCapabilityMinor, 0},
                 {cudaDevAttrMultiProcessorCount, 8},
                 {cudaDevAttrHostRegisterSupported, 1},
                 {cudaDevAttrCanMapHostMemory, 1},
                 {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
                 {cudaDevAttrHostRegisterReadOnlySupported, !farm_emulator.refuse_read_only}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute) {
            *value = known[i].value;
            return result(cudaSuccess);
        }
    return result(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    cudaError_t code = cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
    if (code) return code;
    snprintf(properties->name, sizeof properties->name, "CUDA emulator (a CPU, for tests)");
    properties->multiProcessorCount = 8;
    properties->totalGlobalMem = (size_t)farm_emulator.memory;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *bus) {
    unsigned domain, number;
    LOCK_USABLE();
    if (sscanf(bus, "%x:%x:", &domain, &number) != 2 || number >= (unsigned)farm_emulator.devices)
        return result(cudaErrorInvalidValue);
    *device = (int)number;
    return result(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *bus, int bytes, int device) {
    LOCK_USABLE();
    if (device < 0 || device >= farm_emulator.devices) return result(cudaErrorInvalidDevice);
    snprintf(bus, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return result(cudaSuccess);
}

// ---- peers ----

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    lock();
    cudaError_t code = usable();
    const int64_t devices = farm_emulator.devices;
    if (!code && (device < 0 || peer < 0 || device >= devices || peer >= devices)) code = cudaErrorInvalidDevice;
    *can = !code && device != peer && !farm_emulator.refuse_peers;
    return result(code);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    LOCK_USABLE();
    if (flags || peer < 0 || peer >= farm_emulator.devices || peer == current_device || farm_emulator.refuse_peers)
        return result(cudaErrorInvalidDevice);
    if (gpu.peers[current_device][peer]) return result(cudaErrorPeerAccessAlreadyEnabled);
    gpu.peers[current_device][peer] = true;
    gpu.account.peers++;
    return result(cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    LOCK_USABLE();
    if (peer < 0 || peer >= farm_emulator.devices || !gpu.peers[current_device][peer])
        return result(cudaErrorPeerAccessNotEnabled);
    gpu.peers[current_device][peer] = false;
    gpu.account.peers--;
    return result(cudaSuccess);
}

// ---- errors ----

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    const bool known = kernel && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0;
    lock();
    return result(known && farm_emulator_allow(kernel, (unsigned)value) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t code = gpu.lost[current_device] ? gpu.lost[current_device] : last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void) {
    return gpu.lost[current_device] ? gpu.lost[current_device] : last_error;
}

const char *cudaGetErrorName(cudaError_t code) {
    static const struct {
        cudaError_t code;
        const char *name;
    } errors[] = {
#define ERROR(code) {code, #code}
        ERROR(cudaSuccess),
        ERROR(cudaErrorInvalidValue),
        ERROR(cudaErrorMemoryAllocation),
        ERROR(cudaErrorInsufficientDriver),
        ERROR(cudaErrorNoDevice),
        ERROR(cudaErrorInvalidDevice),
        ERROR(cudaErrorInvalidConfiguration),
        ERROR(cudaErrorNotReady),
        ERROR(cudaErrorLaunchFailure),
        ERROR(cudaErrorNotSupported),
        ERROR(cudaErrorHostMemoryAlreadyRegistered),
        ERROR(cudaErrorHostMemoryNotRegistered),
        ERROR(cudaErrorStreamCaptureUnsupported),
        ERROR(cudaErrorStreamCaptureInvalidated),
    };
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].name;
    return "another code of CUDA's";
}

const char *cudaGetErrorString(cudaError_t code) {
    (void)code;
    return "described by its name";
}

// ---- for tests ----

struct farm_emulator_account farm_emulator_account(void) {
    lock();
    struct farm_emulator_account account = gpu.account;
    for (size_t i = 0; i < gpu.block_count; i++) {
        const struct block *block = &gpu.blocks[i];
        uint64_t *const counts[] = {&account.allocations, &account.pinned, &account.registered};
        uint64_t *const bytes[] = {&account.device_bytes, &account.pinned_bytes, &account.registered_bytes};
        ++*counts[block->kind];
        *bytes[block->kind] += block->bytes;
    }
    for (const struct CUstream_st *s = gpu.streams; s; s = s->next) account.streams++;
    for (const struct CUevent_st *event = gpu.events; event; event = event->next) account.events++;
    pthread_mutex_unlock(&gpu.lock);
    return account;
}

size_t farm_emulator_streams(struct farm_emulator_stream *out, size_t most) {
    size_t count = 0;
    lock();
    for (const struct CUstream_st *s = gpu.streams; s && count + 1 < most; s = s->next)
        out[count++] = (struct farm_emulator_stream){s->device, s->priority, s->flags, s->works};
    if (count < most) out[count++] = (struct farm_emulator_stream){.works = gpu.standard.works};
    pthread_mutex_unlock(&gpu.lock);
    return count;
}

unsigned farm_emulator_registration(const void *address) {
    lock();
    const struct block *block = block_of(address, 1);
    const unsigned flags = block && block->kind == REGISTERED ? block->flags : 0;
    pthread_mutex_unlock(&gpu.lock);
    return flags;
}

void farm_emulator_reset(void) {
    lock();
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].kind == PINNED) free(gpu.blocks[i].start);
    gpu.block_count = 0;
    while (gpu.streams) {
        struct CUstream_st *stream = gpu.streams;
        gpu.streams = stream->next;
        free_items(stream->first);
        free(stream);
    }
    while (gpu.events) {
        struct CUevent_st *event = gpu.events;
        gpu.events = event->next;
        free(event);
    }
    free_items(gpu.standard.first);
    gpu.standard = (struct CUstream_st){.last = &gpu.standard.first};
    gpu.account = (struct farm_emulator_account){0};
    memset(gpu.peers, 0, sizeof gpu.peers);
    memset(gpu.lost, 0, sizeof gpu.lost);
    farm_emulator = (struct farm_emulator_settings)DEFAULTS;
    farm_emulator_before_launch = NULL;
    last_error = cudaSuccess;
    current_device = 0;
    pthread_mutex_unlock(&gpu.lock);
}
