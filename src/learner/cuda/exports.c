// What libfarm_cuda.so exports for the learner; see learner/backend_module.h.
#include <string.h>

#include "farm_build.h"
#include "learner/backend_module.h"
#include "learner/cuda/backend.h"

__attribute__((visibility("default"))) farm_backend_entry farm_cuda_backend;

const struct farm_backend_ops *farm_cuda_backend(const struct farm_backend_host *host, const char **commit) {
    *commit = FARM_COMMIT;
    if (strcmp(host->commit, FARM_COMMIT) != 0) return NULL;
    farm_log_set_level(host->log_level);
    farm_log_set_role(host->log_role);
    return &farm_backend_cuda;
}
