// See gradient.h.
#include "learner/cpu/gradient.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/observation.h"

struct farm_cpu_gradient {
    struct farm_cpu_gradient_config config;
    struct farm_executor *executor, *target; // target: of the plan's first set; NULL: it has none
    uint64_t work, copy;                     // whose parameters they have
    // one forward pass's rows
    const void **observations; // [farm_net_pointers]
    struct farm_gathered gathered;
    float *policy, *dpolicy, *value, *dvalue, *target_policy, *target_value;
    float *weight, *priority; // [units]
    float *state[3];          // [units][net->state] before the present steps, before the burn-in, the target's
    float *numbers;           // what the arrays of f32 lie in; those of u8 in gathered.action
};

size_t farm_cpu_gradient_rows(const struct farm_algo_plan *plan, uint32_t units) {
    const uint32_t rows = plan->sparse ? 1 : farm_algo_unit_rows(plan), burn_in = plan->shape.burn_in;
    return (size_t)units * (rows > burn_in ? rows : burn_in);
}

// The next `count` numbers from *at on, from a cache line's start.
static float *take(size_t *at, float *numbers, size_t count) {
    float *taken = numbers ? numbers + *at : NULL;
    *at += (count + 15) / 16 * 16;
    return taken;
}

// Rows of the arrays: of all forward passes, and all steps that are gathered.
static size_t rows_most(const struct farm_cpu_gradient_config *config) {
    const size_t pass = farm_cpu_gradient_rows(config->plan, config->units_max),
                 steps = (size_t)farm_algo_unit_steps(config->plan) * config->units_max;
    return pass > steps ? pass : steps;
}

// Places the arrays of f32 in `numbers`; NULL: counts only. Returns their count.
static size_t lay_out(struct farm_cpu_gradient *g, float *numbers) {
    const size_t outputs = (size_t)g->config.head.outputs, scratch = (size_t)g->config.algo->algo->scratch,
                 units = g->config.units_max, rows = rows_most(&g->config),
                 target = farm_algo_sets(g->config.plan) ? rows : 0;
    size_t at = 0;
    g->gathered.behaviour = take(&at, numbers, rows * outputs);
    g->gathered.behaviour_value = take(&at, numbers, rows);
    g->gathered.reward = take(&at, numbers, rows);
    g->gathered.scratch = take(&at, numbers, rows * scratch);
    g->policy = take(&at, numbers, rows * outputs);
    g->dpolicy = take(&at, numbers, rows * outputs);
    g->value = take(&at, numbers, rows);
    g->dvalue = take(&at, numbers, rows);
    g->target_policy = take(&at, numbers, target * outputs);
    g->target_value = take(&at, numbers, target);
    g->weight = take(&at, numbers, units);
    g->priority = take(&at, numbers, units);
    for (int k = 0; k < 3; k++) g->state[k] = take(&at, numbers, units * (size_t)g->config.net->state);
    return at;
}

enum farm_status farm_cpu_gradient_make(const struct farm_cpu_gradient_config *config, struct farm_cpu_gradient **out,
                                        struct farm_error *err) {
    const size_t rows = rows_most(config), pass = farm_cpu_gradient_rows(config->plan, config->units_max);
    struct farm_executor_config executor = {
        .net = config->net, .batch_max = (int)pass, .training = true, .arithmetic = config->arithmetic};
    struct farm_cpu_gradient *g = calloc(1, sizeof *g);
    if (g) {
        g->config = *config;
        g->observations = calloc(pass * (size_t)farm_net_pointers(config->net), sizeof(void *));
        g->gathered.action = calloc(rows, (size_t)config->head.action_bytes + 1);
        g->numbers = calloc(lay_out(g, NULL), sizeof(float));
    }
    enum farm_status status = FARM_OK;
    if (!g || !g->observations || !g->gathered.action || !g->numbers)
        status = farm_fail(err, FARM_E_LIMIT,
                           "no memory for a training thread (fewer train_threads, a smaller micro_batch)");
    if (!status) status = farm_executor_create(&executor, &g->executor, err);
    executor.training = false;
    if (!status && farm_algo_sets(config->plan)) status = farm_executor_create(&executor, &g->target, err);
    if (status) {
        farm_cpu_gradient_free(g);
        return status;
    }
    lay_out(g, g->numbers);
    g->gathered.flags = g->gathered.action + rows * (size_t)config->head.action_bytes;
    *out = g;
    return FARM_OK;
}

