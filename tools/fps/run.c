// See run.h.
#include "tools/fps/run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "actor/bare.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/program.h"
#include "base/time.h"
#include "run/rate.h"
#include "shm/limits.h"
#include "topo/width.h"

enum { PROBE_ENVS = 8, PROBE_MS = 40 };
static const double POOL_TURN_NS = 150e3; // two EnvPools: threads wake, Python has left the caches
static const double MAKE_NS_MAX = 5e9;    // CPU time to make an actor's pools, or the bare loop's
static const double ALE_STEP_NS = 200e3; // typical: every game gets the narrowest lanes, without a start of its program
static const uint64_t CLEARED_BYTES = 256 << 20; // that a CPU clears in about a second, or in less

// ---- the farm under random actions ----

struct measurement {
    struct farm_run run;
    struct farm_fps_responder responder;
    enum farm_fps_numa numa;
    struct farm_fps_result *result;
};

static void describe_plan(const struct farm_run_plan *plan, struct farm_fps_result *result) {
    const struct farm_machine *machine = plan->machine;
    struct farm_bitmap cpus = {0}, cores = {0};
    for (int a = 0; a < plan->placement->actor_count; a++) {
        struct farm_bitmap own;
        farm_plan_actor_cpus(machine, plan->placement, a, &own);
        farm_bitmap_add(&cpus, &own);
    }
    for (int c = 0; c < machine->cpu_count; c++)
        if (farm_bitmap_has(&cpus, machine->cpu[c].cpu)) farm_bitmap_set(&cores, machine->cpu[c].core);
    const double quota = machine->cpu_quota, count = farm_bitmap_count(&cores);
    result->cores = count < plan->actors ? count : plan->actors;
    if (quota > 0 && quota < result->cores) result->cores = quota;
    result->actors = plan->actors;
    result->lanes = plan->lanes;
    result->width = plan->width;
    result->steps = plan->steps;
    result->frames_per_step = plan->env.spec.frames_per_step;
    result->agents = plan->env.spec.agents;
    result->pinned = plan->placement->pinned;
    result->ring_bytes = farm_run_ring_bytes(plan);
    for (int i = 0; i < machine->node_count; i++) result->nodes += machine->node[i].total_bytes > 0;
}

// Gives the responder the processes whose CPU time it measures.
static enum farm_supervisor_turn share_pids(void *context, uint64_t now_ns) {
    struct measurement *measurement = context;
    const struct farm_run_workers *workers = &measurement->run.workers;
    for (uint32_t a = 0; a < workers->count; a++)
        __atomic_store_n(&measurement->responder.samples->actors[a], farm_supervisor_pid(workers->supervisor, a),
                         __ATOMIC_RELAXED);
    return FARM_TURN_ON;
}

static enum farm_status run_responder(struct measurement *measurement, const struct farm_recipe *recipe, bool quiet,
                                      struct farm_error *err) {
    struct farm_run *run = &measurement->run;
    struct farm_fps_result *result = measurement->result;
    const struct farm_run_request request = {
        .recipe = recipe, .quiet = quiet, .responder = {farm_fps_responder_run, &measurement->responder}};
    enum farm_status status = farm_run_make(run, &request, err);
    if (status) return status;
    describe_plan(&run->plan, result);
    farm_fps_place(&run->plan, measurement->numa);
    if (measurement->numa == FARM_FPS_NUMA_INTERLEAVE) farm_fps_interleave(run->plan.machine, true);
    status = farm_run_build(run, err);
    if (measurement->numa == FARM_FPS_NUMA_INTERLEAVE) farm_fps_interleave(run->plan.machine, false);
    if (status) return status;
    farm_segment_describe(&run->rings.ring[0].up, result->ring_note, sizeof result->ring_note);
    run->caller = (struct farm_run_caller){.context = measurement, .on_tick = share_pids};
    status = farm_run_execute_measured(run, &result->interrupted, err);
    result->rejected_steps = farm_run_rejected_steps(&run->change);
    result->checked_steps = farm_load_relaxed(&run->rings.stats->agent_steps) + result->rejected_steps;
    return status;
}

