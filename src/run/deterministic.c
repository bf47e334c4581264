// See deterministic.h.
#include "run/deterministic.h"

#include <stdio.h>
#include <string.h>

// Steps of an environment between checkpoints, several games: at each of them the present games are cut off.
enum { STEPS_BETWEEN = 20000, METRICS_LINES = 100 };

static bool set_by_user(const struct farm_recipe *recipe, const char *key) {
    return farm_recipe_set_by(recipe, key, FARM_LAYER_FILE);
}

static enum farm_status refuse(const struct farm_recipe *recipe, bool listens, struct farm_error *err) {
    const char *why = NULL;
    if (recipe->seconds > 0 && set_by_user(recipe, "seconds"))
        why = "--seconds ends a run at another update each time: end it by --frames N, or by Ctrl-C at its next "
              "checkpoint";
    else if (listens)
        why = "--listen: actors of other machines join at any moment; leave one of the two out";
    else if (strcmp(recipe->regime, "async") == 0 && set_by_user(recipe, "regime"))
        why = "--regime async trains on windows in the order of their arrival: --regime sync, or leave it out";
    else if (strcmp(recipe->device, "cuda") == 0)
        why = "--device cuda: cuDNN and cuBLASLt promise no order of their sums; --device cpu";
    else if (recipe->infer_threads > 1)
        why = "--infer-threads above 1, which count frames and games in an order that their timing decides: "
              "--infer-threads 1, or leave it out";
    else if (recipe->eval_every && set_by_user(recipe, "eval_every"))
        why = "--eval-every plays beside the training, and its results come at any moment: keep all checkpoints "
              "(--checkpoints-keep 0) and play them by `farm eval` afterwards";
    return why ? farm_fail(err, FARM_E_USAGE, "--deterministic and %s", why) : FARM_OK;
}

enum farm_status farm_run_deterministic_settle(struct farm_recipe *recipe, bool listens, struct farm_error *err) {
    const enum farm_status status = refuse(recipe, listens, err);
    if (status) return status;
    recipe->seconds = 0;
    recipe->eval_every = 0;
    recipe->infer_threads = 1;
    snprintf(recipe->regime, sizeof recipe->regime, "sync");
    snprintf(recipe->device, sizeof recipe->device, "cpu");
    if (!recipe->checkpoint_updates) recipe->checkpoint_updates = 1 + (STEPS_BETWEEN - 1) / recipe->unroll;
    if (!recipe->metrics_updates) recipe->metrics_updates = 1 + (recipe->checkpoint_updates - 1) / METRICS_LINES;
    return FARM_OK;
}
