// The tree of priorities against a slow model, with all instructions that this CPU has: whole numbers, whose sums are
// exact, so that a walk over all leaves gives the right draw; then floats of all sizes.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../support/rings.h"
#include "replay/tree.h"

TestSuite(tree, .timeout = 60);

enum { MOST = 5000, BATCH_MOST = 300, PATHS = 3, OPERATIONS = 1000000 };

static const uint64_t sizes[] = {1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static struct farm_tree *make(enum farm_tree_kind kind, uint64_t leaves) {
    struct farm_tree *tree;
    struct farm_error err;
    cr_assert_eq(farm_tree_make(kind, leaves, &tree, &err), FARM_OK, "%s", err.message);
    return tree;
}

static uint64_t random_below(uint64_t *state, uint64_t bound) {
    return random_next(state) % bound;
}
static double random_unit(uint64_t *state) {
    return (double)(random_next(state) >> 11) * 0x1p-53;
}

// Draws with all instructions, which must agree. Each draw is of a leaf above 0.
static void sample(struct farm_tree *tree, uint64_t size, const double *at, uint32_t count, uint64_t *leaves) {
    for (int path = 0; path < PATHS; path++) {
        double rest[BATCH_MOST];
        uint64_t drawn[BATCH_MOST];
        if (!farm_tree_set_path(tree, path)) continue;
        memcpy(rest, at, count * sizeof *at);
        farm_tree_sample(tree, rest, count, drawn);
        for (uint32_t i = 0; i < count; i++) cr_assert(drawn[i] < size && farm_tree_get(tree, drawn[i]) > 0);
        if (path == 0) memcpy(leaves, drawn, count * sizeof *leaves);
        cr_assert(memcmp(leaves, drawn, count * sizeof *leaves) == 0, "path %d", path);
    }
}

// Changes the same leaves of the model and of both trees: single ones, perhaps twice, or a run.
static void change(uint64_t *state, struct farm_tree **trees, float *model, uint64_t size, uint32_t count) {
    const uint64_t way = random_below(state, 4), first = random_below(state, size);
    float values[BATCH_MOST];
    uint64_t leaves[BATCH_MOST];
    if (way < 2 && count > size - first) count = (uint32_t)(size - first);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = way == 0 ? 7 : random_below(state, 3) ? (float)random_below(state, 1000) : 0;
        leaves[i] = way < 2 ? first + i : random_below(state, size);
        model[leaves[i]] = values[i];
    }
    for (int t = 0; t < 2; t++)
        if (way < 2)
            farm_tree_set_range(trees[t], first, way ? values : NULL, 7, count);
        else
            farm_tree_set(trees[t], leaves, values, count);
}

static void check_draws(uint64_t *state, struct farm_tree *tree, const float *model, uint64_t size, uint32_t count) {
    double at[BATCH_MOST], sum = 0;
    uint64_t leaves[BATCH_MOST], leaf = 0;
    for (uint32_t i = 0; i < count; i++) // ascending, between whole numbers
        at[i] = floor((i + random_unit(state)) / count * (double)farm_tree_total(tree)) + random_unit(state) / 2;
    sample(tree, size, at, count, leaves);
    for (uint32_t i = 0; i < count; i++) {
        for (; sum + (double)model[leaf] <= at[i]; leaf++) sum += (double)model[leaf];
        cr_assert_eq(leaves[i], leaf, "draw %u of %llu leaves", i, (unsigned long long)size);
    }
}

static void check_highest(struct farm_tree *tree, const float *model, uint64_t size, uint32_t count) {
    uint64_t leaves[BATCH_MOST];
    float values[BATCH_MOST];
    bool taken[MOST] = {0};
    const uint32_t found = farm_tree_highest(tree, count, leaves, values);
    for (uint32_t i = 0; i <= found && i < count; i++) {
        uint64_t best = size;
        for (uint64_t l = 0; l < size; l++)
            if (!taken[l] && model[l] > (best < size ? model[best] : 0)) best = l;
        cr_assert(i == found ? best == size : leaves[i] == best && values[i] == model[best]);
        if (best < size) taken[best] = true;
    }
}

