// See paths.h.
#include "base/paths.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "farm_build.h"

// The folder of the running binary; "" without /proc.
static void program_folder(char *folder, size_t bytes) {
    ssize_t n = readlink("/proc/self/exe", folder, bytes - 1);
    folder[n > 0 ? n : 0] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
}

// The first candidate (up to NULL) that access(mode) grants; if the environment variable is set, its value is the only
// candidate. A leading '%' is replaced by the binary's folder.
static bool find_first(const char *variable, const char *const *candidates, int mode, char *path, size_t path_bytes) {
    const char *chosen = variable ? getenv(variable) : NULL;
    const char *const own[] = {chosen, NULL};
    char folder[PATH_MAX];
    program_folder(folder, sizeof folder);
    for (candidates = chosen && chosen[0] ? own : candidates; *candidates; candidates++) {
        const bool beside = **candidates == '%';
        int n = snprintf(path, path_bytes, "%s%s", beside ? folder : "", *candidates + beside);
        if (n > 0 && (size_t)n < path_bytes && access(path, mode) == 0) return true;
    }
    return false;
}

bool farm_path_recipes(char *path, size_t path_bytes) {
    static const char *const candidates[] = {"%/../recipes", "%/../../recipes", "%/../share/farm/recipes",
                                             FARM_DATA_DIR "/recipes", NULL};
    return find_first("FARM_RECIPES", candidates, R_OK, path, path_bytes);
}

bool farm_path_python(char *python, size_t python_bytes, char *pythonpath, size_t pythonpath_bytes) {
    static const char *const pythons[] = {"%/venv/bin/python", "%/../venv/bin/python", "%/../lib/farm/venv/bin/python",
                                          NULL};
    static const char *const packages[] = {"%/python/actorfarm/..", "%/../python/actorfarm/..", "%/../lib/farm/python",
                                           NULL};
    const bool found = find_first("FARM_PYTHON", pythons, X_OK, python, python_bytes);
    return find_first(NULL, packages, R_OK, pythonpath, pythonpath_bytes) && found;
}

bool farm_path_envs(char *path, size_t path_bytes) {
    static const char *const candidates[] = {"%/envs", "%/../lib/farm/envs", NULL};
    return find_first(NULL, candidates, R_OK | X_OK, path, path_bytes);
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
    static const char *const candidates[] = {"%/libfarm_cuda.so", "%/../lib/farm/libfarm_cuda.so", NULL};
    return find_first("FARM_CUDA_BACKEND", candidates, R_OK, path, path_bytes);
}

bool farm_path_gpu(void) {
    static const char *const signs[] = {"/dev/nvidiactl", "/dev/dxg", "/usr/bin/nvidia-modprobe", NULL};
    const char *chosen = getenv("FARM_CUDA_BACKEND");
    char path[32];
    return (chosen && chosen[0]) || find_first(NULL, signs, F_OK, path, sizeof path);
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
