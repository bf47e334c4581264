// Versions of the parameters from a learner to many nodes, each its own process with the real bridge, by TLS on
// loopback: directly, or by a tree of caches.
#ifndef BENCH_BOARD_TREE_H
#define BENCH_BOARD_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_TREE_NODES = 64, BENCH_TREE_VERSIONS_MAX = 16 };

struct bench_tree {
    uint32_t fan_out; // 0: no caches, the learner sends to all
    uint32_t versions, bytes;
    double bytes_per_s; // that each process sends at most; 0: no limit
    bool in_turn;       // without caches: one node after another
};
struct bench_tree_result {
    double mean_s[BENCH_TREE_VERSIONS_MAX]; // from publication to a whole version on a node's board, mean of the nodes
    double last_s[BENCH_TREE_VERSIONS_MAX]; // the last node
    double idle;       // part of all CPUs' time that no process of this benchmark used, until the last node
    double root_bytes; // that the learner sent, for each version
};

// Every node compares the whole newest version with what was published; a wrong one ends the benchmark.
void bench_tree_run(const struct bench_tree *tree, struct bench_tree_result *result);

#endif
