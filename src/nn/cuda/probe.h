// What libfarm_cuda.so exports for `farm doctor`: which GPUs it can use, and whether cuDNN, cuBLASLt and NCCL are
// found. It starts the driver, which may take seconds and has been known to hang, so it is called in a process of its
// own. Does not include CUDA's headers.
#ifndef FARM_NN_CUDA_PROBE_H
#define FARM_NN_CUDA_PROBE_H

#include <stdbool.h>

#include "base/status.h"

// text: what was found, or why it is missing.
struct farm_cuda_found {
    enum farm_status status;
    char text[sizeof((struct farm_error *)0)->message];
};

struct farm_cuda_probed {
    struct farm_cuda_found gpu, cublaslt_and_cudnn, nccl;
    int gpus;
};

// Exported as farm_cuda_probe. False: program (`commit`) and library are of different builds; *library_commit is the
// library's in any case.
typedef bool farm_cuda_probe_entry(const char *commit, struct farm_cuda_probed *out, const char **library_commit);

#endif
