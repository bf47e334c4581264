// One convolution of a network for one number of rows, on cuDNN: descriptors, chosen algorithms, the calls. Pictures
// and kernels are NHWC. For executor.c, which owns memory, handle and stream.
#ifndef FARM_NN_CUDA_CONVOLUTION_H
#define FARM_NN_CUDA_CONVOLUTION_H

#include <stdbool.h>

#include "nn/cuda/vendor.h"
#include "nn/net.h"

struct farm_cuda_convolution_config {
    const struct farm_cudnn *cudnn; // must outlive the convolution
    cudnnHandle_t handle;
    struct farm_net_op op; // FARM_NET_OP_CONV, padded alike on both sides
    int rows;
    bool bf16;              // f32 without TF32 where not
    bool training;          // backward_filter will be called
    bool data_gradient;     // backward_data too
    size_t workspace_bytes; // no algorithm may want more
};

// The algorithms of one direction that ought to do, the best first: that one is used. Each direction has a descriptor
// of its own because the kind of arithmetic stands there.
enum { FARM_CUDA_ALGORITHMS_MAX = 8 };
struct farm_cuda_algorithms {
    cudnnConvolutionDescriptor_t convolution;
    int count, number[FARM_CUDA_ALGORITHMS_MAX];
    cudnnMathType_t math[FARM_CUDA_ALGORITHMS_MAX];
    bool ran; // the first one: it stays
};

struct farm_cuda_convolution {
    struct farm_cuda_convolution_config config;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t weight;
    cudnnActivationDescriptor_t activation;
    struct farm_cuda_algorithms forward, data, filter;
    bool fused; // bias, addend and activation in cuDNN's call; cleared where it turns out that it cannot
};

// FARM_E_UNSUPPORTED where cuDNN has no algorithm. Zero `out` before; drop it in any case.
enum farm_status farm_cuda_convolution_make(const struct farm_cuda_convolution_config *config,
                                            struct farm_cuda_convolution *out, struct farm_error *err);
void farm_cuda_convolution_drop(struct farm_cuda_convolution *convolution);

// What cuDNN refuses at the first call of a direction, though it said that it would work, is done by the next
// algorithm. That call must not be captured.
//
// y = activation(weight * x + bias), plus what y held before the activation where `add`. All in device memory of the
// precision's type; the handle's stream is `stream`.
enum farm_status farm_cuda_convolution_forward(struct farm_cuda_convolution *convolution, cudaStream_t stream,
                                               const void *x, const void *weight, const void *bias, bool add, void *y,
                                               void *workspace, struct farm_error *err);

// dy is the gradient of the sums. dx is written. dweight (of the precision's type: cuDNN's descriptors have no bf16
// convolution with f32 gradients) is written, or added to where `add`.
enum farm_status farm_cuda_convolution_backward_data(struct farm_cuda_convolution *convolution, const void *weight,
                                                     const void *dy, void *dx, void *workspace, struct farm_error *err);
enum farm_status farm_cuda_convolution_backward_filter(struct farm_cuda_convolution *convolution, const void *x,
                                                       const void *dy, bool add, void *dweight, void *workspace,
                                                       struct farm_error *err);

// Fills *err from cuDNN's status: call, status, cuDNN's own words. For executor.c's calls too.
enum farm_status farm_cudnn_fail(const struct farm_cudnn *cudnn, struct farm_error *err, cudnnStatus_t status,
                                 const char *call);

#endif