void farm_cpu_gradient_free(struct farm_cpu_gradient *g) {
    if (!g) return;
    farm_executor_destroy(g->executor);
    farm_executor_destroy(g->target);
    free(g->observations);
    free(g->gathered.action);
    free(g->numbers);
    free(g);
}

void farm_cpu_gradient_load(struct farm_cpu_gradient *g, const float *params, uint64_t work, const float *target,
                            uint64_t copy) {
    if (g->work != work) farm_executor_load(g->executor, params);
    if (target && g->copy != copy) farm_executor_load(g->target, target);
    g->work = work;
    g->copy = copy;
}

static void begin_sum(struct farm_cpu_gradient *g, struct farm_cpu_sum *sum) {
    sum->work = g->work;
    farm_executor_clear(g->executor, sum->gradient);
    memset(sum->terms, 0, sizeof sum->terms);
    sum->near = sum->far = 0;
}

// Units of one call: indices[first .. first + count) of an iteration; indices NULL: [first, first + count).
struct units {
    const struct farm_iteration *of;
    const uint32_t *indices;
    uint32_t first, count;
};

static uint32_t unit_of(const struct units *units, uint32_t i) {
    return units->indices ? units->indices[units->first + i] : units->first + i;
}

static void list_observation(struct farm_cpu_gradient *g, const struct farm_place *at, size_t row) {
    farm_observation_list(g->config.net, at->lane, at->n, at->env,
                          g->observations + row * (size_t)farm_net_pointers(g->config.net));
}

// The same with the step's flags.
static void list_step(struct farm_cpu_gradient *g, const struct farm_place *at, size_t row) {
    list_observation(g, at, row);
    g->gathered.flags[row] = farm_lane_flags(at->lane, at->n)[at->env];
}

// Copies a recurrent policy's state before a step, as acting had it, into row `row`.
static void read_state(const struct farm_cpu_gradient *g, const struct farm_place *at, float *states, size_t row) {
    const size_t state = (size_t)g->config.net->state;
    if (state)
        memcpy(states + row * state, farm_lane_answer_at(at->lane, at->lane->state, at->n, at->env),
               state * sizeof *states);
}

static struct farm_sequence sequence_of(const struct farm_cpu_gradient *g, uint32_t steps, uint32_t columns) {
    return (struct farm_sequence){
        .steps = (int)steps, .columns = (int)columns, .flags = g->gathered.flags, .state_in = g->state[0]};
}

// Leaves the state before the units' first transitions in state[0], the first set's in state[2]: their windows' first
// one, and through the burn-in with the present parameters of each.
static void warm_up(struct farm_cpu_gradient *g, const struct units *units) {
    const int burn_in = (int)g->config.plan->shape.burn_in;
    const uint32_t count = units->count;
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_place at = farm_iteration_place(units->of, unit_of(units, i), -burn_in);
        read_state(g, &at, g->state[burn_in > 0], i);
    }
    if (!burn_in && g->target) memcpy(g->state[2], g->state[0], count * (size_t)g->config.net->state * sizeof(float));
    if (!burn_in) return;
    for (int step = -burn_in; step < 0; step++)
        for (uint32_t i = 0; i < count; i++) {
            const struct farm_place at = farm_iteration_place(units->of, unit_of(units, i), step);
            list_step(g, &at, (size_t)(step + burn_in) * count + i);
        }
    struct farm_sequence sequence = sequence_of(g, (uint32_t)burn_in, count);
    sequence.state_in = g->state[1];
    sequence.state_out = g->state[0];
    farm_executor_forward(g->executor, g->observations, sequence, g->policy, g->value);
    sequence.state_out = g->state[2];
    if (g->target) farm_executor_forward(g->target, g->observations, sequence, g->target_policy, g->target_value);
}

// Computes `steps` rows of each unit, from the network's row `from` on, with the parameters in training; target: with
// the first set's too.
static struct farm_sequence forward(struct farm_cpu_gradient *g, const struct units *units, uint32_t from,
                                    uint32_t steps, bool target) {
    const size_t to = (size_t)from * units->count, at = to * (size_t)g->config.head.outputs;
    struct farm_sequence sequence = sequence_of(g, steps, units->count);
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t i = 0; i < units->count; i++) {
            const struct farm_place place = farm_iteration_net_place(units->of, unit_of(units, i), from + step);
            list_observation(g, &place, (size_t)step * units->count + i);
        }
    farm_executor_forward(g->executor, g->observations, sequence, g->policy + at, g->value + to);
    if (!target) return sequence;
    sequence.state_in = g->state[2];
    farm_executor_forward(g->target, g->observations, sequence, g->target_policy + at, g->target_value + to);
    return sequence_of(g, steps, units->count);
}

