// See backend_module.h.
#include "learner/backend_module.h"

#include "base/cuda_module.h"
#include "farm_build.h"

enum farm_status farm_backend_module_open(const char *path, const struct farm_backend_ops **ops,
                                          struct farm_error *err) {
    farm_backend_entry *entry;
    const struct farm_backend_host host = {
        .commit = FARM_COMMIT, .log_level = farm_log_level(), .log_role = farm_log_role()};
    const char *commit = "";
    const enum farm_status status = farm_cuda_module_open(path, "farm_cuda_backend", &entry, err);
    if (status) return status;
    *ops = entry(&host, &commit);
    return *ops ? FARM_OK : farm_cuda_module_foreign(path, commit, err);
}
