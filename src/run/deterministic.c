// See deterministic.h.
#include "run/deterministic.h"

#include <stdio.h>
#include <string.h>

#include "run/checkpoints.h"

// Steps of an environment between checkpoints, several games: at each of them the present games are cut off.
enum { STEPS_BETWEEN = 20000, METRICS_LINES = 100 };

static bool set_by_user(const struct farm_recipe *recipe, const char *key) {
    return farm_recipe_set_by(recipe, key, FARM_LAYER_FILE);
}

static enum farm_status refuse(const struct farm_run_plan *plan, struct farm_error *err) {
    const struct farm_recipe *recipe = &plan->recipe;
    const char *why = NULL;
    if (recipe->seconds > 0 && set_by_user(recipe, "seconds"))
        why = "--seconds ends a run at another update each time: end it by --frames N, or by Ctrl-C at its next "
              "checkpoint";
    else if (plan->listen.address)
        why = "--listen: actors of other machines join at any moment; leave one of the two out";
    else if (strcmp(recipe->regime, "async") == 0 && set_by_user(recipe, "regime"))
        why = "--regime async trains on windows in the order of their arrival: --regime sync, or leave it out";
    else if (strcmp(recipe->device, "cuda") == 0)
        why = "--device cuda: cuDNN and cuBLASLt promise no order of their sums; --device cpu";
    else if (recipe->eval_every && set_by_user(recipe, "eval_every"))
        why = "--eval-every plays beside the training, and its results come at any moment: keep all checkpoints "
              "(--checkpoints-keep 0) and play them by `farm eval` afterwards";
    return why ? farm_fail(err, FARM_E_USAGE, "--deterministic and %s", why) : FARM_OK;
}

enum farm_status farm_run_deterministic_settle(struct farm_run_plan *plan, struct farm_error *err) {
    struct farm_recipe *recipe = &plan->recipe;
    const enum farm_status status = refuse(plan, err);
    if (status) return status;
    recipe->seconds = 0;
    recipe->eval_every = 0;
    snprintf(recipe->regime, sizeof recipe->regime, "sync");
    snprintf(recipe->device, sizeof recipe->device, "cpu");
    if (!recipe->checkpoint_updates) recipe->checkpoint_updates = 1 + (STEPS_BETWEEN - 1) / recipe->unroll;
    if (!recipe->metrics_updates) recipe->metrics_updates = 1 + (recipe->checkpoint_updates - 1) / METRICS_LINES;
    return FARM_OK;
}

bool farm_run_deterministic_goes_on(const struct farm_run *run) {
    return run->plan.deterministic && !run->change.failure[0] && !run->events.standstill[0] &&
           !farm_load_acquire(&run->rings.stats->done);
}

enum farm_status farm_run_deterministic_again(struct farm_run *run, struct farm_error *err) {
    struct farm_run_workers *workers = &run->workers;
    struct farm_stats *stats = run->rings.stats;
    enum farm_status status = FARM_OK;
    for (uint32_t a = 0; a < run->plan.actors && !status; a++) {
        struct farm_ring *ring = &run->rings.ring[a];
        run->change.abandoned += farm_load_relaxed(&ring->up_control->abandoned);
        farm_ring_close(ring);
        status = farm_run_rings_add(&run->rings, &run->plan, a, run->plan.placement->actor[a].memory_node, err);
    }
    if (status) return status;
    if (!farm_run_find_checkpoint(workers->run_path, &run->plan, &run->caller, workers->checkpoint,
                                  sizeof workers->checkpoint))
        return farm_fail(err, FARM_E_NOT_FOUND, "%s: the checkpoint that was written last is gone", workers->run_path);
    workers->learner.checkpoint_load = workers->checkpoint;
    workers->start_frames = farm_load_acquire(&stats->checkpoint_frames);
    farm_store_relaxed(&stats->ready, 0);
    farm_store_relaxed(&stats->publishes, 0); // versions count from the checkpoint's, as after --resume
    farm_run_events_again(&run->events);
    return farm_run_workers_enlist(workers, err);
}
