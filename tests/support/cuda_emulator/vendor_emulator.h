// Emulators of the functions of cuDNN (cudnn.c), cuBLASLt (cublaslt.c) and NCCL (nccl.c) that the project calls: plain
// loops on the CPU, put into the emulator's streams. They check descriptors, types, layouts, alignments, workspaces and
// chosen algorithms against one another, and refuse what the real libraries' documents refuse.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_VENDOR_EMULATOR_H
#define TESTS_SUPPORT_CUDA_EMULATOR_VENDOR_EMULATOR_H

#include <stdbool.h>

#include "nn/cuda/vendor.h"

// What the libraries lack, and what they count. One per process; zeros at start.
struct farm_emulator_vendor {
    int fused_status;         // what cudnnConvolutionBiasActivationForward returns; 0: it works
    bool no_precomputed_gemm; // forward has another algorithm only, which IDENTITY cannot be fused with
    bool no_algorithm;        // for any convolution
    bool no_epilogue;         // for products
    bool only_random;         // no deterministic algorithm
    int refused[3]; // forward, data, filter: 1 + an algorithm whose calls return BAD_PARAM; 0: no such algorithm
    size_t workspace_bytes; // each algorithm's
    size_t handle_bytes;    // device memory of each handle
    long descriptors;       // made and not destroyed
    long fused, plain;      // forward convolutions
    bool no_nccl;           // NCCL is not found
    bool none;              // cuDNN and cuBLASLt are not found
};
extern struct farm_emulator_vendor farm_emulator_vendor;

struct farm_cuda_vendor farm_emulator_vendor_table(void);
struct farm_cublaslt farm_emulator_cublaslt_table(void); // cublaslt.c
struct farm_nccl farm_emulator_nccl_table(void);         // nccl.c

#endif
