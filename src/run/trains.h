// Which environments can be trained, and what a network reads of their observations. A pure function of spec and
// recipe: `farm train` refuses by it, `farm envs` and `farm doctor` print what it says. And what a run that repeats bit
// for bit (recipe key `deterministic`) refuses and chooses.
#ifndef FARM_RUN_TRAINS_H
#define FARM_RUN_TRAINS_H

#include <farm/env.h>

#include "config/recipe.h"
#include "kernels/head.h"
#include "nn/net.h"

// Whether environments of this spec can be trained with this settled recipe: the shipped one for continuous actions is
// laid over it if they are, its `net` and `stack` become those in use, *io what the network reads. Of the observation's
// fields, u8 of 2 or 3 dims without choices (or with 256) are images, [height, width], [height, width, channels], or
// [channels, height, width] if the first dim is the smallest and at most 16; an action mask (kernels/head.h) is read by
// the head alone; other fields are parts of the flat input. FARM_E_UNSUPPORTED: no network supports the spaces;
// FARM_E_USAGE: the recipe's does not, or does not exist. The message names fields and what would work.
enum farm_status farm_run_trains(const struct farm_env_spec *env, struct farm_recipe *recipe, struct farm_net_io *io,
                                 struct farm_error *err);

// Keys `sigma`, `squash` and `scale_actions`.
struct farm_head_options farm_run_head_options(const struct farm_recipe *recipe);

// Settles the recipe of a deterministic run, which `listens` for other machines or not: synchronous, on the CPU, with
// one inference thread, without a time limit, numbers of updates chosen. FARM_E_USAGE: the user has set what
// contradicts it.
enum farm_status farm_run_deterministic_settle(struct farm_recipe *recipe, bool listens, struct farm_error *err);

#endif
