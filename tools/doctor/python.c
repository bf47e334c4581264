// See python.h.
#include "tools/doctor/python.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "algo/registry.h"
#include "base/program.h"
#include "envs/python.h"
#include "envs/registry.h"
#include "ring/wait.h"

enum { RING_STEPS = 4, LOOK_MS = 50, SPIN_NS = 20000, END_S = 7 }; // END_S: more than CLOSE_S of actor.py

// The functions of the interface have no context argument but the options: they find the environment here.
static struct {
    struct farm_recipe recipe; // env.options point into it
    struct farm_env env;
    struct instance *first; // list of live instances
} found;

struct instance {
    struct farm_ring made, ring, *rings[1]; // ring: the learner's view
    struct farm_doorbells bells;
    struct farm_env_program program;
    int bell;
    pid_t pid;
    int ended;         // status by waitpid(2), after await_step has failed
    uint64_t received; // steps
    struct instance *next;
};

// ---- the environment ----

static enum farm_status find(const char *name, double start_s, const struct farm_env_option *options, size_t count,
                             struct farm_recipe *recipe, struct farm_env *env, struct farm_error *err) {
    char key[FARM_DOCTOR_OPTION_BYTES + 8];
    farm_recipe_defaults(recipe, farm_algo_family_at);
    recipe->start_seconds = start_s;
    enum farm_status status = farm_recipe_set(recipe, FARM_LAYER_FLAG, "env", name, err);
    for (size_t i = 0; i < count && !status; i++) {
        snprintf(key, sizeof key, "env.%s", options[i].key);
        status = farm_recipe_set(recipe, FARM_LAYER_FLAG, key, options[i].value, err);
    }
    return status ? status : farm_env_find(recipe, env, err);
}

enum farm_status farm_doctor_python_find(const struct farm_doctor_request *request, struct farm_error *err) {
    return find(request->target, request->start_seconds, request->options, request->option_count, &found.recipe,
                &found.env, err);
}

// Other options than the request's (one that no environment knows) start the program again.
static int read_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t bytes) {
    struct farm_recipe recipe;
    struct farm_env *env;
    struct farm_error err;
    if (config->option_count == found.env.option_count) return *spec = found.env.spec, 0;
    if (!(env = calloc(1, sizeof *env))) abort();
    const enum farm_status status =
        find(found.env.name, found.env.start_s, config->options, config->option_count, &recipe, env, &err);
    if (status) snprintf(error, bytes, "%s", err.message);
    *spec = env->spec;
    free(env);
    return status ? -1 : 0;
}

// ---- an instance ----

static _Noreturn void exec_actor(const struct instance *instance, pid_t parent) {
    const int keep[] = {instance->made.up.fd, instance->made.down.fd_readonly, instance->bell};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
    setpgid(0, 0); // out of Ctrl-C's reach, with the environment's own processes
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) fcntl(keep[i], F_SETFD, 0);
    execve(instance->program.argv[0], instance->program.argv, instance->program.environment);
    _exit(1);
}

static enum farm_status start_actor(struct instance *instance, uint64_t seed, struct farm_error *err) {
    struct farm_ring_spec spec = {
        .lanes = 1, .width = found.env.spec.agents, .steps = RING_STEPS, .env = found.env.spec};
    farm_ring_spec_answers(&spec);
    enum farm_status status = farm_ring_create(&spec, 0, -1, false, &instance->made, err);
    if (!status) status = farm_ring_view(&instance->made, FARM_RING_LEARNER, &instance->ring, err);
    instance->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    instance->rings[0] = &instance->ring;
    if (!status) status = farm_doorbells_make(&instance->bells, instance->rings, 1, instance->bell, err);
    const struct farm_env_argument arguments[] = {{"--up-fd", .number = (uint64_t)instance->made.up.fd},
                                                  {"--down-fd", .number = (uint64_t)instance->made.down.fd_readonly},
                                                  {"--event-fd", .number = (uint64_t)instance->bell},
                                                  {"--seed", .number = seed},
                                                  {"--spin-ns", .number = SPIN_NS}};
    if (!status)
        status = farm_env_program_make(&found.env, NULL, arguments, sizeof arguments / sizeof *arguments,
                                       &instance->program, err);
    if (status) return status;
    const pid_t parent = getpid();
    instance->pid = fork();
    if (instance->pid == 0) exec_actor(instance, parent);
    return instance->pid > 0 ? FARM_OK : farm_fail_errno(err, FARM_E_LIMIT, "no process for an actor");
}

