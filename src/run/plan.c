// See plan.h.
#include "run/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/registry.h"
#include "base/format.h"
#include "base/log.h"
#include "base/paths.h"
#include "run/offer.h"
#include "run/replay.h"
#include "run/scale.h"
#include "run/trains.h"
#include "shm/limits.h"

enum {
    BATCH_LEAST = 8, // windows of an update; half the environments keeps the policy lag at about three updates
    EVAL_ENVS_MAX = 64,
    EPSILON_STEPS = 50000,
    INFER_BATCH_MAX = 256,
    INFER_BATCH_MAX_GPU = 1024,
    SPARE_DESCRIPTORS = 64,
    SPARE_PROCESSES = 8, // beside actors and the learner's working threads
    SPARE_MAPPINGS = 1000,
    PLACE_TRIES = 8,
    MORE_PLACES = 64, // least number of places for actors that join later
    SYNC_PLACES = 8,  // in the synchronous regime, if only actors of this machine can
    BOARD_SPARE_BYTES = 256 << 10,
    SYNC_TIMES = 4, // in the synchronous regime: places for nodes, for each actor at the start
};
_Static_assert((int)FARM_PLAN_SHARDS_MAX <= (int)FARM_LEARNER_SHARDS_MAX, "every shard of a plan");

// ---- what to run ----

// Does not touch CUDA: the learner does, after its fork, and only if there may be a driver.
static enum farm_status choose_device(struct farm_run_plan *plan, struct farm_error *err) {
    const char *device = plan->recipe.device, *why = NULL;
    struct farm_error missing;
    const bool cuda = strcmp(device, "cuda") == 0, driver = farm_path_gpu();
    plan->device = FARM_DEVICE_CPU;
    if (strcmp(device, "cpu") == 0) return FARM_OK;
    if (plan->local && (cuda || driver))
        why = "actors that infer need a learner on the CPU (--inference central does not)";
    else if (!driver)
        why = "there is no NVIDIA driver here (/dev/nvidiactl)";
    else if (farm_path_cuda(plan->cuda_library, sizeof plan->cuda_library, &missing))
        why = missing.message;
    if (why && cuda)
        return farm_fail(err, FARM_E_UNSUPPORTED, "--device cuda: %s%s; --device cpu needs none", why,
                         driver || plan->local ? ""
                                               : ": install it, or give the container the GPUs (docker --gpus all)");
    snprintf(plan->cpu_because, sizeof plan->cpu_because, "%s", why ? why : "");
    if (!why) plan->device = cuda ? FARM_DEVICE_CUDA : FARM_DEVICE_AUTO;
    return FARM_OK;
}

// The plan's GPU: the first one, if the learner will request one and the machine shows one.
static int planned_device(const struct farm_run_plan *plan) {
    if (!farm_run_learns(plan)) return FARM_LEARNER_NONE;
    return plan->device != FARM_DEVICE_CPU && plan->machine->gpu_count > 0 ? 0 : FARM_LEARNER_CPU;
}

// How many GPUs or inference threads on CPUs the learner has. The plan refuses more GPUs than the machine shows; if it
// shows none (a container may hide them), CUDA's numbering counts. An evaluation has one shard unless more are
// requested, and one GPU.
static enum farm_status request_shards(const struct farm_run_plan *plan, uint64_t episodes,
                                       struct farm_plan_request *request, struct farm_error *err) {
    const int64_t gpus = plan->recipe.gpus;
    request->learner_gpus = request->learner_shards = 1;
    if (!farm_run_learns(plan)) return FARM_OK;
    if (plan->device == FARM_DEVICE_CPU) {
        request->learner_shards = plan->recipe.infer_threads || !episodes ? (int)plan->recipe.infer_threads : 1;
        if (gpus <= 1 || episodes) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "--gpus %" PRId64 " on device cpu%s%s", gpus,
                         plan->cpu_because[0] ? ": " : "", plan->cpu_because);
    }
    const int shown = plan->machine->gpu_count;
    if (!episodes) request->learner_gpus = gpus ? (int)gpus : shown ? shown : 1;
    return FARM_OK;
}

static bool normalises(const struct farm_net_io *io) {
    bool any = io->normalise_frames;
    for (int i = 0; i < io->input_count; i++) any |= io->inputs[i].normalise;
    return any;
}

static bool is_continuous(const struct farm_run_plan *plan) {
    return plan->env.spec.action.kind == FARM_ACTION_CONTINUOUS;
}

