// See drawing.h.
#include "tools/shared/drawing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"
#include "envs/python.h"

const char *farm_drawing_remedy(void) {
    return farm_path_choose("run `make deps`", "run `farm setup`");
}

enum farm_status farm_drawing_find(const char *script, bool packages, struct farm_drawing *out,
                                   struct farm_error *err) {
    char package[PATH_MAX];
    const char *chosen = getenv("FARM_PYTHON");
    const bool free_choice = !chosen || !chosen[0];
    enum farm_status status = farm_path_package(package, sizeof package, err);
    if (status) return farm_fail_in(err, FARM_E_UNSUPPORTED, "no Python package actorfarm (`make` copies it)");
    snprintf(out->script, sizeof out->script, "%s/actorfarm/%s", package, script);
    status = farm_path_python(out->python, sizeof out->python, err);
    if (status == FARM_E_NOT_FOUND && free_choice && !packages) return strcpy(out->python, "python3"), FARM_OK;
    if (status == FARM_E_NOT_FOUND && free_choice && farm_path_installed())
        return farm_env_setup(out->python, sizeof out->python, err);
    if (status == FARM_E_NOT_FOUND && free_choice)
        return farm_fail_in(err, FARM_E_UNSUPPORTED, "needs Python with matplotlib: %s", farm_drawing_remedy());
    return status;
}
