// The processes of a job, as the supervisor is told of them: what a recipe's words mean to actor and learner, which
// CPUs, memory and descriptors each gets, and the learner's first steps in its own process. See farm_job_parts.h.
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "farm_job_parts.h"
#include "kernels/random.h"
#include "ring/wait.h"
#include "run/paths.h"

// ---- the recipe's words ----

static enum farm_mirror mirror_of(const struct farm_recipe *recipe) {
    if (strcmp(recipe->mirror, "off") == 0) return FARM_MIRROR_OFF;
    return strcmp(recipe->mirror, "window") == 0 ? FARM_MIRROR_WINDOW : FARM_MIRROR_FULL;
}

static struct farm_algo_config algo_of(const struct farm_recipe *recipe) {
    return (struct farm_algo_config){
        .algo = FARM_ALGO_VTRACE,
        .unroll = (uint32_t)recipe->unroll,
        .batch = (uint32_t)recipe->batch,
        .stack = (uint32_t)recipe->stack,
        .discount = recipe->discount,
        .entropy_cost = recipe->entropy_cost,
        .baseline_cost = recipe->baseline_cost,
        .rho_clip = recipe->rho_clip,
        .c_clip = recipe->c_clip,
        .pg_rho_clip = recipe->pg_rho_clip,
        .lambda = recipe->lambda,
        .reward_clip = recipe->reward_clip,
        .reward_scale = recipe->reward_scale,
        .optimiser = strcmp(recipe->optimiser, "adam") == 0 ? FARM_OPTIMISER_ADAM : FARM_OPTIMISER_RMSPROP,
        .lr = recipe->lr,
        .lr_end = recipe->lr_end,
        .grad_norm_clip = recipe->grad_norm_clip,
        .rmsprop_decay = recipe->rmsprop_decay,
        .rmsprop_epsilon = recipe->rmsprop_epsilon,
        .adam_beta1 = recipe->adam_beta1,
        .adam_beta2 = recipe->adam_beta2,
        .adam_epsilon = recipe->adam_epsilon,
        .loss_sum = recipe->loss_sum,
    };
}

static enum farm_precision precision_of(const struct farm_recipe *recipe) {
    if (strcmp(recipe->precision, "bf16") == 0) return FARM_PRECISION_BF16;
    return strcmp(recipe->precision, "f32") == 0 ? FARM_PRECISION_F32 : FARM_PRECISION_AUTO;
}

static enum farm_wait_mode wait_of(const struct farm_recipe *recipe) {
    if (strcmp(recipe->wait, "spin") == 0) return FARM_WAIT_SPIN;
    return strcmp(recipe->wait, "sleep") == 0 ? FARM_WAIT_SLEEP : FARM_WAIT_ADAPTIVE;
}

static enum farm_bad_values bad_values_of(const struct farm_recipe *recipe) {
    if (strcmp(recipe->bad_values, "fail") == 0) return FARM_BAD_FAIL;
    return strcmp(recipe->bad_values, "reset") == 0 ? FARM_BAD_RESET : FARM_BAD_COUNT;
}

// A run that goes on counts its steps from 0 again: under the same seed it would meet the same games and noise again.
static uint64_t seed_of(const struct farm_job *job) {
    uint64_t seed = (uint64_t)job->recipe.seed, start = job->learner.frames_start;
    return start ? farm_random_mix(seed ^ start) : seed;
}

// ---- actors ----

// Half of the last-level caches is what rings can have of them: environments, network and other programs want the rest.
static bool rings_outgrow_caches(const struct farm_job *job) {
    const uint64_t caches = job->machine->l3_bytes * (uint64_t)job->machine->l3_count;
    return caches && 2 * farm_job_ring_bytes(job) > caches;
}

// A stand-in shares the actors' CPUs, so who waits gives way.
static bool cpus_shared(const struct farm_job *job) {
    return job->plan->shared || job->standin.body;
}

static int actor_body(void *context, struct farm_error *err) {
    return farm_actor_run(context, err);
}

