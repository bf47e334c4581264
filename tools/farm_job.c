// See farm_job.h.
#include "farm_job.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "farm_paths.h"
#include "kernels/random.h"
#include "learner/checkpoint.h"
#include "ring/wait.h"
#include "shm/limits.h"

enum {
    ENVS_PER_ACTOR = 16, // where the recipe leaves it open: enough to fill a batch, few enough for a small cache
    BATCH_LEAST = 8,     // unrolls of an update; half the environments keeps the policy lag at about three updates
    EVAL_ENVS_MAX = 64,
    INFER_BATCH_MAX = 256,
    INFER_BATCH_MAX_GPU = 1024,
    TICK_MS = 50,
    PROGRESS_ROUNDS = 64, // of all lanes of an actor
    SPARE_DESCRIPTORS = 64,
};

static const int PHASE_LEARNER = 0, PHASE_ACTORS = 1;

// ---- what to run ----

// The network's ends, from the environment's spec. FARM_E_UNSUPPORTED for observations that no network here reads.
static enum farm_status choose_io(const struct farm_job *job, struct farm_net_io *io, struct farm_error *err) {
    const struct farm_env_spec *env = &job->env.spec;
    const struct farm_field_spec *field = &env->obs[0];
    *io = (struct farm_net_io){.stack = (int)job->recipe.stack, .actions = (int)farm_policy_outputs(&env->action)};
    if (env->action.kind != FARM_ACTION_DISCRETE)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "%s: only one discrete action a step can be trained yet (farm fps steps any environment)",
                         job->env.name);
    if (env->obs_count != 1)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "%s: only a single observation array can be trained yet (farm fps steps any environment)",
                         job->env.name);
    if (field->dtype == FARM_U8 && field->rank == 2) {
        io->frame_channels = 1;
        io->height = (int)field->dims[0];
        io->width = (int)field->dims[1];
    } else if (field->dtype == FARM_F32) {
        io->flat = (int)(farm_field_bytes(field) / sizeof(float));
        if (io->stack != 1)
            return farm_fail(err, FARM_E_USAGE,
                             "stack: %s has flat observations, of which none are stacked (--stack 1)", job->env.name);
    } else {
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "%s: only grey frames (u8, height x width) and f32 vectors can be trained yet (farm fps steps "
                         "any environment)",
                         job->env.name);
    }
    return FARM_OK;
}

// Nothing here touches CUDA: the learner does, after its fork. `auto` asks for a GPU only where a driver is.
static enum farm_status choose_device(struct farm_job *job, struct farm_error *err) {
    const char *device = job->recipe.device;
    job->learner.device = FARM_DEVICE_CPU;
    if (strcmp(device, "cpu") == 0) return FARM_OK;
    const bool found = farm_path_cuda(job->cuda_library, sizeof job->cuda_library);
    if (strcmp(device, "cuda") == 0) {
        if (!found)
            return farm_fail(
                err, FARM_E_UNSUPPORTED,
                "--device cuda: libfarm_cuda.so is neither beside this program nor where FARM_CUDA_BACKEND "
                "says (`make deps` and `make` build it; --device cpu does without)");
        job->learner.device = FARM_DEVICE_CUDA;
    } else if (access("/dev/nvidiactl", F_OK) != 0) {
        job->cpu_because = "there is no NVIDIA driver here (/dev/nvidiactl)";
    } else if (!found) {
        job->cpu_because = "there is a GPU, but this build has no libfarm_cuda.so (make deps, make)";
    } else {
        job->learner.device = FARM_DEVICE_AUTO;
    }
    if (job->learner.device != FARM_DEVICE_CPU) job->learner.cuda_library = job->cuda_library;
    return FARM_OK;
}

// The plan's GPU: the first one, where the learner will ask for one and the machine shows one.
static int planned_device(const struct farm_job *job) {
    if (job->standin.body) return FARM_LEARNER_NONE;
    return job->learner.device != FARM_DEVICE_CPU && job->machine->gpu_count > 0 ? 0 : FARM_LEARNER_CPU;
}

// How many GPUs the learner has; the plan refuses more than the machine shows. One that shows none (a container may
// hide them) can have those that CUDA numbers.
static enum farm_status choose_gpus(const struct farm_job *job, uint64_t episodes, int *gpus, struct farm_error *err) {
    const int64_t asked = job->recipe.gpus;
    const int shown = job->machine->gpu_count;
    *gpus = 1;
    if (job->standin.body || episodes) return FARM_OK;
    if (job->learner.device == FARM_DEVICE_CPU) {
        if (asked <= 1) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "--gpus %" PRId64 " on device cpu%s%s", asked, job->cpu_because ? ": " : "",
                         job->cpu_because ? job->cpu_because : "");
    }
    if (asked)
        *gpus = (int)asked;
    else if (shown)
        *gpus = shown;
    return FARM_OK;
}

