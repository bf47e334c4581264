// See paths.h.
#include "run/paths.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "farm_build.h"

// The folder that the running binary lies in; "" where /proc does not say.
static void program_folder(char *folder, size_t bytes) {
    ssize_t n = readlink("/proc/self/exe", folder, bytes - 1);
    folder[n > 0 ? n : 0] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
}

// The first of `count` candidates that access(mode) grants; a leading '%' of a candidate stands for the binary's
// folder.
static bool first_there(const char *const *candidates, size_t count, int mode, char *path, size_t path_bytes) {
    char folder[PATH_MAX];
    program_folder(folder, sizeof folder);
    for (size_t i = 0; i < count; i++) {
        const char *rest = candidates[i] + (candidates[i][0] == '%' ? 1 : 0);
        int n = snprintf(path, path_bytes, "%s%s", candidates[i][0] == '%' ? folder : "", rest);
        if (n > 0 && (size_t)n < path_bytes && access(path, mode) == 0) return true;
    }
    return false;
}

bool farm_path_recipes(char *path, size_t path_bytes) {
    static const char *const candidates[] = {"%/../recipes", "%/../../recipes", "%/../share/farm/recipes",
                                             FARM_DATA_DIR "/recipes"};
    const char *chosen = getenv("FARM_RECIPES");
    if (chosen && chosen[0]) return first_there(&chosen, 1, R_OK, path, path_bytes);
    return first_there(candidates, sizeof candidates / sizeof *candidates, R_OK, path, path_bytes);
}

bool farm_path_python(char *python, size_t python_bytes, char *pythonpath, size_t pythonpath_bytes) {
    static const char *const pythons[] = {"%/venv/bin/python", "%/../venv/bin/python", "%/../lib/farm/venv/bin/python"};
    static const char *const packages[] = {"%/python/actorfarm/..", "%/../lib/farm/python"};
    const char *chosen = getenv("FARM_PYTHON");
    bool found = chosen && chosen[0]
                     ? first_there(&chosen, 1, X_OK, python, python_bytes)
                     : first_there(pythons, sizeof pythons / sizeof *pythons, X_OK, python, python_bytes);
    return first_there(packages, sizeof packages / sizeof *packages, R_OK, pythonpath, pythonpath_bytes) && found;
}

bool farm_path_envs(char *path, size_t path_bytes) {
    static const char *const candidates[] = {"%/envs", "%/../lib/farm/envs"};
    return first_there(candidates, sizeof candidates / sizeof *candidates, R_OK | X_OK, path, path_bytes);
}

bool farm_path_cache(const char *name, char *path, size_t path_bytes) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[PATH_MAX];
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(folder, sizeof folder, "%s/actorfarm", cache);
    else if (home && home[0] == '/')
        n = snprintf(folder, sizeof folder, "%s/.cache/actorfarm", home);
    if (n < 0 || (size_t)n >= sizeof folder || farm_folder_make(folder, NULL) != FARM_OK) return false;
    n = snprintf(path, path_bytes, "%s/%s", folder, name);
    return n > 0 && (size_t)n < path_bytes;
}

bool farm_path_cuda(char *path, size_t path_bytes) {
    static const char *const candidates[] = {"%/libfarm_cuda.so", "%/../lib/farm/libfarm_cuda.so"};
    const char *chosen = getenv("FARM_CUDA_BACKEND");
    if (chosen && chosen[0]) return first_there(&chosen, 1, R_OK, path, path_bytes);
    return first_there(candidates, sizeof candidates / sizeof *candidates, R_OK, path, path_bytes);
}

bool farm_path_gpu(void) {
    static const char *const signs[] = {"/dev/nvidiactl", "/dev/dxg", "/usr/bin/nvidia-modprobe"};
    const char *chosen = getenv("FARM_CUDA_BACKEND");
    char path[32];
    return (chosen && chosen[0]) || first_there(signs, sizeof signs / sizeof *signs, F_OK, path, sizeof path);
}

const char *farm_path_cut_name(char *text) {
    if (access(text, F_OK) == 0) return NULL;
    for (size_t i = strlen(text); i > 0; i--) {
        if (text[i] != ':') continue;
        text[i] = 0;
        if (access(text, F_OK) == 0) return text + i + 1;
        text[i] = ':';
    }
    return NULL;
}
