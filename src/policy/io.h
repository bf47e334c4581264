// What a network reads of an environment's observations, and its outputs: a function of the environment's spec and of
// the recipe's options, the same in the process that trains and in those that act. Pure.
#ifndef FARM_POLICY_IO_H
#define FARM_POLICY_IO_H

#include <farm/env.h>

#include "kernels/head.h"
#include "nn/net.h"

// Recipe keys of the same names.
struct farm_policy_options {
    int stack, lstm, lstm_layers;
    bool normalise_observations, normalise_rewards, last_inputs;
    float log_sigma; // only the first parameters depend on it
    struct farm_head_options head;
};

// Whether a field is an image and no action mask.
bool farm_policy_reads_image(const struct farm_field_spec *field);

// FARM_E_UNSUPPORTED: no network reads these observations; FARM_E_USAGE: not with these options. The message names
// fields and what would work.
enum farm_status farm_policy_io(const struct farm_env_spec *env, const struct farm_policy_options *options,
                                struct farm_net_io *io, struct farm_error *err);

#endif
