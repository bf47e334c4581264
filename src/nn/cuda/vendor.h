// cuDNN and cuBLASLt, and NCCL where there are several GPUs, found at run time: tables of the functions that are
// called. The learner opens them once, before its executors; what is missing is an error that says where was looked and
// what to install. Tests fill the tables with functions of their own. Nothing of CUDA is linked.
#ifndef FARM_NN_CUDA_VENDOR_H
#define FARM_NN_CUDA_VENDOR_H

#include "base/status.h"
#include "nn/cuda/declarations.h"

struct farm_cudnn {
    size_t (*GetVersion)(void); // 9.19.0 is 91900
    const char *(*GetErrorString)(cudnnStatus_t status);
    void (*GetLastErrorString)(char *message, size_t max_size);
    cudnnStatus_t (*Create)(cudnnHandle_t *handle);
    cudnnStatus_t (*Destroy)(cudnnHandle_t handle);
    cudnnStatus_t (*SetStream)(cudnnHandle_t handle, cudaStream_t stream);
    cudnnStatus_t (*CreateTensorDescriptor)(cudnnTensorDescriptor_t *tensor);
    cudnnStatus_t (*SetTensor4dDescriptor)(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int n, int c, int h, int w);
    cudnnStatus_t (*DestroyTensorDescriptor)(cudnnTensorDescriptor_t tensor);
    cudnnStatus_t (*CreateFilterDescriptor)(cudnnFilterDescriptor_t *filter);
    cudnnStatus_t (*SetFilter4dDescriptor)(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                           cudnnTensorFormat_t format, int k, int c, int h, int w);
    cudnnStatus_t (*DestroyFilterDescriptor)(cudnnFilterDescriptor_t filter);
    cudnnStatus_t (*CreateConvolutionDescriptor)(cudnnConvolutionDescriptor_t *convolution);
    cudnnStatus_t (*SetConvolution2dDescriptor)(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                                int stride_h, int stride_w, int dilation_h, int dilation_w,
                                                cudnnConvolutionMode_t mode, cudnnDataType_t compute);
    cudnnStatus_t (*SetConvolutionMathType)(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math);
    cudnnStatus_t (*DestroyConvolutionDescriptor)(cudnnConvolutionDescriptor_t convolution);
    cudnnStatus_t (*CreateActivationDescriptor)(cudnnActivationDescriptor_t *activation);
    cudnnStatus_t (*SetActivationDescriptor)(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                             cudnnNanPropagation_t nan, double coefficient);
    cudnnStatus_t (*DestroyActivationDescriptor)(cudnnActivationDescriptor_t activation);
    cudnnStatus_t (*GetConvolutionForwardAlgorithm_v7)(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                       cudnnFilterDescriptor_t w,
                                                       cudnnConvolutionDescriptor_t convolution,
                                                       cudnnTensorDescriptor_t y, int requested, int *returned,
                                                       cudnnConvolutionFwdAlgoPerf_t *results);
    cudnnStatus_t (*GetConvolutionBackwardDataAlgorithm_v7)(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnTensorDescriptor_t dx, int requested, int *returned,
                                                            cudnnConvolutionBwdDataAlgoPerf_t *results);
    cudnnStatus_t (*GetConvolutionBackwardFilterAlgorithm_v7)(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                              cudnnTensorDescriptor_t dy,
                                                              cudnnConvolutionDescriptor_t convolution,
                                                              cudnnFilterDescriptor_t dw, int requested, int *returned,
                                                              cudnnConvolutionBwdFilterAlgoPerf_t *results);
    cudnnStatus_t (*GetConvolutionForwardWorkspaceSize)(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                        cudnnFilterDescriptor_t w,
                                                        cudnnConvolutionDescriptor_t convolution,
                                                        cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algo,
                                                        size_t *bytes);
    cudnnStatus_t (*GetConvolutionBackwardDataWorkspaceSize)(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t convolution,
                                                             cudnnTensorDescriptor_t dx,
                                                             cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes);
    cudnnStatus_t (*GetConvolutionBackwardFilterWorkspaceSize)(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                               cudnnTensorDescriptor_t dy,
                                                               cudnnConvolutionDescriptor_t convolution,
                                                               cudnnFilterDescriptor_t dw,
                                                               cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes);
    cudnnStatus_t (*ConvolutionForward)(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                        const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                        cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algo,
                                        void *workspace, size_t workspace_bytes, const void *beta,
                                        cudnnTensorDescriptor_t y_desc, void *y);
    cudnnStatus_t (*ConvolutionBiasActivationForward)(
        cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_desc, const void *x,
        cudnnFilterDescriptor_t w_desc, const void *w, cudnnConvolutionDescriptor_t convolution,
        cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t workspace_bytes, const void *alpha2,
        cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t bias_desc, const void *bias,
        cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_desc, void *y);
    cudnnStatus_t (*ConvolutionBackwardData)(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w_desc,
                                             const void *w, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
                                             size_t workspace_bytes, const void *beta, cudnnTensorDescriptor_t dx_desc,
                                             void *dx);
    cudnnStatus_t (*ConvolutionBackwardFilter)(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                               const void *x, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                               cudnnConvolutionDescriptor_t convolution,
                                               cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                               size_t workspace_bytes, const void *beta,
                                               cudnnFilterDescriptor_t dw_desc, void *dw);
};