// Flags without effect in this run: those whose `needs` (config/keys.h) are not met, and three that take a count.
static void warn_without_effect(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    const bool cpu = plan->device == FARM_DEVICE_CPU;
    const struct farm_recipe_fact facts[] = {
        {"device", cpu ? "cpu" : "cuda"},
        {"inference", plan->local ? "local" : "central"},
        {"regime", plan->passes.replay ? "replay"
                   : plan->passes.sync ? "sync"
                                       : "async"},
        {"windows", plan->passes.sparse ? "transitions" : "sequences"},
        {"head", plan->algo.algo->q ? "greedy_q" : "probabilities"},
        {"actions", is_continuous(plan) ? "continuous" : "discrete"},
        {"observations", normalises(&plan->io) ? "numeric" : "categorical"},
        {"listen", plan->listen.address ? plan->listen.address : "false"},
        {NULL, NULL},
    };
    struct farm_error why;
    if (!farm_run_learns(plan)) return;
    for (size_t i = 0; farm_recipe_key_at(recipe, i); i++)
        if (recipe->layers[i] == FARM_LAYER_FLAG && farm_recipe_counts(recipe, i) &&
            farm_recipe_check_effect(recipe, i, facts, &why))
            farm_log_warn("%s", why.message);
    if (cpu && recipe->infer_threads > plan->shards)
        farm_log_warn("--infer-threads %" PRId64 ": %u, because each needs an actor", recipe->infer_threads,
                      plan->shards);
    const uint32_t columns = plan->passes.sync ? plan->actors * plan->lanes * plan->width : plan->algo.batch;
    if (farm_recipe_set_by(recipe, "minibatch", FARM_LAYER_FLAG) &&
        plan->passes.minibatch > farm_algo_units(&plan->passes, columns))
        farm_log_warn("--minibatch: an update has %u steps, which are one optimiser step",
                      farm_algo_units(&plan->passes, columns) * farm_algo_unit_transitions(&plan->passes));
    if (recipe->layers[FARM_KEY_gpus] == FARM_LAYER_FLAG && !recipe->gpus && !plan->machine->gpu_count)
        farm_log_warn("--gpus 0 has no effect: this machine shows no GPU%s",
                      cpu ? "" : "; the learner requests CUDA's first one");
}

static void log_base(const struct farm_recipe *recipe) {
    char keys[640];
    if (recipe->under[0] && farm_recipe_shipped_keys(recipe, keys, sizeof keys)[0])
        farm_log_info("--recipe lies over %s, which sets %s. `base: none` in the file, or --base none, leaves it out",
                      recipe->under, keys);
}

static enum farm_status choose_net(struct farm_run_plan *plan, struct farm_error *err) {
    struct farm_error why;
    struct farm_net made;
    const enum farm_status status = farm_run_trains(&plan->env.spec, &plan->recipe, &plan->io, &why);
    if (status)
        return farm_fail(err, status, "%s: %.600s%s", plan->env.name, why.message,
                         status == FARM_E_UNSUPPORTED ? " (farm fps steps any environment)" : "");
    const enum farm_status found = farm_net_find(plan->recipe.net, &plan->net, err);
    if (found) return found;
    if (plan->local && !farm_net_make(&plan->net, &plan->io, &made, err)) plan->board_parameters = made.parameter_count;
    return choose_device(plan, err);
}

// The recipe's opponent: a file from any folder from here on. *agents, the environment's: those that learn.
static enum farm_status find_opponent(struct farm_recipe *recipe, uint32_t *agents, struct farm_error *err) {
    char whole[PATH_MAX];
    if (strcmp(recipe->opponent, "none") == 0) return FARM_OK;
    if (!recipe->opponents) recipe->opponents = *agents / 2;
    if (!recipe->opponents || recipe->opponents >= *agents)
        return farm_fail(err, FARM_E_USAGE, "--opponent: %s has %u agent%s, and no opponents without one that learns",
                         recipe->env, *agents, *agents > 1 ? "s" : "");
    *agents -= (uint32_t)recipe->opponents;
    if (!realpath(recipe->opponent, whole))
        return farm_fail_errno(err, FARM_E_NOT_FOUND, "--opponent %s", recipe->opponent);
    return farm_recipe_set(recipe, FARM_LAYER_FLAG, "opponent", whole, err);
}

// ---- how many, and where ----

// Few games need few environments, so that each game counts.
static void choose_eval_counts(struct farm_recipe *recipe, uint64_t episodes, int actors_planned, int64_t agents) {
    int64_t wanted = episodes < EVAL_ENVS_MAX ? (int64_t)episodes : EVAL_ENVS_MAX;
    wanted = (wanted + agents - 1) / agents;
    if (!recipe->actors) recipe->actors = wanted < actors_planned ? wanted : actors_planned;
    if (recipe->envs_per_actor) return;
    int64_t each = (wanted + recipe->actors - 1) / recipe->actors;
    if (each < recipe->lanes) recipe->lanes = each;
    recipe->envs_per_actor = (each + recipe->lanes - 1) / recipe->lanes * recipe->lanes * agents;
}

static int64_t infer_batch_most(const struct farm_run_plan *plan) {
    return plan->device == FARM_DEVICE_CPU ? INFER_BATCH_MAX : INFER_BATCH_MAX_GPU;
}

// The actors of this machine and those expected from others.
static int64_t all_actors(const struct farm_run_plan *plan) {
    return plan->recipe.actors + plan->listen.expect;
}

