// All that one GPU does: its part of the farm's rings registered, their mirror in its memory, its copy of parameters
// and optimiser, inference and training. A backend is one of these, or several with their gradients added up between
// them (reduce.h). Making, freeing and entering a shard makes its device the calling thread's.
#ifndef FARM_LEARNER_CUDA_SHARD_H
#define FARM_LEARNER_CUDA_SHARD_H

#include "learner/cuda/context.h"
#include "learner/cuda/inference.h"
#include "learner/cuda/training.h"

struct farm_cuda_shard {
    struct farm_cuda_context context;
    struct farm_cuda_inference *inference;
    struct farm_cuda_training *training; // NULL in evaluation
    struct CUstream_st *stream;          // while it is made; in evaluation for ever
};

// Shard `number` of config->shards. Its device is the one that the learner's config names, or the shard's number.
enum farm_status farm_cuda_shard_make(const struct farm_backend_config *config, uint32_t number,
                                      struct farm_cuda_shard **out, struct farm_error *err);
void farm_cuda_shard_free(struct farm_cuda_shard *shard); // NULL is allowed

// A ring that comes: registered, with its place in the mirror; what it fails with leaves nothing behind. And one that
// goes, which no work of this GPU uses any more. On the thread that lets them in and out, its device being this one's.
enum farm_status farm_cuda_shard_join(struct farm_cuda_shard *shard, uint32_t ring, struct farm_error *err);
void farm_cuda_shard_leave(struct farm_cuda_shard *shard, uint32_t ring);

// Makes its device the calling thread's.
enum farm_status farm_cuda_shard_enter(const struct farm_cuda_shard *shard, struct farm_error *err);

// The training thread's stream.
struct CUstream_st *farm_cuda_shard_stream(const struct farm_cuda_shard *shard);

#endif
