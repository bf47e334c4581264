// Statuses and remedies of CUDA's error codes.
#include "kernels/cuda/check.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(cuda_check, .timeout = 10);

static void expect_all(const cudaError_t *codes, size_t count, enum farm_status wanted, const char *advice) {
    for (size_t i = 0; i < count; i++) {
        struct farm_error err;
        cr_expect_eq(farm_cuda_fail(&err, codes[i], "call", "file", 1), wanted, "%d", (int)codes[i]);
        cr_expect(strstr(err.message, advice) != NULL, "%s", err.message);
        cr_expect_eq(strstr(err.message, "the GPU is lost") != NULL, wanted == FARM_E_DEAD, "%s", err.message);
    }
}
#define EXPECT(wanted, advice, ...)                                                                                    \
    expect_all((const cudaError_t[]){__VA_ARGS__}, sizeof(const cudaError_t[]){__VA_ARGS__} / sizeof(cudaError_t),     \
               wanted, advice)

Test(cuda_check, each_error_has_its_status_and_remedy) {
    EXPECT(FARM_E_DEAD, "--resume", cudaErrorContained, cudaErrorTensorMemoryLeak, cudaErrorNvlinkUncorrectable,
           cudaErrorExternalDevice, cudaErrorECCUncorrectable, cudaErrorLaunchFailure, cudaErrorIllegalAddress,
           cudaErrorHardwareStackError, cudaErrorMisalignedAddress, cudaErrorIllegalInstruction, cudaErrorInvalidPc,
           cudaErrorInvalidAddressSpace, cudaErrorLaunchTimeout, cudaErrorAssert, cudaErrorUnknown);
    EXPECT(FARM_E_BUSY, "nvidia-smi -c DEFAULT", cudaErrorDevicesUnavailable);
    EXPECT(FARM_E_UNSUPPORTED, "--device cpu", cudaErrorSystemDriverMismatch, cudaErrorCompatNotSupportedOnDevice,
           cudaErrorSystemNotReady, cudaErrorInsufficientDriver, cudaErrorNoDevice);
    EXPECT(FARM_E_IO, "an error that the emulator does not name", cudaErrorInvalidGraphicsContext);
}
