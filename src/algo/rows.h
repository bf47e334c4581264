// The rows of one pass, on which an algorithm computes. Compiled as C17 and as CUDA C++ (kernels/device.h). Arrays are
// time-major: row (t, c) is element t * columns + c with t in [0, steps], so the first steps * columns rows train and
// the last `columns` rows bootstrap. A column is one window of one environment. Row t holds observation t, the reward
// and flags that came with it, and the action answered to it. If the algorithm's targets are computed once for several
// passes (algo.h), a pass has any training rows, in any order: steps 1, no bootstrap rows.
#ifndef FARM_ALGO_ROWS_H
#define FARM_ALGO_ROWS_H

#include <farm/step.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/head.h"

enum {
    FARM_ALGO_OPTIONS_MAX = 16,
    FARM_ALGO_TERMS_MAX = 8,
    FARM_ALGO_SUMS_MAX = 8,
    FARM_ALGO_SUM_SCHEDULE = FARM_ALGO_SUMS_MAX - 1, // not a sum: the pass's scheduled learning rate / the first
};

struct farm_algo_rows {
    struct farm_head head;
    int steps, columns;                  // T >= 1, >= 1
    int bootstrap;                       // rows behind those that train: columns, or 0
    float option[FARM_ALGO_OPTIONS_MAX]; // values of the algorithm's recipe keys, in their order
    float *policy;                       // [T+1][columns][outputs] from the parameters in training; the drivers of
                                         // algo.h forbid in it what the behaviour policy could not choose
    const float *value;                  // [T+1][columns]
    const float *behaviour;              // [T+1][columns][outputs] the policy that acted
    const float *behaviour_value;        // [T+1][columns] the value predicted when acting
    const uint8_t *action;               // [T+1][columns][action_bytes]; the sample of a head that has one
    const float *reward;                 // [T+1][columns] clipped and scaled
    const uint8_t *flags;                // [T+1][columns] FARM_STEP_*
    float *scratch;                      // [algorithm's scratch][T][columns]
    const double *pass_sums;             // targets once: [FARM_ALGO_SUMS_MAX] of `reduce` over this pass; its schedule
    const double *iteration_sums;        // the same sums over all rows of the iteration
    float *dpolicy;                      // [T+1][columns][outputs] out: gradient of the loss
    float *dvalue;                       // [T+1][columns] out
};

static inline FARM_HD int farm_algo_row_count(const struct farm_algo_rows *rows) {
    return rows->steps * rows->columns;
}

// The algorithm's array number `index` in `scratch`: [T][columns].
static inline FARM_HD float *farm_algo_scratch(const struct farm_algo_rows *rows, int index) {
    return rows->scratch + (size_t)index * (size_t)farm_algo_row_count(rows);
}

// Whether step t leads to step t+1 within one episode: not after LAST(t), nor to a FIRST(t+1) without LAST(t) (an
// abandoned episode). The transition's reward and end lie in step t+1.
static inline FARM_HD bool farm_algo_transition(unsigned flags, unsigned next_flags) {
    return !(flags & FARM_STEP_LAST) && !(next_flags & FARM_STEP_FIRST);
}

// Before a row's policy is read: action masks, of which an algorithm knows nothing.
static inline FARM_HD void farm_algo_mask(const struct farm_algo_rows *rows, int row) {
    const size_t at = (size_t)row * (size_t)rows->head.outputs;
    if (rows->policy) farm_head_mask_as(&rows->head, rows->behaviour + at, rows->policy + at);
}

// A row of weight 0: no gradient, whatever its inputs hold.
static inline FARM_HD void farm_algo_no_gradient(const struct farm_algo_rows *rows, int row) {
    const size_t outputs = (size_t)rows->head.outputs;
    for (size_t k = 0; k < outputs; k++) rows->dpolicy[(size_t)row * outputs + k] = 0;
    rows->dvalue[row] = 0;
}

#endif
