// The rows of one pass, on which an algorithm computes. Compiled as C17 and as CUDA C++ (kernels/device.h). Arrays are
// time-major: row (t, c) is element t * columns + c with t in [0, steps + tail), so the first steps * columns rows
// train and those behind them bootstrap. A column is one window of one environment. Row t holds observation t, the
// reward and flags that came with it, and the action answered to it. What the network computes has the same rows; with
// a sparse plan (algo.h) it has row 0 and one row a column behind it: farm_algo_net_row. If the algorithm's targets are
// computed once for several passes (algo.h), a pass has any training rows, in any order: steps 1, no bootstrap rows.
#ifndef FARM_ALGO_ROWS_H
#define FARM_ALGO_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/gather.h"
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
    int tail;                            // time steps behind those that train: the plan's `bootstrap`, or 0
    int bootstrap;                       // the network's rows behind those that train; 0: none
    bool sparse;                         // steps is 1, and `bootstrap` columns
    float option[FARM_ALGO_OPTIONS_MAX]; // values of the algorithm's recipe keys, in their order
    float *policy;                       // [net rows][outputs] from the parameters in training; the drivers of algo.h
                                         // forbid in it what the behaviour policy could not choose
    const float *value;                  // [net rows]
    float *target_policy;                // the same from the plan's first set; NULL: it has none
    const float *target_value;
    const float *behaviour;       // [T+tail][columns][outputs] the policy that acted
    const float *behaviour_value; // [T+tail][columns] the value predicted when acting
    const uint8_t *action;        // [T+tail][columns][action_bytes]; the sample of a head that has one
    const float *reward;          // [T+tail][columns] clipped and scaled
    const uint8_t *flags;         // [T+tail][columns] FARM_STEP_*
    const float *weight;          // [columns] of a column's loss; NULL: 1
    float *priority;              // [columns] out, of replayed windows; NULL: not wanted
    float *scratch;               // [algorithm's scratch][T][columns]
    const double *pass_sums;      // targets once: [FARM_ALGO_SUMS_MAX] of `reduce` over this pass; its schedule
    const double *iteration_sums; // the same sums over all rows of the iteration
    float *dpolicy;               // [net rows][outputs] out: gradient of the loss
    float *dvalue;                // [net rows] out
};

static inline FARM_HD int farm_algo_row_count(const struct farm_algo_rows *rows) {
    return rows->steps * rows->columns;
}

// The algorithm's array number `index` in `scratch`: [T][columns].
static inline FARM_HD float *farm_algo_scratch(const struct farm_algo_rows *rows, int index) {
    return rows->scratch + (size_t)index * (size_t)farm_algo_row_count(rows);
}

// n-step returns from a training step, whose flags are flags[0], the next steps' `stride` apart: the number of their
// rewards, 0 to n (0: no transition), and whether the value of the observation after them follows: not if that step is
// TERMINATED. They end at LAST, and before a FIRST without LAST (an abandoned episode).
static inline FARM_HD int farm_algo_horizon(const uint8_t *flags, size_t stride, int n, bool *bootstraps) {
    int k = 0;
    while (k < n && farm_step_leads(flags[(size_t)k * stride], flags[((size_t)k + 1) * stride])) k++;
    *bootstraps = !(flags[(size_t)k * stride] & FARM_STEP_TERMINATED);
    return k;
}

// The network's row of the observation `ahead` steps after training row `row`.
static inline FARM_HD int farm_algo_net_row(const struct farm_algo_rows *rows, int row, int ahead) {
    return row + (rows->sparse && ahead ? 1 : ahead) * rows->columns;
}

// Before a row's policy is read: action masks, of which an algorithm knows nothing.
static inline FARM_HD void farm_algo_mask(const struct farm_algo_rows *rows, int row) {
    const size_t outputs = (size_t)rows->head.outputs, at = (size_t)row * outputs;
    size_t acted = at;
    if (rows->sparse && row >= rows->columns) {
        bool ignored;
        const int column = row - rows->columns;
        const int k = farm_algo_horizon(rows->flags + column, (size_t)rows->columns, rows->tail, &ignored);
        acted = (size_t)(k * rows->columns + column) * outputs;
    }
    if (rows->policy) farm_head_mask_as(&rows->head, rows->behaviour + acted, rows->policy + at);
    if (rows->target_policy) farm_head_mask_as(&rows->head, rows->behaviour + acted, rows->target_policy + at);
}

// A row of weight 0: no gradient, whatever its inputs hold.
static inline FARM_HD void farm_algo_no_gradient(const struct farm_algo_rows *rows, int row) {
    const size_t outputs = (size_t)rows->head.outputs;
    for (size_t k = 0; k < outputs; k++) rows->dpolicy[(size_t)row * outputs + k] = 0;
    rows->dvalue[row] = 0;
}

#endif
