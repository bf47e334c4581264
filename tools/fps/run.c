// See farm_fps_run.h.
#include "tools/fps/run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <numaif.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor/bare.h"
#include "base/log.h"
#include "base/time.h"
#include "run/run.h"
#include "topo/width.h"

enum { PROBE_ENVS = 8, PROBE_MS = 40, PROBE_LIMIT_MS = 20000 };
static const double ALE_STEP_NS = 200e3, GYM_STEP_NS = 20e3; // as dear as they usually are
static const uint64_t EPISODES_NEVER_REACHED = 1 << 30;
static const double SETTLING_SHARE = 1.0 / 3; // of a rung's time, before the rate is taken

static const char *const numa_names[FARM_FPS_NUMAS] = {"bind", "interleave", "remote", "off"};

const char *farm_fps_numa_name(enum farm_fps_numa numa) {
    return numa_names[numa];
}

bool farm_fps_numa_find(const char *name, enum farm_fps_numa *numa) {
    for (int i = 0; i < FARM_FPS_NUMAS; i++) {
        if (strcmp(name, numa_names[i]) != 0) continue;
        *numa = (enum farm_fps_numa)i;
        return true;
    }
    return false;
}

// ---- placement ----

static int farthest_node(const struct farm_machine *machine, int from) {
    int best = from;
    for (int i = 0; i < machine->node_count; i++) {
        const struct farm_node *node = &machine->node[i];
        if (!node->usable || !node->total_bytes) continue;
        if (farm_machine_distance(machine, from, node->node) > farm_machine_distance(machine, from, best))
            best = node->node;
    }
    return best;
}

// Changes the plan: rings are made on plan->actor[].memory_node.
static void place(const struct farm_run_plan *plan, enum farm_fps_numa numa) {
    for (int a = 0; a < plan->placement->actor_count && numa != FARM_FPS_NUMA_BIND; a++) {
        struct farm_plan_actor *actor = &plan->placement->actor[a];
        const bool known = numa == FARM_FPS_NUMA_REMOTE && actor->cpu_node >= 0;
        actor->memory_node = known ? farthest_node(plan->machine, actor->cpu_node) : -1;
    }
}

// Pages that this process touches first from here on; off: as it was.
static void interleave(const struct farm_machine *machine, bool on) {
    unsigned long nodes[FARM_NODES_MAX / 8] = {0};
    const size_t bits = 8 * sizeof *nodes;
    for (int i = 0; i < machine->node_count; i++) {
        const struct farm_node *node = &machine->node[i];
        if (node->usable && node->total_bytes && (size_t)node->node < 8 * sizeof nodes)
            nodes[(size_t)node->node / bits] |= 1ul << (size_t)node->node % bits;
    }
    if (set_mempolicy(on ? MPOL_INTERLEAVE : MPOL_DEFAULT, on ? nodes : NULL, on ? 8 * sizeof nodes : 0) < 0)
        farm_log_warn("set_mempolicy: %s: the rings lie wherever the kernel puts them", strerror(errno));
}

// ---- the farm under random actions ----

struct measurement {
    struct farm_run run;
    struct farm_fps_responder learner;
    struct farm_fps_result *result;
};

static void describe(const struct farm_run_plan *plan, struct farm_fps_result *result) {
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
    result->pinned = plan->placement->pinned;
    result->ring_bytes = farm_run_ring_bytes(plan);
    for (int i = 0; i < machine->node_count; i++) result->nodes += machine->node[i].total_bytes > 0;
}

// Whose CPU time the stand-in shall count.
static enum farm_supervisor_turn tell_pids(void *context, uint64_t now_ns) {
    struct measurement *measurement = context;
    const struct farm_run_workers *workers = &measurement->run.workers;
    for (uint32_t a = 0; a < workers->count; a++)
        __atomic_store_n(&measurement->learner.samples->actors[a], farm_supervisor_pid(workers->supervisor, a),
                         __ATOMIC_RELAXED);
    return FARM_TURN_ON;
}

