// One convolution of a network for one number of rows: by our own kernels in bf16 if they have its size
// (kernels/cuda/conv.cu), else by cuDNN: descriptors, chosen algorithms, calls. Pictures and kernels are NHWC.
// executor.c owns the memory, the handle and the stream.
#ifndef FARM_NN_CUDA_CONVOLUTION_H
#define FARM_NN_CUDA_CONVOLUTION_H

#include <stdbool.h>

#include "kernels/cuda/kernels.h"
#include "nn/cuda/vendor.h"
#include "nn/net.h"

struct farm_cuda_convolution_config {
    const struct farm_cudnn *cudnn; // must outlive the convolution
    cudnnHandle_t handle;
    struct farm_net_op op; // FARM_NET_OP_CONV with equal padding on opposite sides
    int rows;
    bool bf16;              // false: f32 without TF32
    bool training;          // backward is called with FILTER
    bool data_gradient;     // and with DATA
    size_t workspace_bytes; // no algorithm may need more
};

// Usable algorithms of one direction, the best first: that one is used. The arithmetic is part of cuDNN's convolution
// descriptor, so each direction has one.
enum { FARM_CUDA_ALGORITHMS_MAX = 8 };
struct farm_cuda_algorithms {
    cudnnConvolutionDescriptor_t convolution;
    int count, number[FARM_CUDA_ALGORITHMS_MAX];
    cudnnMathType_t math[FARM_CUDA_ALGORITHMS_MAX];
    bool ran; // the first one did, and stays
};

struct farm_cuda_convolution {
    struct farm_cuda_convolution_config config;
    struct farm_cuda_conv own;
    bool is_own[FARM_CUDA_CONV_PARTS]; // by our kernels
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t weight;
    cudnnActivationDescriptor_t activation;
    struct farm_cuda_algorithms algorithms[FARM_CUDA_CONV_PARTS];
    bool fused; // cuDNN's call adds bias and addend and activates; cleared if it cannot
};

// FARM_E_UNSUPPORTED if cuDNN has no algorithm. `out` must be zeroed before, and dropped in any case.
enum farm_status farm_cuda_convolution_make(const struct farm_cuda_convolution_config *config,
                                            struct farm_cuda_convolution *out, struct farm_error *err);
void farm_cuda_convolution_drop(struct farm_cuda_convolution *convolution);

// If cuDNN refuses the first call of a direction, the next algorithm takes over. That call must not be captured.
//
// y = activation(weight * x + bias), plus what y held before the activation if `add`. All in device memory of the
// precision's type; `stream` is the handle's.
enum farm_status farm_cuda_convolution_forward(struct farm_cuda_convolution *convolution, cudaStream_t stream,
                                               const void *x, const void *weight, const void *bias, bool add, void *y,
                                               void *workspace, struct farm_error *err);

// dx = gradient by x. dy is the gradient by the sums.
enum farm_status farm_cuda_convolution_data_gradient(struct farm_cuda_convolution *convolution, cudaStream_t stream,
                                                     const void *weight, const void *dy, void *dx, void *workspace,
                                                     struct farm_error *err);

// ADDS the gradient by the weight to `gradient`. rounded: in bf16, memory for as many bf16 numbers, in which cuDNN
// returns it (its descriptors have no bf16 convolution with f32 gradients).
enum farm_status farm_cuda_convolution_weight_gradient(struct farm_cuda_convolution *convolution, cudaStream_t stream,
                                                       const void *x, const void *dy, float *gradient, void *rounded,
                                                       void *workspace, struct farm_error *err);

// Fills *err with the call, cuDNN's status and cuDNN's own message.
enum farm_status farm_cudnn_fail(const struct farm_cudnn *cudnn, struct farm_error *err, cudnnStatus_t status,
                                 const char *call);

#endif
