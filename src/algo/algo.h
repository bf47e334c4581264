// The interface of algorithms. An algorithm is NAME.h (its arithmetic, inline for the CPU and CUDA), NAME.c (its table:
// recipe keys, statistics, plan) and a line in all.h; the learner, backends, recipes and metrics use this interface
// only. Runs in the learner; supervisor and tools read the tables.
#ifndef FARM_ALGO_ALGO_H
#define FARM_ALGO_ALGO_H

#include "algo/rows.h"
#include "base/status.h"
#include "config/recipe.h"
#include "kernels/optimiser.h"
#include "ring/window.h"

enum farm_regime {
    FARM_REGIME_AUTO,  // the algorithm's own
    FARM_REGIME_SYNC,  // an iteration is one window of every lane; the next one acts with the new parameters
    FARM_REGIME_ASYNC, // windows are trained on in order of arrival while actors continue
};

struct farm_algo;

enum { FARM_ALGO_SETS_MAX = 2 };

// Hyperparameters: the recipe's keys of the same names.
struct farm_algo_config {
    const struct farm_algo *algo;
    float option[FARM_ALGO_OPTIONS_MAX]; // values of the algorithm's keys, in their order
    uint32_t unroll;                     // T: transitions of a window
    uint32_t batch;                      // windows of an iteration (async)
    uint32_t stack;                      // steps that an observation reads backwards: frames, or 2 for the last action
    bool recurrent;                      // the net has a state
    uint32_t burn_in;                    // recurrent: steps before a window's transitions that only warm up the state
    enum farm_regime regime;
    enum farm_optimiser_kind optimiser;
#define ALGO_KEY(kind, key, ...) farm_setting_##kind key;
#include "config/keys.h" // lr, max_lag, loss_sum, ...
};

// How the trainer drives an algorithm: `epochs` times over an iteration's windows, each in equal passes of at most
// `minibatch` shuffled units (0 and one epoch: one pass over all in their order). A unit is a column. If targets are
// computed once, in `begin` from the stored answers and the present bootstrap values, passes compute gradients only,
// and a unit is a row unless the net has a state.
struct farm_algo_plan {
    struct farm_window_shape shape;
    uint32_t epochs, minibatch;
    bool sync, targets_once, recurrent;
    const char *source; // where windows come from (replay/source.h): "fifo", "sync" if sync, "prioritised" if replay
    bool replay;        // windows stay in the rings and are sampled from there
    // Steps behind a window's transitions from which targets bootstrap: 1, or n of n-step returns. sparse: a window has
    // one transition and no state, and the network computes its observation and the one after its horizon only
    // (farm_algo_horizon).
    uint32_t bootstrap;
    bool sparse;
    // Parameter sets beside the one in training, e.g. {"target", 1000}: each begins as a copy of it and becomes one
    // again after every `every` passes of the run. A name NULL ends. Checkpoints hold them by their names.
    struct farm_algo_set {
        const char *name;
        uint64_t every; // >= 1
    } sets[FARM_ALGO_SETS_MAX];
};

static inline uint32_t farm_algo_sets(const struct farm_algo_plan *plan) {
    uint32_t count = 0;
    while (count < FARM_ALGO_SETS_MAX && plan->sets[count].name) count++;
    return count;
}

// Whether rings that hold `capacity` windows can fill a shard's part of an iteration, `share` windows of lanes of at
// most `width_max` environments. Plan, watchdog and trainer use this rule.
static inline bool farm_algo_update_fits(const struct farm_algo_plan *plan, uint64_t capacity, uint64_t share,
                                         uint32_t width_max) {
    return plan->sync || plan->replay ? capacity > 0 : farm_window_update_fits(capacity, share, width_max);
}

// Transitions of a window, without its burn-in, and whether units are rows.
static inline uint32_t farm_algo_transitions(const struct farm_algo_plan *plan) {
    return plan->shape.length - plan->shape.burn_in - plan->bootstrap;
}
static inline bool farm_algo_row_units(const struct farm_algo_plan *plan) {
    return plan->targets_once && !plan->recurrent;
}

