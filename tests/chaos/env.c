// The environment of the chaos runner writes observations that identify their writer, and checks that every action is
// the answer to its newest observation. Runs in an actor process. May kill or stop its process at any byte of
// an observation.
#include <stdio.h>
#include <stdlib.h>

#include "base/time.h"
#include "payload.h"

struct chaos_game {
    struct chaos_shared *shared;
    struct chaos_worker *worker;
    uint32_t lane, env; // numbers in the whole farm
    uint64_t generation, sequence, episode;
    uint64_t checksum; // the newest observation's
    uint64_t random;
};

static int chaos_spec(const struct farm_env_config *config, struct farm_env_spec *out, char *error,
                      size_t error_bytes) {
    const struct chaos_shape *shape = &chaos_shared_of_process()->shape;
    *out = (struct farm_env_spec){.obs_count = 1, .frames_per_step = 1, .agents = 1};
    out->obs[0] = (struct farm_field_spec){
        .name = "payload", .dtype = FARM_U8, .rank = 2, .dims = {shape->height, shape->row_bytes}};
    out->action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {CHAOS_ACTIONS}};
    return 0;
}

// The seed identifies lane, environment and the actor's life.
static bool identify(struct chaos_game *game, uint64_t seed) {
    const struct chaos_shape *shape = &game->shared->shape;
    const uint32_t actor = (uint32_t)chaos_worker_of_process();
    game->generation = __atomic_load_n(&game->shared->state.generation[actor], __ATOMIC_ACQUIRE);
    for (uint32_t l = 0; l < shape->lanes; l++)
        for (uint32_t e = 0; e < shape->width; e++) {
            game->lane = actor * shape->lanes + l;
            game->env = e;
            if (farm_seed_derive(shape->seed, game->lane, e, game->generation) == seed) return true;
        }
    return false;
}

static void *chaos_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct chaos_game *game = calloc(1, sizeof *game);
    if (!game) {
        snprintf(error, error_bytes, "no memory");
        return NULL;
    }
    game->shared = chaos_shared_of_process();
    game->worker = &game->shared->state.workers[chaos_worker_of_process()];
    game->random = config->seed;
    if (!identify(game, config->seed))
        chaos_violation(game->shared, "actor %d, life %llu: an environment's seed belongs to none of its lanes",
                        chaos_worker_of_process(), (unsigned long long)game->generation);
    return game;
}

static void destroy(void *env) {
    free(env);
}

// Whether the process dies or stops at this step.
static bool is_due(struct chaos_worker *worker) {
    if (!__atomic_load_n(&worker->env_steps, __ATOMIC_RELAXED)) return false;
    return __atomic_sub_fetch(&worker->env_steps, 1, __ATOMIC_RELAXED) == 0;
}

static void write_observation(struct chaos_game *game, uint8_t *out, uint32_t flags, int32_t action, float reward) {
    const uint32_t bytes = game->shared->shape.height * game->shared->shape.row_bytes;
    uint8_t observation[CHAOS_OBS_BYTES_MAX];
    struct chaos_payload payload = {.generation = game->generation,
                                    .sequence = game->sequence,
                                    .episode = game->episode,
                                    .lane = game->lane,
                                    .env = game->env,
                                    .flags = flags,
                                    .action = action,
                                    .reward = reward,
                                    .bytes = bytes};
    for (uint32_t at = sizeof payload; at < bytes; at += 8) {
        const uint64_t filler = random_next(&game->random);
        memcpy(observation + at, &filler, bytes - at < 8 ? bytes - at : 8);
    }
    memcpy(observation, &payload, sizeof payload);
    game->checksum = payload.checksum = chaos_checksum(observation, bytes);
    memcpy(observation, &payload.checksum, sizeof payload.checksum);
    game->sequence++;
    if (is_due(game->worker)) {
        memcpy(out, observation, chaos_random_below(&game->random, bytes + 1));
        chaos_strike(CHAOS_STEP);
    }
    memcpy(out, observation, bytes);
}

// The first call of an environment in this life of the actor: its lanes are taken over.
static void note_beginning(const struct chaos_game *game) {
    struct chaos_worker *worker = game->worker;
    if (__atomic_load_n(&worker->began, __ATOMIC_RELAXED) == game->generation + 1) return;
    __atomic_store_n(&worker->began, game->generation + 1, __ATOMIC_RELAXED);
    const uint64_t died_ns = __atomic_load_n(&worker->died_ns, __ATOMIC_RELAXED);
    if (game->generation && died_ns) chaos_sample(&game->shared->totals.again, farm_now_ns() - died_ns);
}

static void chaos_reset(void *env, void *const *obs) {
    struct chaos_game *game = env;
    note_beginning(game);
    if (game->sequence) game->episode++;
    write_observation(game, obs[0], FARM_STEP_FIRST, -1, 0);
}

static uint32_t draw_end(uint64_t *random) {
    enum { EPISODE = 24 }; // steps on average
    if (chaos_random_below(random, EPISODE)) return 0;
    const uint64_t bits = random_next(random);
    return (bits & 1 ? FARM_STEP_TERMINATED : FARM_STEP_TRUNCATED) | (bits & 2 ? FARM_STEP_GAME_END : 0);
}

static uint32_t chaos_step(void *env, const void *action, void *const *obs, float *reward) {
    struct chaos_game *game = env;
    const struct chaos_answer right = chaos_answer_to(game->checksum);
    int32_t got;
    memcpy(&got, action, sizeof got);
    if (got != right.action)
        chaos_violation(game->shared,
                        "lane %u environment %u, life %llu, its step %llu: action %d, the answer to its observation is "
                        "%d",
                        game->lane, game->env, (unsigned long long)game->generation, (unsigned long long)game->sequence,
                        got, right.action);
    chaos_add(&game->shared->totals.answers_checked, 1);
    const uint32_t end = draw_end(&game->random);
    *reward = (float)chaos_random_below(&game->random, 1 << 20);
    write_observation(game, obs[0], end ? end | FARM_STEP_LAST : 0, got, *reward);
    return end;
}

const struct farm_env_api chaos_env = FARM_ENV_API("chaos", "observations that identify their writer", chaos, destroy);
