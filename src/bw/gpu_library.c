// Opens libfarm_cuda.so for `farm bw`. dlopen(3).
#include <dlfcn.h>
#include <string.h>

#include "bw/gpu.h"
#include "farm_build.h"

enum farm_status farm_bw_gpu_open(const char *path, const struct farm_bw_gpu_ops **ops, struct farm_error *err) {
    *ops = NULL;
    if (!path)
        return farm_fail(err, FARM_E_NOT_FOUND,
                         "libfarm_cuda.so is not beside this program (`make deps && make` builds it where nvcc is; "
                         "FARM_CUDA_BACKEND names another place)");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return farm_fail(err, FARM_E_UNSUPPORTED, "the CUDA library does not load: %s", dlerror());
    farm_bw_gpu_entry *entry = NULL;
    void *symbol = dlsym(library, "farm_bw_cuda");
    memcpy(&entry, &symbol, sizeof entry);
    if (!entry) return farm_fail(err, FARM_E_UNSUPPORTED, "%s measures nothing: it lacks farm_bw_cuda", path);
    const char *commit = "";
    *ops = entry(FARM_COMMIT, &commit);
    if (*ops) return FARM_OK;
    return farm_fail(err, FARM_E_UNSUPPORTED, "%s was built from %s, this program from %s: build both (make)", path,
                     commit, FARM_COMMIT);
}
