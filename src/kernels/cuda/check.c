// See check.h.
#include "kernels/cuda/check.h"

static enum farm_status status_of(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation:
        return FARM_E_LIMIT;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
        return FARM_E_UNSUPPORTED;
    case cudaErrorDevicesUnavailable:
        return FARM_E_BUSY;
    case cudaErrorLaunchFailure:
    case cudaErrorIllegalAddress:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
        return FARM_E_DEAD;
    default:
        return FARM_E_IO;
    }
}

static const char *remedy_of(cudaError_t code) {
    if (status_of(code) == FARM_E_DEAD)
        return "; the GPU is lost to this process (see dmesg): --resume continues from the last checkpoint";
    switch (code) {
    case cudaErrorMemoryAllocation:
        return "; device memory is full: fewer lanes, a smaller batch, or mirror off";
    case cudaErrorNoDevice:
        return "; no GPU is visible (nvidia-smi, CUDA_VISIBLE_DEVICES): --device cpu";
    case cudaErrorInsufficientDriver:
        return "; the driver is missing, or older than this build needs: update it, or use --device cpu";
    case cudaErrorDevicesUnavailable:
        return "; another process uses the GPU (see nvidia-smi), or its compute mode forbids a second process "
               "(nvidia-smi -c DEFAULT): or --device cpu";
    case cudaErrorSystemDriverMismatch:
        return "; the driver's library is of another version than its kernel module: restart the machine after an "
               "update of the driver, or give the container the host's library; or --device cpu";
    case cudaErrorCompatNotSupportedOnDevice:
        return "; CUDA's forward compatibility (a cuda-compat folder in LD_LIBRARY_PATH) does not support this GPU: "
               "remove "
               "the folder, or update the driver; or --device cpu";
    case cudaErrorNoKernelImageForDevice:
        return "; this build has no code for this GPU: add its architecture to CUDA_ARCHES in mk/cuda.mk";
    case cudaErrorSystemNotReady:
        return "; the driver is not ready yet: GPUs behind NVSwitch need the fabric manager (systemctl status "
               "nvidia-fabricmanager); or --device cpu";
    default:
        return "";
    }
}

enum farm_status farm_cuda_fail(struct farm_error *err, cudaError_t code, const char *call, const char *file,
                                int line) {
    (void)cudaGetLastError(); // a later call must not return it
    return farm_fail(err, status_of(code), "%s:%d: %s: %s (%d, %s)%s", file, line, call, cudaGetErrorString(code),
                     (int)code, cudaGetErrorName(code), remedy_of(code));
}