// Units of `columns` windows; transitions of a unit, its steps (without burn-in) and those of the network; the passes
// of an epoch; the most units of a pass of that many columns or fewer.
static inline uint32_t farm_algo_units(const struct farm_algo_plan *plan, uint32_t columns) {
    return farm_algo_row_units(plan) ? columns * farm_algo_transitions(plan) : columns;
}
static inline uint32_t farm_algo_unit_transitions(const struct farm_algo_plan *plan) {
    return farm_algo_row_units(plan) ? 1 : farm_algo_transitions(plan);
}
// For `plan`: the units of a minibatch of at most `steps` steps, of which a window has `unroll`; whole windows, unless
// units are rows.
static inline uint32_t farm_algo_minibatch(const struct farm_algo_config *config, const struct farm_algo_plan *plan,
                                           float steps) {
    const uint32_t rows = (uint32_t)steps;
    return farm_algo_row_units(plan) ? rows : (rows + config->unroll - 1) / config->unroll;
}
static inline uint32_t farm_algo_unit_steps(const struct farm_algo_plan *plan) {
    return farm_algo_unit_transitions(plan) + (plan->targets_once ? 0 : plan->bootstrap);
}
static inline uint32_t farm_algo_unit_rows(const struct farm_algo_plan *plan) {
    return plan->sparse ? 2 : farm_algo_unit_steps(plan);
}
static inline uint32_t farm_algo_passes(const struct farm_algo_plan *plan, uint32_t columns) {
    const uint32_t units = farm_algo_units(plan, columns);
    return plan->minibatch && units ? (units - 1) / plan->minibatch + 1 : 1;
}
static inline uint32_t farm_algo_pass_units(const struct farm_algo_plan *plan, uint32_t columns) {
    const uint32_t units = farm_algo_units(plan, columns);
    return plan->minibatch && plan->minibatch < units ? plan->minibatch : units;
}

struct farm_algo {
    struct farm_recipe_family recipe; // name, keys: at most FARM_ALGO_OPTIONS_MAX
    // Of terms 1, 2, ...: the key in metrics.jsonl, and the word on the progress line (NULL: not shown); a key NULL
    // ends.
    struct farm_algo_statistic {
        const char *key, *word;
    } statistics[FARM_ALGO_TERMS_MAX];
    double (*statistic)(const double *terms, int k); // the k-th, of terms summed over an update; NULL: the term's mean
    int scratch;                                     // floats of a row
    const struct farm_algo_scale {
        const char *key;
        double power;
    } * scale;   // keys that N times the environments (the recipe's `scale`) multiply by N^power; a key NULL ends
    bool sync;   // the regime that FARM_REGIME_AUTO means
    bool replay; // trains on windows of its replay, whatever the regime
    bool q;      // the policy's head is greedy_q (kernels/head.h)
    // Changes the default plan (stride T, length burn-in+T+1, one pass); NULL: keeps it. FARM_E_USAGE with the key to
    // change.
    enum farm_status (*plan)(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                             struct farm_error *err);
    // After each epoch, with its terms; last: of the plan's. Returns whether to continue. NULL: continues.
    // *rate_factor, 1 at first, multiplies the learning rate of all later passes; checkpoints keep it, and it is passed
    // once, with terms of 0, after one is loaded.
    bool (*adapt)(const struct farm_algo_config *config, const double *terms, bool last, double *rate_factor);

    // The arithmetic of rows.h on the CPU (CUDA compiles NAME.h through all.h), in this order: each row by itself,
    // each column along time, each row's gradients and terms. All three exist in NAME.h, an empty one too. Terms
    // begin as 0; number 0 is the row's weight.
    void (*prepare)(const struct farm_algo_rows *rows, int row);
    void (*column)(const struct farm_algo_rows *rows, int column);
    void (*row)(const struct farm_algo_rows *rows, int row, float *terms);
    // If targets are computed once: ADDS what a row adds to sums over a pass and over the iteration, which `row` reads,
    // at most FARM_ALGO_SUM_SCHEDULE of them; always on the CPU. NULL: nothing.
    void (*reduce)(const struct farm_algo_rows *rows, int row, double *sums);
};

// The default plan with the algorithm's changes. FARM_E_INVALID: an empty one, or one that leaves steps out.
enum farm_status farm_algo_plan_make(const struct farm_algo_config *config, struct farm_algo_plan *out,
                                     struct farm_error *err);

struct farm_optimiser_config farm_algo_optimiser(const struct farm_algo_config *config);

// gamma: the algorithm's key `discount`; NULL: it has none.
const float *farm_algo_discount(const struct farm_algo_config *config);

// Clips, then scales.
float farm_algo_reward(const struct farm_algo_config *config, float reward);

// The two halves of a pass on the CPU, both after farm_algo_mask. Targets: prepare and column, into scratch. Gradients
// of all rows (the bootstrap rows' are zeros); ADDS their terms to terms[FARM_ALGO_TERMS_MAX].
void farm_algo_targets(const struct farm_algo *algo, const struct farm_algo_rows *rows);
void farm_algo_gradients(const struct farm_algo *algo, const struct farm_algo_rows *rows, double *terms);
// Both.
void farm_algo_differentiate(const struct farm_algo *algo, const struct farm_algo_rows *rows, double *terms);

#endif
