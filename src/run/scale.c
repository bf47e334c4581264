// See scale.h.
#include "run/scale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/registry.h"
#include "base/cli.h"

enum { VALUE_BYTES = 64 };

static double choose_scale(const struct farm_recipe *recipe, int64_t actors) {
    const double lanes = (double)(actors * recipe->lanes), total = (double)recipe->envs_total;
    if (lanes < 1 || total < 1 || recipe->layers[FARM_KEY_envs_total] == FARM_LAYER_FLAG) return 1;
    return ceil(total / lanes) * lanes / total;
}

// The index of a number's key, which may be the algorithm's, and its value as text.
static size_t find(const struct farm_recipe *recipe, const char *name, char *value) {
    size_t i = 0;
    while (strcmp(farm_recipe_key_at(recipe, i)->name, name) != 0 || !farm_recipe_counts(recipe, i)) i++;
    farm_recipe_value(recipe, i, value, VALUE_BYTES);
    return i;
}

// Unless a flag sets it.
static enum farm_status multiply(struct farm_recipe *recipe, const char *name, double by, struct farm_error *err) {
    char value[VALUE_BYTES];
    const size_t i = find(recipe, name, value);
    const enum farm_recipe_layer layer = recipe->layers[i];
    if (by == 1 || layer == FARM_LAYER_FLAG || strcmp(value, "0") == 0) return FARM_OK;
    const bool whole = farm_recipe_key_at(recipe, i)->type != FARM_RECIPE_DOUBLE;
    snprintf(value, sizeof value, whole ? "%.0f" : "%.6g", strtod(value, NULL) * by);
    return farm_recipe_set(recipe, layer, name, value, err);
}

enum farm_status farm_run_scale_apply(struct farm_recipe *recipe, int64_t actors, struct farm_error *err) {
    const struct farm_algo *algo = farm_algo_find(recipe->algo, err);
    const bool automatic = strcmp(recipe->scale, "auto") == 0;
    double scale = recipe->scaled ? recipe->scaled : 1;
    if (!algo) return FARM_E_NOT_FOUND;
    if (!automatic && (!farm_parse_double(recipe->scale, &scale) || scale < 1))
        return farm_fail(err, FARM_E_USAGE, "scale: must be auto, or 1 or more (got '%s')", recipe->scale);
    if (recipe->scaled && scale != recipe->scaled)
        return farm_fail(err, FARM_E_USAGE,
                         "--scale %s: this run's recipe already has scale %g, which it keeps: leave --scale out",
                         recipe->scale, recipe->scaled);
    if (automatic && !recipe->scaled && !recipe->deterministic) scale = choose_scale(recipe, actors);
    snprintf(recipe->scale, sizeof recipe->scale, "%.17g", scale);
    if (recipe->scaled) return FARM_OK;
    if (scale > 1 && !recipe->envs_total && !recipe->envs_per_actor)
        return farm_fail(err, FARM_E_USAGE, "--scale %s multiplies envs_total: set it, for one machine", recipe->scale);
    if (scale > 1 && !recipe->batch && recipe->envs_total && !algo->replay) recipe->batch = recipe->envs_total / 2;
    enum farm_status status = multiply(recipe, "envs_total", scale, err);
    if (!status) status = multiply(recipe, "envs_per_actor", scale, err);
    for (const struct farm_algo_scale *at = algo->scale; at && at->key && !status; at++)
        status = multiply(recipe, at->key, pow(scale, at->power), err);
    recipe->scaled = scale;
    return status ? farm_fail_in(err, status, "--scale %g", scale) : FARM_OK;
}

char *farm_run_scale_format(const struct farm_recipe *recipe, int64_t environments, char *text, size_t bytes) {
    const struct farm_algo *algo = farm_algo_find(recipe->algo, &(struct farm_error){0});
    size_t used =
        (size_t)snprintf(text, bytes, "scale %.4g: %lld environments", recipe->scaled, (long long)environments);
    char value[VALUE_BYTES];
    for (const struct farm_algo_scale *at = algo ? algo->scale : NULL; at && at->key && used < bytes; at++) {
        find(recipe, at->key, value);
        if (strcmp(value, "0") != 0) used += (size_t)snprintf(text + used, bytes - used, ", %s %s", at->key, value);
    }
    return text;
}

void farm_run_scale_divide(struct farm_recipe *recipe, int64_t expect, int64_t planned, int64_t agents) {
    const int64_t whole = (recipe->envs_total + agents - 1) / agents; // environments of `agents` agents
    if (whole < recipe->lanes) recipe->lanes = whole;
    const int64_t groups = whole / recipe->lanes;
    if (!recipe->actors) {
        recipe->actors = planned < groups ? planned : groups;
        while (recipe->actors > 1 && groups >= recipe->actors + expect && groups % (recipe->actors + expect))
            recipe->actors--;
    }
    const int64_t lanes = (recipe->actors + expect) * recipe->lanes;
    recipe->envs_per_actor = (whole + lanes - 1) / lanes * recipe->lanes * agents;
    recipe->envs_total = 0;
}
