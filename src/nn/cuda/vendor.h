// cuDNN and cuBLASLt, and NCCL for several GPUs, opened at run time as tables of the functions that are called; nothing
// of CUDA is linked. The learner opens them once, before its executors, and they stay in the process. An error lists
// the folders that were searched and what to install. Tests fill the tables with an emulator's functions.
#ifndef FARM_NN_CUDA_VENDOR_H
#define FARM_NN_CUDA_VENDOR_H

#include "base/status.h"
#include "nn/cuda/declarations.h"

// Each function once: X(result, name without the library's prefix, (parameters)).
#define FARM_CUDNN_FUNCTIONS(X)                                                                                        \
    X(size_t, GetVersion, (void))                                                                                      \
    X(const char *, GetErrorString, (cudnnStatus_t))                                                                   \
    X(void, GetLastErrorString, (char *message, size_t max_size))                                                      \
    X(cudnnStatus_t, Create, (cudnnHandle_t *))                                                                        \
    X(cudnnStatus_t, Destroy, (cudnnHandle_t))                                                                         \
    X(cudnnStatus_t, SetStream, (cudnnHandle_t, cudaStream_t))                                                         \
    X(cudnnStatus_t, CreateTensorDescriptor, (cudnnTensorDescriptor_t *))                                              \
    X(cudnnStatus_t, SetTensor4dDescriptor,                                                                            \
      (cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t, int n, int c, int h, int w))                     \
    X(cudnnStatus_t, DestroyTensorDescriptor, (cudnnTensorDescriptor_t))                                               \
    X(cudnnStatus_t, CreateFilterDescriptor, (cudnnFilterDescriptor_t *))                                              \
    X(cudnnStatus_t, SetFilter4dDescriptor,                                                                            \
      (cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int k, int c, int h, int w))                     \
    X(cudnnStatus_t, DestroyFilterDescriptor, (cudnnFilterDescriptor_t))                                               \
    X(cudnnStatus_t, CreateConvolutionDescriptor, (cudnnConvolutionDescriptor_t *))                                    \
    X(cudnnStatus_t, SetConvolution2dDescriptor,                                                                       \
      (cudnnConvolutionDescriptor_t, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w, \
       cudnnConvolutionMode_t, cudnnDataType_t))                                                                       \
    X(cudnnStatus_t, SetConvolutionMathType, (cudnnConvolutionDescriptor_t, cudnnMathType_t))                          \
    X(cudnnStatus_t, DestroyConvolutionDescriptor, (cudnnConvolutionDescriptor_t))                                     \
    X(cudnnStatus_t, CreateActivationDescriptor, (cudnnActivationDescriptor_t *))                                      \
    X(cudnnStatus_t, SetActivationDescriptor,                                                                          \
      (cudnnActivationDescriptor_t, cudnnActivationMode_t, cudnnNanPropagation_t, double coefficient))                 \
    X(cudnnStatus_t, DestroyActivationDescriptor, (cudnnActivationDescriptor_t))                                       \
    X(cudnnStatus_t, GetConvolutionForwardAlgorithm_v7,                                                                \
      (cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnConvolutionDescriptor_t,                  \
       cudnnTensorDescriptor_t, int requested, int *returned, cudnnConvolutionFwdAlgoPerf_t *))                        \
    X(cudnnStatus_t, GetConvolutionBackwardDataAlgorithm_v7,                                                           \
      (cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,                  \
       cudnnTensorDescriptor_t, int requested, int *returned, cudnnConvolutionBwdDataAlgoPerf_t *))                    \
    X(cudnnStatus_t, GetConvolutionBackwardFilterAlgorithm_v7,                                                         \
      (cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,                  \
       cudnnFilterDescriptor_t, int requested, int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *))                  \
    X(cudnnStatus_t, GetConvolutionForwardWorkspaceSize,                                                               \
      (cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnConvolutionDescriptor_t,                  \
       cudnnTensorDescriptor_t, cudnnConvolutionFwdAlgo_t, size_t * bytes))                                            \
    X(cudnnStatus_t, GetConvolutionBackwardDataWorkspaceSize,                                                          \
      (cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,                  \
       cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t, size_t * bytes))                                        \
    X(cudnnStatus_t, GetConvolutionBackwardFilterWorkspaceSize,                                                        \
      (cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,                  \
       cudnnFilterDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, size_t * bytes))                                      \
    X(cudnnStatus_t, ConvolutionForward,                                                                               \
      (cudnnHandle_t, const void *alpha, cudnnTensorDescriptor_t, const void *x, cudnnFilterDescriptor_t,              \
       const void *w, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, void *workspace,                        \
       size_t workspace_bytes, const void *beta, cudnnTensorDescriptor_t, void *y))                                    \
    X(cudnnStatus_t, ConvolutionBiasActivationForward,                                                                 \
      (cudnnHandle_t, const void *alpha1, cudnnTensorDescriptor_t, const void *x, cudnnFilterDescriptor_t,             \
       const void *w, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, void *workspace,                        \
       size_t workspace_bytes, const void *alpha2, cudnnTensorDescriptor_t, const void *z, cudnnTensorDescriptor_t,    \
       const void *bias, cudnnActivationDescriptor_t, cudnnTensorDescriptor_t, void *y))                               \
    X(cudnnStatus_t, ConvolutionBackwardData,                                                                          \
      (cudnnHandle_t, const void *alpha, cudnnFilterDescriptor_t, const void *w, cudnnTensorDescriptor_t,              \
       const void *dy, cudnnConvolutionDescriptor_t, cudnnConvolutionBwdDataAlgo_t, void *workspace,                   \
       size_t workspace_bytes, const void *beta, cudnnTensorDescriptor_t, void *dx))                                   \
    X(cudnnStatus_t, ConvolutionBackwardFilter,                                                                        \
      (cudnnHandle_t, const void *alpha, cudnnTensorDescriptor_t, const void *x, cudnnTensorDescriptor_t,              \
       const void *dy, cudnnConvolutionDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, void *workspace,                 \
       size_t workspace_bytes, const void *beta, cudnnFilterDescriptor_t, void *dw))

