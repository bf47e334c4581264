// Opens the emulators instead of cuDNN, cuBLASLt and NCCL: linked with --wrap=farm_cuda_vendor_open,
// farm_cuda_nccl_open and farm_cuda_vendor_describe.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vendor_emulator.h"

enum farm_status __wrap_farm_cuda_vendor_open(struct farm_cuda_vendor *out, struct farm_error *err);
enum farm_status __wrap_farm_cuda_nccl_open(struct farm_nccl *out, struct farm_error *err);
void __wrap_farm_cuda_vendor_describe(const struct farm_cuda_vendor *libraries, char *text, size_t size);

// Settings from FARM_CUDA_EMULATOR, as in devices.c.
__attribute__((constructor)) static void read_environment(void) {
    const char *text = getenv("FARM_CUDA_EMULATOR");
    farm_emulator_vendor.no_nccl = text && strstr(text, "no_nccl=1");
    farm_emulator_vendor.none = text && strstr(text, "no_libraries=1");
}

enum farm_status __wrap_farm_cuda_vendor_open(struct farm_cuda_vendor *out, struct farm_error *err) {
    if (farm_emulator_vendor.none) return farm_fail(err, FARM_E_NOT_FOUND, "cuBLASLt is missing");
    *out = farm_emulator_vendor_table();
    return FARM_OK;
}

enum farm_status __wrap_farm_cuda_nccl_open(struct farm_nccl *out, struct farm_error *err) {
    if (farm_emulator_vendor.no_nccl) return farm_fail(err, FARM_E_NOT_FOUND, "NCCL is missing");
    *out = farm_emulator_nccl_table();
    return FARM_OK;
}

void __wrap_farm_cuda_vendor_describe(const struct farm_cuda_vendor *libraries, char *text, size_t size) {
    (void)libraries;
    snprintf(text, size, "emulators for cuDNN and cuBLASLt");
}
