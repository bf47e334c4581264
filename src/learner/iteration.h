// An iteration's windows as training sees them, for every backend: their columns, the small arrays of their steps, and,
// if the plan wants targets once, the targets. Backends find observations themselves and compute values. Runs on the
// training thread and its helpers; one thread at a time changes an iteration.
#ifndef FARM_LEARNER_ITERATION_H
#define FARM_LEARNER_ITERATION_H

#include "algo/algo.h"

// One environment's window.
struct farm_column {
    const struct farm_lane *lane;
    uint64_t start;
    uint32_t lane_id, env;
    int node;      // its ring's; -1: unknown
    uint32_t home; // CPU backend: group of training threads on that node
    float weight;  // replay: of its loss
};

// Arrays of rows, as in algo/rows.h.
struct farm_gathered {
    float *behaviour, *behaviour_value, *reward;
    uint8_t *action, *flags; // action: or sample
    float *scratch;          // [algorithm's scratch], each `scratch_stride` apart; only if targets are computed once
    size_t scratch_stride;
};

// The algorithm's view of them; the caller adds what training computes, and `bootstrap`.
struct farm_algo_rows farm_gathered_rows(const struct farm_gathered *gathered, const struct farm_algo_config *algo,
                                         struct farm_head head, uint32_t steps, uint32_t columns);

struct farm_iteration {
    const struct farm_algo_config *algo;
    const struct farm_algo_plan *plan;
    struct farm_head head;
    uint32_t columns_max, count; // columns: most, present
    struct farm_column *columns; // [columns_max]
    float reward_scale; // rewards are multiplied by it once more and clipped to +-10 (statistics.h); 0: they are not
    // If targets are computed once: all rows, time-major [T+1][count].
    struct farm_gathered all;
    float *value;    // the stored values; the last `count` are the caller's: present values of the last observations
    float *priority; // replay: [columns_max], which passes write
    double iteration_sums[FARM_ALGO_SUMS_MAX], pass_sums[FARM_ALGO_SUMS_MAX];
};

// Borrows algo and plan. FARM_E_LIMIT: no memory; nothing is left of it.
enum farm_status farm_iteration_make(const struct farm_algo_config *algo, const struct farm_algo_plan *plan,
                                     struct farm_head head, uint32_t columns_max, struct farm_iteration *out,
                                     struct farm_error *err);
void farm_iteration_free(struct farm_iteration *iteration);

// Lists the windows' columns in order; more than columns_max abort.
void farm_iteration_list(struct farm_iteration *iteration, const struct farm_window *windows, uint32_t count);

// Targets once: copies all steps of columns[first .. first + count) (NULL: of columns from `first` on) out of the
// lanes; threads may share the columns. Then, with the bootstrap values written, computes targets and sums over the
// iteration.
void farm_iteration_gather(struct farm_iteration *iteration, const uint32_t *columns, uint32_t first, uint32_t count);
void farm_iteration_target(struct farm_iteration *iteration);
// Sums over the units of a pass, in their order (indices NULL: all), and its place in the schedule (backend.h).
void farm_iteration_reduce(struct farm_iteration *iteration, const uint32_t *indices, uint32_t count, double schedule);

// Step `step` of a unit (algo.h), counted from the first transition; the burn-in lies below 0. Where it lies; its small
// arrays into row `row` (rewards clipped, scaled, normalised).
struct farm_place {
    const struct farm_lane *lane;
    uint32_t lane_id, env;
    uint64_t n;
};
struct farm_place farm_iteration_last(const struct farm_iteration *iteration, uint32_t column); // its bootstrap step
// What the network gave for that step, under its mask: farm_head_finish.
void farm_iteration_finish(const struct farm_iteration *iteration, uint32_t column, float *policy, float *value);
struct farm_place farm_iteration_place(const struct farm_iteration *iteration, uint32_t unit, int step);
// The place of the network's row number `row` (farm_algo_unit_rows): that step, or a sparse plan's horizon.
struct farm_place farm_iteration_net_place(const struct farm_iteration *iteration, uint32_t unit, uint32_t row);
void farm_iteration_row(const struct farm_iteration *iteration, uint32_t unit, uint32_t step,
                        const struct farm_gathered *to, size_t row);

// First priorities of a new window from the answers in its lane, without a forward pass: the algorithm's `column`, with
// what inference predicted in place of the network's and the target's predictions. Rewards are not normalised. One
// thread at a time. FARM_E_LIMIT.
struct farm_first {
    struct farm_algo_plan plan; // as if with targets once, so that all rows are gathered
    struct farm_iteration iteration;
};
enum farm_status farm_first_make(const struct farm_algo_config *algo, const struct farm_algo_plan *plan,
                                 struct farm_head head, uint32_t width_max, struct farm_first *out,
                                 struct farm_error *err);
// priorities: [env_count]. Of the type of farm_replay_config's `first`.
void farm_first_priorities(void *first, const struct farm_window *window, float *priorities);

#endif