enum farm_status farm_fps_measure(const struct farm_recipe *recipe, enum farm_fps_numa numa,
                                  const struct farm_fps_turns *turns, bool quiet, struct farm_fps_result *result,
                                  struct farm_error *err) {
    memset(result, 0, sizeof *result);
    struct measurement *measurement = calloc(1, sizeof *measurement);
    struct farm_fps_samples *samples =
        mmap(NULL, sizeof *samples, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!measurement || samples == MAP_FAILED) {
        free(measurement);
        return farm_fail_errno(err, FARM_E_LIMIT, "farm fps");
    }
    measurement->responder = (struct farm_fps_responder){.turns = *turns, .samples = samples};
    measurement->result = result;
    measurement->numa = numa;
    enum farm_status status = run_responder(measurement, recipe, quiet, err);
    result->samples = *samples;
    farm_run_free(&measurement->run);
    free(measurement);
    munmap(samples, sizeof *samples);
    return status;
}

// ---- the width of lanes ----

struct probe {
    const struct farm_env *env;
    uint64_t seed;
};

static bool run_probe(const void *context, void *result) {
    const struct probe *probe = context;
    const struct farm_env *env = probe->env;
    const bool plugin = env->kind == FARM_ENV_PLUGIN;
    const struct farm_actor_config config = {.api = env->api,
                                             .plugin = plugin ? env->plugin : NULL,
                                             .plugin_env = plugin ? env->name : NULL,
                                             .options = env->options,
                                             .option_count = env->option_count,
                                             .seed = probe->seed,
                                             .video = -1};
    struct farm_bare bare;
    struct farm_error err;
    uint64_t taken_ns;
    if ((env->confined && farm_confine_environment(&err)) ||
        farm_bare_open(&config, PROBE_ENVS * env->spec.agents, &bare, &err)) {
        farm_log_error("%s", err.message);
        return false;
    }
    farm_bare_run(&bare, PROBE_MS / 4 * 1000000u, &taken_ns); // caches and clocks
    // CPU time: other programs on the machine must not make the environment look expensive.
    const uint64_t from = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID),
                   steps = farm_bare_run(&bare, PROBE_MS * 1000000u, &taken_ns);
    *(double *)result = (double)(farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - from) / (double)(steps ? steps : 1);
    return true;
}

// The same by a Python program.
static enum farm_status probe_python(const struct farm_env *env, uint64_t seed, double ns[2], struct farm_error *err) {
    const struct farm_env_argument arguments[] = {{"--width", .number = PROBE_ENVS * env->spec.agents},
                                                  {"--seed", .number = seed},
                                                  {"--probe-ms", .number = PROBE_MS}};
    struct farm_env_program program = {.texts = NULL};
    char *text = NULL;
    enum farm_status status = farm_env_program_make(env, "actorfarm.bare", arguments, 3, &program, err);
    const struct farm_program bare = {.path = program.argv[0],
                                      .argv = program.argv,
                                      .environment = program.environment,
                                      .label = "bare: ",
                                      .apart = true, // the caller handles Ctrl-C
                                      .confined = env->confined,
                                      .limit_s = PROBE_ENVS * env->start_s,
                                      .remedy = " (--start-seconds, for each environment)"};
    if (!status) status = farm_program_read(&bare, &text, err);
    if (status && status != FARM_E_INTERRUPTED) status = FARM_E_DEAD;
    if (status) status = farm_fail_in(err, status, "%s: could not measure a step", env->name);
    if (!status && sscanf(text, "%lf %lf", &ns[0], &ns[1]) != 2) status = farm_fail(err, FARM_E_FORMAT, "%s", text);
    free(text);
    farm_env_program_free(&program);
    return status;
}

