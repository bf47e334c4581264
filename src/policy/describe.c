// See describe.h.
#include "policy/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { STACK_MAX = 32 };

// Both how lines are written and how they are read; the arithmetic's line follows.
#define NUMBER "=%" PRIu64 "\n"
#define LINES                                                                                                          \
    "stack" NUMBER "lstm" NUMBER "lstm_layers" NUMBER "normalise_observations" NUMBER "normalise_rewards" NUMBER       \
    "last_inputs" NUMBER "state_sigma" NUMBER "squash" NUMBER "scale_actions" NUMBER "seed" NUMBER "refresh" NUMBER

static enum farm_status make_net(const char *name, const struct farm_policy_options *options,
                                 const struct farm_env_spec *env, struct farm_net *net, struct farm_error *err) {
    struct farm_net_io io;
    const struct farm_net_spec *spec = farm_net_find(name, NULL);
    if (!spec) return farm_fail(err, FARM_E_NOT_FOUND, "the policy's text names a network that is unknown here");
    enum farm_status status = farm_policy_io(env, options, &io, err);
    if (!status) status = farm_net_make(spec, &io, net, err);
    if (status || net->parameter_count <= FARM_NET_PARAMETERS_MAX) return status;
    return farm_fail(err, FARM_E_LIMIT, "network %s has %zu parameters here: at most %d can be sent to actors",
                     spec->name, net->parameter_count, FARM_NET_PARAMETERS_MAX);
}

enum farm_status farm_policy_understand(const char *text, const struct farm_env_spec *env,
                                        struct farm_policy_description *out, struct farm_error *err) {
    char name[32], plan[FARM_ARITHMETIC_PLAN_BYTES];
    struct farm_policy_options o;
    uint64_t seed, refresh;
    int used = 0;
    const int read = sscanf(text, "net=%31s\n" LINES "arithmetic=%1023[^\n]%n", name, &o.stack, &o.lstm, &o.lstm_layers,
                            &o.normalise_observations, &o.normalise_rewards, &o.last_inputs, &o.state_sigma, &o.squash,
                            &o.scale_actions, &seed, &refresh, plan, &used);
    if (read < 13 || strcmp(text + used, "\n") != 0)
        return farm_fail(err, FARM_E_FORMAT, "a policy's text of 13 lines: line %d is not as it must be", read + 1);
    const uint64_t flags =
        o.normalise_observations | o.normalise_rewards | o.last_inputs | o.state_sigma | o.squash | o.scale_actions;
    if (o.stack < 1 || o.stack > STACK_MAX || o.lstm > FARM_NET_LSTM_UNITS_MAX ||
        o.lstm_layers > FARM_NET_LSTM_LAYERS_MAX || flags > 1 || refresh < 1 || refresh > UINT32_MAX)
        return farm_fail(err, FARM_E_FORMAT, "a policy's text: a number is out of its range");
    *out = (struct farm_policy_description){
        .seed = seed, .refresh = (uint32_t)refresh, .head_options = farm_policy_head_options(&o)};
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
    const bool last_inputs = io->input_count && io->inputs[io->input_count - 1].source == FARM_SOURCE_LAST_REWARD;
    const uint64_t flags[] = {net->normalise >= 0, io->normalise_rewards, last_inputs,
                              head->state_sigma,   head->squash,          head->scale};
    char plan[FARM_ARITHMETIC_PLAN_BYTES];
    struct farm_policy_description again;
    farm_arithmetic_write(net, &policy->arithmetic, plan);
    snprintf(text, FARM_POLICY_TEXT_BYTES, "net=%.31s\n" LINES "arithmetic=%s\n", net->spec->name, (uint64_t)io->stack,
             (uint64_t)io->lstm, (uint64_t)io->lstm_layers, flags[0], flags[1], flags[2], flags[3], flags[4], flags[5],
             policy->seed, (uint64_t)policy->refresh, plan);
    const enum farm_status status = farm_policy_understand(text, env, &again, err);
    if (status || (again.net.parameter_count == net->parameter_count && again.net.op_count == net->op_count &&
                   again.net.io.input_count == io->input_count && !again.plain))
        return status;
    return farm_fail(err, FARM_E_UNSUPPORTED, "network %.32s cannot be described to actors", net->spec->name);
}

// ---- rings ----

enum farm_status farm_policy_check_ring(const struct farm_net *net, const struct farm_head *head,
                                        const struct farm_ring_spec *ring, struct farm_error *err) {
    const size_t field_bytes = sizeof ring->answer[0];
    if (!farm_observation_fits(net, &ring->env) || head->outputs != net->io.actions ||
        head->free_outputs != net->io.free_outputs)
        return farm_fail(err, FARM_E_INVALID, "the network's input or output does not fit the environment's");
    struct farm_ring_spec with_sample = *ring;
    farm_ring_spec_sample(&with_sample);
    if (head->samples &&
        (ring->answer_count <= FARM_ANSWER_SAMPLE ||
         memcmp(&ring->answer[FARM_ANSWER_SAMPLE], &with_sample.answer[FARM_ANSWER_SAMPLE], field_bytes) != 0))
        return farm_fail(err, FARM_E_INVALID, "squash: the rings have no answer field 'sample' of %d f32", head->dims);
    const uint32_t state = farm_ring_spec_find(ring, "state"), floats = (uint32_t)net->state;
    struct farm_ring_spec with_state = *ring;
    with_state.answer_count = state;
    if (state) farm_ring_spec_state(&with_state, floats, ring->answer[state].every);
    if (!state != !floats || (state && (ring->answer_count != with_state.answer_count ||
                                        memcmp(&ring->answer[state], &with_state.answer[state],
                                               (ring->answer_count - state) * field_bytes) != 0)))
        return farm_fail(err, FARM_E_INVALID, "the network has a state of %u f32, and the rings' answer fields do not",
                         floats);
    return FARM_OK;
}