static void choose_counts(struct farm_run_plan *plan, uint64_t episodes) {
    struct farm_recipe *recipe = &plan->recipe;
    if (!recipe->actors) recipe->actors = plan->placement->actor_count;
    const int64_t actors = all_actors(plan);
    const int64_t unit = recipe->lanes * plan->env.spec.agents; // each lane has whole environments
    if (!recipe->envs_per_actor) recipe->envs_per_actor = FARM_ENVS_PER_ACTOR;
    recipe->envs_per_actor = (recipe->envs_per_actor + unit - 1) / unit * unit;
    int64_t environments = actors * recipe->envs_per_actor;
    const int64_t shards = plan->shards, least = actors / shards * recipe->envs_per_actor,
                  most = (actors + shards - 1) / shards * recipe->envs_per_actor; // in one shard
    const int64_t least_batch = shards > BATCH_LEAST ? shards : BATCH_LEAST;
    if (!recipe->epsilon_steps) recipe->epsilon_steps = EPSILON_STEPS;
    if (plan->passes.replay) farm_run_replay_choose(recipe, &plan->passes, environments);
    if (!recipe->batch) recipe->batch = environments / 2 > least_batch ? environments / 2 : least_batch;
    if (!recipe->ring_steps) {
        // Windows of one lane in an update; they are in training while the next ones fill.
        const int64_t share = (recipe->batch + shards - 1) / shards; // one shard's part of an update
        uint64_t windows = (uint64_t)((share + least - 1) / least);
        // While an actor hangs, the others fill the updates; rings for K windows hold one more.
        int64_t others = least - recipe->envs_per_actor;
        uint64_t without_one = others ? (uint64_t)((share + others - 1) / others) - 1 : 0;
        if (windows < without_one) windows = without_one;
        if (plan->passes.sync) windows = 0; // none fills while one is in training
        recipe->ring_steps = episodes
                                 ? (int64_t)plan->passes.shape.stack + 2
                                 : (int64_t)farm_ring_steps_needed(windows, plan->passes.shape.stride,
                                                                   plan->passes.shape.length, plan->passes.shape.stack);
    }
    if (!recipe->infer_batch_max)
        recipe->infer_batch_max = most < infer_batch_most(plan) ? most : infer_batch_most(plan);
    plan->actors = (uint32_t)recipe->actors;
    plan->lanes = (uint32_t)recipe->lanes;
    plan->width = (uint32_t)(recipe->envs_per_actor / recipe->lanes);
    plan->steps = (uint32_t)recipe->ring_steps;
    plan->algo.batch = (uint32_t)recipe->batch;
}

enum farm_status farm_run_update_fits(const struct farm_run_plan *plan, uint32_t actors, uint32_t shard,
                                      struct farm_error *err) {
    const uint32_t share = farm_learner_share(plan->algo.batch, plan->shards, shard);
    if (!farm_run_learns(plan)) return FARM_OK;
    const uint64_t capacity =
        farm_window_capacity(&plan->passes.shape, plan->steps) * plan->width * plan->lanes * actors;
    if (farm_algo_update_fits(&plan->passes, capacity, share, plan->width)) return FARM_OK;
    if (!actors && plan->shards > 1) return farm_fail(err, FARM_E_USAGE, "no actor of shard %u plays", shard);
    if (!actors) return farm_fail(err, FARM_E_USAGE, "no actor plays");
    if (plan->passes.sync)
        return farm_fail(err, FARM_E_USAGE,
                         "an iteration of --unroll %" PRId64
                         " does not fit rings of %u steps: --ring-steps 0 chooses their size",
                         plan->recipe.unroll, plan->steps);
    return farm_fail(err, FARM_E_USAGE,
                     "an update of %u windows does not fit the rings of %u actor%s, which hold %" PRIu64
                     " at most: raise --ring-steps (0 chooses it), or lower --batch or --unroll",
                     share, actors, actors == 1 ? "" : "s", capacity);
}

// Whether an update can be divided into passes, and each shard has a part of it that its actors' rings hold.
static enum farm_status check_shares(const struct farm_run_plan *plan, struct farm_error *err) {
    if (!plan->passes.sync && plan->recipe.micro_batch > plan->algo.batch)
        return farm_fail(err, FARM_E_USAGE, "--micro-batch %" PRId64 " is larger than the update, --batch %u",
                         plan->recipe.micro_batch, plan->algo.batch);
    if (!plan->passes.sync && plan->algo.batch < plan->shards)
        return farm_fail(err, FARM_E_USAGE, "--batch %u with --%s %u: each needs at least one window of an update",
                         plan->algo.batch, plan->device == FARM_DEVICE_CPU ? "infer-threads" : "gpus", plan->shards);
    if (plan->passes.replay &&
        farm_run_replay_check_counts(&plan->recipe, &plan->passes, farm_run_environments(plan), err))
        return err->status;
    for (uint32_t k = 0; k < plan->shards; k++) {
        uint32_t actors = 0;
        for (uint32_t a = 0; a < plan->actors; a++) actors += (uint32_t)plan->placement->actor[a].shard == k;
        if (plan->listen.expect)
            actors = (uint32_t)all_actors(plan) / plan->shards; // joining actors go to the shard that serves the fewest
        const enum farm_status status = farm_run_update_fits(plan, actors, k, err);
        if (status) return status;
    }
    return FARM_OK;
}

// The recipe's scale, then the settings that depend on it.
static enum farm_status scale_recipe(struct farm_run_plan *plan, struct farm_error *err) {
    const int64_t actors = plan->placement->actor_count + plan->listen.expect;
    enum farm_status status = farm_run_scale_apply(&plan->recipe, actors * plan->env.spec.agents, err);
    if (!status) status = farm_algo_configure(&plan->recipe, &plan->algo, err);
    return status ? status : farm_algo_plan_make(&plan->algo, &plan->passes, err);
}

