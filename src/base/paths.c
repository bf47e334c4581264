// See paths.h.
#include "base/paths.h"

#include <errno.h>
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

bool farm_path_installed(void) {
    char marker[PATH_MAX];
    program_folder(marker, sizeof marker - sizeof "/gen/farm_build.h");
    return access(strcat(marker, "/gen/farm_build.h"), F_OK) != 0;
}

const char *farm_path_choose(const char *built, const char *installed) {
    return farm_path_installed() ? installed : built;
}

// Replaces `at`, a path that is denied, by the folder or file that is closed to this user; follows symbolic links.
static void find_closed(char *at, int mode) {
    char target[PATH_MAX], whole[2 * PATH_MAX];
    for (int links = 0; links < 16; links++) {
        char *end = at;
        do {
            end = end[0] ? strchr(end + 1, '/') : NULL;
            if (end) *end = 0;
            if (access(at, end ? X_OK : mode)) break;
            if (end) *end = '/';
        } while (end);
        const ssize_t n = readlink(at, target, sizeof target - 1);
        if (n <= 0) return;
        target[n] = 0;
        const char *slash = strrchr(at, '/');
        snprintf(whole, sizeof whole, "%.*s%s%s%s", target[0] == '/' || !slash ? 0 : (int)(slash + 1 - at), at, target,
                 end ? "/" : "", end ? end + 1 : "");
        if (strlen(whole) >= PATH_MAX) return;
        strcpy(at, whole);
    }
}

enum farm_status farm_path_check(const char *path, int mode, struct farm_error *err) {
    char closed[PATH_MAX];
    if (access(path, mode) == 0) return FARM_OK;
    if (errno != EACCES) return farm_fail_errno(err, FARM_E_NOT_FOUND, "%s", path);
    snprintf(closed, sizeof closed, "%s", path);
    find_closed(closed, mode);
    return farm_fail(err, FARM_E_PERMISSION, "%s: permission denied (%s is closed to this user)", path, closed);
}

// This user's folder in $VARIABLE/actorfarm, else in $HOME/FALLBACK/actorfarm. False: neither variable is set.
static bool user_folder(const char *variable, const char *fallback, char *folder, size_t bytes) {
    const char *chosen = getenv(variable), *home = getenv("HOME");
    int n = -1;
    if (chosen && chosen[0] == '/')
        n = snprintf(folder, bytes, "%s/actorfarm", chosen);
    else if (home && home[0] == '/')
        n = snprintf(folder, bytes, "%s/%s/actorfarm", home, fallback);
    return n > 0 && (size_t)n < bytes;
}

// Finds the first candidate (up to NULL) that exists; it must grant access(mode). If the environment variable is set,
// its value is the only candidate. A leading '%' is replaced by the binary's folder, '~' by this user's data folder.
static enum farm_status find_first(const char *variable, const char *const *candidates, int mode, char *path,
                                   size_t path_bytes, struct farm_error *err) {
    const char *chosen = variable ? getenv(variable) : NULL;
    const bool named = chosen && chosen[0];
    const char *const own[] = {chosen, NULL};
    char program[PATH_MAX], data[PATH_MAX];
    enum farm_status status = farm_fail(err, FARM_E_NOT_FOUND, "no place to look");
    program_folder(program, sizeof program);
    for (candidates = named ? own : candidates; *candidates && status == FARM_E_NOT_FOUND; candidates++) {
        const bool beside = !named && **candidates == '%', users = !named && **candidates == '~';
        if (users && !user_folder("XDG_DATA_HOME", ".local/share", data, sizeof data)) continue;
        const int n = snprintf(path, path_bytes, "%s%s",
                               beside  ? program
                               : users ? data
                                       : "",
                               *candidates + (beside || users));
        if (n > 0 && (size_t)n < path_bytes) status = farm_path_check(path, mode, err);
    }
    return status && named ? farm_fail_in(err, status, "%s", variable) : status;
}

// As find_first; which candidates depends on whether the binary is in its build folder.
static enum farm_status find(const char *variable, const char *const *built, const char *const *installed, int mode,
                             char *path, size_t path_bytes, struct farm_error *err) {
    return find_first(variable, farm_path_installed() ? installed : built, mode, path, path_bytes, err);
}

