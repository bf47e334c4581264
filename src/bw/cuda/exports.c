// What libfarm_cuda.so exports for `farm bw`; see bw/gpu.h.
#include <stdio.h>
#include <string.h>

#include "bw/cuda/node_to_gpu.h"
#include "farm_build.h"
#include "kernels/cuda/check.h"

static enum farm_status count_devices(int *count, struct farm_error *err) {
    *count = 0;
    FARM_CUDA_TRY(cudaGetDeviceCount(count));
    return *count > 0 ? FARM_OK : farm_cuda_fail(err, cudaErrorNoDevice, "cudaGetDeviceCount", __FILE__, __LINE__);
}

static enum farm_status describe(int device, struct farm_bw_gpu_device *out, struct farm_error *err) {
    struct cudaDeviceProp properties;
    *out = (struct farm_bw_gpu_device){0};
    FARM_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
    FARM_CUDA_TRY(cudaDeviceGetPCIBusId(out->pci_bus_id, sizeof out->pci_bus_id, device));
    FARM_CUDA_TRY(cudaDriverGetVersion(&out->driver));
    snprintf(out->name, sizeof out->name, "%s", properties.name);
    out->major = properties.major;
    out->minor = properties.minor;
    out->memory_bytes = properties.totalGlobalMem;
    return FARM_OK;
}

static const struct farm_bw_gpu_ops ops = {
    .count = count_devices, .describe = describe, .node = farm_bw_cuda_node, .peer = farm_bw_cuda_peer};

__attribute__((visibility("default"))) farm_bw_gpu_entry farm_bw_cuda;

const struct farm_bw_gpu_ops *farm_bw_cuda(const char *host_commit, const char **commit) {
    *commit = FARM_COMMIT;
    return strcmp(host_commit, FARM_COMMIT) == 0 ? &ops : NULL;
}