// Chooses actors, shards and all other counts. Unless the user requests a number of shards, it is lowered until an
// update can be divided among them.
static enum farm_status choose_how_many(struct farm_run_plan *plan, uint64_t episodes,
                                        struct farm_plan_request *request, struct farm_error *err) {
    const struct farm_recipe asked = plan->recipe;
    for (;;) {
        enum farm_status status = farm_plan_make(plan->machine, request, plan->placement, err);
        if (!status && !episodes && farm_run_learns(plan)) status = scale_recipe(plan, err);
        const bool total = plan->recipe.envs_total && !plan->recipe.envs_per_actor && farm_run_learns(plan);
        if (!status && (episodes || total)) {
            const int planned = plan->placement->actor_count;
            if (episodes) choose_eval_counts(&plan->recipe, episodes, planned, plan->env.spec.agents);
            plan->envs_total = episodes ? 0 : plan->recipe.envs_total;
            if (!episodes) farm_run_scale_divide(&plan->recipe, plan->listen.expect, planned, plan->env.spec.agents);
            if (plan->recipe.actors != planned) {
                request->actors = (int)plan->recipe.actors;
                status = farm_plan_make(plan->machine, request, plan->placement, err);
            }
        }
        if (status) return status;
        plan->shards = !farm_run_learns(plan) ? 1 : (uint32_t)plan->placement->shard_count;
        choose_counts(plan, episodes);
        if (!farm_run_learns(plan) || episodes) return FARM_OK;
        status = check_shares(plan, err);
        // An update takes windows of every shard, so no shard should depend on one actor.
        const bool thin = plan->device == FARM_DEVICE_CPU && plan->shards > 1 && all_actors(plan) / plan->shards < 2;
        if (!status && thin && !asked.infer_threads) status = FARM_E_LIMIT;
        if (!status || plan->shards == 1 || plan->device != FARM_DEVICE_CPU || asked.infer_threads) return status;
        plan->recipe = asked;
        request->learner_shards = (int)plan->shards - 1;
    }
}

static void open_claim(struct farm_run_plan *plan) {
    struct farm_error err;
    if (plan->recipe.pin && farm_claim_open(&plan->claim, NULL, &err))
        farm_log_warn("CPUs cannot be claimed against other farms, so nothing is pinned: %s", err.message);
}

// The lanes of the plan. A recurrent net's state is kept where windows begin and, with a burn-in, where they end.
static struct farm_ring_spec ring_spec_of(const struct farm_run_plan *plan) {
    const struct farm_run_remote *remote = plan->responder.remote;
    const struct farm_window_shape *shape = &plan->passes.shape;
    struct farm_ring_spec spec = {.lanes = plan->lanes,
                                  .width = plan->width,
                                  .steps = plan->steps,
                                  .answers = plan->local ? FARM_ANSWERS_LOCAL : FARM_ANSWERS_CENTRAL,
                                  .env = plan->env.spec};
    if (remote) spec = *remote->spec, spec.steps = plan->steps;
    if (remote) return spec;
    farm_ring_spec_answers(&spec);
    if (plan->served) {
        spec.autoreset = plan->served->autoreset;
        spec.number_count = plan->served->number_count;
        memcpy(spec.numbers, plan->served->numbers, sizeof spec.numbers);
        farm_ring_spec_control(&spec);
    }
    if (!farm_run_learns(plan)) return spec;
    if (plan->recipe.squash && is_continuous(plan)) farm_ring_spec_sample(&spec);
    if (plan->passes.replay) spec.leaf_every = shape->stride;
    uint32_t every = shape->stride;
    for (uint32_t rest = shape->burn_in; rest;) { // their greatest common divisor
        const uint32_t next = every % rest;
        every = rest, rest = next;
    }
    const uint32_t floats = (uint32_t)(2 * plan->recipe.lstm * plan->recipe.lstm_layers);
    if (floats) farm_ring_spec_state(&spec, floats, every < plan->steps ? every : plan->steps);
    return spec;
}

// Adds remote actors and their bridges to the request.
static enum farm_status plan_remote_actors(struct farm_run_plan *plan, struct farm_plan_request *request,
                                           struct farm_error *err) {
    struct farm_run_listen *listen = &plan->listen;
    if (!listen->address) return FARM_OK;
    request->bridges = (int)listen->bridges;
    request->bridge_node = listen->network_node;
    const bool none_here = !plan->recipe.actors && farm_recipe_set_by(&plan->recipe, "actors", FARM_LAYER_SHIPPED);
    if (none_here && !listen->expect) {
        const enum farm_status status = farm_plan_make(plan->machine, request, plan->placement, err);
        if (status) return status;
        listen->expect = (uint32_t)plan->placement->actor_count;
    }
    request->no_actors = none_here;
    if (none_here && plan->served) request->learner_device = FARM_LEARNER_CPU; // the consumer has these cores
    request->remote_actors = (int)listen->expect;
    return FARM_OK;
}

