// See registry.h.
#include "algo/registry.h"

#include <stdio.h>
#include <string.h>

#include "algo/all.h"

#define DECLARE(name, code) extern const struct farm_algo farm_##name;
FARM_ALGO_LIST(DECLARE)

#define ENTRY(name, code) &farm_##name,
static const struct farm_algo *const list[] = {FARM_ALGO_LIST(ENTRY)};
enum { COUNT = sizeof list / sizeof *list };

const struct farm_algo *farm_algo_find(const char *name, struct farm_error *err) {
    char names[256] = "";
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(list[i]->recipe.name, name) == 0) return list[i];
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", list[i]->recipe.name);
    }
    farm_fail(err, FARM_E_NOT_FOUND, "algo: must be one of %s (got '%.40s')", names, name);
    return NULL;
}

const struct farm_recipe_family *farm_algo_family_at(size_t i) {
    return i < COUNT ? &list[i]->recipe : NULL;
}

enum farm_status farm_algo_configure(const struct farm_recipe *recipe, struct farm_algo_config *out,
                                     struct farm_error *err) {
    const struct farm_algo *algo = farm_algo_find(recipe->algo, err);
    if (!algo) return FARM_E_NOT_FOUND;
    *out = (struct farm_algo_config){
        .algo = algo,
        .unroll = (uint32_t)recipe->unroll,
        .batch = (uint32_t)recipe->batch,
        .recurrent = recipe->lstm > 0,
        .burn_in = recipe->lstm ? (uint32_t)recipe->burn_in : 0,
        .stack = recipe->last_inputs && recipe->stack < 2 ? 2 : (uint32_t)recipe->stack,
        .regime = (enum farm_regime)farm_recipe_choice(recipe, FARM_KEY_regime),
        .optimiser = (enum farm_optimiser_kind)farm_recipe_choice(recipe, FARM_KEY_optimiser),
#define ALGO_KEY(kind, key, ...) .key = (farm_setting_##kind)recipe->key,
#include "config/keys.h"
    };
    for (size_t k = 0; k < algo->recipe.key_count; k++) out->option[k] = (float)farm_recipe_family_value(recipe, k);
    return FARM_OK;
}
