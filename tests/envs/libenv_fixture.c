// A small environment behind gym3's libenv interface, for tests/envs and, with -DSTRICT=1, tests/tools. Its clock is
// 1000 * episode + step; step n pays 100 * episode + n; an episode has `length` steps. Option `shape` chooses its
// spaces, many of them absurd; `env_name` chooses Procgen's; $FIXTURE_VERSION is libenv_version's result. STRICT: three
// numbers, two actions, ten steps; it ends its process at any option but `seed`, as Procgen's library does.
#include "envs/libenv/libenv.h"

int libenv_version(void);
void *libenv_make(int environments, struct libenv_options options);
int libenv_get_tensortypes(void *handle, int space, struct libenv_tensor *tensors);
void libenv_set_buffers(void *handle, struct libenv_buffers *buffers);
void libenv_observe(void *handle);
void libenv_act(void *handle);
void libenv_close(void *handle);

#ifndef STRICT
#define STRICT 0
#endif

enum { OPTIONS = 5, ACTIONS_MAX = 3, SEED = 4 };

struct fixture {
    char shape[32];
    float options[OPTIONS]; // length, scale, loud, characters of title, seed; -1: of another type
    struct libenv_tensor obs[9], action[2], info;
    int obs_count, action_count;
    struct libenv_buffers *buffers;
    int32_t episode, step;
    bool first;
    float paid, acted[ACTIONS_MAX];
};

int libenv_version(void) {
    const char *version = getenv("FIXTURE_VERSION");
    return version ? atoi(version) : LIBENV_VERSION;
}

static struct libenv_tensor tensor(const char *name, int32_t scalar, int32_t dtype, int32_t rank, int32_t size) {
    struct libenv_tensor made = {.scalar = scalar, .dtype = dtype, .rank = rank};
    snprintf(made.name, sizeof made.name, "%s", name);
    for (int32_t i = 0; i < rank && i < LIBENV_RANK_MAX; i++) made.shape[i] = size;
    return made;
}

static void make_spaces(struct fixture *own) {
    own->obs_count = 4;
    own->obs[0] = tensor("image", LIBENV_DISCRETE, FARM_U8, 3, 2);
    own->obs[1] = tensor("clock", LIBENV_DISCRETE, FARM_I32, 0, 0);
    own->obs[2] = tensor("what_the_options_said_in_detail", LIBENV_REAL, FARM_F32, 1, OPTIONS);
    own->obs[3] = tensor("acted", LIBENV_REAL, FARM_F32, 1, ACTIONS_MAX);
    own->action_count = 1;
    own->action[0] = own->action[1] = tensor("action", LIBENV_DISCRETE, FARM_I32, 0, 0);
    own->action[0].high.i32 = 6;
    own->info = tensor("mood", LIBENV_DISCRETE, FARM_I32, 0, 0);
}

static void deform_spaces(struct fixture *own) {
    const char *shape = own->shape;
    struct libenv_tensor *obs = &own->obs[0], *action = &own->action[0];
    if (STRICT) {
        *obs = tensor("numbers", LIBENV_REAL, FARM_F32, 1, 3);
        own->obs_count = 1;
        action->high.i32 = 1;
    }
    if (!strcmp(shape, "procgen")) {
        *obs = tensor("rgb", LIBENV_DISCRETE, FARM_U8, 3, 64);
        obs->shape[2] = 3;
        own->obs_count = 1;
        action->high.i32 = 14;
    }
    if (!strcmp(shape, "vector")) action->rank = 1, action->shape[0] = ACTIONS_MAX;
    if (!strcmp(shape, "real")) {
        *action = tensor("action", LIBENV_REAL, FARM_F32, 1, 2);
        action->low.f32 = -2, action->high.f32 = 0.5f;
    }
    if (!strcmp(shape, "ranges")) own->obs[0].high.u8 = 1, own->obs[1].high.i32 = 9999;
    if (!strcmp(shape, "no_obs")) own->obs_count = 0;
    if (!strcmp(shape, "crowd")) own->obs_count = 1000000000;
    if (!strcmp(shape, "negative")) own->obs_count = -1;
    if (!strcmp(shape, "huge")) *obs = tensor("image", LIBENV_DISCRETE, FARM_U8, 4, 60000);
    if (!strcmp(shape, "hollow")) obs->shape[1] = 0;
    if (!strcmp(shape, "backwards")) obs->shape[1] = -5;
    if (!strcmp(shape, "deep")) *obs = tensor("image", LIBENV_DISCRETE, FARM_U8, 5, 2);
    if (!strcmp(shape, "bottomless")) obs->rank = 1000;
    if (!strcmp(shape, "double")) obs->dtype = 7;
    if (!strcmp(shape, "real_bytes")) obs->scalar = LIBENV_REAL;
    if (!strcmp(shape, "endless_name")) memset(obs->name, 'x', sizeof obs->name);
    if (!strcmp(shape, "two_actions")) own->action_count = 2;
    if (!strcmp(shape, "byte_actions")) action->dtype = FARM_U8;
    if (!strcmp(shape, "actions_from_1")) action->low.i32 = 1;
    if (!strcmp(shape, "all_actions")) action->high.i32 = INT32_MAX;
    if (!strcmp(shape, "wide_actions")) *action = tensor("action", LIBENV_REAL, FARM_F32, 1, 129);
}

