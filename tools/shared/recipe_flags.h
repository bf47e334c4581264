// Recipes on command lines: every recipe key is a flag, and files supply what the flags leave open. `farm train`, `farm
// eval`, `farm fps` and `farm bridge` read their command lines here. Runs before any other process exists.
#ifndef FARM_TOOLS_SHARED_RECIPE_FLAGS_H
#define FARM_TOOLS_SHARED_RECIPE_FLAGS_H

#include <farm/env.h>

#include "base/cli.h"
#include "config/recipe.h"
#include "learner/checkpoint.h"

// farm_read_flags (command.h) with recipe keys as flags beside `cli`'s own (whose `other` functions are ignored). use:
// the command's, whose keys alone are flags; FARM_USE_TRAIN: all are. Recipes may hold the others. *recipe becomes
// the defaults with the flags over them; it is not settled.
bool farm_read_recipe_flags(const struct farm_cli *cli, enum farm_recipe_use use, int argc, char **argv,
                            const char **word, struct farm_recipe *recipe, int *exit_status);

// Sets a layer from a checkpoint's metadata: env, its options and the known keys of these uses (0: all keys).
// FARM_E_FORMAT. FARM_E_PERMISSION: it names code, no flag does, and others can change fd, the file that it was read
// from. path: for messages.
enum farm_status farm_recipe_flags_metadata(struct farm_recipe *recipe, enum farm_recipe_layer layer, unsigned uses,
                                            const struct farm_checkpoint_metadata *metadata, int fd, const char *path,
                                            struct farm_error *err);

// Puts the weaker layers under the flags: `file` (NULL: none), then `base`, a run's own recipe or a checkpoint
// that holds it (NULL: the one shipped for the environment, if there is one, the key `base` is not none, and `file` is
// not another shipped one); then settles the recipe, whose `base` becomes none: it needs nothing under it.
// FARM_E_PERMISSION as above, of a run's recipe or a checkpoint.
enum farm_status farm_recipe_flags_settle(struct farm_recipe *recipe, const char *file, const char *base,
                                          struct farm_error *err);

// Whether `farm train --env NAME` can train an environment of this spec (farm_run_trains); if not, err has the reason.
bool farm_recipe_flags_train(const char *name, const struct farm_env_spec *spec, struct farm_error *err);

#endif
