// Programs of our Python package that write files, for `farm plot`, `farm bw --svg` and `farm export`.
#ifndef FARM_TOOLS_SHARED_DRAWING_H
#define FARM_TOOLS_SHARED_DRAWING_H

#include <limits.h>
#include <stdbool.h>

#include "base/status.h"

struct farm_drawing {
    char python[PATH_MAX], start[PATH_MAX + 32]; // farm_python_start
    char **environment;                          // farm_python_environment
};

// Finds an interpreter and what starts a script; the caller frees the environment after success. wanted: a
// package of the Python environment, whose interpreter it is then; an installed copy makes the environment if it is
// missing (farm_env_setup). NULL: PATH's python3 is good enough. Errors: FARM_E_UNSUPPORTED with the remedy,
// FARM_E_PERMISSION; those of farm_env_setup.
enum farm_status farm_drawing_find(const char *wanted, struct farm_drawing *out, struct farm_error *err);

// What installs the packages: "run `make deps`".
const char *farm_drawing_remedy(void);

#endif
