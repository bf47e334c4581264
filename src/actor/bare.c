// See bare.h.
#include "actor/bare.h"

#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "kernels/head.h"
#include "kernels/random.h"
#include "ring/spec.h"

enum { STEPS_PER_CLOCK = 256 }; // reading the clock costs as much as a cheap step; 256 expensive ones take 30 ms

static size_t round_to_line(size_t bytes) {
    return (bytes + FARM_CACHE_LINE - 1) / FARM_CACHE_LINE * FARM_CACHE_LINE;
}

// Observations field after field, as in a step of a lane, then actions; each begins at a cache line.
static enum farm_status make_memory(struct farm_bare *bare, const struct farm_env_spec *spec, struct farm_error *err) {
    size_t bytes = round_to_line((size_t)bare->width * bare->action_bytes);
    for (uint32_t f = 0; f < spec->obs_count; f++)
        bytes += round_to_line(bare->width * farm_field_bytes(&spec->obs[f]));
    bare->memory = aligned_alloc(FARM_CACHE_LINE, bytes);
    bare->obs = calloc((size_t)bare->width * spec->obs_count, sizeof *bare->obs);
    bare->envs = calloc(bare->width, sizeof *bare->envs);
    bare->ended = calloc(2, bare->width);
    if (!bare->memory || !bare->obs || !bare->envs || !bare->ended)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u environments", bare->width);
    memset(bare->memory, 0, bytes);
    memset(bare->ended, 1, bare->width);
    uint8_t *at = bare->memory;
    for (uint32_t f = 0; f < spec->obs_count; f++) {
        const size_t field = farm_field_bytes(&spec->obs[f]);
        for (uint32_t e = 0; e < bare->width; e++) bare->obs[e * spec->obs_count + f] = at + e * field;
        at += round_to_line(bare->width * field);
    }
    bare->actions = at;
    return FARM_OK;
}

static enum farm_status make_envs(const struct farm_actor_config *config, struct farm_bare *bare,
                                  struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t e = 0; e < bare->width && !status; e += bare->agents) {
        const struct farm_env_config one = {.seed = farm_seed_derive(config->seed, config->actor, e, 0),
                                            .options = config->options,
                                            .option_count = config->option_count};
        status = farm_plugin_create(bare->api, &one, &bare->envs[e], err);
    }
    return status;
}

enum farm_status farm_bare_open(const struct farm_actor_config *config, uint32_t width, struct farm_bare *bare,
                                struct farm_error *err) {
    struct farm_env_spec spec;
    *bare = (struct farm_bare){.api = config->api, .width = width};
    enum farm_status status = FARM_OK;
    if (!bare->api) {
        status = farm_plugin_open(config->plugin, config->plugin_env, &bare->plugin, err);
        bare->api = bare->plugin.api;
    }
    if (!status) status = farm_plugin_spec(bare->api, config->options, config->option_count, &spec, err);
    if (status) return status;
    bare->obs_count = spec.obs_count;
    bare->agents = spec.agents;
    if (farm_head_mask_field(&spec, &bare->mask, NULL)) bare->mask = -1;
    farm_random_actions_start(&spec.action, config->seed, &bare->source);
    bare->action_bytes = bare->source.dims * (uint32_t)sizeof(int32_t); // f32 is as long
    if ((status = make_memory(bare, &spec, err))) return status;
    return make_envs(config, bare, err);
}

// Steps every environment once.
static uint64_t step_all(struct farm_bare *bare) {
    const struct farm_env_api *api = bare->api;
    const uint32_t width = bare->width, obs_count = bare->obs_count, action_bytes = bare->action_bytes,
                   agents = bare->agents;
    uint64_t steps = 0;
    farm_random_actions_draw(&bare->source, width, bare->actions);
    if (bare->mask >= 0) farm_random_actions_permit(&bare->source, width, bare->obs[bare->mask], bare->actions);
    for (uint32_t e = 0; e < width; e += agents) {
        void *const *obs = &bare->obs[e * obs_count];
        if (bare->ended[e]) {
            api->reset(bare->envs[e], obs);
            bare->ended[e] = false;
            memset(bare->ended + width + e, false, agents);
            continue;
        }
        const uint8_t *action = (const uint8_t *)bare->actions + e * action_bytes;
        if (agents > 1 || !api->step) {
            float rewards[FARM_AGENTS_MAX];
            uint8_t ends[FARM_AGENTS_MAX];
            for (uint32_t a = 0; a < agents; a++) steps += !bare->ended[width + e + a];
            bare->ended[e] =
                farm_plugin_step(api, agents, bare->envs[e], action, obs, rewards, bare->ended + width + e, ends);
        } else {
            float reward;
            bare->ended[e] = api->step(bare->envs[e], action, obs, &reward) != 0;
            steps++;
        }
    }
    return steps;
}

uint64_t farm_bare_run(struct farm_bare *bare, uint64_t time_ns, uint64_t *taken_ns) {
    const uint32_t passes = bare->width < STEPS_PER_CLOCK ? STEPS_PER_CLOCK / bare->width : 1;
    const uint64_t start = farm_now_ns();
    uint64_t steps = 0;
    do {
        for (uint32_t p = 0; p < passes; p++) steps += step_all(bare);
        *taken_ns = farm_now_ns() - start;
    } while (*taken_ns < time_ns);
    return steps;
}

void farm_bare_close(struct farm_bare *bare) {
    for (uint32_t e = 0; bare->envs && e < bare->width; e++)
        if (bare->envs[e]) bare->api->destroy(bare->envs[e]);
    free(bare->envs);
    free(bare->obs);
    free(bare->memory);
    free(bare->ended);
    farm_plugin_close(&bare->plugin);
    *bare = (struct farm_bare){0};
}
