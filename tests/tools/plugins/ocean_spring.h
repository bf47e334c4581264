// A game in the ocean convention for tests: pull a weight on a spring to rest. Two continuous actions, f32 observations
// written whole, allocated memory (init and c_close), functions that the plug-in does not use.
#include <math.h>
#include <stdlib.h>

typedef struct Log {
    float n;
} Log;

typedef struct Spring {
    Log log;
    float *observations;
    float *actions;
    float *rewards;
    unsigned char *terminals;
    float stiffness;
    float *state; // position, velocity
    int tick;
} Spring;

void a_window_that_is_not_there(Spring *env);

void init(Spring *env) {
    env->state = calloc(2, sizeof(float));
}

void c_close(Spring *env) {
    free(env->state);
}

void c_render(Spring *env) {
    a_window_that_is_not_there(env);
}

static void write_observations(Spring *env) {
    env->observations[0] = env->state[0];
    env->observations[1] = env->state[1];
    env->observations[2] = (float)env->tick / 50;
}

void c_reset(Spring *env) {
    env->state[0] = (float)rand() / (float)RAND_MAX * 2 - 1;
    env->state[1] = 0;
    env->tick = 0;
    write_observations(env);
}

void c_step(Spring *env) {
    const float force = env->actions[0] - env->actions[1] - env->stiffness * env->state[0];
    env->state[1] += 0.1f * force;
    env->state[0] += 0.1f * env->state[1];
    env->rewards[0] = -fabsf(env->state[0]);
    env->tick++;
    env->terminals[0] = env->tick == 50 || fabsf(env->state[0]) > 4;
    if (env->terminals[0]) {
        env->log.n++;
        c_reset(env);
        return;
    }
    write_observations(env);
}