static void warn_of_other_counts(const struct farm_run_plan *plan, int64_t each_asked) {
    const struct farm_recipe *recipe = &plan->recipe;
    const int64_t actors = all_actors(plan), all = actors * recipe->envs_per_actor;
    const bool set = each_asked > recipe->lanes && farm_recipe_set_by(recipe, "envs_per_actor", FARM_LAYER_FILE);
    const int64_t asked = plan->envs_total ? plan->envs_total : set ? actors * each_asked : 0;
    if (asked && all != asked)
        farm_log_warn("%s %lld: %lld environments run, because %lld actor%s of %lld lane%s have equal parts%s",
                      plan->envs_total ? "envs_total" : "envs_per_actor: in all", (long long)asked, (long long)all,
                      (long long)actors, actors == 1 ? "" : "s", (long long)recipe->lanes,
                      recipe->lanes == 1 ? "" : "s", plan->env.spec.agents > 1 ? ", with all agents of each" : "");
}

static enum farm_status fit_replay(struct farm_run_plan *plan, struct farm_error *err) {
    const int64_t environments = farm_run_environments(plan);
    const enum farm_status status = farm_run_replay_fit(&plan->recipe, environments, farm_run_other_bytes(plan),
                                                        &plan->ring_spec, &plan->layout, err);
    plan->steps = plan->ring_spec.steps;
    return status ? status : farm_run_replay_check_counts(&plan->recipe, &plan->passes, environments, err);
}

// First the numbers of actors and shards, which decide the rings' size; then the final placement with that size, which
// is claimed. FARM_E_BUSY: other farms have claimed or released CPUs in between; nothing is claimed.
static enum farm_status place_once(struct farm_run_plan *plan, uint64_t episodes, struct farm_plan_request *request,
                                   struct farm_error *err) {
    enum farm_status status = FARM_OK;
    // What a deterministic run computes must not depend on other farms.
    if (!plan->deterministic) status = farm_claim_read_taken(&plan->claim, &request->taken, err);
    if (!status) status = plan_remote_actors(plan, request, err);
    if (!status) status = choose_how_many(plan, episodes, request, err);
    if (status) return status;
    plan->ring_spec = ring_spec_of(plan);
    status = farm_ring_layout_make(&plan->ring_spec, &plan->layout, err);
    if (status && plan->passes.replay) farm_fail_in(err, status, "--replay %" PRId64, plan->recipe.replay);
    if (!status && plan->passes.replay) status = fit_replay(plan, err);
    if (status) return status;
    request->learner_shards = (int)plan->shards;
    if (plan->deterministic) request->actors = (int)plan->actors;
    request->envs_per_actor = (int)plan->recipe.envs_per_actor;
    request->bytes_per_actor = plan->layout.up_bytes + plan->layout.down_bytes;
    if (plan->deterministic) status = farm_claim_read_taken(&plan->claim, &request->taken, err);
    if (!status) status = farm_claim_plan(&plan->claim, plan->machine, request, plan->placement, err);
    if (status) return status;
    const struct farm_plan *got = plan->placement;
    if (got->actor_count == (int)plan->actors && (!got->shard_count || got->shard_count == (int)plan->shards))
        return FARM_OK;
    farm_claim_give(&plan->claim, &got->claim);
    return farm_fail(err, FARM_E_BUSY, "other farms claim and release CPUs all the time: try again");
}

static enum farm_status place_workers(struct farm_run_plan *plan, uint64_t episodes, struct farm_error *err) {
    const struct farm_recipe asked = plan->recipe;
    const struct farm_run_listen listen = plan->listen;
    plan->actors_asked = asked.actors;
    struct farm_plan_request request = {
        .actors = (int)asked.actors,
        .learner_threads = (int)asked.train_threads,
        .synchronous = plan->passes.sync,
        .actors_infer = plan->local,
        .pin = asked.pin,
        .numa = asked.numa,
    };
    const struct farm_run_remote *remote = plan->responder.remote;
    if (remote) request.bridges = 1, request.bridge_node = remote->network_node;
    enum farm_status status = farm_machine_read(plan->machine, &(struct farm_machine_source){.bw = asked.bw}, err);
    if (status) return status;
    if ((status = request_shards(plan, episodes, &request, err))) return status;
    request.learner_device = plan->first_gpu = planned_device(plan);
    open_claim(plan);
    for (int tries = 0; tries < PLACE_TRIES; tries++) {
        struct farm_plan_request again = request;
        plan->recipe = asked;
        plan->listen = listen;
        status = place_once(plan, episodes, &again, err);
        if (status != FARM_E_BUSY) break;
    }
    if (!status) warn_of_other_counts(plan, !asked.scaled && plan->recipe.scaled > 1 ? 0 : asked.envs_per_actor);
    return status;
}

static void log_rewards(const struct farm_recipe *recipe) {
    const bool normalised = recipe->normalise_rewards;
    char clip[48] = "", scale[48] = "";
    if (recipe->reward_clip > 0) snprintf(clip, sizeof clip, " clipped to +-%g;", recipe->reward_clip);
    if (recipe->reward_scale != 1) snprintf(scale, sizeof scale, " times %g;", recipe->reward_scale);
    if (clip[0] || scale[0] || normalised)
        farm_log_info("rewards in training:%s%s%s return_mean is of rewards as played", clip, scale,
                      normalised ? " divided by the deviation of the discounted return, at most +-10;" : "");
}

