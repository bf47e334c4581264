// What a learner elsewhere offers to a node (bridge/wire.h), as this machine's recipe, and whether the environment that
// was found here is the learner's. The peer chooses no code: environments of our own are taken by name; files and
// Python modules are those that this machine's command line names. Pure functions, in the supervisor process.
#ifndef FARM_RUN_OFFER_H
#define FARM_RUN_OFFER_H

#include "bridge/wire.h"
#include "config/recipe.h"

struct farm_env;

// Fills the recipe, which holds what this machine's flags say, with the offer: environment, options, seed, shape, and
// settles it. FARM_E_USAGE: --env is wanted here, or names another environment than the learner's, or an option names a
// file; FARM_E_UNSUPPORTED: answers that no actor here gives.
enum farm_status farm_run_offer_apply(const struct farm_wire_offer *offer, struct farm_recipe *recipe,
                                      struct farm_error *err);

// Steps of a node's rings: a few, because the learner's rings keep what training needs. LOCAL: two windows at least,
// which cover two round trips.
uint32_t farm_run_offer_steps(const struct farm_wire_offer *offer);

// Whether the environment found here has the spec of the learner's rings. FARM_E_INVALID names the first difference.
enum farm_status farm_run_offer_check(const struct farm_env *env, const struct farm_ring_spec *spec,
                                      struct farm_error *err);

#endif
