// What CUDA's error codes become: which say that the GPU is lost, which that another one or the CPU has to do. Over the
// emulator, which has no part in it.
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

Test(cuda_check, what_leaves_a_process_without_cuda_is_a_gpu_that_is_lost) {
    EXPECT(FARM_E_DEAD, "--resume", cudaErrorContained, cudaErrorTensorMemoryLeak, cudaErrorNvlinkUncorrectable,
           cudaErrorExternalDevice, cudaErrorECCUncorrectable, cudaErrorLaunchFailure, cudaErrorIllegalAddress,
           cudaErrorHardwareStackError, cudaErrorMisalignedAddress, cudaErrorIllegalInstruction, cudaErrorInvalidPc,
           cudaErrorInvalidAddressSpace, cudaErrorLaunchTimeout, cudaErrorAssert, cudaErrorUnknown);
}

Test(cuda_check, a_gpu_that_others_have_is_busy) {
    EXPECT(FARM_E_BUSY, "nvidia-smi -c DEFAULT", cudaErrorDevicesUnavailable);
}

Test(cuda_check, what_driver_or_device_cannot_do_is_unsupported) {
    EXPECT(FARM_E_UNSUPPORTED, "--device cpu", cudaErrorSystemDriverMismatch, cudaErrorCompatNotSupportedOnDevice,
           cudaErrorSystemNotReady, cudaErrorInsufficientDriver, cudaErrorNoDevice);
}

Test(cuda_check, anything_else_is_an_error_of_input_or_output) {
    EXPECT(FARM_E_IO, "another code of CUDA's", cudaErrorInvalidGraphicsContext);
}
