// Versions of the parameters from a learner to many nodes, each its own process with the real bridge, by TLS on
// loopback: directly, or by a tree of caches.
#ifndef BENCH_BOARD_TREE_H
#define BENCH_BOARD_TREE_H

#include "../common.h"

// Rows tree_latency, tree_idle, tree_unlimited and root_bytes.
void bench_tree(struct farm_bench *bench);

#endif
