// Opens libfarm_cuda.so, the shared object in which alone CUDA is met, on demand. Runs in the learner after the fork
// and in `farm bw`; the library stays in the process. Does not call it: what its functions take is their callers' to
// know.
#ifndef FARM_BASE_CUDA_MODULE_H
#define FARM_BASE_CUDA_MODULE_H

#include "base/status.h"

// Sets the pointer to a function that `entry` points to, to the library's function of that name. path NULL: there is
// none. FARM_E_NOT_FOUND, FARM_E_UNSUPPORTED, with the reason.
enum farm_status farm_cuda_module_open(const char *path, const char *name, void *entry, struct farm_error *err);

// FARM_E_UNSUPPORTED: what to say where the library refuses because it is of another commit than this program.
enum farm_status farm_cuda_module_foreign(const char *path, const char *commit, struct farm_error *err);

#endif
