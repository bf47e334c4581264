// Turns a remote learner's offer (bridge/wire.h) into this machine's recipe, and compares the environment found here
// with the learner's. The peer chooses no code: built-in environments are found by name; files and Python modules must
// be named on this machine's command line. Pure functions, called in the supervisor process.
#ifndef FARM_RUN_OFFER_H
#define FARM_RUN_OFFER_H

#include "bridge/wire.h"
#include "config/recipe.h"
#include "policy/describe.h"

struct farm_env;

// Adds the offer's environment, options, seed and shape to the recipe, which holds this machine's flags, and settles
// it. FARM_E_USAGE: --env is required here, or names another environment than the learner's, or an option names a file.
enum farm_status farm_run_offer_apply(const struct farm_wire_offer *offer, struct farm_recipe *recipe,
                                      struct farm_error *err);

// LOCAL: the policy by which this machine's actors answer. Allocates nothing. Errors of farm_policy_understand and
// farm_policy_check_ring.
enum farm_status farm_run_offer_policy(const struct farm_wire_offer *offer, struct farm_policy_description *policy,
                                       struct farm_error *err);

// Whether others may set an environment's option to this: a finite number, true, false, or a word that names no file.
bool farm_run_offer_is_data(const char *value);

// Steps of a node's rings: few, because the learner's rings keep what training needs. LOCAL: steps wait there for a
// round trip, at most as many as the learner's rings take, so these are as long: whatever the rate, the link or the
// learner is the limit and not the node's memory. Rings of replay are longer than that takes; a lane gets at most 16
// MiB, and at least two windows.
uint32_t farm_run_offer_steps(const struct farm_wire_offer *offer);

// Whether the environment found here has the spec of the learner's rings. FARM_E_INVALID names the first difference.
enum farm_status farm_run_offer_check(const struct farm_env *env, const struct farm_ring_spec *spec,
                                      struct farm_error *err);

#endif