static enum farm_status run_responder(struct measurement *measurement, const struct farm_recipe *recipe,
                                      enum farm_fps_numa numa, bool quiet, struct farm_error *err) {
    struct farm_run *run = &measurement->run;
    struct farm_fps_result *result = measurement->result;
    const struct farm_run_request request = {
        .recipe = recipe, .quiet = quiet, .responder = {farm_fps_responder_run, &measurement->learner}};
    enum farm_status status = farm_run_make(run, &request, err);
    if (status) return status;
    describe(&run->plan, result);
    place(&run->plan, numa);
    if (numa == FARM_FPS_NUMA_INTERLEAVE) interleave(run->plan.machine, true);
    status = farm_run_build(run, err);
    if (numa == FARM_FPS_NUMA_INTERLEAVE) interleave(run->plan.machine, false);
    if (status) return status;
    farm_segment_describe(&run->rings.ring[0].up, result->ring_note, sizeof result->ring_note);
    run->caller = (struct farm_run_caller){.context = measurement, .on_tick = tell_pids};
    return farm_run_go(run, &result->interrupted, err);
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
    measurement->learner = (struct farm_fps_responder){.turns = *turns, .samples = samples};
    measurement->result = result;
    enum farm_status status = run_responder(measurement, recipe, numa, quiet, err);
    result->samples = *samples;
    farm_run_free(&measurement->run);
    free(measurement);
    munmap(samples, sizeof *samples);
    return status;
}

// ---- with a network ----

struct learning {
    struct farm_run run;
    struct farm_fps_rung *rung;
    double seconds;
    bool settled, taken;
};

static void take_rates(struct learning *learning, uint64_t now_ns) {
    struct farm_sample sample;
    farm_run_sample(&learning->run.sampler, now_ns, &sample);
    learning->rung->agent_steps_per_s = sample.agent_steps_per_s;
    learning->rung->actor_wait_share = sample.actor_wait_share;
    learning->rung->learner_wait_share = sample.learner_wait_share;
}

static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    struct learning *learning = context;
    const double wall_s = farm_run_events_wall_s(&learning->run.events);
    if (!learning->settled && wall_s >= SETTLING_SHARE * learning->seconds) {
        struct farm_sample ignored; // the next one's rates count from here
        farm_run_sample(&learning->run.sampler, now_ns, &ignored);
        learning->settled = true;
    }
    if (wall_s < learning->seconds) return FARM_TURN_ON;
    if (!learning->taken) take_rates(learning, now_ns);
    learning->taken = true;
    return FARM_TURN_STOP;
}

static enum farm_status learn(struct learning *learning, const struct farm_recipe *recipe, bool trains,
                              struct farm_error *err) {
    struct farm_run *run = &learning->run;
    const uint64_t episodes = trains ? 0 : EPISODES_NEVER_REACHED;
    const struct farm_run_request request = {.recipe = recipe, .episodes = episodes, .quiet = true};
    enum farm_status status = farm_run_make(run, &request, err);
    if (status) return status;
    run->workers.learner.evaluate = !trains;
    run->workers.learner.episodes_target = episodes;
    if ((status = farm_run_build(run, err))) return status;
    learning->rung->actors = run->plan.actors;
    learning->rung->lanes = run->plan.lanes;
    learning->rung->width = run->plan.width;
    run->caller = (struct farm_run_caller){.context = learning, .on_tick = on_tick};
    return farm_run_go(run, &learning->rung->interrupted, err);
}

enum farm_status farm_fps_learn(const struct farm_recipe *recipe, bool trains, double seconds,
                                struct farm_fps_rung *rung, struct farm_error *err) {
    const double nothing = (double)NAN;
    *rung = (struct farm_fps_rung){
        .agent_steps_per_s = nothing, .actor_wait_share = nothing, .learner_wait_share = nothing};
    struct learning *learning = calloc(1, sizeof *learning);
    if (!learning) return farm_fail_errno(err, FARM_E_LIMIT, "farm fps");
    learning->rung = rung;
    learning->seconds = seconds;
    enum farm_status status = learn(learning, recipe, trains, err);
    farm_run_free(&learning->run);
    free(learning);
    return status;
}

// ---- how wide ----

