// One matrix product of a network for one number of rows, by cuBLASLt: descriptors, chosen algorithm, call. executor.c
// owns the memory and the handle.
#ifndef FARM_NN_CUDA_PRODUCT_H
#define FARM_NN_CUDA_PRODUCT_H

#include <stdbool.h>

#include "nn/cuda/vendor.h"

// The three products of a dense layer y = x . weight^T + bias. Matrices are row-major and dense: x [rows][in],
// y [rows][out], weight [out][in].
enum farm_cuda_product_kind {
    FARM_CUDA_PRODUCT_FORWARD, // left = weight, right = x,      result = y
    FARM_CUDA_PRODUCT_DATA,    // left = weight, right = dy,     result = dx
    FARM_CUDA_PRODUCT_WEIGHT,  // left = x,      right = dy,     result = dweight, always f32
};

struct farm_cuda_product_config {
    const struct farm_cublaslt *cublaslt; // must outlive the product
    cublasLtHandle_t handle;
    enum farm_cuda_product_kind kind;
    int rows, in, out;
    bool bf16;                   // type of left and right, and of the result unless it is f32
    bool result_f32;             // FORWARD, DATA
    uint32_t alignment;          // alignment of right and result, in bytes: a power of two; 0: 256
    cublasLtEpilogue_t epilogue; // FORWARD: DEFAULT, BIAS or RELU_BIAS, bias of the result's type
    const void *bias;            // with a bias: an address aligned like the real ones
    size_t workspace_bytes;      // no algorithm may need more
};

struct farm_cuda_product {
    struct farm_cuda_product_config config;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t left, right, result;
    cublasLtMatmulAlgo_t algorithm;
};

// FARM_E_UNSUPPORTED if cuBLASLt has no algorithm, perhaps only with this epilogue. `out` must be zeroed before, and
// dropped in any case.
enum farm_status farm_cuda_product_make(const struct farm_cuda_product_config *config, struct farm_cuda_product *out,
                                        struct farm_error *err);
void farm_cuda_product_drop(struct farm_cuda_product *product);

// result = the product, plus what result held if `add`. bias: NULL without. Addresses are multiples of 256 bytes,
// except as the config says.
enum farm_status farm_cuda_product_run(const struct farm_cuda_product *product, cudaStream_t stream, const void *left,
                                       const void *right, const void *bias, bool add, void *result, void *workspace,
                                       struct farm_error *err);

#endif