// CPUs that the recipe leaves idle, why, and what would use them; the placement's notes name GPUs and memory nodes.
// Memory, if farm bw found it slower than the cores.
static void log_idle(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    const struct farm_machine *m = plan->machine;
    const int idle = plan->placement->idle_cpus;
    const bool scales = recipe->layers[FARM_KEY_envs_total] != FARM_LAYER_FLAG && !recipe->deterministic;
    const int64_t lanes = (all_actors(plan) + idle) * plan->lanes * plan->env.spec.agents,
                  more = (plan->envs_total + lanes - 1) / lanes * lanes;
    const char *s = idle == 1 ? "" : "s";
    if (idle && plan->actors_asked)
        farm_log_info("plan: %d CPU%s idle: actors %u; --actors 0 uses them", idle, s, plan->actors);
    else if (idle && plan->envs_total)
        farm_log_info("plan: %d CPU%s idle: envs_total %" PRId64 " has equal parts for %u actors of %u lanes; "
                      "%s--envs-total %" PRId64 " uses them",
                      idle, s, plan->envs_total, plan->actors, plan->lanes,
                      scales ? "--scale auto (docs/TRAINING.md: the learning rate changes too) or " : "", more);
    if (plan->device == FARM_DEVICE_CPU && strcmp(m->measured.env, recipe->env) == 0 &&
        m->measured.memory_hz < m->measured.cores_hz)
        farm_log_info("plan: memory limits this recipe before the cores do: it carries %.3g steps/s, the cores make "
                      "%.3g (farm bw --env, %s)",
                      m->measured.memory_hz, m->measured.cores_hz, m->measured.date);
}

static void log_replay(const struct farm_run_plan *plan) {
    const struct farm_recipe *recipe = &plan->recipe;
    const struct farm_run_replay_bytes bytes =
        farm_run_replay_bytes(&plan->ring_spec, &plan->layout, farm_run_environments(plan));
    farm_log_info("replay: %" PRId64 " steps, each trained on %g times; training begins after %" PRId64
                  " steps; memory: rings %s, checked copies %s, index %s",
                  recipe->replay, recipe->replay_ratio, recipe->replay_start,
                  farm_format_bytes((double)bytes.rings).text, farm_format_bytes((double)bytes.copies).text,
                  farm_format_bytes((double)bytes.index).text);
}

static void log_plan(const struct farm_run_plan *plan) {
    double step_bytes = (double)(plan->layout.up_stride + plan->layout.down_stride) / plan->steps / plan->width;
    const bool responder = !farm_run_learns(plan);
    char scale[256];
    farm_log_info(
        "%s with %s%s%s: %u actor%s x %u lanes x %u environments x %u steps x %.0f B = %.1f MB of shared memory",
        plan->env.name,
        plan->responder.remote ? "a remote learner"
        : plan->served         ? "a consumer"
        : responder            ? "random actions"
                               : "net ",
        responder ? "" : plan->recipe.net, plan->local ? " in the actors" : "", plan->actors,
        plan->actors == 1 ? "" : "s", plan->lanes, plan->width, plan->steps, step_bytes,
        (double)farm_run_ring_bytes(plan) / 1e6);
    if (plan->passes.replay) log_replay(plan);
    for (int i = 0; i < plan->placement->note_count; i++) farm_log_info("plan: %s", plan->placement->note[i]);
    if (!responder && !plan->play.games) log_idle(plan);
    if (plan->recipe.scaled > 1)
        farm_log_info("%s", farm_run_scale_format(&plan->recipe, all_actors(plan) * plan->recipe.envs_per_actor, scale,
                                                  sizeof scale));
    if (plan->cpu_because[0]) farm_log_info("using the CPU; CUDA is unavailable: %s", plan->cpu_because);
}

// Actors without a CPU each only take turns, but their rings fill: if training cannot keep up, a window waits for all
// that are before it, and its first step while the window fills.
static void warn_of_many_actors(const struct farm_run_plan *plan) {
    const double cpus = plan->placement->cpu_budget;
    if (plan->actors <= cpus || plan->actors < 2) return;
    char lag[192] = "";
    const uint64_t each = farm_window_capacity(&plan->passes.shape, plan->steps) + 1;
    const uint64_t windows = each * plan->width * plan->lanes * plan->actors;
    const uint64_t updates = windows / (plan->algo.batch ? plan->algo.batch : 1);
    const int64_t most = plan->recipe.max_lag;
    if (farm_run_learns(plan) && !plan->passes.sync && !plan->passes.replay)
        snprintf(lag, sizeof lag,
                 ", and policy lag may reach %" PRIu64 " updates (%" PRIu64
                 " windows wait or fill in their rings, an update takes %u: --batch; --max-lag N bounds it)",
                 most && (uint64_t)most < updates ? (uint64_t)most : updates, windows, plan->algo.batch);
    farm_log_warn("%u actors on %.3g CPU%s, %.3g a CPU: they take turns%s. --actors %d would not", plan->actors, cpus,
                  cpus > 1 ? "s" : "", plan->actors / cpus, lag, cpus < 1 ? 1 : (int)cpus);
}