static enum farm_mirror mirror_of(const struct farm_recipe *recipe) {
    if (strcmp(recipe->mirror, "off") == 0) return FARM_MIRROR_OFF;
    return strcmp(recipe->mirror, "window") == 0 ? FARM_MIRROR_WINDOW : FARM_MIRROR_FULL;
}

static enum farm_status choose_net(struct farm_job *job, struct farm_error *err) {
    struct farm_recipe *recipe = &job->recipe;
    struct farm_net_io io;
    enum farm_status status = choose_io(job, &io, err);
    if (status) return status;
    if ((status = choose_device(job, err))) return status;
    if (strcmp(recipe->net, "auto") == 0) snprintf(recipe->net, sizeof recipe->net, "%s", io.flat ? "mlp" : "shallow");
    const struct farm_net_spec *spec = farm_net_find(recipe->net, err);
    if (!spec) return farm_fail_in(err, FARM_E_USAGE, "net");
    struct farm_net net;
    if (farm_net_make(spec, &io, &net, err))
        return farm_fail_in(err, FARM_E_USAGE, "%s with net %s", job->env.name, recipe->net);
    job->learner.net = *spec;
    job->learner.io = io;
    return FARM_OK;
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

// ---- how many, and where ----

// Few games want few environments: none plays without being counted.
static void choose_eval_counts(struct farm_recipe *recipe, uint64_t episodes, int actors_planned) {
    int64_t wanted = episodes < EVAL_ENVS_MAX ? (int64_t)episodes : EVAL_ENVS_MAX;
    if (!recipe->actors) recipe->actors = wanted < actors_planned ? wanted : actors_planned;
    if (recipe->envs_per_actor) return;
    int64_t each = (wanted + recipe->actors - 1) / recipe->actors;
    if (each < recipe->lanes) recipe->lanes = each;
    recipe->envs_per_actor = (each + recipe->lanes - 1) / recipe->lanes * recipe->lanes;
}

static int64_t infer_batch_most(const struct farm_job *job) {
    return job->learner.device == FARM_DEVICE_CPU ? INFER_BATCH_MAX : INFER_BATCH_MAX_GPU;
}

static void choose_counts(struct farm_job *job, uint64_t episodes) {
    struct farm_recipe *recipe = &job->recipe;
    if (episodes) choose_eval_counts(recipe, episodes, job->plan->actor_count);
    if (!recipe->actors) recipe->actors = job->plan->actor_count;
    if (!recipe->envs_per_actor)
        recipe->envs_per_actor = (ENVS_PER_ACTOR + recipe->lanes - 1) / recipe->lanes * recipe->lanes;
    int64_t environments = recipe->actors * recipe->envs_per_actor;
    const int64_t shards = job->learner.shard_count, least = recipe->actors / shards * recipe->envs_per_actor,
                  most = (recipe->actors + shards - 1) / shards * recipe->envs_per_actor; // of one shard
    if (!recipe->batch) recipe->batch = environments / 2 > BATCH_LEAST ? environments / 2 : BATCH_LEAST;
    if (!recipe->ring_steps) {
        // Windows of one lane that an update takes, all of them in training while the next ones fill.
        const int64_t share = (recipe->batch + shards - 1) / shards; // of an update, of one shard
        uint64_t windows = (uint64_t)((share + least - 1) / least);
        // While an actor hangs the others fill the updates alone; rings for K windows hold one more.
        int64_t others = least - recipe->envs_per_actor;
        uint64_t without_one = others ? (uint64_t)((share + others - 1) / others) - 1 : 0;
        if (windows < without_one) windows = without_one;
        recipe->ring_steps =
            episodes ? recipe->stack + 2
                     : (int64_t)farm_ring_steps_needed(windows, (uint64_t)recipe->unroll, (uint64_t)recipe->unroll + 1,
                                                       (uint64_t)recipe->stack);
    }
    if (!recipe->infer_batch_max) recipe->infer_batch_max = most < infer_batch_most(job) ? most : infer_batch_most(job);
    job->actors = (uint32_t)recipe->actors;
    job->lanes = (uint32_t)recipe->lanes;
    job->width = (uint32_t)(recipe->envs_per_actor / recipe->lanes);
    job->steps = (uint32_t)recipe->ring_steps;
}

static void open_claim(struct farm_job *job) {
    struct farm_error err;
    job->claim.fd = -1;
    if (job->recipe.pin && farm_claim_open(&job->claim, NULL, &err))
        farm_log_warn("CPUs cannot be claimed against other farms, so nothing is pinned: %s", err.message);
}

static enum farm_status make_plan(struct farm_job *job, uint64_t episodes, struct farm_error *err) {
    const struct farm_recipe *recipe = &job->recipe;
    int gpus;
    struct farm_plan_request request = {
        .actors = (int)recipe->actors,
        .learner_threads = (int)recipe->train_threads,
        .pin = recipe->pin,
        .numa = recipe->numa,
    };
    enum farm_status status = farm_machine_read(job->machine, &(struct farm_machine_source){0}, err);
    if (status) return status;
    if ((status = choose_gpus(job, episodes, &gpus, err))) return status;
    request.learner_device = planned_device(job);
    request.learner_gpus = gpus;
    job->learner.shard_count = (uint32_t)gpus;
    for (int k = 0; k < gpus && request.learner_device >= 0; k++)
        job->learner.shards[k].gpu = job->machine->gpu[request.learner_device + k].pci_bus_id;
    open_claim(job);
    // First how many actors, for the rings' size depends on it; then with that size, for good.
    status = farm_claim_read_taken(&job->claim, &request.taken, err);
    if (!status) status = farm_plan_make(job->machine, &request, job->plan, err);
    if (status) return status;
    choose_counts(job, episodes);
    job->ring_spec = (struct farm_ring_spec){.lanes = job->lanes,
                                             .width = job->width,
                                             .steps = job->steps,
                                             .policy_outputs = farm_policy_outputs(&job->env.spec.action),
                                             .env = job->env.spec};
    if ((status = farm_ring_layout_make(&job->ring_spec, &job->layout, err))) return status;
    if (episodes) request.actors = (int)job->actors;
    request.envs_per_actor = (int)recipe->envs_per_actor;
    request.bytes_per_actor = job->layout.up_bytes + job->layout.down_bytes;
    status = farm_claim_plan(&job->claim, job->machine, &request, job->plan, err);
    if (!status && job->plan->actor_count != (int)job->actors)
        status = farm_fail(err, FARM_E_BUSY, "another farm has taken CPUs at this very moment: try again");
    return status;
}

static uint64_t shared_bytes(const struct farm_job *job) {
    return (uint64_t)job->actors * (job->layout.up_bytes + job->layout.down_bytes);
}

// Half of the last-level caches is what rings can have of them: environments, network and other programs want the rest.
static bool rings_outgrow_caches(const struct farm_job *job) {
    const uint64_t caches = job->machine->l3_bytes * (uint64_t)job->machine->l3_count;
    return caches && 2 * shared_bytes(job) > caches;
}

static void say_plan(const struct farm_job *job) {
    double step_bytes = (double)(job->layout.up_stride + job->layout.down_stride) / job->steps / job->width;
    farm_log_info(
        "%s with %s%s: %u actor%s x %u lanes x %u environments x %u steps x %.0f B = %.1f MB of shared memory",
        job->env.name, job->standin.body ? "random actions" : "net ", job->standin.body ? "" : job->recipe.net,
        job->actors, job->actors == 1 ? "" : "s", job->lanes, job->width, job->steps, step_bytes,
        (double)shared_bytes(job) / 1e6);
    for (int i = 0; i < job->plan->note_count; i++) farm_log_info("plan: %s", job->plan->note[i]);
    if (job->cpu_because) farm_log_info("device auto: cpu, for %s", job->cpu_because);
}

enum farm_status farm_job_plan(struct farm_job *job, uint64_t episodes, bool quiet, struct farm_error *err) {
    enum farm_status status = farm_env_find(&job->recipe, &job->env, err);
    if (!status && !job->standin.body) status = choose_net(job, err);
    if (!status) status = make_plan(job, episodes, err);
    if (status) return status;
    job->quiet = quiet;
    if (!quiet) say_plan(job);
    struct farm_limits_request limits = {
        .shared_bytes = shared_bytes(job),
        .descriptors = 4ull * job->actors + 3ull * (job->actors + 1) + SPARE_DESCRIPTORS,
        .huge = job->recipe.huge_pages,
        .root = "/",
    };
    return farm_limits_check(&limits, err);
}

// ---- workers ----

// A run that goes on counts its steps from 0 again: under the same seed it would meet the same games and noise again.
static uint64_t seed_of(const struct farm_job *job) {
    uint64_t seed = (uint64_t)job->recipe.seed, start = job->learner.frames_start;
    return start ? farm_random_mix(seed ^ start) : seed;
}

static int actor_body(void *context, struct farm_error *err) {
    return farm_actor_run(context, err);
}

static size_t board_bytes(void) {
    return FARM_SEGMENT_HEADER_BYTES + sizeof(struct farm_board);
}

static struct farm_board *board_of(const struct farm_segment *segment) {
    return (struct farm_board *)((char *)segment->header + FARM_SEGMENT_HEADER_BYTES);
}

// The supervisor's mapping of the board is not the child's: it opens its own.
static int learner_body(void *context, struct farm_error *err) {
    const struct farm_job *job = context;
    struct farm_segment board;
    if (farm_segment_open(job->board_segment.fd, true, FARM_SEGMENT_BOARD, sizeof(struct farm_board), &board, err))
        return 1;
    if (job->standin.body) return job->standin.body(job->standin.context, job, board_of(&board), err);
    struct farm_learner_config config = job->learner;
    config.board = board_of(&board);
    return farm_learner_run(&config, err);
}

// A stand-in shares the actors' CPUs, so who waits gives way.
static bool cpus_shared(const struct farm_job *job) {
    return job->plan->shared || job->standin.body;
}

static enum farm_status add_actor(struct farm_job *job, uint32_t a, struct farm_error *err) {
    struct farm_job_actor *actor = &job->actor_jobs[a];
    const struct farm_ring *ring = &job->rings[a];
    const bool plugin = job->env.kind == FARM_ENV_PLUGIN;
    const uint64_t spin_ns = farm_wait_spin_ns(wait_of(&job->recipe), cpus_shared(job));
    const int bell = job->bells[job->standin.body ? (int)a : job->plan->actor[a].gpu];
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
    farm_plan_actor_cpus(job->machine, job->plan, (int)a, &actor->cpus);
    struct farm_worker_spec spec = {.body = actor_body,
                                    .context = &actor->config,
                                    .keep = actor->keep,
                                    .keep_count = 3,
                                    .cpus = job->recipe.pin ? &actor->cpus : NULL,
                                    .memory_node = job->plan->actor[a].memory_node,
                                    .final_status = FARM_ACTOR_ENV_BROKEN,
                                    .stop_phase = PHASE_ACTORS};
    snprintf(spec.name, sizeof spec.name, "actor %u", a);
    if (job->env.kind == FARM_ENV_PYTHON) {
        enum farm_status status = farm_env_program_make(&job->env, a, ring->up.fd, ring->down.fd_readonly, bell,
                                                        seed_of(job), spin_ns, &actor->program, err);
        if (status) return status;
        spec.body = NULL;
        spec.argv = actor->program.argv;
        spec.environment = actor->program.environment;
    }
    return farm_supervisor_add(job->supervisor, &spec, err);
}

static enum farm_status add_learner(struct farm_job *job, struct farm_error *err) {
    struct farm_learner_config *learner = &job->learner;
    const struct farm_recipe *recipe = &job->recipe;
    size_t kept = 0;
    for (uint32_t a = 0; a < job->actors; a++) {
        job->learner_keep[kept++] = job->ring_fds[a][0] = job->rings[a].up.fd_readonly;
        job->learner_keep[kept++] = job->ring_fds[a][1] = job->rings[a].down.fd;
        job->ring_shard[a] = (uint32_t)job->plan->actor[a].gpu;
    }
    for (uint32_t b = 0; b < job->bell_count; b++) job->learner_keep[kept++] = job->bells[b];
    job->learner_keep[kept++] = job->board_segment.fd;
    learner->ring_fds = (const int(*)[2])job->ring_fds;
    learner->ring_count = job->actors;
    learner->ring_shard = job->ring_shard;
    for (uint32_t k = 0; k < learner->shard_count; k++) {
        const struct farm_bitmap *cpus = &job->plan->gpu_cpus[k];
        learner->shards[k].eventfd = job->bells[k];
        learner->shards[k].cpus = recipe->pin && farm_bitmap_count(cpus) ? cpus : NULL;
    }
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
    job->learner_cpus = job->plan->inference_cpus;
    farm_bitmap_add(&job->learner_cpus, &job->plan->training_cpus);
    struct farm_worker_spec spec = {
        .name = "learner",
        .body = learner_body,
        .context = job,
        .keep = job->learner_keep,
        .keep_count = kept,
        .cpus = recipe->pin && farm_bitmap_count(&job->learner_cpus) ? &job->learner_cpus : NULL,
        .memory_node = job->plan->learner_node,
        .may_end = true,
        .errors_are_final = true, // bad checkpoint, diverged: the next life would be the same
        .stop_phase = PHASE_LEARNER};
    job->learner_worker = job->actors;
    return farm_supervisor_add(job->supervisor, &spec, err);
}

// ---- shared memory ----

static enum farm_status make_bells(struct farm_job *job, struct farm_error *err) {
    const uint32_t wanted = job->standin.body ? job->actors : job->learner.shard_count;
    job->bells = calloc(wanted, sizeof *job->bells);
    for (; job->bells && job->bell_count < wanted; job->bell_count++)
        if ((job->bells[job->bell_count] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) break;
    return job->bell_count == wanted ? FARM_OK : farm_fail_errno(err, FARM_E_LIMIT, "%u bells", wanted);
}

static enum farm_status make_board(struct farm_job *job, struct farm_error *err) {
    struct farm_segment_request request = {
        .kind = FARM_SEGMENT_BOARD, .bytes = board_bytes(), .node = -1, .layout_hash = sizeof(struct farm_board)};
    enum farm_status status = farm_segment_create(&request, &job->board_segment, err);
    if (!status) job->board = board_of(&job->board_segment);
    return status;
}

static enum farm_status make_rings(struct farm_job *job, struct farm_error *err) {
    for (uint32_t a = 0; a < job->actors; a++) {
        enum farm_status status = farm_ring_create(&job->ring_spec, a, job->plan->actor[a].memory_node,
                                                   job->recipe.huge_pages, &job->rings[a], err);
        if (status) return status;
        job->rings_made = a + 1;
    }
    char text[512];
    farm_segment_describe(&job->rings[0].up, text, sizeof text);
    if (!job->quiet) farm_log_info("shared memory: %s", text);
    return FARM_OK;
}

enum farm_status farm_job_build(struct farm_job *job, struct farm_error *err) {
    job->rings = calloc(job->actors, sizeof *job->rings);
    job->actor_jobs = calloc(job->actors, sizeof *job->actor_jobs);
    job->ring_fds = calloc(job->actors, sizeof *job->ring_fds);
    job->ring_shard = calloc(job->actors, sizeof *job->ring_shard);
    job->watches = calloc(job->actors, sizeof *job->watches);
    job->watchdog = farm_watchdog_make(job->recipe.hang_seconds);
    enum farm_status status = make_bells(job, err);
    job->learner_keep = calloc(2 * (size_t)job->actors + job->bell_count + 1, sizeof *job->learner_keep);
    if (!job->rings || !job->actor_jobs || !job->ring_fds || !job->ring_shard || !job->learner_keep || !job->watches)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u actors", job->actors);
    if (!status) status = make_board(job, err);
    if (!status) status = make_rings(job, err);
    for (uint32_t a = 0; a < job->actors && !status; a++) status = add_actor(job, a, err);
    if (!status) status = add_learner(job, err);
    return status;
}

// ---- while it runs ----

static void __attribute__((format(printf, 2, 3))) say(const struct farm_job *job, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (job->clear_line) job->clear_line(job->caller);
    farm_log_warn("%s", text);
}

// Loads it as the learner will, into vectors that are thrown away.
static enum farm_status try_checkpoint(const struct farm_job *job, const char *path, struct farm_error *err) {
    struct farm_checkpoint_metadata metadata;
    struct farm_net net;
    bool has_optimiser, adam = strcmp(job->recipe.optimiser, "adam") == 0;
    enum farm_status status = farm_net_make(&job->learner.net, &job->learner.io, &net, err);
    if (status) return status;
    float *scratch = calloc(3 * net.parameter_count, sizeof *scratch);
    if (!scratch) return farm_fail(err, FARM_E_LIMIT, "no memory to read %s", path);
    struct farm_backend_state state = {.params = scratch,
                                       .first = adam ? scratch + net.parameter_count : NULL,
                                       .second = scratch + 2 * net.parameter_count};
    status = farm_checkpoint_load(path, &net, &state, &has_optimiser, &metadata, err);
    if (!status) farm_checkpoint_metadata_free(&metadata);
    free(scratch);
    return status;
}

static enum farm_status try_header(const char *path, struct farm_error *err) {
    struct farm_checkpoint_metadata metadata;
    enum farm_status status = farm_checkpoint_read_metadata(path, &metadata, err);
    if (!status) farm_checkpoint_metadata_free(&metadata);
    return status;
}

bool farm_job_find_checkpoint(const struct farm_job *job, const char *run_path, char *path, size_t path_bytes) {
    struct farm_error err;
    for (size_t i = 0; farm_run_dir_checkpoint(run_path, i, path, path_bytes); i++) {
        if ((job ? try_checkpoint(job, path, &err) : try_header(path, &err)) == FARM_OK) return true;
        if (job && job->clear_line) job->clear_line(job->caller);
        farm_log_warn("passed over: %s", err.message);
    }
    return false;
}

static void restart_learner(struct farm_job *job) {
    job->learner_restarts++;
    if (job->run_path) {
        bool found = farm_job_find_checkpoint(job, job->run_path, job->checkpoint, sizeof job->checkpoint);
        job->learner.checkpoint_load = found ? job->checkpoint : NULL;
    }
    say(job, "the learner starts again %s%s",
        job->learner.checkpoint_load ? "from " : "with fresh parameters: no checkpoint yet",
        job->learner.checkpoint_load ? job->learner.checkpoint_load : "");
}

// A lane's new actor finds its number in the lane; the old one is dead, for its pidfd said so.
static void before_start(void *context, size_t worker, uint64_t starts) {
    struct farm_job *job = context;
    if (worker != job->learner_worker)
        job->actor_jobs[worker].heartbeat_at_start = farm_load_relaxed(&job->rings[worker].up_control->heartbeat);
    if (!starts) return;
    if (worker == job->learner_worker) {
        restart_learner(job);
        return;
    }
    job->actor_restarts++;
    job->watches[worker] = (struct farm_watch){0};
    if (farm_ring_restore(&job->rings[worker]))
        say(job, "actor %zu left its header or its counters overwritten: put right for the next one", worker);
    for (uint32_t l = 0; l < job->lanes; l++) farm_store_release(&job->rings[worker].lanes[l].down->generation, starts);
}

static void on_line(void *context, size_t worker, const char *line) {
    static const char error[] = "farm: error: ";
    struct farm_job *job = context;
    if (worker == job->learner_worker && strncmp(line, error, strlen(error)) == 0)
        snprintf(job->learner_error, sizeof job->learner_error, "%s", line + strlen(error));
    if (job->clear_line) job->clear_line(job->caller);
    dprintf(STDERR_FILENO, "%s\n", line);
}

static void on_death(void *context, size_t worker, const char *how) {
    const struct farm_job *job = context;
    char name[FARM_WORKER_NAME_MAX] = "the learner";
    if (worker != job->learner_worker) snprintf(name, sizeof name, "actor %zu", worker);
    say(job, "%s %s", name, how);
}

// An actor that dies within its first rounds has got nothing done: an environment that cannot live, with whose resets
// and first steps nobody should wait long for the end.
static uint64_t progress_of(void *context, size_t worker) {
    const struct farm_job *job = context;
    if (worker == job->learner_worker) return farm_load_relaxed(&job->board->agent_steps);
    const uint64_t least = (uint64_t)PROGRESS_ROUNDS * job->lanes * job->width;
    const uint64_t now = farm_load_relaxed(&job->rings[worker].up_control->heartbeat);
    const uint64_t start = job->actor_jobs[worker].heartbeat_at_start;
    return now - start > least ? now : start;
}

static void before_stop(void *context, int phase) {
    struct farm_job *job = context;
    if (!job->end_ns) job->end_ns = farm_now_ns();
    for (uint32_t a = 0; a < job->actors && phase == PHASE_ACTORS; a++)
        farm_store_release(&job->rings[a].down_control->stop, 1);
}

// ---- the watchdog: judgements are supervisor/watchdog.h's, here are the looks and the words ----

// "lane 1", or "lanes 0 1" where it cannot be told which.
static void name_lanes(const struct farm_watch *watch, uint32_t lanes, char *text, size_t bytes) {
    const bool one = (watch->lanes & (watch->lanes - 1)) == 0;
    size_t used = (size_t)snprintf(text, bytes, one ? "lane" : "one of lanes");
    for (uint32_t l = 0; l < lanes && used < bytes; l++)
        if (watch->lanes >> l & 1) used += (size_t)snprintf(text + used, bytes - used, " %u", l);
}

// Unrolls that the lanes of a shard's actors that are well can hold, when all of them wait for training.
static uint64_t unrolls_without_stuck(const struct farm_job *job, uint32_t shard) {
    const struct farm_recipe *recipe = &job->recipe;
    const uint64_t held = (uint64_t)(recipe->stack + recipe->unroll);
    uint64_t well = 0;
    for (uint32_t a = 0; a < job->actors; a++)
        well += job->ring_shard[a] == shard && job->watches[a].state == FARM_WATCH_WELL;
    if (job->steps < held) return 0;
    return well * job->lanes * job->width * ((job->steps - held) / (uint64_t)recipe->unroll + 1);
}

static void say_rest(const struct farm_job *job) {
    const uint32_t batch = (uint32_t)job->recipe.batch, shards = job->learner.shard_count;
    for (uint32_t k = 0; k < shards && !job->learner.evaluate; k++) {
        if (unrolls_without_stuck(job, k) >= farm_learner_share(batch, shards, k)) continue;
        say(job,
            "the other actors' rings cannot hold %s of %u unrolls: training waits until the actor goes on "
            "or is killed; a larger --ring-steps or a smaller --batch would spare that",
            shards > 1 ? "their GPU's share of an update" : "an update", farm_learner_share(batch, shards, k));
        return;
    }
}

static void say_hung(const struct farm_job *job, uint32_t a, pid_t pid) {
    const struct farm_watch *watch = &job->watches[a];
    char lanes[256], debugger[64];
    name_lanes(watch, job->lanes, lanes, sizeof lanes);
    snprintf(debugger, sizeof debugger, job->env.kind == FARM_ENV_PYTHON ? "py-spy dump --pid %d" : "gdb -p %d",
             (int)pid);
    say(job,
        "actor %u hangs: %s, %s, %s for %.3g s (pid %d). Where it hangs: `%s`. `kill -9 %d` ends it, and a new actor "
        "takes its lanes over; the others go on either way",
        a, job->env.name, lanes, watch->stepped ? "has not returned from a step" : "has not finished its first step",
        (double)watch->quiet_ns * 1e-9, (int)pid, debugger, (int)pid);
    say_rest(job);
}

static void say_stopped(const struct farm_job *job, uint32_t a, pid_t pid) {
    say(job,
        "actor %u is stopped (SIGSTOP or a debugger), %s, for %.3g s (pid %d). `kill -CONT %d` lets it go on, `kill -9 "
        "%d` ends it, and a new actor takes its lanes over; the others go on either way",
        a, job->env.name, (double)job->watches[a].stopped_ns * 1e-9, (int)pid, (int)pid, (int)pid);
    say_rest(job);
}

static void watch_actor(struct farm_job *job, uint32_t a, uint64_t passed_ns) {
    struct farm_watch *watch = &job->watches[a];
    const pid_t pid = farm_supervisor_pid(job->supervisor, a);
    if (!pid) return; // dead, and about to be started
    const struct farm_watch before = *watch;
    struct farm_watch_look look = {.passed_ns = passed_ns,
                                   .heartbeat = farm_load_relaxed(&job->rings[a].up_control->heartbeat),
                                   .lanes = farm_watch_lanes(&job->rings[a])};
    look.stopped = farm_watch_still(watch, look.heartbeat, look.lanes) && farm_watch_stopped(pid);
    const enum farm_watch_state state = farm_watch_judge(watch, &look, job->watchdog.limit_ns);
    if (state == before.state) return;
    if (state == FARM_WATCH_WELL) {
        say(job, "actor %u goes on after %.3g s", a, (double)(before.quiet_ns + before.stopped_ns) * 1e-9);
    } else if (state == FARM_WATCH_STOPPED) {
        say_stopped(job, a, pid);
    } else {
        job->actors_hung++;
        say_hung(job, a, pid);
    }
}

static void watch_actors(struct farm_job *job, uint64_t now_ns) {
    const uint64_t passed_ns = farm_watchdog_due(&job->watchdog, now_ns);
    for (uint32_t a = 0; a < job->actors && passed_ns; a++) watch_actor(job, a, passed_ns);
}

// An actor whose counters cannot be has scribbled over its segment. The learner does not believe it and lets its lane
// rest; the next actor can use the lane again.
static void end_liars(const struct farm_job *job) {
    for (uint32_t a = 0; a < job->actors; a++) {
        uint32_t lane;
        const pid_t pid = farm_supervisor_pid(job->supervisor, a);
        if (!pid || farm_ring_counters_sound(&job->rings[a], &lane)) continue;
        say(job, "actor %u says that it has published %llu steps of its lane %u, of which %llu are answered: killed", a,
            (unsigned long long)farm_lane_produced(&job->rings[a].lanes[lane]), lane,
            (unsigned long long)farm_lane_acted(&job->rings[a].lanes[lane]));
        kill(pid, SIGKILL);
    }
}

static enum farm_supervisor_turn on_tick(void *context) {
    struct farm_job *job = context;
    uint64_t now = farm_now_ns();
    watch_actors(job, now);
    end_liars(job);
    if (!job->start_ns && farm_load_relaxed(&job->board->agent_steps)) job->start_ns = job->tick_ns;
    job->tick_ns = now;
    if (farm_load_acquire(&job->board->done)) {
        if (!job->end_ns) job->end_ns = now;
        return FARM_TURN_ON; // the learner ends by itself, when its checkpoint is written
    }
    if (job->recipe.seconds > 0 && farm_job_wall_s(job) >= job->recipe.seconds) return FARM_TURN_STOP;
    return job->on_tick ? job->on_tick(job->caller, now) : FARM_TURN_ON;
}

enum farm_status farm_job_begin(struct farm_job *job, const struct farm_recipe *recipe, struct farm_error *err) {
    *job = (struct farm_job){.recipe = *recipe, .claim = {.fd = -1}};
    struct farm_supervisor_config config = {.context = job,
                                            .before_start = before_start,
                                            .on_line = on_line,
                                            .on_death = on_death,
                                            .before_stop = before_stop,
                                            .on_tick = on_tick,
                                            .progress = progress_of,
                                            .tick_ms = TICK_MS};
    job->machine = calloc(1, sizeof *job->machine);
    job->plan = calloc(1, sizeof *job->plan);
    if (!job->machine || !job->plan) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for the plan");
    return farm_supervisor_make(&config, &job->supervisor, err);
}

enum farm_status farm_job_run(struct farm_job *job, bool *interrupted, struct farm_error *err) {
    int number;
    job->tick_ns = farm_now_ns();
    job->sampler.time_ns = job->tick_ns;
    job->sampler.frames = job->learner.frames_start;
    enum farm_status status = farm_supervisor_run(job->supervisor, &number, err);
    if (!job->end_ns) job->end_ns = farm_now_ns();
    // A job that was done within one tick began with that tick.
    if (!job->start_ns && farm_load_relaxed(&job->board->agent_steps)) job->start_ns = job->tick_ns;
    *interrupted = number != 0;
    // In place of the learner's last lines, which stand on stderr already; and where its end was asked for, but the
    // last checkpoint could not be written.
    if (job->learner_error[0]) status = farm_fail(err, status ? status : FARM_E_DEAD, "%s", job->learner_error);
    return status;
}

void farm_job_free(struct farm_job *job) {
    farm_supervisor_free(job->supervisor);
    for (uint32_t a = 0; a < job->rings_made; a++) farm_ring_close(&job->rings[a]);
    for (uint32_t a = 0; job->actor_jobs && a < job->actors; a++) farm_env_program_free(&job->actor_jobs[a].program);
    if (job->board_segment.header) farm_segment_close(&job->board_segment);
    for (uint32_t b = 0; b < job->bell_count; b++) close(job->bells[b]);
    free(job->bells);
    farm_claim_close(&job->claim);
    free(job->rings);
    free(job->actor_jobs);
    free(job->ring_fds);
    free(job->ring_shard);
    free(job->learner_keep);
    free(job->watches);
    free(job->machine);
    free(job->plan);
}

// ---- figures ----

double farm_job_wall_s(const struct farm_job *job) {
    if (!job->start_ns) return 0;
    uint64_t end = job->end_ns ? job->end_ns : farm_now_ns();
    return end > job->start_ns ? (double)(end - job->start_ns) * 1e-9 : 0;
}

static double ratio(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : (double)NAN;
}

static double share(uint64_t part_ns, uint64_t whole_ns) {
    double value = whole_ns ? (double)part_ns / (double)whole_ns : 0;
    return value < 1 ? value : 1;
}

static void sample_rates(struct farm_job *job, uint64_t now_ns, struct farm_sample *sample) {
    const struct farm_board *board = job->board;
    const struct farm_job_sampler before = job->sampler;
    struct farm_job_sampler now = {
        .time_ns = now_ns,
        .frames = sample->frames,
        .agent_steps = sample->agent_steps,
        .windows = farm_load_relaxed(&board->windows),
        .infer_calls = farm_load_relaxed(&board->infer_calls),
        .infer_rows = farm_load_relaxed(&board->infer_rows),
        .lag_sum = farm_load_relaxed(&board->lag_sum),
        .train_wait_ns = farm_load_relaxed(&board->train_wait_ns),
        .actor_wait_ns = farm_load_relaxed(&board->actor_wait_ns),
    };
    uint64_t passed = now_ns > before.time_ns ? now_ns - before.time_ns : 1;
    sample->frames_per_s = (double)(now.frames - before.frames) / ((double)passed * 1e-9);
    sample->agent_steps_per_s = (double)(now.agent_steps - before.agent_steps) / ((double)passed * 1e-9);
    sample->policy_lag_updates = ratio(now.lag_sum - before.lag_sum, now.windows - before.windows);
    sample->infer_batch_mean = ratio(now.infer_rows - before.infer_rows, now.infer_calls - before.infer_calls);
    sample->learner_wait_share = share(now.train_wait_ns - before.train_wait_ns, passed);
    sample->actor_wait_share = share(now.actor_wait_ns - before.actor_wait_ns, passed * job->actors * job->lanes);
    job->sampler = now;
}

void farm_job_sample(struct farm_job *job, uint64_t now_ns, struct farm_sample *sample) {
    const struct farm_board *board = job->board;
    *sample = (struct farm_sample){
        .wall_s = farm_job_wall_s(job),
        .agent_steps = farm_load_relaxed(&board->agent_steps),
        .updates = farm_load_relaxed(&board->updates),
        .episodes = farm_load_relaxed(&board->episodes),
        .frames_target = (uint64_t)job->recipe.frames,
        .seconds_target = job->recipe.seconds,
        .frames_start = job->learner.frames_start,
        .actor_restarts = job->actor_restarts,
        .learner_restarts = job->learner_restarts,
        .checkpoints = farm_load_relaxed(&board->checkpoints),
        .bad_values = farm_load_relaxed(&board->bad_values),
        .actors_hung = job->actors_hung,
    };
    const uint64_t crossed = farm_load_relaxed(&board->bus_infer_bytes) + farm_load_relaxed(&board->bus_train_bytes);
    sample->bus_bytes_per_observation = crossed ? ratio(crossed, farm_load_relaxed(&board->infer_rows)) : (double)NAN;
    for (uint32_t a = 0; a < job->actors; a++) {
        sample->actors_stuck += job->watches[a].state != FARM_WATCH_WELL;
        sample->bad_values += farm_load_relaxed(&job->rings[a].up_control->abandoned);
    }
    sample->frames = job->learner.frames_start + sample->agent_steps * job->env.spec.frames_per_step;
    double nothing = (double)NAN;
    sample->return_mean = sample->episodes ? farm_board_get(&board->return_mean) : nothing;
    sample->return_std = sample->episodes ? farm_board_get(&board->return_std) : nothing;
    double length = farm_board_get(&board->length_mean);
    sample->length_mean = length > 0 ? length : nothing;
    sample->loss_policy = sample->updates ? farm_board_get(&board->loss_policy) : nothing;
    sample->loss_value = sample->updates ? farm_board_get(&board->loss_value) : nothing;
    sample->entropy = sample->updates ? farm_board_get(&board->entropy) : nothing;
    sample->grad_norm = sample->updates ? farm_board_get(&board->grad_norm) : nothing;
    sample->learning_rate = sample->updates ? farm_board_get(&board->learning_rate) : nothing;
    sample->rho_clipped_share = sample->updates ? farm_board_get(&board->rho_clipped_share) : nothing;
    sample_rates(job, now_ns, sample);
}