static void read_option(struct fixture *own, const struct libenv_option *option) {
    static const char *const names[OPTIONS] = {"length", "scale", "loud", "title", "seed"};
    static const int32_t dtypes[OPTIONS] = {FARM_I32, FARM_F32, FARM_U8, FARM_U8, FARM_I32};
    if (STRICT && strcmp(option->name, "seed") != 0) {
        printf("fatal: unused option %s\n", option->name);
        exit(1);
    }
    if (!strcmp(option->name, "shape"))
        snprintf(own->shape, sizeof own->shape, "%.*s", option->count, (const char *)option->data);
    if (!strcmp(option->name, "env_name")) snprintf(own->shape, sizeof own->shape, "procgen");
    for (int i = 0; i < OPTIONS; i++) {
        if (strcmp(option->name, names[i]) != 0) continue;
        own->options[i] = -1;
        if (option->dtype != dtypes[i] || (i != 3 && option->count != 1)) continue;
        if (option->dtype == FARM_I32) own->options[i] = (float)*(const int32_t *)option->data;
        if (option->dtype == FARM_F32) own->options[i] = *(const float *)option->data;
        if (i == 2) own->options[i] = *(const uint8_t *)option->data;
        if (i == 3) own->options[i] = (float)option->count;
    }
}

void *libenv_make(int environments, struct libenv_options options) {
    struct fixture *own = calloc(1, sizeof *own);
    own->options[0] = STRICT ? 10 : 3;
    own->first = true;
    for (int32_t i = 0; i < options.count; i++) read_option(own, &options.items[i]);
    make_spaces(own);
    deform_spaces(own);
    if (environments == 1 && strcmp(own->shape, "none") != 0) return own;
    free(own);
    return NULL;
}

int libenv_get_tensortypes(void *handle, int space, struct libenv_tensor *tensors) {
    const struct fixture *own = handle;
    const struct libenv_tensor *from = space == LIBENV_OBSERVATIONS ? own->obs
                                       : space == LIBENV_ACTIONS    ? own->action
                                                                    : &own->info;
    const int count = space == LIBENV_OBSERVATIONS ? own->obs_count : space == LIBENV_ACTIONS ? own->action_count : 1;
    if (tensors) memcpy(tensors, from, (size_t)count * sizeof *tensors);
    return count;
}

void libenv_set_buffers(void *handle, struct libenv_buffers *buffers) {
    ((struct fixture *)handle)->buffers = buffers;
}

void libenv_observe(void *handle) {
    const struct fixture *own = handle;
    const int32_t clock = 1000 * own->episode + own->step;
    memset(own->buffers->obs[0], clock % 251, libenv_bytes(&own->obs[0]));
    memset(own->buffers->info[0], 0, sizeof(int32_t));
    *own->buffers->reward = own->paid;
    *own->buffers->first = own->first;
    for (int i = 0; STRICT && i < 3; i++)
        ((float *)own->buffers->obs[0])[i] = (float)(((int32_t)own->options[SEED] % 100 + own->step) % (i + 2));
    if (own->obs_count == 1) return;
    memcpy(own->buffers->obs[1], &clock, sizeof clock);
    memcpy(own->buffers->obs[2], own->options, sizeof own->options);
    memcpy(own->buffers->obs[3], own->acted, sizeof own->acted);
}

void libenv_act(void *handle) {
    struct fixture *own = handle;
    const bool real = own->action[0].scalar == LIBENV_REAL;
    for (size_t i = 0; i < libenv_elements(&own->action[0]); i++)
        own->acted[i] =
            real ? ((const float *)own->buffers->action[0])[i] : (float)((const int32_t *)own->buffers->action[0])[i];
    own->step++;
    own->paid = STRICT ? own->acted[0] : (float)(100 * own->episode + own->step);
    own->first = own->step == (int32_t)own->options[0];
    if (own->first) own->episode++, own->step = 0;
}

void libenv_close(void *handle) {
    free(handle);
}
