// One name for an environment that goes by several: recipes, run folders, checkpoints and scores are found by it. A
// pure table, so that it needs no Python; the environments check whether the name exists.
#ifndef FARM_CONFIG_ENV_NAME_H
#define FARM_CONFIG_ENV_NAME_H

#include <stdbool.h>

// Replaces another spelling in place; never makes it longer: "ale/space_invaders" and "ale/SPACEINVADERS" become
// "ale/SpaceInvaders", "gym/gymnasium:Pendulum-v1" becomes "gym/Pendulum-v1". Leaves any other name as it is.
void farm_env_name_settle(char *name);

// Whether `name` is `title`, which has no underscore, in any case and with any underscores.
bool farm_env_name_alike(const char *name, const char *title);

#endif
