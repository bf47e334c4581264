// Probes CUDA for `farm doctor`, in a child process (no fork after CUDA) with a time limit (a driver may hang).
#ifndef FARM_TOOLS_DOCTOR_GPU_H
#define FARM_TOOLS_DOCTOR_GPU_H

#include "nn/cuda/probe.h"

struct farm_doctor_gpu {
    bool driver;                    // its library exists; set only if the backend cannot be loaded
    struct farm_cuda_found backend; // libfarm_cuda.so; `cuda` is set if its status is FARM_OK
    struct farm_cuda_probed cuda;
};

// Errors: FARM_E_DEAD no result in time, or the child died; FARM_E_LIMIT.
enum farm_status farm_doctor_gpu_probe(double limit_s, struct farm_doctor_gpu *out, struct farm_error *err);

#endif