Test(tree, equals_a_slow_model_over_a_million_random_operations) {
    static float model[MOST];
    uint64_t state = 49;
    for (uint32_t operations = 0, round = 0; operations < OPERATIONS; round++) {
        const uint64_t size = sizes[round % SIZES];
        struct farm_tree *trees[2] = {make(FARM_TREE_SUM, size), make(FARM_TREE_MAX, size)};
        memset(model, 0, sizeof model);
        for (int step = 0; step < 100; step++) {
            const uint32_t count = 1 + (uint32_t)random_below(&state, BATCH_MOST);
            double sum = 0, most = 0;
            change(&state, trees, model, size, count);
            for (uint64_t l = 0; l < size; l++) {
                sum += (double)model[l], most = fmax(most, (double)model[l]);
                cr_assert(farm_tree_get(trees[0], l) == model[l] && farm_tree_get(trees[1], l) == model[l]);
            }
            cr_assert((double)farm_tree_total(trees[0]) == sum && (double)farm_tree_total(trees[1]) == most);
            if (sum > 0) check_draws(&state, trees[0], model, size, count);
            if (step % 10 == 0) check_highest(trees[1], model, size, count % 20);
            operations += 2 * count;
        }
        farm_tree_free(trees[0]);
        farm_tree_free(trees[1]);
    }
}

// A priority between 2^-140, which is denormal, and 2^40; a third are 0.
static float any_float(uint64_t *state) {
    return random_below(state, 3) ? ldexpf(0.5f + (float)random_unit(state) / 2, (int)random_below(state, 180) - 140)
                                  : 0;
}

Test(tree, has_the_same_bits_after_any_order_of_the_same_updates) {
    static float values[MOST];
    static uint64_t order[MOST];
    uint64_t state = 7;
    for (int s = 0; s < SIZES; s++) {
        const uint64_t size = sizes[s];
        struct farm_tree *once = make(FARM_TREE_SUM, size), *often = make(FARM_TREE_SUM, size);
        for (uint64_t l = 0; l < size; l++) values[l] = any_float(&state), order[l] = l;
        farm_tree_set_range(once, 0, values, 0, size);
        for (uint64_t l = 0; l < size; l++) { // random others first
            const uint64_t swap = l + random_below(&state, size - l), leaf = order[swap];
            farm_tree_set_range(often, l, NULL, any_float(&state), 1);
            order[swap] = order[l], order[l] = leaf;
        }
        for (uint64_t i = 0, n; i < size; i += n) {
            float batch[BATCH_MOST];
            n = 1 + random_below(&state, BATCH_MOST);
            n = n < size - i ? n : size - i;
            for (uint64_t j = 0; j < n; j++) batch[j] = values[order[i + j]];
            farm_tree_set(often, order + i, batch, (uint32_t)n);
        }
        for (uint32_t k = 0; k <= once->top; k++)
            cr_assert(memcmp(once->level[k], often->level[k], once->size[k] * sizeof(float)) == 0, "level %u", k);
        farm_tree_free(once);
        farm_tree_free(often);
    }
}

Test(tree, never_draws_a_leaf_of_0_and_draws_alike_with_all_instructions) {
    uint64_t state = 3, leaves[BATCH_MOST];
    for (int round = 0; round < 600; round++) {
        const uint64_t size = sizes[round % SIZES];
        struct farm_tree *tree = make(FARM_TREE_SUM, size);
        const uint64_t used = 1 + random_below(&state, size); // the rest stays 0, as in a ring that fills
        for (uint64_t l = 0; l < used; l += 1 + random_below(&state, 9))
            farm_tree_set_range(tree, l, NULL, l ? any_float(&state) : 0.1f, 1);
        const double total = (double)farm_tree_total(tree);
        double at[BATCH_MOST] = {0, total, nextafter(total, 0), (double)nextafterf((float)total, 0), total / 2};
        for (int i = 5; i < BATCH_MOST; i++) // also at leaves' borders
            at[i] = i % 2 ? random_unit(&state) * total : (double)(float)(random_unit(&state) * total);
        sample(tree, size, at, BATCH_MOST, leaves);
        farm_tree_free(tree);
    }
}

Test(tree, refuses_impossible_sizes) {
    struct farm_tree *tree;
    cr_assert_eq(farm_tree_make(FARM_TREE_SUM, 0, &tree, NULL), FARM_E_INVALID);
    cr_assert_eq(farm_tree_make(FARM_TREE_SUM, (UINT64_C(1) << 40) + 1, &tree, NULL), FARM_E_INVALID);
}
