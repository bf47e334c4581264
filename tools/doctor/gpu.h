// What of CUDA is here, for `farm doctor`: asked in a process of its own with a time limit, because a driver may hang,
// and because no process that may still fork should have met CUDA.
#ifndef FARM_TOOLS_DOCTOR_GPU_H
#define FARM_TOOLS_DOCTOR_GPU_H

#include "nn/cuda/probe.h"

struct farm_doctor_gpu {
    bool driver;                    // its library is there; known where there is no backend to ask
    struct farm_cuda_found backend; // libfarm_cuda.so; what follows is known where its status is FARM_OK
    struct farm_cuda_probed cuda;
};

// FARM_E_DEAD where there is no answer in time, with what was waited for; FARM_E_LIMIT.
enum farm_status farm_doctor_gpu_look(double limit_s, struct farm_doctor_gpu *out, struct farm_error *err);

#endif
