// See settings.h.
#include "run/settings.h"

#include <string.h>

#include "base/time.h"
#include "ring/wait.h"
#include "run/trains.h"

static bool equals(const char *word, const char *name) {
    return strcmp(word, name) == 0;
}

uint64_t farm_run_spin_ns(const struct farm_recipe *recipe, bool shared) {
    const enum farm_wait_mode mode = equals(recipe->wait, "spin")    ? FARM_WAIT_SPIN
                                     : equals(recipe->wait, "sleep") ? FARM_WAIT_SLEEP
                                                                     : FARM_WAIT_ADAPTIVE;
    return farm_wait_spin_ns(mode, shared);
}

const char *farm_run_next_engine(const char *engine, uint64_t *start_ns, const struct farm_run_caller *caller) {
    const uint64_t now_ns = farm_now_ns();
    const bool at_once = *start_ns && now_ns - *start_ns < 1000000000;
    *start_ns = now_ns;
    if (!at_once || !equals(engine, "auto")) return engine;
    farm_run_warn(caller,
                  "the bridge died within its first second: it uses poll(2) from now on, with more system calls");
    return "poll";
}

enum farm_bad_values farm_run_bad_values(const struct farm_recipe *recipe) {
    if (equals(recipe->bad_values, "fail")) return FARM_BAD_FAIL;
    return equals(recipe->bad_values, "reset") ? FARM_BAD_RESET : FARM_BAD_COUNT;
}

static enum farm_mirror mirror_of(const struct farm_recipe *recipe) {
    if (equals(recipe->mirror, "off")) return FARM_MIRROR_OFF;
    return equals(recipe->mirror, "window") ? FARM_MIRROR_WINDOW : FARM_MIRROR_FULL;
}

static enum farm_precision precision_of(const struct farm_recipe *recipe) {
    if (equals(recipe->precision, "bf16")) return FARM_PRECISION_BF16;
    return equals(recipe->precision, "f32") ? FARM_PRECISION_F32 : FARM_PRECISION_AUTO;
}

struct farm_learner_config farm_run_learner_settings(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    const struct farm_plan *placement = plan->placement;
    struct farm_learner_config config = {
        .rings = {.spec = &plan->ring_spec},
        .shard_count = plan->shards,
        .device = {.kind = plan->device,
                   .cuda_library = plan->device != FARM_DEVICE_CPU ? plan->cuda_library : NULL,
                   .mirror = mirror_of(recipe)},
        .init = equals(recipe->init, "uniform") ? FARM_INIT_UNIFORM : FARM_INIT_ORTHOGONAL,
        .net = plan->net,
        .io = plan->io,
        .head = farm_run_head_options(recipe),
        .algo = plan->algo,
        .arithmetic = {.precision = precision_of(recipe)},
        .inference = {.batch_max = (uint32_t)recipe->infer_batch_max,
                      .wait_ms = recipe->infer_wait_ms,
                      .spin_ns = farm_run_spin_ns(recipe, placement->shared)},
        .training = {.threads = placement->training_threads > 0 ? (uint32_t)placement->training_threads : 1,
                     .threads_chosen = recipe->train_threads == 0,
                     .micro_batch = (uint32_t)recipe->micro_batch,
                     .sync_grace_s = recipe->sync_grace_s},
        .frames_per_step = plan->env.spec.frames_per_step,
        .memory_node = placement->learner_node,
        .deterministic = {.on = plan->deterministic,
                          .checkpoint_every_updates = (uint64_t)recipe->checkpoint_updates,
                          .metrics_every_updates = (uint64_t)recipe->metrics_updates},
    };
    for (uint32_t k = 0; k < plan->shards; k++) {
        config.shards[k].node = placement->shard_node[k];
        if (plan->first_gpu >= 0) config.shards[k].gpu = plan->machine->gpu[(uint32_t)plan->first_gpu + k].pci_bus_id;
    }
    return config;
}
