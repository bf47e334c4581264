// See describe.h.
#include "policy/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/observation.h"

enum { VALUE_BYTES = FARM_ARITHMETIC_PLAN_BYTES, STACK_MAX = 32 };

enum {
    STACK,
    LSTM,
    LSTM_LAYERS,
    NORMALISE_OBSERVATIONS,
    NORMALISE_REWARDS,
    LAST_INPUTS,
    STATE_SIGMA,
    SQUASH,
    SCALE_ACTIONS,
    SEED,
    REFRESH,
    NUMBERS
};

// Between the lines `net` and `arithmetic`, in this order.
static const struct {
    const char *name;
    uint64_t least, most;
} keys[NUMBERS] = {[STACK] = {"stack", 1, STACK_MAX},
                   [LSTM] = {"lstm", 0, FARM_NET_LSTM_UNITS_MAX},
                   [LSTM_LAYERS] = {"lstm_layers", 0, FARM_NET_LSTM_LAYERS_MAX},
                   [NORMALISE_OBSERVATIONS] = {"normalise_observations", 0, 1},
                   [NORMALISE_REWARDS] = {"normalise_rewards", 0, 1},
                   [LAST_INPUTS] = {"last_inputs", 0, 1},
                   [STATE_SIGMA] = {"state_sigma", 0, 1},
                   [SQUASH] = {"squash", 0, 1},
                   [SCALE_ACTIONS] = {"scale_actions", 0, 1},
                   [SEED] = {"seed", 0, UINT64_MAX},
                   [REFRESH] = {"refresh", 1, UINT32_MAX}};

// ---- reading ----

// Copies the value of the line "key=value\n" at *at and moves *at behind it.
static enum farm_status take_line(const char **at, const char *key, char value[VALUE_BYTES], struct farm_error *err) {
    const size_t length = strlen(key);
    const char *from = *at + length + 1;
    if (strncmp(*at, key, length) != 0 || (*at)[length] != '=')
        return farm_fail(err, FARM_E_FORMAT, "the policy's text has no line '%s=' in its place", key);
    const char *end = strchr(from, '\n');
    if (!end || end - from >= VALUE_BYTES)
        return farm_fail(err, FARM_E_FORMAT, "the policy's text: the line '%s=' is too long or has no end", key);
    memcpy(value, from, (size_t)(end - from));
    value[end - from] = 0;
    *at = end + 1;
    return FARM_OK;
}

static enum farm_status take_number(const char **at, int k, uint64_t *out, struct farm_error *err) {
    char value[VALUE_BYTES];
    const enum farm_status status = take_line(at, keys[k].name, value, err);
    if (status) return status;
    const size_t digits = strspn(value, "0123456789");
    *out = strtoull(value, NULL, 10);
    if (digits && digits < 20 + (keys[k].most == UINT64_MAX) && !value[digits] && *out >= keys[k].least &&
        *out <= keys[k].most)
        return FARM_OK;
    return farm_fail(err, FARM_E_FORMAT, "the policy's text: %s is not a number from %" PRIu64 " to %" PRIu64,
                     keys[k].name, keys[k].least, keys[k].most);
}

static enum farm_status make_net(const char *name, const uint64_t *numbers, const struct farm_env_spec *env,
                                 struct farm_policy_description *out, struct farm_error *err) {
    const struct farm_policy_options options = {.stack = (int)numbers[STACK],
                                                .lstm = (int)numbers[LSTM],
                                                .lstm_layers = (int)numbers[LSTM_LAYERS],
                                                .normalise_observations = numbers[NORMALISE_OBSERVATIONS],
                                                .normalise_rewards = numbers[NORMALISE_REWARDS],
                                                .last_inputs = numbers[LAST_INPUTS],
                                                .head = out->head_options};
    struct farm_net_io io;
    const struct farm_net_spec *spec = farm_net_find(name, NULL);
    if (!spec) return farm_fail(err, FARM_E_NOT_FOUND, "the policy's text names a network that is unknown here");
    enum farm_status status = farm_policy_io(env, &options, &io, err);
    if (!status) status = farm_net_make(spec, &io, &out->net, err);
    if (status || out->net.parameter_count <= FARM_NET_PARAMETERS_MAX) return status;
    return farm_fail(err, FARM_E_LIMIT, "network %s has %zu parameters here: at most %d can be sent to actors",
                     spec->name, out->net.parameter_count, FARM_NET_PARAMETERS_MAX);
}

