// The CUDA backend: the functions behind struct farm_backend_ops. libfarm_cuda.so exports farm_cuda_backend; the tests
// link these.
#ifndef FARM_LEARNER_CUDA_BACKEND_H
#define FARM_LEARNER_CUDA_BACKEND_H

#include "learner/backend.h"
#include "learner/cuda/context.h"
#include "learner/cuda/inference.h"
#include "learner/cuda/training.h"

extern const struct farm_backend_ops farm_backend_cuda;

// For tests: a shard's device, rings, mirror and observation path.
const struct farm_cuda_context *farm_cuda_backend_context(const struct farm_backend *backend, uint32_t shard);

// ---- shards ----

// One GPU of the backend: the registered rings of its actors, their mirror in its memory, its parameters and optimiser,
// inference and training. A backend has one shard, or several that add up their gradients (reduce.h). Making, freeing
// and entering a shard makes its device the calling thread's current device.
struct farm_cuda_shard {
    struct farm_cuda_context context;
    struct farm_cuda_inference *inference;
    struct farm_cuda_training *training; // NULL in a player
    struct CUstream_st *stream;          // used while the shard is made, and in a player
};

// Shard `number` of config->shards, on the device that the learner's config names, or on device `number`.
enum farm_status farm_cuda_shard_make(const struct farm_backend_config *config, uint32_t number,
                                      struct farm_cuda_shard **out, struct farm_error *err);
void farm_cuda_shard_free(struct farm_cuda_shard *shard); // NULL is allowed

// A ring that joins: registers it and allocates its mirror; on an error all is undone. A ring that leaves, after this
// GPU's last work on it. The calling thread must have entered the shard.
enum farm_status farm_cuda_shard_join(struct farm_cuda_shard *shard, uint32_t ring, struct farm_error *err);
void farm_cuda_shard_leave(struct farm_cuda_shard *shard, uint32_t ring);

// Makes the shard's device the calling thread's current device.
enum farm_status farm_cuda_shard_enter(const struct farm_cuda_shard *shard, struct farm_error *err);

// The training thread's stream.
struct CUstream_st *farm_cuda_shard_stream(const struct farm_cuda_shard *shard);

#endif
