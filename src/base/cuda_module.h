// Opens libfarm_cuda.so, the only shared object that uses CUDA. Runs in the learner after the fork and in `farm bw`;
// the object stays in the process. Does not know its functions' types: the callers do.
#ifndef FARM_BASE_CUDA_MODULE_H
#define FARM_BASE_CUDA_MODULE_H

#include "base/status.h"

// Stores the function `name` in the function pointer that `entry` points to. FARM_E_UNSUPPORTED, with the reason.
enum farm_status farm_cuda_module_open(const char *path, const char *name, void *entry, struct farm_error *err);

// FARM_E_UNSUPPORTED: the message for an object that was built from another commit than this program.
enum farm_status farm_cuda_module_foreign(const char *path, const char *commit, struct farm_error *err);

#endif
