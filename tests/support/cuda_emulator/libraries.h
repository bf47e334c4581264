// Emulators of exactly those functions of cuDNN, cuBLASLt and NCCL that are called: plain loops on the CPU, put into
// the emulator's streams. They hold descriptors, types, layouts, alignments, workspaces and chosen algorithms against
// one another and refuse what the real libraries' documents say they refuse.
#ifndef TESTS_SUPPORT_CUDA_EMULATOR_LIBRARIES_H
#define TESTS_SUPPORT_CUDA_EMULATOR_LIBRARIES_H

#include <stdbool.h>

#include "nn/cuda/vendor.h"

// What they pretend not to have. Of the process; zeros at start.
struct farm_emulator_libraries {
    int fused_says;           // cudnnConvolutionBiasActivationForward: its status; 0: it works
    bool no_precomputed_gemm; // forward has another algorithm, which IDENTITY cannot be fused with
    bool no_algorithm;        // of any convolution
    bool no_epilogue;         // of products
    bool only_random;         // no deterministic algorithm
    int refused[3];           // forward, data, filter: 1 + an algorithm whose calls alone say BAD_PARAM; 0: none
    size_t workspace_bytes;   // what each algorithm wants
    size_t handle_bytes;      // device memory that each handle takes
    long descriptors;         // made and not given back
    long fused, plain;        // convolutions forward so far
    bool no_nccl;             // it is not found
    bool none;                // cuDNN and cuBLASLt are not found
};
extern struct farm_emulator_libraries farm_emulator_libraries;

struct farm_cuda_vendor farm_emulator_libraries_table(void);
struct farm_nccl farm_emulator_nccl_table(void); // nccl.c

#endif