// Memory of a run's processes besides the rings, about: fitted to measured RssAnon and VmPeak (mlp 20 MB and 140 MB
// more than the supervisor's, shallow 45 and 190, nature 85 and 390, deep 179 and 680). Environments may take more.
enum { NATIVE_ACTOR_MB = 3, PYTHON_ACTOR_MB = 40, LEARNER_MB = 20, RESPONDER_MB = 8, MAPPED_MB = 70, TRAIN_ROWS = 96 };

uint64_t farm_run_learner_bytes(const struct farm_run_plan *plan) {
    struct farm_net net;
    if (!farm_run_learns(plan)) return (uint64_t)RESPONDER_MB << 20;
    if (farm_net_make(&plan->net, &plan->io, &net, NULL)) return 0;
    uint64_t row = 0; // bytes that the layers write for one observation
    for (int i = 0; i < net.op_count; i++)
        row += (uint64_t)net.ops[i].out.channels * (uint64_t)net.ops[i].out.height * (uint64_t)net.ops[i].out.width;
    return ((uint64_t)LEARNER_MB << 20) + 8 * net.parameter_count * sizeof(float) +
           row * sizeof(float) * (TRAIN_ROWS + (uint64_t)plan->recipe.infer_batch_max);
}

static uint64_t one_actor_bytes(const struct farm_run_plan *plan) {
    return (uint64_t)(plan->env.kind == FARM_ENV_PYTHON ? PYTHON_ACTOR_MB : NATIVE_ACTOR_MB) << 20;
}

uint64_t farm_run_other_bytes(const struct farm_run_plan *plan) {
    return farm_run_learner_bytes(plan) + plan->actors * one_actor_bytes(plan);
}

// Rings alone are refused (check_limits); this is an estimate, so it only warns.
static void warn_of_memory(const struct farm_run_plan *plan) {
    struct farm_error why;
    if (plan->device != FARM_DEVICE_CPU) return; // what CUDA takes is not known
    const uint64_t learner = farm_run_learner_bytes(plan), actor = one_actor_bytes(plan),
                   all = farm_run_ring_bytes(plan) + farm_run_other_bytes(plan),
                   mapped = !farm_run_learns(plan) ? learner : ((uint64_t)MAPPED_MB << 20) + learner * 7 / 2;
    if (farm_limits_check_run("/", all, mapped, &why))
        farm_log_warn(
            "this run may not fit its limits (estimated: rings %.0f MB, learner %.0f MB, %u actor%s of %.0f MB "
            "and more): %s",
            (double)farm_run_ring_bytes(plan) / 1e6, (double)learner / 1e6, plan->actors, plan->actors == 1 ? "" : "s",
            (double)actor / 1e6, why.message);
}

// ---- boards ----

uint32_t farm_run_board_nodes(const struct farm_run_plan *plan, int node[FARM_NODES_MAX]) {
    uint32_t count = 0;
    for (uint32_t a = 0; a < plan->actors && plan->board_parameters; a++) {
        const int own = plan->placement->actor[a].memory_node;
        uint32_t b = 0;
        while (b < count && node[b] != own) b++;
        if (b == count && count < FARM_NODES_MAX) node[count++] = own;
    }
    if (plan->board_parameters && !count) node[count++] = -1; // for actors that join
    return count;
}

// An executor's packed weights take at most half as much again as the weights.
struct farm_board_request farm_run_board_request(const struct farm_run_plan *plan, int node) {
    return (struct farm_board_request){.count = plan->board_parameters,
                                       .buffers = FARM_BOARD_BUFFERS,
                                       .packed_max = plan->board_parameters * sizeof(float) * 3 / 2 + BOARD_SPARE_BYTES,
                                       .node = node};
}

static enum farm_status check_limits(const struct farm_run_plan *plan, struct farm_error *err) {
    int node[FARM_NODES_MAX];
    const struct farm_board_request board = farm_run_board_request(plan, -1);
    const uint64_t rings = farm_run_ring_bytes(plan) + plan->listen.expect * farm_run_actor_bytes(plan),
                   boards = farm_run_board_nodes(plan, node) * (uint64_t)board.buffers *
                            (board.count * sizeof(float) + board.packed_max);
    const struct farm_limits_request limits = {
        .shared_bytes = rings + boards,
        .processes = plan->actors + plan->shards + (uint64_t)plan->placement->training_threads + SPARE_PROCESSES,
        .mappings = 2ull * plan->places + SPARE_MAPPINGS,
        .descriptors = 4ull * plan->places + 3ull * (plan->places + 1) + SPARE_DESCRIPTORS,
        .huge = plan->recipe.huge_pages,
        .root = "/",
    };
    const size_t up = plan->layout.up_bytes, down = plan->layout.down_bytes;
    enum farm_status status = farm_limits_check_file("/", up > down ? up : down, err);
    if (status) return farm_fail_in(err, status, "a ring of %u steps (--ring-steps)", plan->steps);
    status = farm_limits_check(&limits, err);
    return status && boards ? farm_fail_in(err, status, "rings of %.0f MB and parameter boards of %.0f MB",
                                           (double)rings / 1e6, (double)boards / 1e6)
                            : status;
}

