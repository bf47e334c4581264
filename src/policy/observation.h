// What a network reads of an environment's observations, and where an observation's parts lie: the pointers that a
// network's executor takes (farm_net_pointers). For inference and training, on every backend and in actors. Runs on
// their threads; the lane is the validator's checked copy.
#ifndef FARM_POLICY_OBSERVATION_H
#define FARM_POLICY_OBSERVATION_H

#include "kernels/head.h"
#include "nn/net.h"
#include "ring/lane.h"

// Recipe keys of the same names (state_sigma: `sigma` is "state"); flags are 0 or 1.
struct farm_policy_options {
    uint64_t stack, lstm, lstm_layers, normalise_observations, normalise_rewards, last_inputs, state_sigma, squash,
        scale_actions, q, duelling; // these two: of the algorithm
};

// The network's input and outputs, a function of the spec and the options. FARM_E_UNSUPPORTED: no network reads these
// observations; FARM_E_USAGE: not with these options. The message names fields and what would work.
enum farm_status farm_policy_io(const struct farm_env_spec *env, const struct farm_policy_options *options,
                                struct farm_net_io *io, struct farm_error *err);

struct farm_head_options farm_policy_head_options(const struct farm_policy_options *options);

// Whether a field is an image and no action mask.
bool farm_policy_reads_image(const struct farm_field_spec *field);

// Whether the fields that a network reads exist, with the types and sizes that it expects.
bool farm_observation_fits(const struct farm_net *net, const struct farm_env_spec *env);

// Step n of environment `env`: rows [farm_net_pointers(net)], out. Frames from before the episode's start, and the last
// action and reward at its start, are NULL. The last action lies in step n - 1, which the caller's cursor holds.
void farm_observation_list(const struct farm_net *net, const struct farm_lane *lane, uint64_t n, uint32_t env,
                           const void **rows);

// Only the parts of the flat input: parts [net->io.input_count], out.
void farm_observation_parts(const struct farm_net *net, const struct farm_lane *lane, uint64_t n, uint32_t env,
                            const void **parts);

#endif
