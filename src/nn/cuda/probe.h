// What `farm doctor` asks libfarm_cuda.so, which exports the function: whether there are GPUs that it can use, and
// whether the libraries are there. It starts the driver, which may take seconds and has been known to hang, so it is
// called in a process that is there for nothing else. Names nothing of CUDA's.
#ifndef FARM_NN_CUDA_PROBE_H
#define FARM_NN_CUDA_PROBE_H

#include <stdbool.h>

#include "base/status.h"

// What was found, or is missing; the text says which.
struct farm_cuda_found {
    enum farm_status status;
    char text[sizeof((struct farm_error *)0)->message];
};

struct farm_cuda_probed {
    struct farm_cuda_found gpu, cublaslt_and_cudnn, nccl;
    int gpus;
};

// By the name farm_cuda_probe. False: program (`commit`) and library are not of one build; *library_commit is the
// library's in any case.
typedef bool farm_cuda_probe_entry(const char *commit, struct farm_cuda_probed *out, const char **library_commit);

#endif
