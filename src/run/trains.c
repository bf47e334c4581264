// See trains.h.
#include "run/trains.h"

#include <stdio.h>
#include <string.h>

#include "algo/registry.h"
#include "policy/observation.h"

static bool has_images(const struct farm_env_spec *env) {
    bool found = false;
    for (uint32_t f = 0; f < env->obs_count; f++) found |= farm_policy_reads_image(&env->obs[f]);
    return found;
}

static enum farm_status make_net(const char *text, const struct farm_net_io *io, struct farm_error *err) {
    struct farm_net_spec spec;
    struct farm_net made;
    const enum farm_status status = farm_net_find(text, &spec, err);
    return status ? status : farm_net_make(&spec, io, &made, err);
}

// The net of key net "auto": for frames, "shallow", or "deep" if they are too small for its first layers.
static const char *choose_net(const struct farm_net_io *io) {
    if (!io->frame_channels) return "mlp";
    return make_net("shallow", io, NULL) ? "deep" : "shallow";
}

static struct farm_policy_options policy_options(const struct farm_recipe *recipe) {
    const struct farm_algo *algo = farm_algo_find(recipe->algo, NULL);
    uint64_t duelling = 0;
    for (size_t k = 0; algo && algo->q && k < algo->recipe.key_count; k++)
        if (strcmp(algo->recipe.keys[k].name, "duelling") == 0) duelling = farm_recipe_family_value(recipe, k) != 0;
    return (struct farm_policy_options){.stack = (uint64_t)recipe->stack,
                                        .lstm = (uint64_t)recipe->lstm,
                                        .lstm_layers = (uint64_t)recipe->lstm_layers,
                                        .normalise_observations = recipe->normalise_observations,
                                        .normalise_rewards = recipe->normalise_rewards,
                                        .last_inputs = recipe->last_inputs,
                                        .state_sigma = strcmp(recipe->sigma, "state") == 0,
                                        .squash = recipe->squash,
                                        .scale_actions = recipe->scale_actions,
                                        .q = algo && algo->q,
                                        .duelling = duelling};
}

struct farm_head_options farm_run_head_options(const struct farm_recipe *recipe) {
    const struct farm_policy_options options = policy_options(recipe);
    return farm_policy_head_options(&options);
}

enum farm_status farm_run_trains(const struct farm_env_spec *env, struct farm_recipe *recipe, struct farm_net_io *io,
                                 struct farm_error *err) {
    enum farm_status status =
        farm_recipe_vary(recipe, env->action.kind == FARM_ACTION_CONTINUOUS, has_images(env), err);
    if (status) return status;
    // A shipped recipe stacks the frames of its family; the user may have chosen an observation without frames.
    if (!has_images(env) && !farm_recipe_set_by(recipe, "stack", FARM_LAYER_FILE)) recipe->stack = 1;
    const struct farm_policy_options options = policy_options(recipe);
    status = farm_policy_io(env, &options, io, err);
    io->bias_start = (float)recipe->log_sigma;
    if (status) return status;
    // Likewise its net.
    const bool shipped =
        farm_recipe_set_by(recipe, "net", FARM_LAYER_SHIPPED) && !farm_recipe_set_by(recipe, "net", FARM_LAYER_FILE);
    if (strcmp(recipe->net, "auto") == 0 || (shipped && make_net(recipe->net, io, err)))
        snprintf(recipe->net, sizeof recipe->net, "%s", choose_net(io));
    return make_net(recipe->net, io, err) ? farm_fail_in(err, FARM_E_USAGE, "net") : FARM_OK;
}

// ---- deterministic runs ----

// Steps of an environment between checkpoints, several games: at each of them the present games are cut off.
enum { STEPS_BETWEEN = 20000, METRICS_LINES = 100 };

static bool set_by_user(const struct farm_recipe *recipe, const char *key) {
    return farm_recipe_set_by(recipe, key, FARM_LAYER_FILE);
}

static enum farm_status refuse_deterministic(const struct farm_recipe *recipe, bool listens, struct farm_error *err) {
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
    const enum farm_status status = refuse_deterministic(recipe, listens, err);
    if (status) return status;
    recipe->seconds = 0;
    recipe->eval_every = 0;
    recipe->infer_threads = 1;
    const struct farm_algo *algo = farm_algo_find(recipe->algo, err);
    if (!algo) return FARM_E_NOT_FOUND;
    if (!algo->replay) snprintf(recipe->regime, sizeof recipe->regime, "sync"); // a replay keeps step by itself
    snprintf(recipe->device, sizeof recipe->device, "cpu");
    if (!recipe->checkpoint_updates) recipe->checkpoint_updates = 1 + (STEPS_BETWEEN - 1) / recipe->unroll;
    if (!recipe->metrics_updates) recipe->metrics_updates = 1 + (recipe->checkpoint_updates - 1) / METRICS_LINES;
    return FARM_OK;
}