enum farm_status farm_path_recipes(char *path, size_t path_bytes, struct farm_error *err) {
    static const char *const built[] = {"%/../recipes", "%/../../recipes", NULL};
    static const char *const installed[] = {"%/../share/farm/recipes", FARM_DATA_DIR "/recipes", NULL};
    return find("FARM_RECIPES", built, installed, R_OK | X_OK, path, path_bytes, err);
}

enum farm_status farm_path_package(char *path, size_t path_bytes, struct farm_error *err) {
    static const char *const built[] = {"%/python/actorfarm/..", "%/../python/actorfarm/..", NULL};
    static const char *const installed[] = {"%/../lib/farm/python", "%/../../actorfarm/..", NULL}; // a wheel is PREFIX
    return find(NULL, built, installed, R_OK | X_OK, path, path_bytes, err);
}

enum farm_status farm_path_program(const char *name, char *path, size_t path_bytes, struct farm_error *err) {
    const char *list = getenv("PATH");
    for (size_t length; list && *list; list += length + !!list[length]) {
        length = strcspn(list, ":");
        if (list[0] == '/' && snprintf(path, path_bytes, "%.*s/%s", (int)length, list, name) < (int)path_bytes &&
            access(path, X_OK) == 0)
            return FARM_OK;
    }
    return farm_fail(err, FARM_E_NOT_FOUND, "%s: not found in PATH", name);
}

enum farm_status farm_path_python(char *path, size_t path_bytes, struct farm_error *err) {
    static const char *const built[] = {"%/venv/stamp", "%/../venv/stamp", NULL};
    static const char *const installed[] = {"%/../lib/farm/venv/stamp", "~/venv/stamp", NULL};
    static const char *const chosen[] = {NULL};
    const char *variable = getenv("FARM_PYTHON");
    if (variable && variable[0] && !strchr(variable, '/')) {
        const enum farm_status found = farm_path_program(variable, path, path_bytes, err);
        return found ? farm_fail_in(err, found, "FARM_PYTHON") : FARM_OK;
    }
    if (variable && variable[0]) return find_first("FARM_PYTHON", chosen, X_OK, path, path_bytes, err);
    enum farm_status status = find(NULL, built, installed, R_OK, path, path_bytes - sizeof "bin/python", err);
    if (status) return status;
    strcpy(strrchr(path, '/'), "/bin/python");
    return farm_path_check(path, X_OK, err);
}

enum farm_status farm_path_setup(char *path, size_t path_bytes, struct farm_error *err) {
    static const char *const built[] = {NULL}, *const installed[] = {"%/../lib/farm/venv.sh", NULL};
    return find(NULL, built, installed, R_OK, path, path_bytes, err);
}

enum farm_status farm_path_envs(char *path, size_t path_bytes, struct farm_error *err) {
    static const char *const built[] = {"%/envs", NULL}, *const installed[] = {"%/../lib/farm/envs", NULL};
    return find(NULL, built, installed, R_OK | X_OK, path, path_bytes, err);
}

bool farm_path_cache(const char *name, char *path, size_t path_bytes) {
    char folder[PATH_MAX];
    if (!user_folder("XDG_CACHE_HOME", ".cache", folder, sizeof folder)) return false;
    if (farm_folder_make(folder, NULL) != FARM_OK) return false;
    const int n = snprintf(path, path_bytes, "%s/%s", folder, name);
    return n > 0 && (size_t)n < path_bytes;
}

enum farm_status farm_path_cuda(char *path, size_t path_bytes, struct farm_error *err) {
    static const char *const built[] = {"%/libfarm_cuda.so", NULL};
    static const char *const installed[] = {"%/../lib/farm/libfarm_cuda.so", NULL};
    const enum farm_status status = find("FARM_CUDA_BACKEND", built, installed, R_OK, path, path_bytes, err);
    if (status == FARM_E_NOT_FOUND)
        return farm_fail_in(err, status,
                            "no CUDA backend (%s builds it where nvcc is; FARM_CUDA_BACKEND names another)",
                            farm_path_choose("`make deps`, then `make`,", FARM_PATH_INSTALL_ALL));
    return status;
}

bool farm_path_gpu(void) {
    static const char *const signs[] = {"/dev/nvidiactl", "/dev/dxg", "/usr/bin/nvidia-modprobe", NULL};
    const char *chosen = getenv("FARM_CUDA_BACKEND");
    char path[32];
    return (chosen && chosen[0]) || find_first(NULL, signs, F_OK, path, sizeof path, NULL) == FARM_OK;
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