enum farm_status farm_job_describe_actor(struct farm_job *job, uint32_t a, struct farm_worker_spec *spec,
                                         struct farm_error *err) {
    struct farm_job_actor *actor = &job->actor_jobs[a];
    const struct farm_ring *ring = &job->rings[a];
    const bool plugin = job->env.kind == FARM_ENV_PLUGIN;
    const uint64_t spin_ns = farm_wait_spin_ns(wait_of(&job->recipe), cpus_shared(job));
    const int bell = job->bells[job->standin.body ? a : job->ring_shard[a]];
    actor->config = (struct farm_actor_config){.actor = a,
                                               .up_fd = ring->up.fd,
                                               .down_fd = ring->down.fd_readonly,
                                               .learner_eventfd = bell,
                                               .api = job->env.api,
                                               .plugin = plugin ? job->env.plugin : NULL,
                                               .plugin_env = plugin ? job->env.name : NULL,
                                               .bad_values = bad_values_of(&job->recipe),
                                               .options = job->env.options,
                                               .option_count = job->env.option_count,
                                               .seed = seed_of(job),
                                               .obs_far = rings_outgrow_caches(job),
                                               .spin_ns = spin_ns,
                                               .rings_late = cpus_shared(job)};
    actor->keep[0] = ring->up.fd;
    actor->keep[1] = ring->down.fd_readonly;
    actor->keep[2] = bell;
    *spec = (struct farm_worker_spec){.body = actor_body,
                                      .context = &actor->config,
                                      .keep = actor->keep,
                                      .keep_count = 3,
                                      .cpus = job->recipe.pin ? &actor->cpus : NULL,
                                      .memory_node = job->plan->actor[a].memory_node,
                                      .final_status = FARM_ACTOR_ENV_BROKEN,
                                      .stop_phase = FARM_JOB_PHASE_ACTORS};
    snprintf(spec->name, sizeof spec->name, "actor %u", a);
    if (job->env.kind != FARM_ENV_PYTHON) return FARM_OK;
    enum farm_status status = farm_env_program_make(&job->env, a, ring->up.fd, ring->down.fd_readonly, bell,
                                                    seed_of(job), spin_ns, &actor->program, err);
    spec->body = NULL;
    spec->argv = actor->program.argv;
    spec->environment = actor->program.environment;
    return status;
}

static enum farm_status add_actor(struct farm_job *job, uint32_t a, struct farm_error *err) {
    struct farm_worker_spec spec;
    job->ring_shard[a] = (uint32_t)job->plan->actor[a].gpu;
    farm_plan_actor_cpus(job->machine, job->plan, (int)a, &job->actor_jobs[a].cpus);
    if (job->plan->actor[a].cpu >= 0) farm_bitmap_set(&job->actor_jobs[a].claimed, job->plan->actor[a].cpu);
    enum farm_status status = farm_job_describe_actor(job, a, &spec, err);
    return status ? status : farm_supervisor_add(job->supervisor, &spec, err);
}

// ---- the learner ----

// The supervisor's mapping of the stats is not the child's: it opens its own.
// The arithmetic of the run that a checkpoint, RUN/checkpoints/NAME, belongs to. False if it lies elsewhere.
static bool run_of_checkpoint(const char *checkpoint, char *file, size_t file_bytes) {
    int n = snprintf(file, file_bytes, "%s", checkpoint);
    for (int cut = 0; cut < 2; cut++) {
        char *slash = n > 0 && (size_t)n < file_bytes ? strrchr(file, '/') : NULL;
        if (!slash) return false;
        *slash = 0;
    }
    const size_t length = strlen(file);
    n = snprintf(file + length, file_bytes - length, "/arithmetic.txt");
    return (size_t)n < file_bytes - length;
}

static int learner_body(void *context, struct farm_error *err) {
    const struct farm_job *job = context;
    struct farm_segment stats;
    if (farm_segment_open(job->stats_segment.fd, true, FARM_SEGMENT_STATS, sizeof(struct farm_stats), &stats, err))
        return 1;
    if (job->standin.body) return job->standin.body(job->standin.context, job, farm_job_stats(&stats), err);
    struct farm_learner_config config = job->learner;
    char cpu_name[128], run_file[PATH_MAX], user_file[PATH_MAX];
    config.stats = farm_job_stats(&stats);
    config.cpu_name = farm_machine_cpu_name(NULL, cpu_name, sizeof cpu_name) ? cpu_name : NULL;
    if (job->run_path)
        config.arithmetic_run_file = farm_run_dir_file(job->run_path, "arithmetic.txt", run_file, sizeof run_file);
    else if (config.evaluate && config.checkpoint_load &&
             run_of_checkpoint(config.checkpoint_load, run_file, sizeof run_file))
        config.arithmetic_run_file = run_file;
    if (farm_path_cache("arithmetic.txt", user_file, sizeof user_file)) config.arithmetic_user_file = user_file;
    return farm_learner_run(&config, err);
}

