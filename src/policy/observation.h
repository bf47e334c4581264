// Where an observation's parts lie: the pointers that a network's executor takes (farm_net_pointers). For inference
// and training, on every backend. Runs on their threads; the lane is the validator's checked copy.
#ifndef FARM_POLICY_OBSERVATION_H
#define FARM_POLICY_OBSERVATION_H

#include "nn/net.h"
#include "ring/lane.h"
#include "ring/spec.h"

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
