// See describe.h.
#include "policy/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { STACK_MAX = 32, LADDER_MAX = 1000, TEXT_LINES = 21 };

// Both how lines are written and how they are read; the arithmetic's line follows.
#define NUMBER "=%" PRIu64 "\n"
#define LINES                                                                                                          \
    "stack" NUMBER "lstm" NUMBER "lstm_layers" NUMBER "normalise_observations" NUMBER "normalise_rewards" NUMBER       \
    "last_inputs" NUMBER "state_sigma" NUMBER "squash" NUMBER "scale_actions" NUMBER "q" NUMBER "duelling" NUMBER      \
    "seed" NUMBER "refresh" NUMBER "epsilon=%a\nepsilon_end=%a\nladder=%a\nepsilon_versions" NUMBER                    \
    "environments" NUMBER "width" NUMBER

static enum farm_status make_net(const char *name, const struct farm_policy_options *options,
                                 const struct farm_env_spec *env, struct farm_net *net, struct farm_error *err) {
    struct farm_net_io io;
    struct farm_net_spec spec;
    enum farm_status status = farm_net_find(name, &spec, err);
    if (!status) status = farm_policy_io(env, options, &io, err);
    return status ? status : farm_net_make(&spec, &io, net, err);
}

static bool is_share(float x) {
    return x >= 0 && x <= 1;
}

enum farm_status farm_policy_understand(const char *text, const struct farm_env_spec *env,
                                        struct farm_policy_description *out, struct farm_error *err) {
    char name[FARM_NET_TEXT_BYTES], plan[FARM_ARITHMETIC_PLAN_BYTES];
    struct farm_policy_options o;
    struct farm_sampler sampler = {0};
    uint64_t refresh;
    int used = 0;
    const int read = sscanf(text, "net=%255[^\n]\n" LINES "arithmetic=%1023[^\n]%n", name, &o.stack, &o.lstm,
                            &o.lstm_layers, &o.normalise_observations, &o.normalise_rewards, &o.last_inputs,
                            &o.state_sigma, &o.squash, &o.scale_actions, &o.q, &o.duelling, &sampler.seed, &refresh,
                            &sampler.epsilon_start, &sampler.epsilon_end, &sampler.ladder, &sampler.epsilon_versions,
                            &sampler.environments, &sampler.width, plan, &used);
    if (read < TEXT_LINES || strcmp(text + used, "\n") != 0)
        return farm_fail(err, FARM_E_FORMAT, "a policy's text of %d lines: line %d is not as it must be", TEXT_LINES,
                         read + 1);
    const uint64_t flags = o.normalise_observations | o.normalise_rewards | o.last_inputs | o.state_sigma | o.squash |
                           o.scale_actions | o.q | o.duelling;
    if (o.stack < 1 || o.stack > STACK_MAX || o.lstm > FARM_NET_LSTM_UNITS_MAX ||
        o.lstm_layers > FARM_NET_LSTM_LAYERS_MAX || flags > 1 || refresh < 1 || refresh > UINT32_MAX ||
        !is_share(sampler.epsilon_start) || !is_share(sampler.epsilon_end) || !is_share(sampler.ladder / LADDER_MAX))
        return farm_fail(err, FARM_E_FORMAT, "a policy's text: a number is out of its range");
    *out = (struct farm_policy_description){
        .sampler = sampler, .refresh = (uint32_t)refresh, .head_options = farm_policy_head_options(&o)};
    enum farm_status status = farm_head_make(env, out->head_options, &out->head, err);
    if (!status) status = make_net(name, &o, env, &out->net, err);
    if (status) return status;
    out->plain = !farm_arithmetic_read(&out->net, plan, &out->arithmetic);
    if (out->plain) out->arithmetic = farm_arithmetic_uniform(&out->net, FARM_PRECISION_F32, (struct farm_form){0});
    return FARM_OK;
}

enum farm_status farm_policy_describe(const struct farm_policy_description *policy, const struct farm_env_spec *env,
                                      char text[FARM_POLICY_TEXT_BYTES], struct farm_error *err) {
    const struct farm_net *net = &policy->net;
    const struct farm_net_io *io = &net->io;
    const struct farm_head_options *head = &policy->head_options;
    const struct farm_sampler *sampler = &policy->sampler;
    const bool last_inputs = io->input_count && io->inputs[io->input_count - 1].source == FARM_SOURCE_LAST_REWARD;
    const uint64_t flags[] = {net->normalise >= 0, io->normalise_rewards, last_inputs, head->state_sigma,
                              head->squash,        head->scale,           head->q,     head->duelling};
    char plan[FARM_ARITHMETIC_PLAN_BYTES];
    struct farm_policy_description again;
    farm_arithmetic_write(net, &policy->arithmetic, plan);
    snprintf(text, FARM_POLICY_TEXT_BYTES, "net=%s\n" LINES "arithmetic=%s\n", net->spec.text, (uint64_t)io->stack,
             (uint64_t)io->lstm, (uint64_t)io->lstm_layers, flags[0], flags[1], flags[2], flags[3], flags[4], flags[5],
             flags[6], flags[7], sampler->seed, (uint64_t)policy->refresh, (double)sampler->epsilon_start,
             (double)sampler->epsilon_end, (double)sampler->ladder, sampler->epsilon_versions, sampler->environments,
             sampler->width, plan);
    const enum farm_status status = farm_policy_understand(text, env, &again, err);
    if (status || (again.net.parameter_count == net->parameter_count && again.net.op_count == net->op_count &&
                   again.net.io.input_count == io->input_count && !again.plain))
        return status;
    return farm_fail(err, FARM_E_UNSUPPORTED, "network %s cannot be described to actors", net->spec.text);
}

// ---- rings ----

enum farm_status farm_policy_check_ring(const struct farm_net *net, const struct farm_head *head,
                                        const struct farm_ring_spec *ring, struct farm_error *err) {
    const uint32_t state = farm_ring_spec_find(ring, "state"), floats = (uint32_t)net->state;
    struct farm_ring_spec own = {.answers = ring->answers, .env = ring->env};
    if (!farm_observation_fits(net, &ring->env) || head->outputs != net->io.actions ||
        head->free_outputs != net->io.free_outputs)
        return farm_fail(err, FARM_E_INVALID, "the network's input or output does not fit the environment's");
    farm_ring_spec_answers(&own);
    if (head->samples) farm_ring_spec_sample(&own);
    if (floats) farm_ring_spec_state(&own, floats, state ? ring->answer[state].every : 1);
    if (ring->answer_count == own.answer_count &&
        memcmp(ring->answer, own.answer, own.answer_count * sizeof *own.answer) == 0)
        return FARM_OK;
    return farm_fail(
        err, FARM_E_INVALID,
        "the rings' answer fields are not those of a policy with %d f32 of sample (squash) and %u of state",
        head->samples ? head->dims : 0, floats);
}
