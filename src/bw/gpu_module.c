// Opens libfarm_cuda.so for `farm bw`.
#include "base/cuda_module.h"
#include "bw/gpu.h"
#include "farm_build.h"

enum farm_status farm_bw_gpu_open(const char *path, const struct farm_bw_gpu_ops **ops, struct farm_error *err) {
    farm_bw_gpu_entry *entry;
    const char *commit = "";
    *ops = NULL;
    const enum farm_status status = farm_cuda_module_open(path, "farm_bw_cuda", &entry, err);
    if (status) return status;
    *ops = entry(FARM_COMMIT, &commit);
    return *ops ? FARM_OK : farm_cuda_module_foreign(path, commit, err);
}
