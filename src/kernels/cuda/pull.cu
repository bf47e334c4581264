// Copies pieces from registered host memory into device memory. In both kernels a warp takes one chunk of 4 KB of a
// piece after another, so few blocks cover the bus's latency. They read data that the host published before the launch,
// and write data that the stream's next kernel reads: the launch orders both.
//
// In flight per block: loads, 16 warps x 4 KB; bulk copies, 24 warps x 4 KB. PCIe Gen5 x16 at 55 GB/s with 1.5 to 2
// microseconds from request to data needs about 100 KB in flight in all.
#include "kernels/cuda/common.cuh"

#include <stdlib.h>

enum {
    LOADS = 8,                             // 16-byte loads in flight per thread
    CHUNK_VECTORS = 32 * LOADS,            // of 16 bytes, for one warp
    CHUNK_BYTES = CHUNK_VECTORS * 16,      // 4 KB
    LOAD_WARPS = 16,                       // per block
    BULK_WARPS = 24,                       // per block
    BULK_SHARED = BULK_WARPS * CHUNK_BYTES // 96 KB: below the 99 KB of the smallest device that has bulk copies
};

// One warp's work: `vectors` of 16 bytes between two aligned addresses, and the remaining bytes.
struct chunk {
    const uint8_t *from;
    uint8_t *to;
    uint32_t vectors;          // <= CHUNK_VECTORS
    const uint8_t *piece_from; // the piece's start, for bytes outside vectors
    uint8_t *piece_to;
    uint32_t head;            // bytes from the start
    uint32_t tail_from, tail; // bytes from tail_from on
};

static __device__ chunk chunk_of(const struct farm_cuda_pull &pull, uint32_t chunks, uint32_t index) {
    const uint32_t piece = index / chunks, part = index % chunks;
    const uint32_t bytes = (uint32_t)pull.bytes, start = part * CHUNK_BYTES;
    const uint8_t *from = (const uint8_t *)pull.from[piece];
    uint8_t *to = (uint8_t *)pull.to[piece];
    chunk c = {from, to, 0, from, to, 0, 0, 0};
    if (((uintptr_t)from ^ (uintptr_t)to) % 16) { // different alignments: the whole chunk byte by byte
        c.tail_from = start;
        c.tail = min(bytes - start, (uint32_t)CHUNK_BYTES);
        return c;
    }
    const uint32_t head = min(bytes, (uint32_t)(-(uintptr_t)from % 16)), vectors = (bytes - head) / 16;
    const uint32_t first = part * CHUNK_VECTORS;
    c.from = from + head + (size_t)first * 16;
    c.to = to + head + (size_t)first * 16;
    c.vectors = vectors > first ? min(vectors - first, (uint32_t)CHUNK_VECTORS) : 0;
    if (part == 0) {
        c.head = head;
        c.tail_from = head + vectors * 16;
        c.tail = bytes - c.tail_from;
    }
    return c;
}

static __device__ void copy_bytes(const chunk &c, uint32_t lane) {
    if (lane < c.head) c.piece_to[lane] = __ldcs(c.piece_from + lane);
    for (uint32_t i = lane; i < c.tail; i += 32) c.piece_to[c.tail_from + i] = __ldcs(c.piece_from + c.tail_from + i);
}

// All loads before the first store.
static __device__ void copy_vectors(const chunk &c, uint32_t lane) {
    const uint4 *from = (const uint4 *)c.from;
    uint4 *to = (uint4 *)c.to, vector[LOADS];
#pragma unroll
    for (uint32_t k = 0; k < LOADS; k++)
        if (k * 32 + lane < c.vectors) vector[k] = __ldcs(from + k * 32 + lane);
#pragma unroll
    for (uint32_t k = 0; k < LOADS; k++)
        if (k * 32 + lane < c.vectors) to[k * 32 + lane] = vector[k];
}

