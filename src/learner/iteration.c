// See iteration.h.
#include "learner/iteration.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gather.h"
#include "nn/inputs.h"

static uint32_t transitions(const struct farm_iteration *it) {
    return farm_algo_transitions(it->plan);
}

static size_t scratch_arrays(const struct farm_iteration *it) {
    return (size_t)it->algo->algo->scratch;
}

enum farm_status farm_iteration_make(const struct farm_algo_config *algo, const struct farm_algo_plan *plan,
                                     struct farm_head head, uint32_t columns_max, struct farm_iteration *out,
                                     struct farm_error *err) {
    const size_t rows = plan->targets_once ? (size_t)columns_max * (farm_algo_transitions(plan) + plan->bootstrap) : 0,
                 outputs = (size_t)head.outputs;
    *out = (struct farm_iteration){.algo = algo, .plan = plan, .head = head, .columns_max = columns_max};
    out->columns = calloc(columns_max + 1u, sizeof *out->columns);
    float *numbers = calloc(rows * (outputs + 3 + scratch_arrays(out)) + columns_max + 1, sizeof *numbers);
    uint8_t *bytes = calloc(rows * ((size_t)head.action_bytes + 1) + 1, 1);
    out->all = (struct farm_gathered){.behaviour = numbers, .action = bytes};
    if (!out->columns || !numbers || !bytes) {
        farm_iteration_free(out);
        return farm_fail(err, FARM_E_LIMIT, "no memory for an iteration of %u windows", columns_max);
    }
    out->all.behaviour_value = numbers + rows * outputs;
    out->all.reward = out->all.behaviour_value + rows;
    out->value = out->all.reward + rows;
    out->all.scratch = out->value + rows;
    out->priority = out->all.scratch + rows * scratch_arrays(out);
    out->all.flags = bytes + rows * (size_t)head.action_bytes;
    return FARM_OK;
}

void farm_iteration_free(struct farm_iteration *iteration) {
    free(iteration->columns);
    free(iteration->all.behaviour);
    free(iteration->all.action);
    *iteration = (struct farm_iteration){0};
}

void farm_iteration_list(struct farm_iteration *it, const struct farm_window *windows, uint32_t count) {
    it->count = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < windows[i].env_count; e++) {
            assert(it->count < it->columns_max);
            it->columns[it->count++] = (struct farm_column){.lane = windows[i].lane,
                                                            .lane_id = windows[i].lane_id,
                                                            .start = windows[i].start,
                                                            .weight = windows[i].weight,
                                                            .env = windows[i].env_from + e};
        }
    it->all.scratch_stride = (size_t)it->count * transitions(it);
}

// ---- targets once ----

static float reward_of(const struct farm_iteration *it, float reward) {
    const float scaled = farm_algo_reward(it->algo, reward);
    return it->reward_scale > 0 ? farm_reward_clip(scaled * it->reward_scale, FARM_NORMALISED_MOST) : scaled;
}

// Step n of a lane's environment into row `row`. The actor of a LOCAL lane may be answering a window's last step,
// unless windows come from a replay.
static void gather_step(const struct farm_iteration *it, const struct farm_place *at, const struct farm_gathered *to,
                        size_t row, bool last) {
    const struct farm_lane *lane = at->lane;
    const size_t policy_bytes = lane->answer[FARM_ANSWER_POLICY].bytes;
    const unsigned drawn = it->head.samples ? FARM_ANSWER_SAMPLE : FARM_ANSWER_ACTION;
    const size_t action_bytes = lane->answer[drawn].bytes;
    to->reward[row] = reward_of(it, farm_lane_reward(lane, at->n)[at->env]);
    to->flags[row] = farm_lane_flags(lane, at->n)[at->env];
    if (last && lane->local && !it->plan->replay) return;
    to->behaviour_value[row] = farm_lane_value(lane, at->n)[at->env];
    memcpy(to->action + row * action_bytes, farm_lane_answer_at(lane, drawn, at->n, at->env), action_bytes);
    memcpy(to->behaviour + row * (policy_bytes / sizeof(float)), farm_lane_policy(lane, at->n, at->env), policy_bytes);
}

static struct farm_place place_of(const struct farm_iteration *it, uint32_t column, int64_t step) {
    const struct farm_column *of = &it->columns[column];
    return (struct farm_place){.lane = of->lane,
                               .lane_id = of->lane_id,
                               .env = of->env,
                               .n = of->start + (uint64_t)(it->plan->shape.burn_in + step)};
}

void farm_iteration_gather(struct farm_iteration *it, const uint32_t *columns, uint32_t first, uint32_t count) {
    const uint32_t steps = transitions(it) + it->plan->bootstrap;
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t i = first; i < first + count; i++) {
            const uint32_t c = columns ? columns[i] : i;
            const struct farm_place at = place_of(it, c, step);
            const size_t row = (size_t)step * it->count + c;
            gather_step(it, &at, &it->all, row, step + 1 == steps);
            if (step < transitions(it)) it->value[row] = it->all.behaviour_value[row];
        }
}