// Waits for the next step. False: the actor has ended.
static bool await_step(struct instance *instance) {
    uint32_t rung[1];
    while (farm_lane_produced(&instance->ring.lanes[0]) <= instance->received) {
        if (farm_doorbells_wait(&instance->bells, SPIN_NS, LOOK_MS * 1000000ull))
            farm_doorbells_poll(&instance->bells, rung);
        else if (waitpid(instance->pid, &instance->ended, WNOHANG) == instance->pid)
            return false;
    }
    return true;
}

static void end_instance(void *env) {
    struct instance *instance = env, **at = &found.first;
    while (*at && *at != instance) at = &(*at)->next;
    if (*at) *at = instance->next;
    if (instance->pid > 0 && kill(instance->pid, SIGTERM) == 0) // which ends it after close()
        farm_program_await(instance->pid, END_S, &instance->ended);
    farm_env_program_free(&instance->program);
    farm_doorbells_free(&instance->bells);
    if (instance->ring.lanes) farm_ring_close(&instance->ring);
    if (instance->made.lanes) farm_ring_close(&instance->made);
    close(instance->bell);
    free(instance);
}

void farm_doctor_python_end(void) {
    for (const struct instance *at = found.first; at; at = at->next)
        if (at->pid > 0) kill(at->pid, SIGTERM); // all close at the same time
    while (found.first) end_instance(found.first);
}

// This process stands for its actor: it dies as the actor did.
static _Noreturn void die_as_actor(const struct instance *instance) {
    if (WIFSIGNALED(instance->ended)) {
        signal(WTERMSIG(instance->ended), SIG_DFL);
        raise(WTERMSIG(instance->ended));
    }
    _exit(1);
}

static void *make_instance(const struct farm_env_config *config, char *error, size_t bytes) {
    struct instance *instance = calloc(1, sizeof *instance);
    struct farm_error err;
    if (!instance) abort();
    instance->next = found.first;
    found.first = instance;
    const enum farm_status status = start_actor(instance, config->seed, &err);
    if (!status && !await_step(instance)) die_as_actor(instance);
    if (!status) return instance;
    snprintf(error, bytes, "%s", err.message);
    end_instance(instance);
    return NULL;
}

// Answers the last step and frees the slots before it. NULL: actions that are ignored.
static void answer(struct instance *instance, const void *actions) {
    struct farm_lane *lane = &instance->ring.lanes[0];
    const size_t bytes = lane->width * found.env.spec.action.dims * sizeof(float);
    const uint64_t n = instance->received - 1;
    if (actions)
        memcpy(farm_lane_action(lane, n, 0), actions, bytes);
    else
        memset(farm_lane_action(lane, n, 0), 0, bytes);
    farm_lane_answer(lane, n);
    farm_lane_release(lane, n);
    farm_learner_notify(&instance->ring);
}

// Answers the last step, if there is one, and copies the next one.
static uint32_t step_agents(void *env, const void *actions, void *const *obs, float *rewards, uint8_t *ends) {
    struct instance *instance = env;
    const struct farm_lane *lane = &instance->ring.lanes[0];
    if (instance->received) answer(instance, actions);
    if (!await_step(instance)) die_as_actor(instance);
    const uint64_t n = instance->received++;
    for (uint32_t f = 0; f < lane->obs_count; f++)
        memcpy(obs[f], farm_lane_obs(lane, f, n, 0), lane->width * lane->obs_bytes[f]);
    memcpy(rewards, farm_lane_reward(lane, n), lane->width * sizeof *rewards);
    for (uint32_t a = 0; a < lane->width; a++)
        ends[a] = farm_lane_flags(lane, n)[a] & (FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED | FARM_STEP_GAME_END);
    return 0;
}

static void reset_instance(void *env, void *const *obs) {
    float rewards[FARM_AGENTS_MAX];
    uint8_t ends[FARM_AGENTS_MAX];
    step_agents(env, NULL, obs, rewards, ends);
}

pid_t farm_doctor_python_process(const void *env) {
    return ((const struct instance *)env)->pid;
}

const struct farm_env_api farm_doctor_python_api = {.abi_version = FARM_ENV_ABI_VERSION,
                                                    .struct_bytes = sizeof(struct farm_env_api),
                                                    .name = "python",
                                                    .about = "",
                                                    .spec = read_spec,
                                                    .create = make_instance,
                                                    .destroy = end_instance,
                                                    .reset = reset_instance,
                                                    .step_agents = step_agents};