static _Noreturn void be_probe(const struct farm_env *env, uint64_t seed, int answer) {
    const bool plugin = env->kind == FARM_ENV_PLUGIN;
    const struct farm_actor_config config = {.api = env->api,
                                             .plugin = plugin ? env->plugin : NULL,
                                             .plugin_env = plugin ? env->name : NULL,
                                             .options = env->options,
                                             .option_count = env->option_count,
                                             .seed = seed};
    struct farm_bare bare;
    struct farm_error err;
    uint64_t taken_ns;
    if (farm_bare_open(&config, PROBE_ENVS, &bare, &err)) {
        farm_log_error("%s", err.message);
        _exit(1);
    }
    farm_bare_run(&bare, PROBE_MS / 4 * 1000000u, &taken_ns); // caches and clocks
    // CPU time: other programs on the machine must not make the environment look dear.
    const uint64_t from = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID),
                   steps = farm_bare_run(&bare, PROBE_MS * 1000000u, &taken_ns);
    const double step_ns = (double)(farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - from) / (double)(steps ? steps : 1);
    _exit(write(answer, &step_ns, sizeof step_ns) == sizeof step_ns ? 0 : 1);
}

static enum farm_status probe(const struct farm_env *env, uint64_t seed, double *step_ns, struct farm_error *err) {
    int answer[2];
    if (pipe2(answer, O_CLOEXEC)) return farm_fail_errno(err, FARM_E_LIMIT, "measuring %s", env->name);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_probe(env, seed, answer[1]);
    }
    close(answer[1]);
    struct pollfd readable = {.fd = answer[0], .events = POLLIN};
    const bool answered = pid > 0 && poll(&readable, 1, PROBE_LIMIT_MS) == 1 &&
                          read(answer[0], step_ns, sizeof *step_ns) == sizeof *step_ns;
    close(answer[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    if (answered) return FARM_OK;
    return farm_fail(err, FARM_E_DEAD, "%s: measuring a step of it failed (farm doctor looks closer at a plug-in)",
                     env->name);
}

// This actor's part of the last-level cache: all CPUs that share one hold an actor each.
static uint64_t cache_part(const struct farm_machine *machine) {
    uint64_t sharing = 0;
    for (int c = 0; c < machine->cpu_count; c++)
        sharing += machine->cpu[c].l3 == machine->cpu[0].l3 && farm_bitmap_has(&machine->allowed, machine->cpu[c].cpu);
    return sharing ? machine->l3_bytes / sharing : machine->l3_bytes;
}

static enum farm_status choose(struct farm_recipe *recipe, struct farm_env *env, struct farm_machine *machine,
                               struct farm_error *err) {
    struct farm_width_request request = {
        .steps = (uint32_t)farm_ring_steps_needed(1, (uint64_t)recipe->unroll, (uint64_t)recipe->unroll + 1,
                                                  (uint64_t)recipe->stack),
        .lanes = (uint32_t)recipe->lanes,
    };
    enum farm_status status = farm_machine_read(machine, &(struct farm_machine_source){0}, err);
    if (!status) status = farm_env_find(recipe, env, err);
    if (!status) status = probe(env, (uint64_t)recipe->seed, &request.step_ns, err);
    if (status) return status;
    for (uint32_t f = 0; f < env->spec.obs_count; f++) request.step_bytes += farm_field_bytes(&env->spec.obs[f]);
    request.cache_bytes = cache_part(machine);
    recipe->envs_per_actor = farm_width_choose(&request);
    return FARM_OK;
}

enum farm_status farm_fps_choose_width(struct farm_recipe *recipe, struct farm_error *err) {
    const bool ale = strncmp(recipe->env, "ale/", 4) == 0, gym = strncmp(recipe->env, "gym/", 4) == 0;
    if (ale || gym) {
        const struct farm_width_request request = {.step_ns = ale ? ALE_STEP_NS : GYM_STEP_NS,
                                                   .lanes = (uint32_t)recipe->lanes};
        recipe->envs_per_actor = farm_width_choose(&request);
        return FARM_OK;
    }
    struct farm_env *env = calloc(1, sizeof *env);
    struct farm_machine *machine = calloc(1, sizeof *machine);
    enum farm_status status =
        env && machine ? choose(recipe, env, machine, err) : farm_fail_errno(err, FARM_E_LIMIT, "farm fps");
    free(env);
    free(machine);
    return status;
}
