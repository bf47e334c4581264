// See settings.h.
#include "run/settings.h"

#include <math.h>
#include <string.h>

#include "base/time.h"
#include "ring/wait.h"
#include "run/trains.h"

uint64_t farm_run_spin_ns(const struct farm_recipe *recipe, bool shared) {
    return farm_wait_spin_ns((enum farm_wait_mode)farm_recipe_choice(recipe, FARM_KEY_wait), shared);
}

const char *farm_run_next_engine(const char *engine, uint64_t *start_ns, const struct farm_run_caller *caller) {
    const uint64_t now_ns = farm_now_ns();
    const bool at_once = *start_ns && now_ns - *start_ns < 1000000000;
    *start_ns = now_ns;
    if (!at_once || strcmp(engine, "auto") != 0) return engine;
    farm_run_warn(caller,
                  "the bridge died within its first second: it uses poll(2) from now on, with more system calls");
    return "poll";
}

_Static_assert((int)FARM_NODES_MAX <= (int)FARM_POOL_GROUPS_MAX, "a group of training threads for each node");

double farm_run_steps_per_version(const struct farm_run_plan *plan) {
    const double windows = plan->passes.sync ? (double)farm_run_environments(plan) : plan->algo.batch;
    return windows * farm_algo_transitions(&plan->passes) / (plan->passes.replay ? plan->recipe.replay_ratio : 1);
}

// Exploration with action-values: the training's schedule, or eval_epsilon in an evaluation.
static struct farm_sampler exploration(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    if (!plan->algo.algo->q) return (struct farm_sampler){0};
    if (plan->play.games) return (struct farm_sampler){.epsilon_end = (float)recipe->eval_epsilon};
    return (struct farm_sampler){.epsilon_start = (float)recipe->epsilon,
                                 .epsilon_end = (float)recipe->epsilon_end,
                                 .ladder = (float)recipe->epsilon_ladder,
                                 .environments = (uint32_t)farm_run_environments(plan),
                                 .width = plan->width,
                                 .epsilon_versions =
                                     (uint64_t)ceil((double)recipe->epsilon_steps / farm_run_steps_per_version(plan))};
}

struct farm_learner_config farm_run_learner_settings(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    const struct farm_plan *placement = plan->placement;
    struct farm_learner_config config = {
        .rings = {.spec = &plan->ring_spec, .admission = -1},
        .shard_count = plan->shards,
        .device = {.kind = plan->device,
                   .cuda_library = plan->device != FARM_DEVICE_CPU ? plan->cuda_library : NULL,
                   .mirror = (enum farm_mirror)farm_recipe_choice(recipe, FARM_KEY_mirror)},
        .init = (enum farm_net_init)farm_recipe_choice(recipe, FARM_KEY_init),
        .net = plan->net,
        .io = plan->io,
        .head = farm_run_head_options(recipe),
        .sampler = exploration(plan),
        .algo = plan->algo,
        .replay = {.start = (uint64_t)recipe->replay_start / plan->passes.shape.stride,
                   .ratio = recipe->replay_ratio,
                   .order = (enum farm_replay_order)farm_recipe_choice(recipe, FARM_KEY_replay_order),
                   .repeats = recipe->replay_repeats,
                   .exponent = (float)recipe->priority_exponent,
                   .importance = (float)recipe->importance_exponent,
                   .importance_end = (float)recipe->importance_end},
        .first_stored = farm_recipe_choice(recipe, FARM_KEY_first_priority) == 1,
        .arithmetic = {.precision = (enum farm_precision)farm_recipe_choice(recipe, FARM_KEY_precision)},
        .boards = {.refresh = farm_recipe_choice(recipe, FARM_KEY_refresh) ? plan->passes.shape.stride : 1},
        .inference = {.batch_max = plan->local ? plan->width : (uint32_t)recipe->infer_batch_max,
                      .wait_ms = recipe->infer_wait_ms,
                      .spin_ns = farm_run_spin_ns(recipe, placement->shared)},
        .training =
            {
#define LEARNER_KEY(kind, key, ...) .key = (farm_setting_##kind)recipe->key,
#include "config/keys.h"
                .threads = placement->training_threads > 0 ? (uint32_t)placement->training_threads : 1,
                .threads_chosen = recipe->train_threads == 0},
        .frames_per_step = plan->env.spec.frames_per_step,
        .memory_node = placement->learner_node,
        .deterministic = {.on = plan->deterministic,
                          .checkpoint_every_updates = (uint64_t)recipe->checkpoint_updates,
                          .metrics_every_updates = (uint64_t)recipe->metrics_updates,
                          .sample_fd = -1},
    };
    for (int g = 0; g < placement->training_node_count; g++) {
        const struct farm_plan_training *group = &placement->training[g];
        config.training.groups[config.training.group_count++] =
            (struct farm_pool_group){group->node, (uint32_t)group->threads, &group->cpus};
    }
    for (uint32_t k = 0; k < plan->shards; k++) {
        config.shards[k].node = placement->shard_node[k];
        if (plan->first_gpu >= 0) config.shards[k].gpu = plan->machine->gpu[(uint32_t)plan->first_gpu + k].pci_bus_id;
    }
    return config;
}
