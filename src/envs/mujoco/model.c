// Models, shared by a process's environments: loaded once, freed with the last user. MuJoCo's messages go to stderr.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/mujoco/env.h"

enum { PATH_BYTES = 4096, WARNINGS_SHOWN = 5 };

struct mujoco_model {
    struct mujoco_model *next;
    mjModel *model;
    size_t users;
    char path[PATH_BYTES];
};

static struct {
    pthread_mutex_t lock;
    struct mujoco_model *first;
} models = {.lock = PTHREAD_MUTEX_INITIALIZER};

// MuJoCo's own handler writes a file into the working directory and calls exit.
static void print_message(const mjLogMessage *message) {
    static atomic_int printed;
    if (message->level < mjLOG_WARNING) return;
    if (message->level == mjLOG_WARNING && atomic_fetch_add(&printed, 1) >= WARNINGS_SHOWN) return;
    fprintf(stderr, "mujoco: %.*s\n", (int)strcspn(message->subject, "\n"), message->subject);
    if (message->level == mjLOG_ERROR) abort();
}

// Each load of Gymnasium's models warns of deprecated words.
static void print_error(const mjLogMessage *message) {
    if (message->level == mjLOG_ERROR) print_message(message);
}

// A file without a folder is Gymnasium's: in $FARM_MUJOCO_ASSETS, else in mujoco/ beside this object, else as built.
static void find_file(const char *file, char path[PATH_BYTES]) {
    const char *chosen = getenv("FARM_MUJOCO_ASSETS");
    Dl_info here;
    if (file[0] == '/' || file[0] == '.') {
        snprintf(path, PATH_BYTES, "%s", file);
    } else if (chosen && chosen[0]) {
        snprintf(path, PATH_BYTES, "%s/%s", chosen, file);
    } else {
        const char *slash = dladdr(&models, &here) && here.dli_fname ? strrchr(here.dli_fname, '/') : NULL;
        if (slash) {
            snprintf(path, PATH_BYTES, "%.*s/mujoco/%s", (int)(slash - here.dli_fname), here.dli_fname, file);
            if (access(path, R_OK) == 0) return;
        }
        const int beside = MUJOCO_ASSETS[0] != '/' && slash ? (int)(slash + 1 - here.dli_fname) : 0; // in a wheel
        snprintf(path, PATH_BYTES, "%.*s%s/%s", beside, beside ? here.dli_fname : "", MUJOCO_ASSETS, file);
    }
}

static struct mujoco_model *load_model(const char *path, char *error, size_t error_bytes) {
    char why[512] = "";
    struct mujoco_model *shared = calloc(1, sizeof *shared);
    if (!shared) {
        snprintf(error, error_bytes, "no memory for a model");
        return NULL;
    }
    snprintf(shared->path, sizeof shared->path, "%s", path);
    mju_setLogHandler(print_error);
    shared->model = mj_loadXML(path, NULL, why, sizeof why);
    mju_setLogHandler(print_message);
    if (shared->model) return shared;
    free(shared);
    snprintf(error, error_bytes, "cannot load the model %s (FARM_MUJOCO_ASSETS names the folder): %.*s", path,
             (int)strcspn(why, "\n"), why);
    return NULL;
}

struct mujoco_model *mujoco_model_acquire(const char *file, char *error, size_t error_bytes) {
    char path[PATH_BYTES];
    find_file(file, path);
    pthread_mutex_lock(&models.lock);
    struct mujoco_model *shared = models.first;
    while (shared && strcmp(shared->path, path) != 0) shared = shared->next;
    if (!shared && (shared = load_model(path, error, error_bytes))) {
        shared->next = models.first;
        models.first = shared;
    }
    if (shared) shared->users++;
    pthread_mutex_unlock(&models.lock);
    return shared;
}

void mujoco_model_release(struct mujoco_model *shared) {
    pthread_mutex_lock(&models.lock);
    if (--shared->users == 0) {
        struct mujoco_model **at = &models.first;
        while (*at != shared) at = &(*at)->next;
        *at = shared->next;
        mj_deleteModel(shared->model);
        free(shared);
    }
    pthread_mutex_unlock(&models.lock);
}

const mjModel *mujoco_model_of(const struct mujoco_model *shared) {
    return shared->model;
}
