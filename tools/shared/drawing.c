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

static enum farm_status find_python(const char *wanted, struct farm_drawing *out, struct farm_error *err) {
    const char *chosen = getenv("FARM_PYTHON");
    const enum farm_status status = farm_path_python(out->python, sizeof out->python, err);
    if (status != FARM_E_NOT_FOUND || (chosen && chosen[0])) return status;
    if (!wanted && farm_path_program("python3", out->python, sizeof out->python, err))
        return farm_fail_in(err, FARM_E_UNSUPPORTED, "needs Python 3; FARM_PYTHON=... names one");
    if (!wanted) return FARM_OK;
    if (farm_path_installed()) return farm_env_setup(out->python, sizeof out->python, err);
    return farm_fail_in(err, FARM_E_UNSUPPORTED, "needs Python with %s: %s", wanted, farm_drawing_remedy());
}

enum farm_status farm_drawing_find(const char *wanted, struct farm_drawing *out, struct farm_error *err) {
    char package[PATH_MAX];
    enum farm_status status = farm_path_package(package, sizeof package, err);
    if (status) return farm_fail_in(err, FARM_E_UNSUPPORTED, "no Python package actorfarm (`make` copies it)");
    if ((status = find_python(wanted, out, err))) return status;
    farm_python_start(package, out->start, sizeof out->start);
    out->environment = farm_python_environment(package);
    return out->environment ? FARM_OK : farm_fail_errno(err, FARM_E_LIMIT, "cannot start %s", out->python);
}
