// See probe.h.
#include "nn/cuda/probe.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "farm_build.h"
#include "kernels/cuda/check.h"
#include "nn/cuda/vendor.h"

static enum farm_status describe_gpus(struct farm_cuda_probed *out, struct farm_error *err) {
    struct cudaDeviceProp first;
    int driver = 0;
    FARM_CUDA_TRY(cudaDriverGetVersion(&driver));
    const cudaError_t code = cudaGetDeviceCount(&out->gpus);
    if (code == cudaErrorInsufficientDriver && driver > 0)
        return farm_fail(err, FARM_E_UNSUPPORTED, "the driver is for CUDA %d.%d, older than this build needs (%d.%d)",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (code || out->gpus < 1)
        return farm_cuda_fail(err, code ? code : cudaErrorNoDevice, "cudaGetDeviceCount", __FILE__, __LINE__);
    FARM_CUDA_TRY(cudaGetDeviceProperties(&first, 0));
    snprintf(out->gpu.text, sizeof out->gpu.text, "%d (%s), compute capability %d.%d, driver for CUDA %d.%d", out->gpus,
             first.name, first.major, first.minor, driver / 1000, driver % 1000 / 10);
    return FARM_OK;
}

static enum farm_status find_vendor(struct farm_cuda_probed *out, struct farm_error *err) {
    struct farm_cuda_vendor vendor;
    const enum farm_status status = farm_cuda_vendor_open(&vendor, err);
    if (!status) farm_cuda_vendor_describe(&vendor, out->cublaslt_and_cudnn.text, sizeof out->cublaslt_and_cudnn.text);
    return status;
}

static enum farm_status find_nccl(struct farm_cuda_probed *out, struct farm_error *err) {
    struct farm_nccl nccl;
    int version = 0;
    const enum farm_status status = farm_cuda_nccl_open(&nccl, err);
    if (!status && nccl.GetVersion(&version) == ncclSuccess)
        snprintf(out->nccl.text, sizeof out->nccl.text, "%d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
    return status;
}

__attribute__((visibility("default"))) farm_cuda_probe_entry farm_cuda_probe;

// The driver is last: if it hangs, the rest is known.
bool farm_cuda_probe(const char *commit, struct farm_cuda_probed *out, const char **library_commit) {
    static enum farm_status (*const probes[])(struct farm_cuda_probed *, struct farm_error *) = {find_vendor, find_nccl,
                                                                                                 describe_gpus};
    struct farm_cuda_found *const found[] = {&out->cublaslt_and_cudnn, &out->nccl, &out->gpu};
    *library_commit = FARM_COMMIT;
    if (strcmp(commit, FARM_COMMIT) != 0) return false;
    for (int i = 0; i < 3; i++) {
        struct farm_error err;
        found[i]->status = probes[i](out, &err);
        if (found[i]->status) snprintf(found[i]->text, sizeof found[i]->text, "%s", err.message);
    }
    return true;
}
