// A small environment behind gym3's libenv interface that ends its process at an unknown option, as Procgen's does; its
// only option is `seed`. Three numbers, two actions, ten steps per episode.
#include "envs/libenv/libenv.h"

enum { NUMBERS = 3, STEPS = 10 };

struct strict {
    struct libenv_buffers *buffers;
    int32_t seed, step;
    float paid;
};

int libenv_version(void);
void *libenv_make(int environments, struct libenv_options options);
int libenv_get_tensortypes(void *handle, int space, struct libenv_tensor *tensors);
void libenv_set_buffers(void *handle, struct libenv_buffers *buffers);
void libenv_observe(void *handle);
void libenv_act(void *handle);
void libenv_close(void *handle);

int libenv_version(void) {
    return LIBENV_VERSION;
}

void *libenv_make(int environments, struct libenv_options options) {
    struct strict *own = calloc(1, sizeof *own);
    for (int32_t i = 0; i < options.count; i++) {
        const struct libenv_option *option = &options.items[i];
        if (strcmp(option->name, "seed") != 0) {
            printf("fatal: unused option %s\n", option->name);
            exit(1);
        }
        memcpy(&own->seed, option->data, sizeof own->seed);
    }
    return own;
}

int libenv_get_tensortypes(void *handle, int space, struct libenv_tensor *tensors) {
    if (space == LIBENV_INFOS) return 0;
    if (tensors && space == LIBENV_OBSERVATIONS)
        *tensors = (struct libenv_tensor){
            .name = "numbers", .scalar = LIBENV_REAL, .dtype = FARM_F32, .shape = {NUMBERS}, .rank = 1};
    if (tensors && space == LIBENV_ACTIONS)
        *tensors =
            (struct libenv_tensor){.name = "action", .scalar = LIBENV_DISCRETE, .dtype = FARM_I32, .high = {.i32 = 1}};
    return 1;
}

void libenv_set_buffers(void *handle, struct libenv_buffers *buffers) {
    ((struct strict *)handle)->buffers = buffers;
}

void libenv_observe(void *handle) {
    const struct strict *own = handle;
    float *numbers = own->buffers->obs[0];
    for (int i = 0; i < NUMBERS; i++) numbers[i] = (float)((own->seed % 100 + own->step) % (i + 2));
    *own->buffers->reward = own->paid;
    *own->buffers->first = own->step == 0;
}

void libenv_act(void *handle) {
    struct strict *own = handle;
    int32_t action;
    memcpy(&action, own->buffers->action[0], sizeof action);
    own->paid = (float)action;
    own->step = (own->step + 1) % STEPS;
}

void libenv_close(void *handle) {
    free(handle);
}