enum farm_status farm_policy_understand(const char *text, const struct farm_env_spec *env,
                                        struct farm_policy_description *out, struct farm_error *err) {
    char name[VALUE_BYTES], plan[VALUE_BYTES];
    uint64_t numbers[NUMBERS];
    enum farm_status status = take_line(&text, "net", name, err);
    for (int k = 0; k < NUMBERS && !status; k++) status = take_number(&text, k, &numbers[k], err);
    if (!status) status = take_line(&text, "arithmetic", plan, err);
    if (!status && *text) status = farm_fail(err, FARM_E_FORMAT, "the policy's text goes on after its last line");
    if (status) return status;
    *out = (struct farm_policy_description){.seed = numbers[SEED],
                                            .refresh = (uint32_t)numbers[REFRESH],
                                            .head_options = {.state_sigma = numbers[STATE_SIGMA],
                                                             .squash = numbers[SQUASH],
                                                             .scale = numbers[SCALE_ACTIONS]}};
    status = farm_head_make(env, out->head_options, &out->head, err);
    if (!status) status = make_net(name, numbers, env, out, err);
    if (status) return status;
    out->plain = !farm_arithmetic_read(&out->net, plan, &out->arithmetic);
    if (out->plain) out->arithmetic = farm_arithmetic_uniform(&out->net, FARM_PRECISION_F32, (struct farm_form){0});
    return FARM_OK;
}

// ---- writing ----

static bool reads_last_action(const struct farm_net_io *io) {
    bool found = false;
    for (int i = 0; i < io->input_count; i++) found |= io->inputs[i].source == FARM_SOURCE_LAST_ACTION;
    return found;
}

static bool normalises(const struct farm_net_io *io) {
    bool found = io->normalise_frames;
    for (int i = 0; i < io->input_count; i++) found |= io->inputs[i].normalise;
    return found;
}

// Whether both read and compute the same.
static bool same_nets(const struct farm_net *a, const struct farm_net *b) {
    bool same = memcmp(a->spec->layers, b->spec->layers, sizeof a->spec->layers) == 0 &&
                a->spec->separate == b->spec->separate && a->parameter_count == b->parameter_count &&
                a->io.input_count == b->io.input_count && a->io.images == b->io.images &&
                a->io.interleaved == b->io.interleaved && a->state == b->state;
    for (int i = 0; i < a->io.input_count && same; i++)
        same = a->io.inputs[i].kind == b->io.inputs[i].kind && a->io.inputs[i].source == b->io.inputs[i].source &&
               a->io.inputs[i].choices == b->io.inputs[i].choices;
    for (int i = 0; i < a->io.images && same; i++) same = a->io.image_source[i] == b->io.image_source[i];
    return same;
}

enum farm_status farm_policy_describe(const struct farm_policy_description *policy, const struct farm_env_spec *env,
                                      char text[FARM_POLICY_TEXT_BYTES], struct farm_error *err) {
    const struct farm_net *net = &policy->net;
    const struct farm_net_io *io = &net->io;
    const uint64_t numbers[NUMBERS] = {[STACK] = (uint64_t)io->stack,
                                       [LSTM] = (uint64_t)io->lstm,
                                       [LSTM_LAYERS] = (uint64_t)io->lstm_layers,
                                       [NORMALISE_OBSERVATIONS] = normalises(io),
                                       [NORMALISE_REWARDS] = io->normalise_rewards,
                                       [LAST_INPUTS] = reads_last_action(io),
                                       [STATE_SIGMA] = policy->head_options.state_sigma,
                                       [SQUASH] = policy->head_options.squash,
                                       [SCALE_ACTIONS] = policy->head_options.scale,
                                       [SEED] = policy->seed,
                                       [REFRESH] = policy->refresh};
    char plan[FARM_ARITHMETIC_PLAN_BYTES];
    struct farm_policy_description again;
    int used = snprintf(text, FARM_POLICY_TEXT_BYTES, "net=%.32s\n", net->spec->name);
    for (int k = 0; k < NUMBERS; k++)
        used +=
            snprintf(text + used, FARM_POLICY_TEXT_BYTES - (size_t)used, "%s=%" PRIu64 "\n", keys[k].name, numbers[k]);
    farm_arithmetic_write(net, &policy->arithmetic, plan);
    snprintf(text + used, FARM_POLICY_TEXT_BYTES - (size_t)used, "arithmetic=%s\n", plan);
    const enum farm_status status = farm_policy_understand(text, env, &again, err);
    if (status || (same_nets(net, &again.net) && !again.plain)) return status;
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
