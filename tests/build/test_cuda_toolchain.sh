#!/bin/bash
# The CUDA compiler that `make deps` found or brought compiles a kernel for every architecture we build for, and
# cuobjdump reads the result. Needs no GPU.
set -eu
if [ -z "${NVCC:-}" ]; then
    echo 'no CUDA compiler is known: run `make deps`'
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat >"$scratch/kernel.cu" <<'CU'
#include <cuda_runtime.h>
#include <stdint.h>
extern "C" __global__ void gather(uint8_t *to, const uint8_t *from, const uint32_t *index) {
    to[blockIdx.x * blockDim.x + threadIdx.x] = from[index[blockIdx.x] * blockDim.x + threadIdx.x];
}
CU
for arch in 80 90 100 120; do
    "$NVCC" -std=c++17 -O3 -Werror all-warnings -cubin -arch=sm_$arch "$scratch/kernel.cu" -o "$scratch/$arch.cubin"
    "$CUOBJDUMP" -elf "$scratch/$arch.cubin" | grep -q "text.gather" || {
        echo "cuobjdump does not find the kernel in the object for sm_$arch" >&2
        exit 1
    }
done
