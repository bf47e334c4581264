// See gpu.h. The child writes into a shared mapping and ends.
#include "tools/doctor/gpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda_module.h"
#include "base/paths.h"
#include "base/program.h"
#include "farm_build.h"

// ---- the child ----

static enum farm_status probe_backend(struct farm_doctor_gpu *out, struct farm_error *err) {
    char path[4096];
    const char *commit = "";
    farm_cuda_probe_entry *probe;
    const bool found = farm_path_cuda(path, sizeof path);
    const enum farm_status status = farm_cuda_module_open(found ? path : NULL, "farm_cuda_probe", &probe, err);
    if (status) return status;
    snprintf(out->backend.text, sizeof out->backend.text, "%.700s", path);
    return probe(FARM_COMMIT, &out->cuda, &commit) ? FARM_OK : farm_cuda_module_foreign(path, commit, err);
}

// Discards what libraries print: stdout is the doctor's.
static _Noreturn void run_child(struct farm_doctor_gpu *out, pid_t parent) {
    struct farm_error err;
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    out->backend.status = probe_backend(out, &err);
    if (out->backend.status) {
        snprintf(out->backend.text, sizeof out->backend.text, "%s", err.message);
        out->driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL;
    }
    _exit(0);
}

// ---- the parent ----

enum farm_status farm_doctor_gpu_probe(double limit_s, struct farm_doctor_gpu *out, struct farm_error *err) {
    struct farm_doctor_gpu *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const pid_t parent = getpid();
    if (shared == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "probing CUDA");
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) run_child(shared, parent);
    int ended = 0;
    enum farm_status status = FARM_OK;
    if (pid < 0)
        status = farm_fail_errno(err, FARM_E_LIMIT, "probing CUDA");
    else if (!farm_program_await(pid, limit_s, &ended))
        status = farm_fail(err, FARM_E_DEAD, "CUDA did not answer within %g s", limit_s);
    else if (WIFSIGNALED(ended))
        status = farm_fail(err, FARM_E_DEAD, "probing CUDA ended in signal %d (%s)", WTERMSIG(ended),
                           strsignal(WTERMSIG(ended)));
    else if (WEXITSTATUS(ended))
        status = farm_fail(err, FARM_E_DEAD, "probing CUDA ended with exit status %d", WEXITSTATUS(ended));
    *out = *shared;
    munmap(shared, sizeof *shared);
    return status;
}
