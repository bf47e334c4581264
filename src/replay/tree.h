// Priorities of windows, and draws in proportion to them: a tree of 16 children a node, one cache line. A parent is
// recomputed from its children in one order, never added to, so that the tree is a function of its leaves: without
// drift, the same bits after any order of updates and on any CPU; nothing of it needs to be saved. Runs in the learner,
// one thread at a time. Values must be finite, >= 0 and sum to at most FLT_MAX: the caller rejects others.
#ifndef FARM_REPLAY_TREE_H
#define FARM_REPLAY_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { FARM_TREE_NODE = 16, FARM_TREE_LEVELS_MAX = 12 };
enum farm_tree_kind { FARM_TREE_SUM, FARM_TREE_MAX }; // what a parent is of its children

struct farm_tree {
    _Alignas(64) enum farm_tree_kind kind;
    uint32_t top;                        // the total's level
    float *level[FARM_TREE_LEVELS_MAX];  // [0]: leaves; [top]: the total; each is followed by zeros up to a node's end
    uint64_t size[FARM_TREE_LEVELS_MAX]; // numbers of each level, without those zeros
    size_t bytes;                        // mapped for this and the levels
    void (*descend)(const struct farm_tree *tree, double *at, uint32_t count, uint64_t *leaves);
};

// All leaves are 0. FARM_E_INVALID: no leaves, or more than 2^40; FARM_E_LIMIT: no memory.
enum farm_status farm_tree_make(enum farm_tree_kind kind, uint64_t leaves, struct farm_tree **out,
                                struct farm_error *err);
void farm_tree_free(struct farm_tree *tree); // NULL is permitted

// leaves[i] becomes values[i]; the last of equal leaves counts. Ascending leaves are fastest.
void farm_tree_set(struct farm_tree *tree, const uint64_t *leaves, const float *values, uint32_t count);
// Leaves [first, first + count) become `values`, or (NULL) all `value`.
void farm_tree_set_range(struct farm_tree *tree, uint64_t first, const float *values, float value, uint64_t count);

static inline float farm_tree_get(const struct farm_tree *tree, uint64_t leaf) {
    return tree->level[0][leaf];
}
// The sum of all leaves, or the largest.
static inline float farm_tree_total(const struct farm_tree *tree) {
    return tree->level[tree->top][0];
}

// FARM_TREE_SUM, total above 0: the leaves at at[i] in [0, total] of the prefix sums, never one of 0. Overwrites `at`.
// Stratified draws: at[i] = (i + u[i]) / count * total. Ascending places give ascending leaves.
static inline void farm_tree_sample(const struct farm_tree *tree, double *at, uint32_t count, uint64_t *leaves) {
    tree->descend(tree, at, count, leaves);
}

// FARM_TREE_MAX: the highest leaves, highest first, equal ones in order. Returns their number: below `count` if all
// others are 0. values: [count].
uint32_t farm_tree_highest(struct farm_tree *tree, uint32_t count, uint64_t *leaves, float *values);

// How to sample: 0: portable, 1: AVX2, 2: AVX-512, with the same leaves. farm_tree_make chooses the fastest. False: not
// on this CPU.
bool farm_tree_set_path(struct farm_tree *tree, int path);

#endif
