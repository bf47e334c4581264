// See backend_library.h. dlopen(3).
#include "learner/backend_library.h"

#include <dlfcn.h>
#include <string.h>

#include "farm_build.h"

enum farm_status farm_backend_library_open(const char *path, const struct farm_backend_ops **ops,
                                           struct farm_error *err) {
    if (!path)
        return farm_fail(err, FARM_E_NOT_FOUND,
                         "libfarm_cuda.so is not beside this program (`make deps && make` builds it where nvcc is; "
                         "FARM_CUDA_BACKEND names another place)");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return farm_fail(err, FARM_E_UNSUPPORTED, "the CUDA backend does not load: %s", dlerror());
    farm_backend_entry *entry = NULL;
    void *symbol = dlsym(library, "farm_cuda_backend");
    memcpy(&entry, &symbol, sizeof entry);
    if (!entry) return farm_fail(err, FARM_E_UNSUPPORTED, "%s is no backend: it lacks farm_cuda_backend", path);
    const struct farm_backend_host host = {
        .commit = FARM_COMMIT, .log_level = farm_log_level(), .log_role = farm_log_role()};
    const char *commit = "";
    *ops = entry(&host, &commit);
    if (*ops) return FARM_OK;
    return farm_fail(err, FARM_E_UNSUPPORTED, "%s was built from %s, this program from %s: build both (make)", path,
                     commit, FARM_COMMIT);
}
