// See group.h.
#include "actor/group.h"

#include <stdlib.h>

#include "kernels/random.h"

enum { ENDS = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED };

enum farm_status farm_group_make(const struct farm_actor_config *config, uint32_t lane_id, uint64_t generation,
                                 uint32_t width, struct farm_group *group, struct farm_error *err) {
    *group = (struct farm_group){.api = config->api, .width = width, .fresh = true};
    group->envs = calloc(width, sizeof *group->envs);
    if (!group->envs) return farm_fail(err, FARM_E_LIMIT, "no memory for %u environments", width);
    for (uint32_t e = 0; e < width; e++) {
        char why[256] = "it gave no reason";
        const struct farm_env_config env = {.seed = farm_seed_derive(config->seed, lane_id, e, generation),
                                            .options = config->options,
                                            .option_count = config->option_count};
        group->envs[e] = config->api->create(&env, why, sizeof why);
        if (!group->envs[e])
            return farm_fail(err, FARM_E_INVALID, "cannot make environment %s: %s", config->api->name, why);
    }
    return FARM_OK;
}

void farm_group_free(struct farm_group *group) {
    for (uint32_t e = 0; group->envs && e < group->width; e++)
        if (group->envs[e]) group->api->destroy(group->envs[e]);
    free(group->envs);
    *group = (struct farm_group){0};
}

enum farm_status farm_group_step(struct farm_group *group, struct farm_lane *lane, struct farm_error *err) {
    const struct farm_env_api *api = group->api;
    const uint64_t n = farm_lane_actor_next(lane);
    const bool fresh = group->fresh;
    const uint8_t *before = fresh ? NULL : farm_lane_flags(lane, n - 1);
    const uint8_t *action = fresh ? NULL : farm_lane_action(lane, n - 1, 0);
    uint8_t *flags = farm_lane_flags(lane, n);
    float *reward = farm_lane_reward(lane, n);
    void *obs[FARM_OBS_FIELDS_MAX];
    for (uint32_t f = 0; f < lane->obs_count; f++) obs[f] = farm_lane_obs(lane, f, n, 0);

    for (uint32_t e = 0; e < group->width; e++) {
        if (fresh || before[e] & FARM_STEP_LAST) {
            api->reset(group->envs[e], obs);
            reward[e] = 0;
            flags[e] = FARM_STEP_FIRST;
        } else {
            const uint32_t answer = api->step(group->envs[e], action + e * lane->action_bytes, obs, &reward[e]);
            if (answer & ~(uint32_t)(ENDS | FARM_STEP_GAME_END) || (answer && !(answer & ENDS)))
                return farm_fail(err, FARM_E_INVALID,
                                 "environment %s answered 0x%x to a step: not what farm/env.h says", api->name, answer);
            flags[e] = (uint8_t)(answer ? answer | FARM_STEP_LAST : 0);
        }
        for (uint32_t f = 0; f < lane->obs_count; f++) obs[f] = (uint8_t *)obs[f] + lane->obs_bytes[f];
    }
    group->fresh = false;
    return FARM_OK;
}