// Rings, bells, stats and gate, under the numbers that they have in this process; -1 where nobody is.
size_t farm_job_hand_over(struct farm_job *job) {
    struct farm_learner_config *learner = &job->learner;
    size_t kept = 0;
    for (uint32_t a = 0; a < job->places; a++) {
        const bool there = job->actor_jobs[a].there;
        job->learner_keep[kept++] = job->ring_fds[a][0] = there ? job->rings[a].up.fd_readonly : -1;
        job->learner_keep[kept++] = job->ring_fds[a][1] = there ? job->rings[a].down.fd : -1;
        if (job->up_writable) job->learner_keep[kept++] = job->up_writable[a] = there ? job->rings[a].up.fd : -1;
    }
    for (uint32_t b = 0; b < job->bell_count; b++) job->learner_keep[kept++] = job->bells[b];
    job->learner_keep[kept++] = job->stats_segment.fd;
    job->learner_keep[kept++] = learner->gate;
    learner->ring_fds = (const int(*)[2])job->ring_fds;
    learner->ring_count = job->places;
    learner->up_writable = job->up_writable;
    learner->ring_shard = job->ring_shard;
    for (uint32_t k = 0; k < learner->shard_count; k++) {
        const struct farm_bitmap *cpus = &job->plan->gpu_cpus[k];
        learner->shards[k].eventfd = job->bells[k];
        learner->shards[k].cpus = job->recipe.pin && farm_bitmap_count(cpus) ? cpus : NULL;
    }
    return kept;
}

static void configure_learner(struct farm_job *job) {
    struct farm_learner_config *learner = &job->learner;
    const struct farm_recipe *recipe = &job->recipe;
    learner->seed = seed_of(job);
    learner->algo = algo_of(recipe);
    learner->precision = precision_of(recipe);
    learner->mirror = mirror_of(recipe);
    learner->train_threads = job->plan->training_threads > 0 ? (uint32_t)job->plan->training_threads : 1;
    learner->memory_node = job->plan->learner_node;
    learner->infer_batch_max = (uint32_t)recipe->infer_batch_max;
    learner->infer_wait_ms = recipe->infer_wait_ms;
    learner->spin_ns = farm_wait_spin_ns(wait_of(recipe), job->plan->shared);
    learner->micro_batch = (uint32_t)recipe->micro_batch;
    learner->frames_per_step = job->env.spec.frames_per_step;
}

static enum farm_status add_learner(struct farm_job *job, struct farm_error *err) {
    const size_t kept = farm_job_hand_over(job);
    configure_learner(job);
    job->learner_cpus = job->plan->inference_cpus;
    farm_bitmap_add(&job->learner_cpus, &job->plan->training_cpus);
    struct farm_worker_spec spec = {
        .name = "learner",
        .body = learner_body,
        .context = job,
        .keep = job->learner_keep,
        .keep_count = kept,
        .cpus = job->recipe.pin && farm_bitmap_count(&job->learner_cpus) ? &job->learner_cpus : NULL,
        .memory_node = job->plan->learner_node,
        .may_end = true,
        .errors_are_final = true, // bad checkpoint, diverged: the next life would be the same
        .stop_phase = FARM_JOB_PHASE_LEARNER};
    job->learner_worker = job->places;
    return farm_supervisor_add(job->supervisor, &spec, err);
}

enum farm_status farm_job_add_workers(struct farm_job *job, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t a = 0; a < job->actors && !status; a++) status = add_actor(job, a, err);
    for (uint32_t a = job->actors; a < job->places && !status; a++)
        status = farm_supervisor_reserve(job->supervisor, err);
    return status ? status : add_learner(job, err);
}
