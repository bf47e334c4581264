// Resets that the learner's side requests by the answer field `control` (ring/spec.h): see group.h.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor/group.h"
#include "envs/env.h"
#include "envs/plugin.h"
#include "kernels/random.h"

// An environment's options with its numbers in place.
struct choices {
    struct farm_env_option options[FARM_ENV_OPTIONS_MAX + FARM_CONTROL_NUMBERS_MAX];
    size_t count;
    char text[FARM_CONTROL_NUMBERS_MAX][32];
};

static void choose(const struct farm_group *group, uint32_t e, struct choices *choices) {
    const struct farm_actor_config *config = group->config;
    const double *numbers = group->numbers + (size_t)e * group->ring->number_count;
    choices->count = config->option_count;
    if (choices->count) memcpy(choices->options, config->options, choices->count * sizeof *choices->options);
    for (uint32_t i = 0; i < group->ring->number_count; i++) {
        size_t at = 0;
        if (isnan(numbers[i])) continue;
        while (at < choices->count && strcmp(choices->options[at].key, group->ring->numbers[i]) != 0) at++;
        if (at == choices->count) choices->count++;
        snprintf(choices->text[i], sizeof choices->text[i], "%.17g", numbers[i]);
        choices->options[at] = (struct farm_env_option){group->ring->numbers[i], choices->text[i]};
    }
}

// A name is an option's if the environment accepts one of some numbers.
enum farm_status farm_control_open(struct farm_group *group, struct farm_error *err) {
    static const double tries[] = {1, 0, 2, 0.5, 10, 100};
    const size_t names = group->ring->number_count, count = group->width * names;
    struct choices choices;
    struct farm_env_spec spec;
    group->numbers = malloc((count + 1) * sizeof *group->numbers);
    if (!group->numbers) return farm_fail(err, FARM_E_LIMIT, "no memory for the numbers of resets");
    for (size_t i = 0; i < count; i++) group->numbers[i] = NAN;
    for (size_t i = 0; i < names; group->numbers[i++] = NAN) {
        enum farm_status status = FARM_E_INVALID;
        for (size_t t = 0; t < sizeof tries / sizeof *tries && status; t++) {
            group->numbers[i] = tries[t];
            choose(group, 0, &choices);
            status = farm_plugin_spec(group->api, choices.options, choices.count, &spec, err);
        }
        if (status) return farm_fail_in(err, FARM_E_USAGE, "number '%s' of resets", group->ring->numbers[i]);
    }
    return FARM_OK;
}

// Makes environment e anew. The spec must stay that of the lane.
static enum farm_status remake(struct farm_group *group, uint32_t e, uint64_t seed, struct farm_error *err) {
    struct choices choices;
    struct farm_env_spec spec;
    void *env = NULL;
    choose(group, e, &choices);
    const struct farm_env_config one = {seed, choices.options, choices.count, group->obs_far ? FARM_ENV_OBS_FAR : 0};
    group->call->env = e;
    group->call->call = FARM_CALL_CREATE;
    enum farm_status status = farm_plugin_spec(group->api, one.options, one.option_count, &spec, err);
    spec.agents -= group->config->opponents;
    if (!status && memcmp(&spec, group->spec, sizeof spec) != 0)
        status = farm_fail(err, FARM_E_INVALID, "its numbers change the shape of observations or actions");
    if (!status) status = farm_plugin_create(group->api, &one, &env, err);
    group->call->call = FARM_CALL_NONE;
    const char *name = group->api->name;
    if (status)
        return farm_fail_in(err, FARM_E_INVALID, "%s cannot be reset: lane %u, number %u", name, group->lane, e);
    group->api->destroy(group->envs[e]);
    group->envs[e] = env;
    return FARM_OK;
}

enum farm_status farm_control_obey(struct farm_group *group, const struct farm_lane *lane, struct farm_error *err) {
    const struct farm_actor_config *config = group->config;
    const uint64_t n = farm_lane_actor_next(lane);
    const uint32_t count = group->ring->number_count, rows = group->width / group->env_count; // rows: an environment's
    enum farm_status status = FARM_OK;
    for (uint32_t e = 0; e < group->env_count && !status; e++) {
        const uint64_t *words = NULL;
        for (uint32_t row = e * rows; row < (e + 1) * rows && !words; row++) words = farm_lane_reset(lane, n, row);
        if (!words) continue;
        bool changes = words[FARM_CONTROL_DO] & FARM_CONTROL_RESEED;
        const uint64_t own_seed = farm_seed_derive(~config->seed, config->actor * FARM_LANES_MAX + group->lane, e, n);
        const uint64_t seed = changes ? words[FARM_CONTROL_SEED] : own_seed;
        for (uint32_t i = 0; i < count; i++) {
            double number, *own = &group->numbers[(size_t)e * count + i];
            memcpy(&number, &words[FARM_CONTROL_NUMBERS + i], sizeof number);
            changes |= !isnan(number) && number != *own;
            if (!isnan(number)) *own = number;
        }
        memset(group->ended + e * group->agents, true, group->agents);
        if (changes) status = remake(group, e, seed, err);
    }
    return status;
}