// Copies the units' small arrays, and the weights of replayed windows.
static void gather(struct farm_cpu_gradient *g, const struct units *units) {
    const uint32_t steps = farm_algo_unit_steps(g->config.plan), count = units->count;
    g->gathered.scratch_stride = (size_t)farm_algo_unit_transitions(g->config.plan) * count;
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t i = 0; i < count; i++)
            farm_iteration_row(units->of, unit_of(units, i), step, &g->gathered, (size_t)step * count + i);
    for (uint32_t i = 0; i < count && g->config.plan->replay; i++)
        g->weight[i] = units->of->columns[unit_of(units, i)].weight;
}

static struct farm_algo_rows rows_of(const struct farm_cpu_gradient *g, const struct units *units) {
    const struct farm_algo_plan *plan = g->config.plan;
    struct farm_algo_rows rows = farm_gathered_rows(&g->gathered, g->config.algo, g->config.head,
                                                    farm_algo_unit_transitions(plan), units->count);
    rows.tail = (int)(plan->targets_once ? 0 : plan->bootstrap);
    rows.sparse = plan->sparse;
    rows.policy = g->policy;
    rows.value = g->value;
    rows.target_policy = g->target ? g->target_policy : NULL;
    rows.target_value = g->target_value;
    rows.weight = plan->replay ? g->weight : NULL;
    rows.priority = plan->replay ? g->priority : NULL;
    rows.pass_sums = units->of->pass_sums;
    rows.iteration_sums = units->of->iteration_sums;
    rows.dpolicy = g->dpolicy;
    rows.dvalue = g->dvalue;
    return rows;
}

void farm_cpu_gradient_add(struct farm_cpu_gradient *g, const struct farm_iteration *it, const uint32_t *indices,
                           uint32_t first, uint32_t count, struct farm_cpu_sum *sum) {
    const struct farm_algo_plan *plan = g->config.plan;
    const struct units units = {it, indices, first, count};
    if (sum->work != g->work) begin_sum(g, sum);
    if (plan->recurrent) warm_up(g, &units);
    gather(g, &units);
    // A backward pass follows its forward pass, so the rows that a sparse plan only bootstraps from come first.
    if (plan->sparse) forward(g, &units, 1, 1, g->target);
    const struct farm_sequence sequence =
        forward(g, &units, 0, plan->sparse ? 1 : farm_algo_unit_rows(plan), g->target && !plan->sparse);
    const struct farm_algo_rows rows = rows_of(g, &units);
    (plan->targets_once ? farm_algo_gradients : farm_algo_differentiate)(g->config.algo->algo, &rows, sum->terms);
    farm_executor_backward(g->executor, sequence, g->dpolicy, g->dvalue, sum->gradient);
    for (uint32_t i = 0; i < count && plan->replay; i++) it->priority[unit_of(&units, i)] = g->priority[i];
}

void farm_cpu_gradient_values(struct farm_cpu_gradient *g, struct farm_iteration *it, const uint32_t *columns,
                              uint32_t count) {
    for (uint32_t c = 0; c < count; c++) {
        const struct farm_place at = farm_iteration_last(it, columns[c]);
        list_step(g, &at, c);
        read_state(g, &at, g->state[0], c);
    }
    farm_iteration_gather(it, columns, 0, count);
    farm_executor_forward(g->executor, g->observations, sequence_of(g, 1, count), g->policy, g->value);
    float *last = it->value + (size_t)farm_algo_transitions(g->config.plan) * it->count;
    for (uint32_t c = 0; c < count; c++) {
        farm_iteration_finish(it, columns[c], g->policy + c * (size_t)it->head.outputs, &g->value[c]);
        last[columns[c]] = g->value[c];
    }
}

// ---- the optimiser ----

enum { BLOCK = 4096 }; // parameters whose gradients stay in a core's cache while they are summed

static size_t block_count(const struct farm_cpu_optimiser *o) {
    return (o->net->parameter_count + BLOCK - 1) / BLOCK;
}

enum farm_status farm_cpu_optimiser_make(struct farm_cpu_optimiser *o, uint32_t most, float *mask,
                                         struct farm_error *err) {
    o->gradients = calloc(most, sizeof *o->gradients);
    o->squares = calloc(block_count(o), sizeof *o->squares);
    o->masked = calloc(block_count(o), sizeof *o->masked);
    if (!o->gradients || !o->squares || !o->masked)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", o->net->parameter_count);
    o->trainable = farm_net_trainable(o->net, mask) ? mask : NULL;
    for (size_t i = 0; o->trainable && i < o->net->parameter_count; i++) o->masked[i / BLOCK] |= mask[i] == 0;
    return FARM_OK;
}

