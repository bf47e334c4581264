// See workers.h.
#include "run/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/random.h"
#include "run/settings.h"

enum farm_status farm_run_workers_reserve(struct farm_run_workers *workers, const struct farm_run_worker_ops *ops,
                                          void *owner, uint32_t count, size_t *first, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    *first = workers->worker_count;
    struct farm_run_worker *all = realloc(workers->worker, (*first + count) * sizeof *all);
    if (!all) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %zu workers", *first + count);
    workers->worker = all;
    for (uint32_t i = 0; i < count && !status; i++) {
        all[workers->worker_count++] = (struct farm_run_worker){
            .ops = ops, .owner = owner, .i = i, .numbered = ops->numbered || count > 1, .fd = -1};
        status = farm_supervisor_reserve(workers->supervisor, err);
    }
    return status;
}

// ---- actors ----

// A resumed run counts its steps from 0 again: under the same seed it would meet the same games and noise again.
uint64_t farm_run_workers_seed(const struct farm_run_workers *workers) {
    const uint64_t seed = (uint64_t)workers->plan->recipe.seed, start = workers->start_frames;
    return start ? farm_random_mix(seed ^ start) : seed;
}

void farm_run_workers_attach(struct farm_run_workers *workers, uint32_t a, bool attached) {
    workers->actors[a].attached = attached;
    workers->count += attached ? 1 : -1u;
    workers->in_shard[workers->ring_shard[a]] += attached ? 1 : -1u;
}

uint64_t farm_run_workers_bytes(const struct farm_run_workers *workers, size_t number) {
    char text[4096];
    const int pid = farm_supervisor_pid(workers->supervisor, number);
    uint64_t kib = 0;
    if (!pid) return 0;
    // RssAnon has the parent's pages at the fork, too; Pss_Anon divides a page by the processes that share it. A
    // learner maps all rings, and the kernel would look at each page of them.
    if (number < workers->plan->places && farm_file_text(text, sizeof text, "/proc/%d/smaps_rollup", pid))
        kib = farm_file_number(text, "Pss_Anon:");
    if (!kib && farm_file_text(text, sizeof text, "/proc/%d/status", pid)) kib = farm_file_number(text, "RssAnon:");
    return kib << 10;
}

// Rings may use half of the last-level caches; environments, network and other programs need the rest. Larger ones are
// written past the caches, unless measurements say that this is slower.
static bool rings_outgrow_caches(const struct farm_run_plan *plan) {
    if (plan->machine->measured.write_nt < plan->machine->measured.write) return false;
    const uint64_t caches = plan->machine->l3_bytes * (uint64_t)plan->machine->l3_count;
    return caches && 2 * farm_run_ring_bytes(plan) > caches;
}

bool farm_run_shares_cpus(const struct farm_run_plan *plan) {
    const struct farm_plan *placement = plan->placement;
    if (plan->responder.remote) return !farm_bitmap_count(&placement->bridge_cpus);
    return placement->shared || !farm_run_learns(plan);
}

static int actor_body(void *context, struct farm_error *err) {
    return farm_actor_run(context, err);
}

