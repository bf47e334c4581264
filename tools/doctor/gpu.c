// See gpu.h.
#include "tools/doctor/gpu.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/cuda_module.h"
#include "base/paths.h"
#include "base/program.h"
#include "farm_build.h"

static enum farm_status probe_backend(struct farm_doctor_gpu *out, struct farm_error *err) {
    char path[4096];
    const char *commit = "";
    farm_cuda_probe_entry *entry;
    enum farm_status status = farm_path_cuda(path, sizeof path, err);
    if (!status) status = farm_cuda_module_open(path, "farm_cuda_probe", &entry, err);
    if (status) return status;
    snprintf(out->backend.text, sizeof out->backend.text, "%.700s", path);
    return entry(FARM_COMMIT, &out->cuda, &commit) ? FARM_OK : farm_cuda_module_foreign(path, commit, err);
}

static bool probe(const void *context, void *result) {
    struct farm_doctor_gpu *out = result;
    struct farm_error err;
    out->backend.status = probe_backend(out, &err);
    if (out->backend.status) {
        snprintf(out->backend.text, sizeof out->backend.text, "%s", err.message);
        out->driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL;
    }
    return true;
}

enum farm_status farm_doctor_gpu_probe(double limit_s, struct farm_doctor_gpu *out, struct farm_error *err) {
    return farm_program_call("CUDA", probe, NULL, true, limit_s, out, sizeof *out, err);
}
