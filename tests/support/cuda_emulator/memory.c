// Memory of the emulated GPUs: device memory in an arena, pinned memory, registrations. See state.h.
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t ARENA_BYTES = 16ull << 30, ALIGNMENT = 256, POISON_MAX = 1 << 20;
// Allocations larger than LARGE lie in the arena's upper half, which is not guarded: that would take too long.
static const size_t LARGE = 1 << 20, LOWER_BYTES = 8ull << 30;

static bool block_holds(const struct block *block, const char *at, size_t bytes) {
    return at >= block->start && at + bytes <= block->start + block->bytes;
}

struct block *find_block(const void *address, size_t bytes) {
    size_t *recent = &gpu.block_of_page[(uintptr_t)address / 4096 % PAGES];
    if (*recent < gpu.block_count && block_holds(&gpu.blocks[*recent], address, bytes)) return &gpu.blocks[*recent];
    for (size_t i = 0; i < gpu.block_count; i++)
        if (block_holds(&gpu.blocks[i], address, bytes)) return &gpu.blocks[*recent = i];
    return NULL;
}

bool farm_emulator_need(const void *address, size_t bytes, bool write, const char *what) {
    if (!bytes) return false;
    const struct block *block = find_block(address, bytes);
    if (!block) abort_misuse("an address outside the GPU's memory", address, bytes, what);
    if (block->kind != DEVICE && !block->mapped)
        abort_misuse("memory that is not mapped for the GPU", address, bytes, what);
    if (block->kind == DEVICE && block->device != gpu.running_device && !gpu.peers[gpu.running_device][block->device])
        abort_misuse("memory of another GPU", address, bytes, what);
    if (write && block->read_only) abort_misuse("a store into memory registered read-only", address, bytes, what);
    return block->kind == REGISTERED;
}

void farm_emulator_count_read(enum farm_emulator_way way, size_t bytes) {
    gpu.account.read[way] += bytes;
}

static void add_block(struct block block) {
    if (gpu.block_count == BLOCKS_MAX) abort_misuse("too many blocks", block.start, block.bytes, "emulator");
    gpu.blocks[gpu.block_count++] = block;
}

static void remove_block(void *start, enum kind kind, const char *what) {
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].start == start && gpu.blocks[i].kind == kind) {
            gpu.blocks[i] = gpu.blocks[--gpu.block_count];
            return;
        }
    abort_misuse("no such memory, or freed twice", start, 0, what);
}

// Device memory is accessible only while work runs: by a protection key (pkeys(7)) if the CPU has them, which takes no
// system call.
static void protect_arena(bool open) {
    if (gpu.key > 0)
        pkey_set(gpu.key, open ? 0 : PKEY_DISABLE_ACCESS);
    else if (gpu.arena_high && mprotect(gpu.arena, gpu.arena_high, open ? PROT_READ | PROT_WRITE : PROT_NONE))
        abort_misuse("mprotect", gpu.arena, gpu.arena_high, "emulator");
}

void open_memory(void) {
    if (gpu.running++ == 0) protect_arena(true);
}
void close_memory(void) {
    if (--gpu.running == 0) protect_arena(false);
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

cudaError_t cudaMalloc(void **out, size_t bytes) {
    LOCK_USABLE();
    if (bytes_of(current_device) + bytes > (uint64_t)farm_emulator.memory) return end_call(cudaErrorMemoryAllocation);
    if (!gpu.arena) {
        gpu.arena = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (gpu.arena == MAP_FAILED || mprotect(gpu.arena + LOWER_BYTES, LOWER_BYTES, PROT_READ | PROT_WRITE))
            abort_misuse("no address space", NULL, ARENA_BYTES, "cudaMalloc");
        gpu.key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        if (gpu.key > 0 && pkey_mprotect(gpu.arena, LOWER_BYTES, PROT_READ | PROT_WRITE, gpu.key))
            abort_misuse("pkey_mprotect", gpu.arena, LOWER_BYTES, "cudaMalloc");
    }
    char *start = find_gap(bytes);
    size_t end = (size_t)(start - gpu.arena) + bytes;
    end = (end + 4095) / 4096 * 4096;
    if (end > (bytes > LARGE ? ARENA_BYTES : LOWER_BYTES)) return end_call(cudaErrorMemoryAllocation);
    if (bytes <= LARGE && end > gpu.arena_high) gpu.arena_high = end;
    add_block((struct block){.start = start, .bytes = bytes, .kind = DEVICE, .device = current_device});
    open_memory();
    // NaN, because the content is undefined. Large allocations are poisoned at their start only.
    memset(start, 0xff, bytes < POISON_MAX ? bytes : POISON_MAX);
    close_memory();
    *out = start;
    return end_call(cudaSuccess);
}

cudaError_t cudaFree(void *memory) {
    lock_gpu();
    if (!memory) return end_call(cudaSuccess);
    run_everything(); // cudaFree waits for the device
    remove_block(memory, DEVICE, "cudaFree");
    return end_call(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    LOCK_USABLE();
    if (posix_memalign(out, 4096, bytes ? bytes : 1)) return end_call(cudaErrorMemoryAllocation);
    memset(*out, 0x5a, bytes);
    add_block((struct block){.start = *out, .bytes = bytes, .kind = PINNED, .mapped = flags & cudaHostAllocMapped});
    return end_call(cudaSuccess);
}

cudaError_t cudaFreeHost(void *memory) {
    lock_gpu();
    if (!memory) return end_call(cudaSuccess);
    run_everything();
    remove_block(memory, PINNED, "cudaFreeHost");
    free(memory);
    return end_call(cudaSuccess);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    const unsigned known =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    LOCK_USABLE();
    if (flags & ~known || !memory || !bytes) return end_call(cudaErrorInvalidValue);
    if (flags & cudaHostRegisterReadOnly && farm_emulator.refuse_read_only) return end_call(cudaErrorNotSupported);
    if (farm_emulator.refuse_registration) return end_call(cudaErrorMemoryAllocation);
    for (size_t i = 0; i < gpu.block_count; i++) {
        const struct block *block = &gpu.blocks[i];
        if ((char *)memory < block->start + block->bytes && block->start < (char *)memory + bytes)
            return end_call(cudaErrorHostMemoryAlreadyRegistered);
    }
    add_block((struct block){.start = memory,
                             .bytes = bytes,
                             .kind = REGISTERED,
                             .flags = flags,
                             .read_only = flags & cudaHostRegisterReadOnly,
                             .mapped = flags & cudaHostRegisterMapped});
    return end_call(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *memory) {
    lock_gpu();
    run_everything();
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].start == memory && gpu.blocks[i].kind == REGISTERED) {
            remove_block(memory, REGISTERED, "cudaHostUnregister");
            return end_call(cudaSuccess);
        }
    return end_call(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags) {
    lock_gpu();
    const struct block *block = find_block(memory, 1);
    if (flags || !block || block->kind == DEVICE || !block->mapped) return end_call(cudaErrorInvalidValue);
    *out = memory;
    return end_call(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    LOCK_USABLE();
    *total = (size_t)farm_emulator.memory;
    *left = *total - (size_t)bytes_of(current_device);
    return end_call(cudaSuccess);
}

bool is_in_arena(const void *address) {
    return gpu.arena && (const char *)address >= gpu.arena && (const char *)address < gpu.arena + ARENA_BYTES;
}
