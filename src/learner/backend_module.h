// Opens a backend that is a shared object of its own (libfarm_cuda.so). Runs in the learner alone, after the fork, so
// that no other process meets CUDA. The library stays in the process.
#ifndef FARM_LEARNER_BACKEND_MODULE_H
#define FARM_LEARNER_BACKEND_MODULE_H

#include "base/log.h"
#include "learner/backend.h"

// What the program tells the library, which has a copy of its own of libfarm.
struct farm_backend_host {
    const char *commit; // of the program: both sides must be of one build, for they share structs
    enum farm_log_level log_level;
    const char *log_role;
};

// The one function that such a library has, by the name farm_cuda_backend. NULL where the commit is another; *commit is
// then the library's.
typedef const struct farm_backend_ops *farm_backend_entry(const struct farm_backend_host *host, const char **commit);

// path NULL: there is none. FARM_E_NOT_FOUND, FARM_E_UNSUPPORTED, with the reason.
enum farm_status farm_backend_module_open(const char *path, const struct farm_backend_ops **ops,
                                          struct farm_error *err);

#endif
