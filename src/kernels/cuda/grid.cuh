// A launch: kernel, stream, blocks, threads, and its place in the sources. For .cu files only.
#ifndef FARM_KERNELS_CUDA_GRID_CUH
#define FARM_KERNELS_CUDA_GRID_CUH

#include <cuda_runtime.h>

struct farm_cuda_grid {
    const char *name; // the kernel's, for messages; a literal
    struct CUstream_st *stream;
    dim3 blocks;
    unsigned threads;
    unsigned shared_bytes; // size of farm_cuda_shared
    const char *file;      // where the launch stands
    int line;

    farm_cuda_grid(const char *name, struct CUstream_st *stream, dim3 blocks, unsigned threads,
                   unsigned shared_bytes = 0, const char *file = __builtin_FILE(), int line = __builtin_LINE())
        : name(name), stream(stream), blocks(blocks), threads(threads), shared_bytes(shared_bytes), file(file),
          line(line) {}
};

#endif