#define FARM_CUBLASLT_FUNCTIONS(X)                                                                                     \
    X(size_t, GetVersion, (void))                                                                                      \
    X(const char *, GetStatusString, (cublasStatus_t))                                                                 \
    X(cublasStatus_t, Create, (cublasLtHandle_t *))                                                                    \
    X(cublasStatus_t, Destroy, (cublasLtHandle_t))                                                                     \
    X(cublasStatus_t, MatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t))                 \
    X(cublasStatus_t, MatmulDescDestroy, (cublasLtMatmulDesc_t))                                                       \
    X(cublasStatus_t, MatmulDescSetAttribute,                                                                          \
      (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *value, size_t bytes))                         \
    X(cublasStatus_t, MatrixLayoutCreate,                                                                              \
      (cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t rows, uint64_t columns, int64_t leading))                    \
    X(cublasStatus_t, MatrixLayoutDestroy, (cublasLtMatrixLayout_t))                                                   \
    X(cublasStatus_t, MatmulPreferenceCreate, (cublasLtMatmulPreference_t *))                                          \
    X(cublasStatus_t, MatmulPreferenceDestroy, (cublasLtMatmulPreference_t))                                           \
    X(cublasStatus_t, MatmulPreferenceSetAttribute,                                                                    \
      (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *value, size_t bytes))             \
    X(cublasStatus_t, MatmulAlgoGetHeuristic,                                                                          \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
       cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int requested, cublasLtMatmulHeuristicResult_t *,           \
       int *returned))                                                                                                 \
    X(cublasStatus_t, Matmul,                                                                                          \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *alpha, const void *a, cublasLtMatrixLayout_t,               \
       const void *b, cublasLtMatrixLayout_t, const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,        \
       cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,              \
       cudaStream_t))

#define FARM_NCCL_FUNCTIONS(X)                                                                                         \
    X(ncclResult_t, GetVersion, (int *version))                                                                        \
    X(const char *, GetErrorString, (ncclResult_t))                                                                    \
    X(ncclResult_t, CommInitAll, (ncclComm_t *, int count, const int *devices))                                        \
    X(ncclResult_t, CommDestroy, (ncclComm_t))                                                                         \
    X(ncclResult_t, CommAbort, (ncclComm_t))                                                                           \
    X(ncclResult_t, CommGetAsyncError, (ncclComm_t, ncclResult_t *))                                                   \
    X(ncclResult_t, GroupStart, (void))                                                                                \
    X(ncclResult_t, GroupEnd, (void))                                                                                  \
    X(ncclResult_t, AllReduce,                                                                                         \
      (const void *from, void *to, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))

#define FARM_VENDOR_FUNCTION(result, name, parameters) result(*name) parameters;
struct farm_cudnn {
    FARM_CUDNN_FUNCTIONS(FARM_VENDOR_FUNCTION)
};
struct farm_cublaslt {
    FARM_CUBLASLT_FUNCTIONS(FARM_VENDOR_FUNCTION)
};
struct farm_nccl {
    FARM_NCCL_FUNCTIONS(FARM_VENDOR_FUNCTION)
};

struct farm_cuda_vendor {
    struct farm_cudnn cudnn;
    struct farm_cublaslt cublaslt;
};

// Opens libcublasLt.so.13 or .12 and libcudnn.so.9 from the first place that has them: the folders in the environment
// variable FARM_CUDA_LIBS (separated by colons; each holds the libraries, or is a site-packages folder with NVIDIA's
// wheels); the dynamic linker's search; CUDA's own folder; the wheels that PyTorch installs into the site-packages of
// $VIRTUAL_ENV, of $CONDA_PREFIX, beside the python3 in $PATH, of the user, of the system. FARM_E_NOT_FOUND if one is
// missing, FARM_E_UNSUPPORTED if one lacks a function.
enum farm_status farm_cuda_vendor_open(struct farm_cuda_vendor *out, struct farm_error *err);

// Opens libnccl.so.2 in the same way.
enum farm_status farm_cuda_nccl_open(struct farm_nccl *out, struct farm_error *err);

// Writes versions and files, e.g. "cuDNN 9.19.0 of /path/libcudnn.so.9, cuBLASLt 13.1.0 of /path/libcublasLt.so.13".
void farm_cuda_vendor_describe(const struct farm_cuda_vendor *vendor, char *text, size_t size);

#endif