// ns: a step; what it takes to make an environment of a pool, else unchanged.
static enum farm_status probe_ns(const struct farm_env *env, uint64_t seed, double ns[2], struct farm_error *err) {
    if (env->kind == FARM_ENV_PYTHON) return probe_python(env, seed, ns, err);
    const struct probe probe = {env, seed};
    const enum farm_status status =
        farm_program_call(env->name, run_probe, &probe, false, PROBE_ENVS * env->start_s, ns, sizeof *ns, err);
    return status ? farm_fail_in(err, status, "could not measure a step (farm doctor checks a plug-in)") : FARM_OK;
}

// An actor's part of the last-level cache, with an actor on each CPU that shares it.
static uint64_t cache_part(const struct farm_machine *machine) {
    uint64_t sharing = 0;
    for (int c = 0; c < machine->cpu_count; c++)
        sharing += machine->cpu[c].l3 == machine->cpu[0].l3 && farm_bitmap_has(&machine->allowed, machine->cpu[c].cpu);
    return sharing ? machine->l3_bytes / sharing : machine->l3_bytes;
}

static enum farm_status choose_width(struct farm_recipe *recipe, struct farm_env *env, struct farm_machine *machine,
                                     struct farm_error *err) {
    const bool ale = strncmp(recipe->env, "ale/", 4) == 0;
    struct farm_width_request request = {
        .turn_ns = strncmp(recipe->env, "envpool/", 8) == 0 ? POOL_TURN_NS : 0,
        .step_bytes = ale ? 84 * 84 : 0,
        .steps = (uint32_t)recipe->ring_steps,
        .lanes = (uint32_t)recipe->lanes,
    };
    if (!request.steps)
        request.steps = (uint32_t)farm_ring_steps_needed(1, (uint64_t)recipe->unroll, (uint64_t)recipe->unroll + 1,
                                                         (uint64_t)recipe->stack);
    double ns[2] = {ALE_STEP_NS, 0};
    enum farm_status status = farm_machine_read(machine, &(struct farm_machine_source){0}, err);
    if (!status && !ale) status = farm_env_find(recipe, env, err);
    if (!status && !ale) status = probe_ns(env, (uint64_t)recipe->seed, ns, err);
    if (status) return status;
    request.step_ns = ns[0];
    const struct farm_action_spec *action = &env->spec.action;
    if (env->spec.agents > 1) request.lanes *= env->spec.agents; // ale: not found, has one
    for (uint32_t f = 0; f < env->spec.obs_count; f++) request.step_bytes += farm_field_bytes(&env->spec.obs[f]);
    request.cache_bytes = cache_part(machine);
    const int cpus = farm_bitmap_count(&machine->allowed);
    const uint64_t actors = (uint64_t)(recipe->actors ? recipe->actors : cpus),
                   cleared = (uint64_t)cpus * CLEARED_BYTES, quarter = farm_limits_memory_available_bytes("/") / 4,
                   most = quarter < cleared ? quarter : cleared,
                   answer_bytes = sizeof(float) * (2 + action->dims + farm_policy_outputs(action)) + 1, // with reward
        step_bytes = actors * request.steps * (request.step_bytes + answer_bytes);
    // All rings together have at most a quarter of the memory, and what the CPUs clear quickly; a pool is made quickly.
    uint64_t envs = farm_width_choose(&request), lanes = request.lanes;
    while (envs > lanes && (envs * step_bytes > most || (double)envs * ns[1] > MAKE_NS_MAX))
        envs = (envs / lanes + 1) / 2 * lanes;
    recipe->envs_per_actor = (int64_t)envs;
    return FARM_OK;
}

enum farm_status farm_fps_choose_width(struct farm_recipe *recipe, struct farm_error *err) {
    struct farm_env *env = calloc(1, sizeof *env);
    struct farm_machine *machine = calloc(1, sizeof *machine);
    enum farm_status status =
        env && machine ? choose_width(recipe, env, machine, err) : farm_fail_errno(err, FARM_E_LIMIT, "farm fps");
    free(env);
    free(machine);
    return status;
}
