// See cuda_module.h. dlopen(3).
#include "base/cuda_module.h"

#include <dlfcn.h>
#include <string.h>

#include "farm_build.h"

enum farm_status farm_cuda_module_open(const char *path, const char *name, void *entry, struct farm_error *err) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return farm_fail(err, FARM_E_UNSUPPORTED, "the CUDA backend does not load: %s", dlerror());
    void *symbol = dlsym(library, name);
    if (!symbol) return farm_fail(err, FARM_E_UNSUPPORTED, "%s is not a backend: it lacks %s", path, name);
    memcpy(entry, &symbol, sizeof symbol);
    return FARM_OK;
}

enum farm_status farm_cuda_module_foreign(const char *path, const char *commit, struct farm_error *err) {
    return farm_fail(err, FARM_E_UNSUPPORTED, "%s was built from %s, this program from %s: build both (make)", path,
                     commit, FARM_COMMIT);
}