struct farm_algo_rows farm_gathered_rows(const struct farm_gathered *gathered, const struct farm_algo_config *algo,
                                         struct farm_head head, uint32_t steps, uint32_t columns) {
    struct farm_algo_rows rows = {.head = head,
                                  .steps = (int)steps,
                                  .columns = (int)columns,
                                  .behaviour = gathered->behaviour,
                                  .behaviour_value = gathered->behaviour_value,
                                  .action = gathered->action,
                                  .reward = gathered->reward,
                                  .flags = gathered->flags,
                                  .scratch = gathered->scratch};
    memcpy(rows.option, algo->option, sizeof rows.option);
    return rows;
}

static struct farm_algo_rows rows_of(const struct farm_iteration *it) {
    struct farm_algo_rows rows = farm_gathered_rows(&it->all, it->algo, it->head, transitions(it), it->count);
    rows.value = it->value;
    return rows;
}

static void reduce(const struct farm_iteration *it, const uint32_t *indices, uint32_t count, double *sums) {
    const struct farm_algo_rows rows = rows_of(it);
    const uint32_t steps = farm_algo_unit_transitions(it->plan);
    memset(sums, 0, FARM_ALGO_SUMS_MAX * sizeof *sums);
    for (uint32_t i = 0; i < count && it->algo->algo->reduce; i++)
        for (uint32_t step = 0; step < steps; step++)
            it->algo->algo->reduce(&rows, (int)((indices ? indices[i] : i) + step * it->count), sums);
}

void farm_iteration_target(struct farm_iteration *it) {
    const struct farm_algo_rows rows = rows_of(it);
    farm_algo_targets(it->algo->algo, &rows);
    reduce(it, NULL, farm_algo_units(it->plan, it->count), it->iteration_sums);
}

void farm_iteration_reduce(struct farm_iteration *it, const uint32_t *indices, uint32_t count, double schedule) {
    reduce(it, indices, count, it->pass_sums);
    it->pass_sums[FARM_ALGO_SUM_SCHEDULE] = schedule;
}

// ---- units ----

struct farm_place farm_iteration_last(const struct farm_iteration *it, uint32_t column) {
    return place_of(it, column, transitions(it));
}

void farm_iteration_finish(const struct farm_iteration *it, uint32_t column, float *policy, float *value) {
    const struct farm_place at = farm_iteration_last(it, column);
    const int mask = it->head.mask_field;
    if (mask) farm_head_mask(&it->head, farm_lane_obs(at.lane, (uint32_t)mask - 1, at.n, at.env), policy);
    farm_head_finish(&it->head, policy, value);
}

struct farm_place farm_iteration_place(const struct farm_iteration *it, uint32_t unit, int step) {
    return place_of(it, unit % it->count, (int64_t)(unit / it->count) + step);
}

struct farm_place farm_iteration_net_place(const struct farm_iteration *it, uint32_t unit, uint32_t row) {
    const uint32_t ahead = it->plan->sparse && row ? it->plan->bootstrap : 0;
    struct farm_place at = farm_iteration_place(it, unit, ahead ? 0 : (int)row);
    for (uint64_t end = at.n + ahead; at.n < end; at.n++) // farm_algo_horizon
        if (!farm_step_leads(farm_lane_flags(at.lane, at.n)[at.env], farm_lane_flags(at.lane, at.n + 1)[at.env])) break;
    return at;
}

void farm_iteration_row(const struct farm_iteration *it, uint32_t unit, uint32_t step, const struct farm_gathered *to,
                        size_t row) {
    if (!it->plan->targets_once) {
        const struct farm_place at = place_of(it, unit, step);
        gather_step(it, &at, to, row, step + 1 == farm_algo_unit_steps(it->plan));
        return;
    }
    unit += step * it->count;
    const struct farm_gathered *from = &it->all;
    const size_t outputs = (size_t)it->head.outputs, action_bytes = (size_t)it->head.action_bytes;
    memcpy(to->behaviour + row * outputs, from->behaviour + unit * outputs, outputs * sizeof(float));
    memcpy(to->action + row * action_bytes, from->action + unit * action_bytes, action_bytes);
    to->behaviour_value[row] = from->behaviour_value[unit];
    to->reward[row] = from->reward[unit];
    to->flags[row] = from->flags[unit];
    for (size_t s = 0; s < scratch_arrays(it); s++)
        to->scratch[s * to->scratch_stride + row] = from->scratch[s * from->scratch_stride + unit];
}

// ---- first priorities ----

enum farm_status farm_first_make(const struct farm_algo_config *algo, const struct farm_algo_plan *plan,
                                 struct farm_head head, uint32_t width_max, struct farm_first *out,
                                 struct farm_error *err) {
    head.duelling = 0; // answers hold whole action-values
    out->plan = *plan;
    out->plan.targets_once = true;
    return farm_iteration_make(algo, &out->plan, head, width_max, &out->iteration, err);
}

void farm_first_priorities(void *context, const struct farm_window *window, float *priorities) {
    struct farm_iteration *it = &((struct farm_first *)context)->iteration;
    farm_iteration_list(it, window, 1);
    farm_iteration_gather(it, NULL, 0, it->count);
    struct farm_algo_rows rows = rows_of(it);
    rows.tail = (int)it->plan->bootstrap;
    rows.policy = it->all.behaviour;
    rows.value = it->all.behaviour_value;
    rows.priority = priorities;
    farm_algo_targets(it->algo->algo, &rows);
}