static __global__ void __launch_bounds__(LOAD_WARPS * 32)
    pull_loads(const struct farm_cuda_pull pull, uint32_t chunks) {
    const uint32_t lane = threadIdx.x % 32, total = pull.count * chunks;
    const uint64_t stride = (uint64_t)gridDim.x * LOAD_WARPS;
    for (uint64_t i = (uint64_t)blockIdx.x * LOAD_WARPS + threadIdx.x / 32; i < total; i += stride) {
        const chunk c = chunk_of(pull, chunks, (uint32_t)i);
        copy_vectors(c, lane);
        copy_bytes(c, lane);
    }
}

// Lane 0 of each warp drives the copy engine with the warp's buffer and barrier; the warp copies the bytes outside
// vectors. Only the copy engine accesses the buffers, so they need no proxy fence; the barrier's initialisation does.
static __global__ void __launch_bounds__(BULK_WARPS * 32) pull_bulk(const struct farm_cuda_pull pull, uint32_t chunks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ uint64_t barriers[BULK_WARPS];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, total = pull.count * chunks;
    uint8_t *buffer = farm_cuda_shared() + warp * CHUNK_BYTES;
    uint64_t *barrier = &barriers[warp];
    uint32_t parity = 0;
    if (lane == 0) farm_cuda_barrier_init(barrier);
    const uint64_t stride = (uint64_t)gridDim.x * BULK_WARPS;
    for (uint64_t i = (uint64_t)blockIdx.x * BULK_WARPS + warp; i < total; i += stride) {
        const chunk c = chunk_of(pull, chunks, (uint32_t)i);
        const bool bulk = lane == 0 && c.vectors > 0;
        if (bulk) {
            farm_cuda_bulk_stores_read(); // the last one has left the buffer
            farm_cuda_bulk_load(buffer, c.from, c.vectors * 16, barrier);
        }
        __syncwarp();
        copy_bytes(c, lane);
        if (bulk) {
            farm_cuda_barrier_wait(barrier, parity);
            parity ^= 1;
            farm_cuda_bulk_store(c.to, buffer, c.vectors * 16);
        }
        __syncwarp();
    }
    if (lane == 0) farm_cuda_bulk_stores_done();
#endif
}

enum farm_status farm_cuda_pull_supported(enum farm_cuda_pull_way way, struct farm_error *err) {
    int device, major;
    FARM_CUDA_TRY(cudaGetDevice(&device));
    FARM_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (way == FARM_CUDA_PULL_BULK && getenv("FARM_CUDA_NO_BULK"))
        return farm_fail(err, FARM_E_UNSUPPORTED, "FARM_CUDA_NO_BULK is set: pull by loads");
    if (way == FARM_CUDA_PULL_LOADS || major >= 9) return FARM_OK;
    return farm_fail(err, FARM_E_UNSUPPORTED,
                     "bulk copies need a GPU of compute capability 9.0, this one has %d.x: pull by loads", major);
}

enum farm_status farm_cuda_pull(struct CUstream_st *stream, enum farm_cuda_pull_way way,
                                const struct farm_cuda_pull *pull, struct farm_error *err) {
    const uint64_t chunks = (pull->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    if (pull->count == 0) return FARM_OK;
    if (pull->bytes == 0 || pull->bytes > INT32_MAX || chunks * pull->count > INT32_MAX)
        return farm_fail(err, FARM_E_INVALID, "invalid pull of %u pieces of %zu bytes: must be 1 byte to 2 GB",
                         pull->count, pull->bytes);
    const enum farm_status status = farm_cuda_pull_supported(way, err);
    if (status) return status;
    const unsigned blocks = pull->blocks ? pull->blocks : unsigned(FARM_CUDA_PULL_BLOCKS);
    if (way == FARM_CUDA_PULL_LOADS)
        return farm_cuda_launch({"pull_loads", stream, blocks, LOAD_WARPS * 32}, err, pull_loads, *pull,
                                (uint32_t)chunks);
    FARM_CUDA_TRY(
        cudaFuncSetAttribute((const void *)pull_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, BULK_SHARED));
    return farm_cuda_launch({"pull_bulk", stream, blocks, BULK_WARPS * 32, BULK_SHARED}, err, pull_bulk, *pull,
                            (uint32_t)chunks);
}