void farm_cpu_optimiser_free(struct farm_cpu_optimiser *o) {
    free(o->gradients);
    free(o->squares);
    free(o->masked);
}

// The parameters [from, end) of whole blocks that are one of several parts.
struct range {
    size_t from, end;
};
static struct range range_of(const struct farm_cpu_optimiser *o, uint32_t part, uint32_t parts) {
    const size_t blocks = block_count(o), end = blocks * (part + 1) / parts;
    return (struct range){blocks * part / parts * BLOCK, end == blocks ? o->net->parameter_count : end * BLOCK};
}

// Adds a block of gradients up into the first one, as a tree, neighbours first. Returns its parameters.
static size_t add_block(float *const *gradients, uint32_t gradient_count, size_t from, struct range range) {
    const size_t left = range.end - from, count = left < BLOCK ? left : BLOCK;
    for (size_t step = 1; step < gradient_count; step *= 2)
        for (size_t k = 0; k + step < gradient_count; k += 2 * step)
            farm_optimiser_add(gradients[k] + from, gradients[k + step] + from, count);
    return count;
}

// A range of the sum; and the squares of the result.
static void sum_range(void *context, uint32_t piece, uint32_t thread) {
    const struct farm_cpu_optimiser *o = context;
    const struct range range = range_of(o, piece, o->threads);
    for (size_t from = range.from; from < range.end; from += BLOCK) {
        const size_t count = add_block(o->gradients, o->gradient_count, from, range), block = from / BLOCK;
        float *sum = o->gradients[0] + from;
        for (size_t i = 0; i < count && o->trainable && o->masked[block]; i++)
            if (o->trainable[from + i] == 0) sum[i] = 0;
        o->squares[block] = farm_optimiser_squares(sum, count);
    }
}

// A range of a group's sum.
static void sum_group_range(void *context, uint32_t piece, uint32_t thread) {
    const struct farm_cpu_optimiser *o = context;
    const struct farm_pool_part part = farm_pool_part(o->pool, NULL, piece);
    const struct range range = range_of(o, part.part, part.parts);
    uint32_t first = 0;
    for (uint32_t g = 0; g < part.group; g++) first += o->of_group[g];
    for (size_t from = range.from; from < range.end; from += BLOCK)
        add_block(o->gradients + first, o->of_group[part.group], from, range);
}

// Leaves one gradient of each group that has any.
static void sum_groups(struct farm_cpu_optimiser *o) {
    uint32_t sums = 0;
    farm_pool_run(o->pool, o->threads, NULL, sum_group_range, o);
    for (uint32_t g = 0, first = 0; first < o->gradient_count; first += o->of_group[g++])
        if (o->of_group[g]) o->gradients[sums++] = o->gradients[first];
    o->gradient_count = sums;
}

static void update_range(void *context, uint32_t piece, uint32_t thread) {
    const struct farm_cpu_optimiser *o = context;
    const struct range range = range_of(o, piece, o->threads);
    farm_optimiser_update(&o->config, &o->state, &o->factors, range.from, range.end, o->params, o->gradients[0]);
    for (uint32_t k = 0; k < o->copy_count; k++)
        memcpy(o->copies[k] + range.from, o->params + range.from, (range.end - range.from) * sizeof *o->params);
}

void farm_cpu_optimiser_sum(struct farm_cpu_optimiser *o, struct farm_pool *pool, uint32_t threads) {
    o->pool = pool;
    o->threads = threads;
    if (o->gradient_count > o->of_group[0]) sum_groups(o);
    farm_pool_run(pool, threads, NULL, sum_range, o);
}

void farm_cpu_optimiser_step(struct farm_cpu_optimiser *o, float learning_rate, double scale,
                             struct farm_pass_stats *stats) {
    double squares = 0;
    for (size_t block = 0; block < block_count(o); block++) squares += o->squares[block];
    stats->grad_norm = scale * sqrt(squares);
    if (farm_optimiser_begin(&o->config, &o->state, learning_rate, stats->grad_norm, &o->factors)) {
        o->factors.gradient_scale *= (float)scale;
        farm_pool_run(o->pool, o->threads, NULL, update_range, o);
        return;
    }
    stats->grad_norm = INFINITY;
    stats->bad_step = o->state.step;
    stats->bad_tensor = farm_backend_bad_tensor(o->net, o->gradients[0]);
}
