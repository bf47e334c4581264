// One NUMA node's memory and one GPU: everything of struct farm_bw_gpu_node; and from one GPU to another. See bw/gpu.h.
// exports.c puts both into the table that libfarm_cuda.so exports; the tests link them.
#ifndef FARM_BW_CUDA_NODE_TO_GPU_H
#define FARM_BW_CUDA_NODE_TO_GPU_H

#include "bw/gpu.h"

enum farm_status farm_bw_cuda_node(const struct farm_bw_gpu_config *config, struct farm_bw_gpu_node *out,
                                   struct farm_error *err);
enum farm_status farm_bw_cuda_peer(const struct farm_bw_gpu_config *config, int to, struct farm_bw_gpu_peer *out,
                                   struct farm_error *err);

#endif