// Places for actors that join later: entries of tables, whose number descriptors limit; the memory of rings is taken
// when they join. In the synchronous regime the learner's iteration holds a window of every place from the start, so
// there are fewer.
static enum farm_status choose_places(struct farm_run_plan *plan, struct farm_error *err) {
    const bool sync = plan->passes.sync, listens = plan->listen.address != NULL;
    const uint32_t all = plan->actors + plan->listen.expect, again = sync && listens ? SYNC_TIMES * all : all,
                   least = sync && !listens ? SYNC_PLACES : MORE_PLACES;
    uint32_t more = listens && !sync ? FARM_PLAN_ACTORS_MAX : again > least ? again : least;
    if (more > FARM_PLAN_ACTORS_MAX - all) more = FARM_PLAN_ACTORS_MAX - all;
    if (!plan->elastic) more = 0;
    for (;; more /= 2) {
        plan->places = all + more;
        const enum farm_status status = check_limits(plan, err);
        if (!status || !more) return status;
    }
}

// The least number of actors, evenly spread over shards, that can fill an update.
static uint32_t actors_for_an_update(const struct farm_run_plan *plan) {
    struct farm_error err;
    for (uint32_t actors = plan->shards; actors < plan->places; actors++) {
        bool fits = true;
        for (uint32_t k = 0; k < plan->shards && fits; k++)
            fits = !farm_run_update_fits(plan, actors / plan->shards, k, &err);
        if (fits) return actors;
    }
    return plan->places;
}

static void log_listen(const struct farm_run_plan *plan) {
    const struct farm_run_listen *listen = &plan->listen;
    if (!listen->address) return;
    const uint32_t wanted = farm_run_learns(plan) ? actors_for_an_update(plan) : 0;
    char needed[64] = "";
    if (wanted > plan->actors)
        snprintf(needed, sizeof needed, "; an update takes the windows of %u actor%s", wanted, wanted == 1 ? "" : "s");
    farm_log_info("plan: sized for %u actor%s of other machines (--expect-actors); more join while memory lasts: %.3g "
                  "MB each, at most %u%s",
                  listen->expect, listen->expect == 1 ? "" : "s", (double)farm_run_actor_bytes(plan) / 1e6,
                  plan->places - plan->actors, needed);
}

enum farm_status farm_run_plan_make(struct farm_run_plan *plan, const struct farm_run_request *request,
                                    struct farm_error *err) {
    memset(plan, 0, sizeof *plan); // no compound literal: it would be a copy on the stack
    plan->recipe = *request->recipe;
    plan->play = request->play;
    plan->responder = request->responder;
    plan->served = request->served;
    plan->deterministic = plan->recipe.deterministic && !request->play.games && farm_run_learns(plan);
    plan->local = strcmp(plan->recipe.inference, "local") == 0 && farm_run_learns(plan) &&
                  (!request->play.games || request->play.samples);
    plan->elastic = request->elastic && !plan->deterministic;
    plan->quiet = request->quiet;
    if (plan->responder.remote) plan->board_parameters = plan->responder.remote->parameters;
    plan->listen = request->listen;
    plan->claim.fd = -1;
    plan->machine = calloc(1, sizeof *plan->machine);
    plan->placement = calloc(1, sizeof *plan->placement);
    if (!plan->machine || !plan->placement) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for the plan");
    enum farm_status status =
        plan->deterministic ? farm_run_deterministic_settle(&plan->recipe, plan->listen.address != NULL, err) : FARM_OK;
    if (!status) status = farm_env_find(&plan->recipe, &plan->env, err);
    if (!status) status = find_opponent(&plan->recipe, &plan->env.spec.agents, err);
    if (!status && plan->responder.remote) status = farm_run_offer_check(&plan->env, plan->responder.remote->spec, err);
    if (!status && farm_run_learns(plan)) status = choose_net(plan, err);
    if (!status) status = farm_algo_configure(&plan->recipe, &plan->algo, err);
    if (!status && farm_run_learns(plan) && !plan->play.games)
        status = farm_run_replay_check(&plan->recipe, plan->algo.algo, err);
    if (!status && plan->recipe.normalise_rewards && !farm_algo_discount(&plan->algo))
        status = farm_fail(err, FARM_E_USAGE, "normalise_rewards: algorithm %s discounts no rewards",
                           plan->algo.algo->recipe.name);
    if (!status) status = farm_algo_plan_make(&plan->algo, &plan->passes, err);
    plan->passes.replay &= farm_run_learns(plan) && !plan->play.games;
    if (!status) status = place_workers(plan, request->play.games, err);
    if (status) return status;
    if (!plan->quiet) log_base(&plan->recipe);
    if (!plan->quiet) log_plan(plan);
    if (!plan->quiet && farm_run_learns(plan) && !request->play.games) log_rewards(&plan->recipe);
    warn_without_effect(plan);
    if (!request->play.games) warn_of_many_actors(plan);
    status = choose_places(plan, err);
    if (!status) warn_of_memory(plan);
    if (!status && !plan->quiet) log_listen(plan);
    return status;
}

void farm_run_plan_free(struct farm_run_plan *plan) {
    if (plan->machine) farm_claim_close(&plan->claim); // a zeroed plan has no claim, but 0 is a valid descriptor
    free(plan->machine);
    free(plan->placement);
}
