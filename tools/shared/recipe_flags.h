// Recipes on command lines: every recipe key is a flag, and what flags leave open comes from files. `farm train`, `farm
// eval` and `farm fps` read their command lines here; the environment's part of `farm bw` settles a recipe of one flag.
// Runs before any other process exists.
#ifndef FARM_TOOLS_SHARED_RECIPE_FLAGS_H
#define FARM_TOOLS_SHARED_RECIPE_FLAGS_H

#include "base/cli.h"
#include "config/recipe.h"

// farm_cli_parse with all recipe keys as flags beside `cli`'s own (whose `other` functions are not looked at). *recipe
// becomes the defaults and over them what the flags say; it is not settled. word: the one word that the command takes
// (untouched where there is none given), NULL: it takes none. *help: --help was given and has been answered.
enum farm_status farm_recipe_flags_parse(const struct farm_cli *cli, int argc, char **argv, const char **word,
                                         struct farm_recipe *recipe, bool *help, struct farm_error *err);

// Puts the weaker layers under the flags: `file` (NULL: none), then `base`, a run's own recipe, or where that is NULL
// the one shipped for the environment, if there is any; then settles the recipe.
enum farm_status farm_recipe_flags_settle(struct farm_recipe *recipe, const char *file, const char *base,
                                          struct farm_error *err);

#endif
