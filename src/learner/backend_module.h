// Opens a backend in a shared object (libfarm_cuda.so), which stays in the process. Runs in the learner only, after the
// fork, so that no other process initialises CUDA.
#ifndef FARM_LEARNER_BACKEND_MODULE_H
#define FARM_LEARNER_BACKEND_MODULE_H

#include "base/log.h"
#include "learner/backend.h"

// For the module, which has another copy of libfarm.
struct farm_backend_host {
    const char *commit; // the program's; the module must have the same one, because they share structs
    enum farm_log_level log_level;
    const char *log_role;
};

// The module's one function, farm_cuda_backend. Returns NULL if the commits differ; *commit is the module's.
typedef const struct farm_backend_ops *farm_backend_entry(const struct farm_backend_host *host, const char **commit);

// path NULL: no module. FARM_E_NOT_FOUND, FARM_E_UNSUPPORTED.
enum farm_status farm_backend_module_open(const char *path, const struct farm_backend_ops **ops,
                                          struct farm_error *err);

#endif