enum farm_status farm_run_workers_describe(struct farm_run_workers *workers, uint32_t a, struct farm_worker_spec *spec,
                                           struct farm_error *err) {
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_env *env = &plan->env;
    const struct farm_ring *ring = &workers->rings->ring[a];
    struct farm_run_actor *actor = &workers->actors[a];
    const struct farm_run_remote *remote = plan->responder.remote;
    const bool plugin = env->kind == FARM_ENV_PLUGIN, responder = plan->responder.body;
    const bool shared = farm_run_shares_cpus(plan);
    const struct farm_board *board = farm_board_near(workers->rings->boards, workers->rings->board_count, &ring->down);
    const bool fourth = board || (a == 0 && workers->video >= 0);
    const uint32_t passed = plan->served ? plan->served->passed_count : 0, kept = 3 + fourth + passed;
    const int bell = workers->rings->bells[responder && !remote ? a : workers->ring_shard[a]];
    actor->config = (struct farm_actor_config){
        .actor = remote ? remote->actors[a] : a,
        .up_fd = FARM_WORKER_KEPT,
        .down_fd = FARM_WORKER_KEPT + 1,
        .learner_eventfd = FARM_WORKER_KEPT + 2,
        .opponents = workers->opponent ? (uint32_t)plan->recipe.opponents : 0,
        .opponent_fd = FARM_WORKER_KEPT + (int)kept,
        .board_fd = board ? FARM_WORKER_KEPT + 3 : -1,
        .api = env->api,
        .plugin = plugin ? env->plugin : NULL,
        .plugin_env = plugin ? env->name : NULL,
        .bad_values = (enum farm_bad_values)farm_recipe_choice(&plan->recipe, FARM_KEY_bad_values),
        .options = env->options,
        .option_count = env->option_count,
        .seed = farm_run_workers_seed(workers),
        .video = a == 0 && workers->video >= 0 ? FARM_WORKER_KEPT + 3 : -1,
        .obs_far = rings_outgrow_caches(plan),
        .spin_ns = farm_run_spin_ns(&plan->recipe, shared),
        .rings_late = shared};
    actor->keep[0] = ring->up.fd;
    actor->keep[1] = ring->down.fd_readonly;
    actor->keep[2] = bell;
    actor->keep[3] = board ? board->segment.fd_readonly : workers->video; // only evaluations, without boards, film
    if (passed) memcpy(actor->keep + 3, plan->served->passed, passed * sizeof *actor->keep);
    if (workers->opponent) actor->keep[kept] = workers->opponent->segment.fd_readonly;
    *spec = (struct farm_worker_spec){.body = actor_body,
                                      .context = &actor->config,
                                      .apart = true,
                                      .context_bytes = sizeof actor->config,
                                      .keep = actor->keep,
                                      .keep_count = kept + (workers->opponent != NULL),
                                      .cpus = plan->recipe.pin ? &actor->cpus : NULL,
                                      .memory_node = actor->memory_node,
                                      .takes_turns = plan->actors > plan->placement->cpu_budget,
                                      .confined = env->confined,
                                      .final_status = FARM_ACTOR_ENV_BROKEN,
                                      .restarts_max = (uint64_t)plan->recipe.restarts_max,
                                      .deaths_are_final = plan->deterministic,
                                      .stop_phase = FARM_RUN_PHASE_ACTORS};
    snprintf(spec->name, sizeof spec->name, "actor %u", a);
    if (env->kind != FARM_ENV_PYTHON) return FARM_OK;
    const struct farm_env_argument arguments[] = {
        {"--bad-values", .text = plan->recipe.bad_values},
        {"--actor", .number = actor->config.actor},
        {"--up-fd", .number = FARM_WORKER_KEPT},
        {"--down-fd", .number = FARM_WORKER_KEPT + 1},
        {"--event-fd", .number = FARM_WORKER_KEPT + 2},
        {"--seed", .number = actor->config.seed},
        {"--spin-ns", .number = actor->config.spin_ns},
        {board ? "--board-fd" : "--video-fd", .text = fourth ? NULL : "-1", .number = FARM_WORKER_KEPT + 3},
        {"--opponent-fd", .number = FARM_WORKER_KEPT + kept}};
    _Static_assert(sizeof arguments / sizeof *arguments <= FARM_ENV_ARGUMENTS_MAX, "room in farm_env_program_make");
    enum farm_status status = farm_env_program_make(
        env, NULL, arguments, sizeof arguments / sizeof *arguments - !workers->opponent, &actor->program, err);
    spec->body = NULL;
    spec->argv = actor->program.argv;
    spec->environment = actor->program.environment;
    return status;
}

static enum farm_status enlist_actor(struct farm_run_workers *workers, uint32_t a, struct farm_error *err) {
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_plan_actor *place = &plan->placement->actor[a];
    struct farm_run_actor *actor = &workers->actors[a];
    struct farm_worker_spec spec;
    farm_env_program_free(&actor->program);
    if (actor->attached) farm_run_workers_attach(workers, a, false); // rings of a deterministic run's last part
    *actor = (struct farm_run_actor){0};
    workers->ring_shard[a] = (uint32_t)place->shard;
    farm_plan_actor_cpus(plan->machine, plan->placement, (int)a, &actor->cpus);
    if (place->cpu >= 0) farm_bitmap_set(&actor->claimed, place->cpu);
    actor->memory_node = place->memory_node;
    farm_run_workers_attach(workers, a, true);
    enum farm_status status = farm_run_workers_describe(workers, a, &spec, err);
    return status ? status : farm_supervisor_enlist(workers->supervisor, a, &spec, err);
}

enum farm_status farm_run_workers_enlist(struct farm_run_workers *workers, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t a = 0; a < workers->plan->actors && !status; a++) status = enlist_actor(workers, a, err);
    return status;
}

enum farm_status farm_run_workers_make(struct farm_run_workers *workers, struct farm_error *err) {
    const struct farm_run_plan *plan = workers->plan;
    const bool gpu = farm_run_learns(plan) && plan->device != FARM_DEVICE_CPU;
    const size_t places = plan->places;
    workers->actors = calloc(places, sizeof *workers->actors);
    workers->ring_fds = calloc(places, sizeof *workers->ring_fds);
    workers->ring_shard = calloc(places, sizeof *workers->ring_shard);
    workers->up_writable = gpu ? calloc(places, sizeof *workers->up_writable) : NULL;
    workers->wake_fds = calloc(places, sizeof *workers->wake_fds);
    workers->in_shard = calloc(plan->shards, sizeof *workers->in_shard);
    if (!workers->actors || !workers->ring_fds || !workers->ring_shard || !workers->wake_fds || !workers->in_shard ||
        (gpu && !workers->up_writable))
        return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %zu actors", places);
    workers->start_frames = workers->learner.before.frames;
    return FARM_OK;
}

void farm_run_workers_free(struct farm_run_workers *workers) {
    for (uint32_t a = 0; workers->actors && a < workers->plan->places; a++)
        farm_env_program_free(&workers->actors[a].program);
    farm_board_free(workers->opponent);
    free(workers->worker);
    free(workers->actors);
    free(workers->ring_fds);
    free(workers->ring_shard);
    free(workers->up_writable);
    free(workers->wake_fds);
    free(workers->in_shard);
}
