// native/cartpole: balance a pole on a cart by pushing left or right; the dynamics, limits, rewards and the time limit
// of 500 steps are those of Gymnasium's CartPole-v1, in f64, Euler's method. Start states have the same distribution,
// but not the same random numbers. With the option `velocity` false the observation has no velocities: a policy
// then needs a memory. Runs in an actor process.
// Source: Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems",
// 1983; corrected equations of motion: Florian, "Correct equations for the dynamics of the cart-pole system", 2007.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "envs/native/native.h"

#define GRAVITY          9.8
#define POLE_MASS        0.1
#define TOTAL_MASS       (1.0 + POLE_MASS)
#define POLE_HALF_LENGTH 0.5
#define POLE_MASS_LENGTH (POLE_MASS * POLE_HALF_LENGTH)
#define PUSH             10.0
#define TICK_S           0.02
#define POSITION_MAX     2.4
#define ANGLE_MAX        (12 * 2 * M_PI / 360)
#define START_MAX        0.05
enum { STEPS_MAX = 500, RIGHT = 1, ACTIONS = 2 };

struct cartpole_env {
    struct farm_native_random random;
    struct farm_cartpole_state state;
    int steps;
    bool velocity; // whether the observation has velocities
};

static int cartpole_read(const struct farm_env_config *config, struct cartpole_env *env, char *error,
                         size_t error_bytes) {
    struct farm_native_option option = {.key = "velocity", .is_switch = true, .value = true};
    if (farm_native_read_options(config, farm_env_cartpole.name, &option, 1, error, error_bytes)) return -1;
    env->velocity = option.value;
    return 0;
}

static int cartpole_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                         size_t error_bytes) {
    struct cartpole_env env;
    if (cartpole_read(config, &env, error, error_bytes)) return -1;
    *spec = farm_native_spec("state", env.velocity ? 4 : 2, ACTIONS);
    return 0;
}

FARM_NATIVE_CREATE(cartpole)

bool farm_cartpole_tick(struct farm_cartpole_state *state, bool right) {
    const double force = right ? PUSH : -PUSH, cosine = cos(state->angle), sine = sin(state->angle);

    // Florian's equations 23 and 24 without friction.
    const double push = (force + POLE_MASS_LENGTH * state->angle_velocity * state->angle_velocity * sine) / TOTAL_MASS;
    const double angle_acceleration =
        (GRAVITY * sine - cosine * push) / (POLE_HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / TOTAL_MASS));
    const double acceleration = push - POLE_MASS_LENGTH * angle_acceleration * cosine / TOTAL_MASS;

    // Explicit Euler: positions move with the velocities before this tick.
    state->position += TICK_S * state->velocity;
    state->velocity += TICK_S * acceleration;
    state->angle += TICK_S * state->angle_velocity;
    state->angle_velocity += TICK_S * angle_acceleration;
    return fabs(state->position) > POSITION_MAX || fabs(state->angle) > ANGLE_MAX;
}

// obs: f32 position, velocity, angle, angular velocity, or position and angle.
static void cartpole_observe(const struct cartpole_env *env, float *obs) {
    *obs++ = (float)env->state.position;
    if (env->velocity) *obs++ = (float)env->state.velocity;
    *obs++ = (float)env->state.angle;
    if (env->velocity) *obs = (float)env->state.angle_velocity;
}

static void cartpole_reset(void *self, void *const *obs) {
    struct cartpole_env *env = self;
    env->state.position = farm_native_uniform(&env->random, -START_MAX, START_MAX);
    env->state.velocity = farm_native_uniform(&env->random, -START_MAX, START_MAX);
    env->state.angle = farm_native_uniform(&env->random, -START_MAX, START_MAX);
    env->state.angle_velocity = farm_native_uniform(&env->random, -START_MAX, START_MAX);
    env->steps = 0;
    cartpole_observe(env, obs[0]);
}

static uint32_t cartpole_step(void *self, const void *action, void *const *obs, float *reward) {
    struct cartpole_env *env = self;
    int32_t a;
    memcpy(&a, action, sizeof a);
    const bool fell = farm_cartpole_tick(&env->state, a == RIGHT);
    env->steps++;
    cartpole_observe(env, obs[0]);
    *reward = 1;
    if (fell) return FARM_STEP_TERMINATED | FARM_STEP_GAME_END;
    return env->steps >= STEPS_MAX ? FARM_STEP_TRUNCATED | FARM_STEP_GAME_END : 0;
}

// The track from end to end; the pole is drawn 1.4 times as long as it is.
static void cartpole_render(void *self, uint32_t size[2], uint8_t *rgb) {
    enum { WIDTH = 192, HEIGHT = 96, TRACK = 80, CART_WIDTH = 20, CART_HEIGHT = 10, POLE = 56 };
    const struct farm_cartpole_state *state = &((const struct cartpole_env *)self)->state;
    const double place = (1 + state->position / (POSITION_MAX * 1.2)) * WIDTH / 2, y = TRACK - CART_HEIGHT;
    const double x = fmin(fmax(place, CART_WIDTH / 2), WIDTH - CART_WIDTH / 2);
    size[0] = WIDTH;
    size[1] = HEIGHT;
    if (!rgb) return;
    farm_native_fill(rgb, WIDTH, 0, 0, HEIGHT, WIDTH, 0xffffff);
    farm_native_fill(rgb, WIDTH, TRACK, 0, 1, WIDTH, 0);
    farm_native_fill(rgb, WIDTH, TRACK - CART_HEIGHT, (int)x - CART_WIDTH / 2, CART_HEIGHT, CART_WIDTH, 0x202020);
    for (int row = 0; row < TRACK; row++)
        for (int column = 0; column < WIDTH; column++) {
            const double right = column + 0.5 - x, up = y - row - 0.5;
            const double along = right * sin(state->angle) + up * cos(state->angle),
                         beside = right * cos(state->angle) - up * sin(state->angle);
            if (along > -2 && along < POLE && fabs(beside) < 2)
                farm_native_fill(rgb, WIDTH, row, column, 1, 1, 0xc08040);
        }
}

const struct farm_env_api farm_env_cartpole = FARM_ENV_API_RENDER(
    "native/cartpole",
    "balance a pole on a cart (Gymnasium's CartPole-v1): 4 numbers, 2 actions, at most 500 steps; option velocity",
    cartpole, free, cartpole_render);
