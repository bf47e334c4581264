// native/pursuit: hunters of two teams (agent i is of team i % 2) chase a prey for each pair of them on a torus. A
// hunter at a prey leads its rival of the pair by one more, and the prey moves elsewhere. A lead of 3, or any at step
// 100, wins 1 and costs the rival 1; both leave. All start anywhere; prey stray in half of the steps. Runs in an actor.
#include <stdio.h>
#include <stdlib.h>

#include "envs/native/native.h"

enum { HUNTERS = 8, THINGS = 12, SIDE = 9, CELLS = SIDE * SIDE, SEEN = 3 * CELLS + 1, MOVES = 5 };
enum { LEAD = 3, STEPS = 100 };

struct pursuit_env {
    struct farm_native_random random;
    int hunters, things, steps, lead[HUNTERS], place[THINGS][2], left[THINGS]; // hunters, then prey
};

static int pursuit_read(const struct farm_env_config *config, struct pursuit_env *env, char *error, size_t n) {
    struct farm_native_option agents = {"agents", false, 2};
    if (farm_native_read_options(config, farm_env_pursuit.name, &agents, 1, error, n)) return -1;
    env->hunters = (int)agents.value, env->things = env->hunters / 2 * 3;
    const bool good = agents.value == 2 || agents.value == HUNTERS;
    return good ? 0 : (snprintf(error, n, "%s: agents must be 2 or %d", farm_env_pursuit.name, HUNTERS), -1);
}

static int pursuit_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t n) {
    struct pursuit_env env;
    if (pursuit_read(config, &env, error, n)) return -1;
    *spec = farm_native_spec("around", SEEN, MOVES);
    spec->agents = (uint32_t)env.hunters;
    return 0;
}

FARM_NATIVE_CREATE(pursuit)

static void pursuit_draw(const struct pursuit_env *env, float *seen) {
    memset(seen, 0, (size_t)env->hunters * SEEN * sizeof *seen);
    for (int i = 0; i < env->hunters; i++, seen += SEEN) {
        for (int t = 0; t < env->things; t++) {
            const int plane = t >= env->hunters ? 0 : 1 + (t % 2 == i % 2), middle = SIDE + SIDE / 2;
            const int row = env->place[t][0] - env->place[i][0], column = env->place[t][1] - env->place[i][1];
            seen[plane * CELLS + (row + middle) % SIDE * SIDE + (column + middle) % SIDE] += env->left[t] ? 0 : 1;
        }
        seen[SEEN - 1] = (float)env->lead[i] / LEAD;
    }
}

static void pursuit_reset(void *self, void *const *obs) {
    struct pursuit_env *env = self;
    *env = (struct pursuit_env){env->random, env->hunters, env->things, .steps = 0};
    for (int i = 0; i < 2 * env->things; i++) env->place[i / 2][i % 2] = (int)farm_native_below(&env->random, SIDE);
    pursuit_draw(env, obs[0]);
}

static uint32_t pursuit_step_agents(void *self, const void *actions, void *const *obs, float *rewards, uint8_t *ends) {
    struct pursuit_env *env = self;
    env->steps++;
    for (int t = 0; t < env->things; t++) { // stay, up, down, left, right
        const bool prey = t >= env->hunters;
        const int move = prey ? (int)farm_native_below(&env->random, 2 * MOVES) : ((const int32_t *)actions)[t];
        int *at = &env->place[t][move > 2], caught = 0;
        if (move > 0 && move < MOVES) *at = (*at + (move % 2 ? SIDE - 1 : 1)) % SIDE;
        for (int i = 0; prey && i < env->hunters; i++) {
            const int here = !env->left[i] && !memcmp(env->place[i], env->place[t], sizeof env->place[i]);
            env->lead[i] += here, env->lead[i ^ 1] -= here, caught += here;
        }
        for (int d = 0; d < 2 && caught; d++) env->place[t][d] = (int)farm_native_below(&env->random, SIDE);
    }
    for (int i = 0; i < env->hunters; i++) {
        const bool leaves = !env->left[i] && (env->steps == STEPS || abs(env->lead[i]) >= LEAD);
        rewards[i] = (float)(leaves ? (env->lead[i] > 0) - (env->lead[i] < 0) : 0);
        ends[i] = leaves ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
        env->left[i] |= leaves;
    }
    pursuit_draw(env, obs[0]);
    return 0;
}

static void pursuit_render(void *self, uint32_t size[2], uint8_t *rgb) {
    const struct pursuit_env *env = self;
    static const uint32_t colours[] = {0x40a0ff, 0xff5040, 0xffd040}; // the teams, prey
    for (int t = farm_native_clear(size, SIDE, SIDE, rgb) ? env->things : 0; t-- > 0;)
        farm_native_fill(rgb, SIDE, env->place[t][0], env->place[t][1], 1, 1, colours[t < env->hunters ? t % 2 : 2]);
}

const struct farm_env_api farm_env_pursuit = FARM_ENV_API_AGENTS(
    "native/pursuit", "two teams hunt prey on a torus: 2 or 8 agents (option agents), 5 moves; the winner gets 1",
    pursuit, free, pursuit_render);
