// The built-in environments, one file each, and their common parts: options and random numbers. Runs in an actor.
#ifndef FARM_ENVS_NATIVE_NATIVE_H
#define FARM_ENVS_NATIVE_NATIVE_H

#include <farm/env.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/random.h"

// By index until NULL; by full name ("native/catch").
const struct farm_env_api *farm_native_env_at(size_t i);
const struct farm_env_api *farm_native_env_find(const char *name);

extern const struct farm_env_api farm_env_catch, farm_env_cartpole, farm_env_breakout, farm_env_menu, farm_env_juggle,
    farm_env_recall, farm_env_pursuit;

// Random numbers of one environment: draw `counter` of its seed's stream.
struct farm_native_random {
    uint64_t seed, counter;
};

// Uniform in (low, high).
static inline double farm_native_uniform(struct farm_native_random *random, double low, double high) {
    return low + (high - low) * (double)farm_random_uniform(random->seed, 0, random->counter++);
}

// Uniform in 0..n-1. The bias is below n * 2^-32.
static inline uint32_t farm_native_below(struct farm_native_random *random, uint32_t n) {
    const uint32_t bits = farm_random_block(random->seed, 0, random->counter++).word[0];
    return (uint32_t)((uint64_t)bits * n >> 32);
}

// For render: clears a picture of one colour, black. False: rgb is NULL.
static inline bool farm_native_clear(uint32_t size[2], uint32_t width, uint32_t height, uint8_t *rgb) {
    size[0] = width;
    size[1] = height;
    if (rgb) memset(rgb, 0, (size_t)width * height * 3);
    return rgb;
}

// For render: a rectangle of rgb[][width][3] in one colour, 0xRRGGBB.
static inline void farm_native_fill(uint8_t *rgb, int width, int row, int column, int rows, int columns,
                                    uint32_t colour) {
    for (int r = row; r < row + rows; r++)
        for (int c = column; c < column + columns; c++)
            for (int i = 0; i < 3; i++) rgb[(r * width + c) * 3 + i] = (uint8_t)(colour >> (16 - 8 * i));
}

// The cart and its pole: metres, metres/s, radians from upright, radians/s.
struct farm_cartpole_state {
    double position, velocity, angle, angle_velocity;
};

// One tick of 0.02 s with a push to the right or left. Returns whether the cart has left the track or the pole fell.
bool farm_cartpole_tick(struct farm_cartpole_state *state, bool right);

// An option and its default: a switch (0 or 1) or a whole number of at least 1.
struct farm_native_option {
    const char *key;
    bool is_switch;
    int64_t value;
};

// Sets the values of options[0..count). 0, or -1 with a message: an unknown key or an invalid value. `name`: whose.
int farm_native_read_options(const struct farm_env_config *config, const char *name, struct farm_native_option *options,
                             size_t count, char *error, size_t error_bytes);
// PREFIX_create of an environment: PREFIX_read reads its options into its first state.
#define FARM_NATIVE_CREATE(prefix_)                                                                                    \
    static void *prefix_##_create(const struct farm_env_config *config, char *error, size_t error_bytes) {             \
        struct prefix_##_env first = {.random.seed = config->seed};                                                    \
        if (prefix_##_read(config, &first, error, error_bytes)) return NULL;                                           \
        return farm_native_make(&first, sizeof first, farm_env_##prefix_.name, error, error_bytes);                    \
    }
// A spec of one f32 vector of `numbers` and one discrete action.
struct farm_env_spec farm_native_spec(const char *field, uint32_t numbers, uint32_t actions);
// A copy of an environment's first state, to be freed. NULL with a message: no memory.
void *farm_native_make(const void *state, size_t bytes, const char *name, char *error, size_t error_bytes);

#endif
