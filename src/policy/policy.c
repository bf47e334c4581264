// See policy.h.
#include "policy/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "policy/observation.h"

struct farm_policy {
    struct farm_board_reader parameters;
    struct farm_policy_config config;
    struct farm_executor *executor;
    uint64_t version; // the executor's parameters; UINT64_MAX: none yet
    bool in_place;    // it reads the board's packed weights
    // a call's rows, [rows_max] each
    const void **observations; // [farm_net_pointers]
    float *policy, *value;     // [head.outputs], [1]
    uint8_t *flags;            // only a network with a state reads them
    float *state[2];           // [net->state] before and after the step
};

// An executor's memory lies on the node of the thread that makes it, so this thread moves to the CPUs meanwhile.
static enum farm_status make_executor(struct farm_policy *policy, struct farm_error *err) {
    const struct farm_policy_config *config = &policy->config;
    const struct farm_executor_config executor = {
        .net = config->net, .batch_max = (int)config->rows_max, .arithmetic = config->arithmetic};
    struct farm_bitmap before;
    struct farm_error ignored;
    const bool moved =
        config->cpus && !farm_bitmap_pinned(&before, &ignored) && !farm_bitmap_pin(config->cpus, &ignored);
    const enum farm_status status = farm_executor_create(&executor, &policy->executor, err);
    if (moved) (void)farm_bitmap_pin(&before, &ignored);
    return status;
}

static bool allocate(struct farm_policy *policy) {
    const struct farm_net *net = policy->config.net;
    const size_t rows = policy->config.rows_max, state = net->state ? (size_t)net->state : 1;
    policy->observations = calloc(rows * (size_t)farm_net_pointers(net), sizeof(void *));
    policy->policy = calloc(rows * (size_t)policy->config.head.outputs, sizeof(float));
    policy->value = calloc(rows, sizeof(float));
    policy->flags = calloc(rows, 1);
    for (int at = 0; at < 2; at++) policy->state[at] = calloc(rows * state, sizeof(float));
    return policy->observations && policy->policy && policy->value && policy->flags && policy->state[0] &&
           policy->state[1];
}

enum farm_status farm_policy_make(const struct farm_policy_config *config, struct farm_policy **out,
                                  struct farm_error *err) {
    struct farm_policy *policy = aligned_alloc(_Alignof(struct farm_policy), sizeof *policy);
    if (policy) *policy = (struct farm_policy){.config = *config, .version = UINT64_MAX};
    enum farm_status status =
        policy && allocate(policy)
            ? make_executor(policy, err)
            : farm_fail(err, FARM_E_LIMIT, "no memory for batches of %u observations", config->rows_max);
    if (!status) status = farm_board_attach(config->board, &policy->parameters, config->using, err);
    if (status) {
        farm_policy_free(policy);
        return status;
    }
    policy->in_place = config->packed_layout && config->refresh <= 1 &&
                       farm_executor_packed_bytes(policy->executor) <= config->board->packed_max &&
                       farm_executor_packed_layout(policy->executor) == config->packed_layout;
    *out = policy;
    return FARM_OK;
}

void farm_policy_free(struct farm_policy *policy) {
    if (!policy) return;
    if (policy->parameters.board) farm_board_unwatch(policy->config.board, &policy->parameters.own);
    farm_executor_destroy(policy->executor);
    free(policy->observations);
    free(policy->policy);
    free(policy->value);
    free(policy->flags);
    free(policy->state[0]);
    free(policy->state[1]);
    free(policy);
}

// Binds the board's newest weights, which stay pinned. Without those, the executor packs the newest parameters, unless
// it has them or keeps the older ones for step n.
static void take_newest(struct farm_policy *policy, uint64_t n) {
    const uint32_t refresh = policy->config.refresh;
    const bool keeps = refresh > 1 && n % refresh && policy->version != UINT64_MAX;
    if (!policy->in_place && (keeps || farm_board_version(&policy->parameters) == policy->version)) return;
    const float *params = farm_board_pin(&policy->parameters, &policy->version);
    if (params && policy->in_place) {
        farm_executor_bind(policy->executor, farm_board_packed(policy->config.board, params));
        return;
    }
    if (params) farm_executor_load(policy->executor, params);
    farm_board_unpin(&policy->parameters);
}

// Where the state before step n lies.
static void *state_at(const struct farm_policy_rows *item, uint64_t n) {
    return item->state ? item->state : farm_lane_answer_at(item->lane, item->lane->state + 1, n, item->env_from);
}

// Copies the state before step n, with the step's flags.
static void read_state(const struct farm_policy_rows *item, uint8_t *flags, float *state) {
    const struct farm_lane *lane = item->lane;
    memcpy(state, state_at(item, item->n), item->env_count * lane->answer[lane->state].bytes);
    memcpy(flags, farm_lane_flags(lane, item->n) + item->env_from, item->env_count);
}

static void write_state(const struct farm_policy_rows *item, const float *state) {
    memcpy(state_at(item, item->n + 1), state, item->env_count * item->lane->answer[item->lane->state].bytes);
}

// policy [env_count][outputs] and value [env_count], which masks and the head change.
static void write_answers(const struct farm_policy *p, const struct farm_policy_rows *item, float *policy,
                          float *value) {
    const struct farm_head *head = &p->config.head;
    const size_t outputs = (size_t)head->outputs;
    for (uint32_t i = 0; i < item->env_count; i++) {
        const uint32_t env = item->env_from + i;
        float *row = policy + i * outputs;
        if (head->mask_field)
            farm_head_mask(head, farm_lane_obs(item->lane, (uint32_t)head->mask_field - 1, item->n, env), row);
        farm_head_finish(head, row, &value[i]);
        farm_head_choose(head, &p->config.sampler, farm_random_stream(item->lane_id, env), item->n, row,
                         farm_lane_action(item->lane, item->n, env),
                         head->samples ? farm_lane_answer_at(item->lane, FARM_ANSWER_SAMPLE, item->n, env) : NULL);
        memcpy(farm_lane_policy(item->lane, item->n, env), row, outputs * sizeof(float));
        farm_lane_value(item->lane, item->n)[env] = value[i];
    }
    *farm_lane_version(item->lane, item->n) = p->version;
}

enum farm_status farm_policy_answer(struct farm_policy *policy, const struct farm_policy_rows *items, uint32_t count,
                                    struct farm_error *err) {
    const struct farm_net *net = policy->config.net;
    const size_t pointers = (size_t)farm_net_pointers(net), outputs = (size_t)policy->config.head.outputs,
                 state = (size_t)net->state;
    take_newest(policy, items[0].n);
    policy->config.sampler.version = policy->version;
    size_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (state) read_state(&items[i], policy->flags + rows, policy->state[0] + rows * state);
        for (uint32_t e = 0; e < items[i].env_count; e++, rows++)
            farm_observation_list(net, items[i].lane, items[i].n, items[i].env_from + e,
                                  policy->observations + rows * pointers);
    }
    assert(rows <= policy->config.rows_max);
    const struct farm_sequence sequence = {.steps = 1,
                                           .columns = (int)rows,
                                           .flags = policy->flags,
                                           .state_in = policy->state[0],
                                           .state_out = policy->state[1]};
    farm_executor_forward(policy->executor, policy->observations, sequence, policy->policy, policy->value);
    if (policy->in_place) farm_board_unpin(&policy->parameters);
    size_t row = 0;
    for (uint32_t i = 0; i < count; row += items[i++].env_count) {
        if (state) write_state(&items[i], policy->state[1] + row * state);
        write_answers(policy, &items[i], policy->policy + row * outputs, policy->value + row);
    }
    return FARM_OK;
}