struct farm_cublaslt {
    size_t (*GetVersion)(void); // 13.1.0 is 130100
    const char *(*GetStatusString)(cublasStatus_t status);
    cublasStatus_t (*Create)(cublasLtHandle_t *handle);
    cublasStatus_t (*Destroy)(cublasLtHandle_t handle);
    cublasStatus_t (*MatmulDescCreate)(cublasLtMatmulDesc_t *matmul, cublasComputeType_t compute, cudaDataType_t scale);
    cublasStatus_t (*MatmulDescDestroy)(cublasLtMatmulDesc_t matmul);
    cublasStatus_t (*MatmulDescSetAttribute)(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                                             const void *value, size_t bytes);
    cublasStatus_t (*MatrixLayoutCreate)(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                         uint64_t columns, int64_t leading);
    cublasStatus_t (*MatrixLayoutDestroy)(cublasLtMatrixLayout_t layout);
    cublasStatus_t (*MatmulPreferenceCreate)(cublasLtMatmulPreference_t *preference);
    cublasStatus_t (*MatmulPreferenceDestroy)(cublasLtMatmulPreference_t preference);
    cublasStatus_t (*MatmulPreferenceSetAttribute)(cublasLtMatmulPreference_t preference,
                                                   cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                   size_t bytes);
    cublasStatus_t (*MatmulAlgoGetHeuristic)(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                             cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                             cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                             cublasLtMatmulPreference_t preference, int requested,
                                             cublasLtMatmulHeuristicResult_t *results, int *returned);
    cublasStatus_t (*Matmul)(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *a,
                             cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                             const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                             size_t workspace_bytes, cudaStream_t stream);
};

struct farm_nccl {
    ncclResult_t (*GetVersion)(int *version); // 2.28.3 is 22803
    const char *(*GetErrorString)(ncclResult_t result);
    ncclResult_t (*CommInitAll)(ncclComm_t *comms, int count, const int *devices);
    ncclResult_t (*CommDestroy)(ncclComm_t comm);
    ncclResult_t (*CommAbort)(ncclComm_t comm);
    ncclResult_t (*CommGetAsyncError)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*GroupStart)(void);
    ncclResult_t (*GroupEnd)(void);
    ncclResult_t (*AllReduce)(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              ncclComm_t comm, cudaStream_t stream);
};

struct farm_cuda_vendor {
    struct farm_cudnn cudnn;
    struct farm_cublaslt cublaslt;
};

// Opens libcublasLt.so.13 or .12 and libcudnn.so.9, in this order of places: the folders of the environment variable
// FARM_CUDA_LIBS (colons between them; a folder holds the libraries, or is a site-packages with NVIDIA's wheels in it);
// what the dynamic linker finds; CUDA's own folder; the wheels, as PyTorch brings them, in the site-packages of
// $VIRTUAL_ENV, of $CONDA_PREFIX, beside the python3 of $PATH, of the user, of the system. They stay in the process.
// Both must be there: mlp alone would do without cuDNN, but nobody trains on a GPU for mlp alone. FARM_E_NOT_FOUND, its
// message saying what was tried and what to install; FARM_E_UNSUPPORTED where a library is too old to have a function.
enum farm_status farm_cuda_vendor_open(struct farm_cuda_vendor *out, struct farm_error *err);

// Opens libnccl.so.2 at the same places. Errors as above.
enum farm_status farm_cuda_nccl_open(struct farm_nccl *out, struct farm_error *err);

// Versions such as "cuDNN 9.19.0 of /path/libcudnn.so.9, cuBLASLt 13.1.0 of /path/libcublasLt.so.13", cut to `size`.
void farm_cuda_vendor_describe(const struct farm_cuda_vendor *vendor, char *text, size_t size);

#endif
