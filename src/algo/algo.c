// See algo.h.
#include "algo/algo.h"

#include <assert.h>
#include <string.h>

#include "kernels/gather.h"

enum farm_status farm_algo_plan_make(const struct farm_algo_config *config, struct farm_algo_plan *out,
                                     struct farm_error *err) {
    *out = (struct farm_algo_plan){
        .shape = {.stride = config->unroll,
                  .length = config->burn_in + config->unroll + 1,
                  .burn_in = config->burn_in,
                  .stack = config->stack},
        .epochs = 1,
        .bootstrap = 1,
        .recurrent = config->recurrent,
        .replay = config->algo->replay,
        .sync = config->regime == FARM_REGIME_AUTO ? config->algo->sync : config->regime == FARM_REGIME_SYNC,
    };
    out->sync &= !out->replay;
    out->source = out->replay ? "prioritised" : out->sync ? "sync" : "fifo";
    const enum farm_status status = config->algo->plan ? config->algo->plan(config, out, err) : FARM_OK;
    if (!status && (out->shape.length < out->shape.stride || !out->shape.stride || !out->epochs || !out->bootstrap ||
                    out->shape.length <= out->shape.burn_in + out->bootstrap))
        return farm_fail(err, FARM_E_INVALID, "%s: windows of %u steps every %u, %u epochs", config->algo->recipe.name,
                         out->shape.length, out->shape.stride, out->epochs);
    assert(!out->sparse || (farm_algo_transitions(out) == 1 && !out->recurrent));
    for (uint32_t k = 0; k < farm_algo_sets(out); k++) assert(out->sets[k].every > 0);
    return status;
}

struct farm_optimiser_config farm_algo_optimiser(const struct farm_algo_config *config) {
    struct farm_optimiser_config out = farm_optimiser_default(config->optimiser);
    const bool adam = config->optimiser == FARM_OPTIMISER_ADAM;
    out.first_decay = (float)config->adam_beta1;
    out.second_decay = (float)(adam ? config->adam_beta2 : config->rmsprop_decay);
    out.epsilon = (float)(adam ? config->adam_epsilon : config->rmsprop_epsilon);
    out.clip_norm = (float)config->grad_norm_clip;
    return out;
}

const float *farm_algo_discount(const struct farm_algo_config *config) {
    const struct farm_recipe_family *family = &config->algo->recipe;
    for (size_t k = 0; k < family->key_count; k++)
        if (strcmp(family->keys[k].name, "discount") == 0) return &config->option[k];
    return NULL;
}

float farm_algo_reward(const struct farm_algo_config *config, float reward) {
    return farm_reward_clip(reward, (float)config->reward_clip) * (float)config->reward_scale;
}

void farm_algo_targets(const struct farm_algo *algo, const struct farm_algo_rows *rows) {
    const int count = farm_algo_row_count(rows);
    assert(rows->steps >= 1 && rows->columns >= 1 && rows->head.outputs >= 1);
    for (int row = 0; row < count && algo->prepare; row++) {
        farm_algo_mask(rows, row);
        algo->prepare(rows, row);
    }
    for (int row = count; row < count + rows->bootstrap && algo->q; row++) farm_algo_mask(rows, row);
    for (int column = 0; column < rows->columns && algo->column; column++) algo->column(rows, column);
}

void farm_algo_gradients(const struct farm_algo *algo, const struct farm_algo_rows *rows, double *terms) {
    const int count = farm_algo_row_count(rows);
    for (int row = 0; row < count; row++) {
        float term[FARM_ALGO_TERMS_MAX] = {0};
        farm_algo_mask(rows, row);
        algo->row(rows, row, term);
        for (int k = 0; k < FARM_ALGO_TERMS_MAX; k++) terms[k] += (double)term[k];
    }
    for (int row = count; row < count + rows->bootstrap; row++) farm_algo_no_gradient(rows, row);
}

void farm_algo_differentiate(const struct farm_algo *algo, const struct farm_algo_rows *rows, double *terms) {
    struct farm_algo_rows whole = *rows;
    whole.bootstrap = rows->sparse || !rows->tail ? rows->columns : rows->tail * rows->columns;
    farm_algo_targets(algo, &whole);
    farm_algo_gradients(algo, &whole, terms);
}
