// The CUDA backend: the functions behind struct farm_backend_ops. libfarm_cuda.so exports farm_cuda_backend
// (exports.c); the tests link these.
#ifndef FARM_LEARNER_CUDA_BACKEND_H
#define FARM_LEARNER_CUDA_BACKEND_H

#include "learner/backend.h"

extern const struct farm_backend_ops farm_backend_cuda;

struct farm_cuda_context; // context.h

// For tests: a shard's device, rings, mirror and observation path.
const struct farm_cuda_context *farm_cuda_backend_context(const struct farm_backend *backend, uint32_t shard);

#endif
