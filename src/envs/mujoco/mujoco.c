// mujoco/*: the MuJoCo tasks of Gymnasium, v4 and v5, in C: the same models (MJCF files of its wheel), observations (as
// f32), rewards, ends, time limits and constructor options (env.NAME; a range is "low,high"). Equal states and actions
// give equal results; the noise of resets has Gymnasium's distribution, not its numbers. No rendering.
//
// Environments of a process that use the same file share one mjModel; each has its own mjData. A step allocates
// nothing. Only tasks that use contact forces call mj_rnePostConstraint, which changes nothing else. If MuJoCo finds
// the simulation unstable and restarts it, observation and reward are NaN until a reset (Gymnasium continues silently).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <farm/env.h>

#include "envs/mujoco/env.h"

FARM_ENV_EXPORT void farm_mujoco_set_state(void *self, const double *qpos, const double *qvel, void *const *obs);

// ---- an environment ----

static bool check_model(const struct mujoco_env *env, char *error, size_t error_bytes) {
    const struct robot *robot = env->task->robot;
    const mjModel *m = env->model;
    if (m->nq >= robot->nq_least && m->nv >= robot->nv_least && m->nsite >= robot->sites_least && m->nu >= 1 &&
        m->nu <= FARM_ACTION_DIMS_MAX)
        return true;
    snprintf(error, error_bytes,
             "%s cannot be played with the model %s: it needs %d positions, %d velocities, %d sites and 1 to %d "
             "actuators, which has %d, %d, %d and %d",
             env->task->name, env->settings.xml_file, robot->nq_least, robot->nv_least, robot->sites_least,
             (int)FARM_ACTION_DIMS_MAX, (int)m->nq, (int)m->nv, (int)m->nsite, (int)m->nu);
    return false;
}

// By name, or by number.
static bool find_body(const struct mujoco_env *env, const char *name, int *body, char *error, size_t error_bytes) {
    double number;
    *body = mujoco_parse_number(name, name + strlen(name), &number) && number == floor(number) && fabs(number) < 1e6
                ? (int)number
                : mj_name2id(env->model, mjOBJ_BODY, name);
    if (*body >= 0 && *body < env->model->nbody) return true;
    snprintf(error, error_bytes, "%s: the model %s has no body \"%s\"", env->task->name, env->settings.xml_file, name);
    return false;
}

static bool find_bodies(struct mujoco_env *env, char *error, size_t error_bytes) {
    if (env->settings.main_body[0] && !find_body(env, env->settings.main_body, &env->main_body, error, error_bytes))
        return false;
    for (int i = 0; i < MUJOCO_BODIES_MAX && env->task->robot->bodies[i]; i++)
        if (!find_body(env, env->task->robot->bodies[i], &env->body[i], error, error_bytes)) return false;
    return true;
}

static void destroy(void *self) {
    struct mujoco_env *env = self;
    mj_deleteData(env->data);
    if (env->shared) mujoco_model_release(env->shared);
    free(env);
}

static struct mujoco_env *make_env(const struct task *task, const struct farm_env_config *config, char *error,
                                   size_t error_bytes) {
    struct mujoco_env *env = calloc(1, sizeof *env);
    if (!env) {
        snprintf(error, error_bytes, "no memory for %s", task->name);
        return NULL;
    }
    env->task = task;
    env->random = config->seed;
    if (!mujoco_settings_read(task, config, &env->settings, error, error_bytes)) goto failed;
    if (!(env->shared = mujoco_model_acquire(env->settings.xml_file, error, error_bytes))) goto failed;
    env->model = mujoco_model_of(env->shared);
    if (!check_model(env, error, error_bytes) || !find_bodies(env, error, error_bytes)) goto failed;
    if (!(env->data = mj_makeData(env->model))) {
        snprintf(error, error_bytes, "no memory for the simulation of %s", task->name);
        goto failed;
    }
    env->dt = env->model->opt.timestep * (double)env->settings.frame_skip;
    env->needs_contact_forces = env->settings.use_contact_forces || env->settings.include_cfrc_ext;
    task->robot->parts(env);
    return env;
failed:
    destroy(env);
    return NULL;
}

static int write_spec(const struct task *task, const struct farm_env_config *config, struct farm_env_spec *spec,
                      char *error, size_t error_bytes) {
    struct mujoco_env *env = make_env(task, config, error, error_bytes);
    if (!env) return -1;
    *spec = (struct farm_env_spec){
        .obs_count = 1,
        .obs[0] = {.name = "obs", .dtype = FARM_F32, .rank = 1, .dims = {(uint32_t)mujoco_observed(env)}},
        .action = {.kind = FARM_ACTION_CONTINUOUS, .dims = (uint32_t)env->model->nu},
        .frames_per_step = 1,
    };
    for (mjtSize i = 0; i < env->model->nu; i++) {
        spec->action.low[i] = (float)env->model->actuator_ctrlrange[2 * i];
        spec->action.high[i] = (float)env->model->actuator_ctrlrange[2 * i + 1];
    }
    destroy(env);
    return 0;
}

// From the positions and velocities in mjData.
static void start_episode(struct mujoco_env *env, void *const *obs) {
    mj_forward(env->model, env->data);
    env->steps = 0;
    mujoco_observe(env, obs[0]);
}

static void reset(void *self, void *const *obs) {
    struct mujoco_env *env = self;
    mj_resetData(env->model, env->data);
    env->task->robot->start(env);
    start_episode(env, obs);
}

// For tests: starts an episode at these positions [nq] and velocities [nv].
FARM_ENV_EXPORT void farm_mujoco_set_state(void *self, const double *qpos, const double *qvel, void *const *obs) {
    struct mujoco_env *env = self;
    mj_resetData(env->model, env->data);
    memcpy(env->data->qpos, qpos, (size_t)env->model->nq * sizeof *qpos);
    memcpy(env->data->qvel, qvel, (size_t)env->model->nv * sizeof *qvel);
    start_episode(env, obs);
}

// MuJoCo has restarted the simulation because its numbers left all bounds.
static bool was_unstable(const mjData *d) {
    return d->warning[mjWARN_BADQPOS].number || d->warning[mjWARN_BADQVEL].number || d->warning[mjWARN_BADQACC].number;
}

static uint32_t step(void *self, const void *action, void *const *obs, float *reward) {
    struct mujoco_env *env = self;
    const struct robot *robot = env->task->robot;
    mjData *d = env->data;
    const float *controls = action;
    const double before = robot->measure ? robot->measure(env) : 0;
    bool terminated = false;

    for (mjtSize i = 0; i < env->model->nu; i++) d->ctrl[i] = controls[i];
    for (int64_t i = 0; i < env->settings.frame_skip; i++) mj_step(env->model, d);
    if (env->needs_contact_forces) mj_rnePostConstraint(env->model, d);

    *reward = (float)robot->reward(env, before, &terminated);
    mujoco_observe(env, obs[0]);
    if (was_unstable(d)) {
        float *out = obs[0];
        for (int i = 0, count = mujoco_observed(env); i < count; i++) out[i] = NAN;
        *reward = NAN;
        terminated = false;
    }
    const bool truncated = ++env->steps >= env->settings.max_episode_steps;
    if (!terminated && !truncated) return 0;
    return (terminated ? FARM_STEP_TERMINATED : 0u) | (truncated ? FARM_STEP_TRUNCATED : 0u) | FARM_STEP_GAME_END;
}

// ---- the tasks ----

// Defines a task and its entry: spec and create have no parameter for the environment, so each task has its own.
#define TASK(id, its_name, its_about, ...)                                                                             \
    static const struct task id = {.name = its_name, __VA_ARGS__};                                                     \
    static int id##_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t n) {    \
        return write_spec(&id, config, spec, error, n);                                                                \
    }                                                                                                                  \
    static void *id##_create(const struct farm_env_config *config, char *error, size_t n) {                            \
        return make_env(&id, config, error, n);                                                                        \
    }                                                                                                                  \
    static const struct farm_env_api id##_api = {                                                                      \
        FARM_ENV_ABI_VERSION, sizeof id##_api, its_name, its_about, id##_spec,                                         \
        id##_create,          destroy,         reset,    step,      .render = NULL};

static const char steps_1000[] = "max_episode_steps=1000", steps_100[] = "max_episode_steps=100",
                  steps_50[] = "max_episode_steps=50";

#define CHEETAH_ABOUT "half a cheetah runs (Gymnasium, MuJoCo): 17 numbers, 6 torques"
static const char cheetah_options[] = "forward_reward_weight=1 ctrl_cost_weight=0.1 reset_noise_scale=0.1 "
                                      "exclude_current_positions_from_observation=true";
static const char cheetah_model[] = "frame_skip=5 xml_file=half_cheetah.xml";
TASK(half_cheetah_v4, "mujoco/HalfCheetah-v4", CHEETAH_ABOUT, .version = 4, .robot = &mujoco_cheetah,
     .options = {steps_1000, cheetah_options}, .fixed = {cheetah_model})
TASK(half_cheetah_v5, "mujoco/HalfCheetah-v5", CHEETAH_ABOUT, .version = 5, .robot = &mujoco_cheetah,
     .options = {steps_1000, cheetah_options, cheetah_model})

#define HOPPER_ABOUT "one leg hops forward (Gymnasium, MuJoCo): 11 numbers, 3 torques"
static const char hopper_options[] =
    "forward_reward_weight=1 ctrl_cost_weight=0.001 healthy_reward=1 terminate_when_unhealthy=true "
    "healthy_state_range=-100,100 healthy_z_range=0.7,inf healthy_angle_range=-0.2,0.2 reset_noise_scale=0.005 "
    "exclude_current_positions_from_observation=true";
static const char hopper_model[] = "frame_skip=4 xml_file=hopper.xml";
TASK(hopper_v4, "mujoco/Hopper-v4", HOPPER_ABOUT, .version = 4, .robot = &mujoco_hopper,
     .options = {steps_1000, hopper_options}, .fixed = {hopper_model})
TASK(hopper_v5, "mujoco/Hopper-v5", HOPPER_ABOUT, .version = 5, .robot = &mujoco_hopper,
     .options = {steps_1000, hopper_options, hopper_model})

#define WALKER_ABOUT "two legs walk forward (Gymnasium, MuJoCo): 17 numbers, 6 torques"
static const char walker_options[] =
    "forward_reward_weight=1 ctrl_cost_weight=0.001 healthy_reward=1 terminate_when_unhealthy=true "
    "healthy_z_range=0.8,2 healthy_angle_range=-1,1 reset_noise_scale=0.005 "
    "exclude_current_positions_from_observation=true";
TASK(walker2d_v4, "mujoco/Walker2d-v4", WALKER_ABOUT, .version = 4, .robot = &mujoco_walker,
     .options = {steps_1000, walker_options}, .fixed = {"frame_skip=4 xml_file=walker2d.xml"})
TASK(walker2d_v5, "mujoco/Walker2d-v5", WALKER_ABOUT, .version = 5, .robot = &mujoco_walker,
     .options = {steps_1000, walker_options, "frame_skip=4 xml_file=walker2d_v5.xml"})

#define SWIMMER_ABOUT "a chain of three swims forward (Gymnasium, MuJoCo): 8 numbers, 2 torques"
static const char swimmer_options[] = "forward_reward_weight=1 ctrl_cost_weight=0.0001 reset_noise_scale=0.1 "
                                      "exclude_current_positions_from_observation=true";
static const char swimmer_model[] = "frame_skip=4 xml_file=swimmer.xml";
TASK(swimmer_v4, "mujoco/Swimmer-v4", SWIMMER_ABOUT, .version = 4, .robot = &mujoco_swimmer,
     .options = {steps_1000, swimmer_options}, .fixed = {swimmer_model})
TASK(swimmer_v5, "mujoco/Swimmer-v5", SWIMMER_ABOUT, .version = 5, .robot = &mujoco_swimmer,
     .options = {steps_1000, swimmer_options, swimmer_model})

static const char ant_options[] =
    "ctrl_cost_weight=0.5 contact_cost_weight=0.0005 healthy_reward=1 terminate_when_unhealthy=true "
    "healthy_z_range=0.2,1 contact_force_range=-1,1 reset_noise_scale=0.1 "
    "exclude_current_positions_from_observation=true xml_file=ant.xml";
TASK(ant_v4, "mujoco/Ant-v4", "four legs run forward (Gymnasium, MuJoCo): 27 numbers, 8 torques", .version = 4,
     .robot = &mujoco_ant, .options = {steps_1000, ant_options, "use_contact_forces=false"},
     .fixed = {"frame_skip=5 forward_reward_weight=1 main_body=torso"})
TASK(ant_v5, "mujoco/Ant-v5", "four legs run forward (Gymnasium, MuJoCo): 105 numbers, 8 torques", .version = 5,
     .robot = &mujoco_ant,
     .options = {steps_1000, ant_options,
                 "forward_reward_weight=1 frame_skip=5 main_body=1 include_cfrc_ext_in_observation=true"},
     .fixed = {"use_contact_forces=true"})

static const char humanoid_options[] =
    "forward_reward_weight=1.25 ctrl_cost_weight=0.1 healthy_reward=5 terminate_when_unhealthy=true "
    "healthy_z_range=1,2 reset_noise_scale=0.01 exclude_current_positions_from_observation=true";
static const char humanoid_observation[] =
    "include_cinert_in_observation=true include_cvel_in_observation=true include_qfrc_actuator_in_observation=true "
    "include_cfrc_ext_in_observation=true";
TASK(humanoid_v4, "mujoco/Humanoid-v4", "a human figure walks forward (Gymnasium, MuJoCo): 376 numbers, 17 torques",
     .version = 4, .robot = &mujoco_humanoid, .options = {steps_1000, humanoid_options},
     .fixed = {"frame_skip=5 xml_file=humanoid.xml", humanoid_observation})
TASK(humanoid_v5, "mujoco/Humanoid-v5", "a human figure walks forward (Gymnasium, MuJoCo): 348 numbers, 17 torques",
     .version = 5, .robot = &mujoco_humanoid,
     .options = {"max_episode_steps=1000 frame_skip=5 xml_file=humanoid.xml contact_cost_weight=5e-7 "
                 "contact_cost_range=-inf,10",
                 humanoid_options, humanoid_observation},
     .fixed = {"use_contact_forces=true"})

// Gymnasium's uph_cost_weight is not offered: it has no effect there.
static const char standup_options[] = "ctrl_cost_weight=0.1 impact_cost_weight=5e-7 impact_cost_range=-inf,10 "
                                      "reset_noise_scale=0.01 exclude_current_positions_from_observation=true "
                                      "frame_skip=5 xml_file=humanoidstandup.xml";
TASK(standup_v4, "mujoco/HumanoidStandup-v4", "a human figure gets up (Gymnasium, MuJoCo): 376 numbers, 17 torques",
     .version = 4, .robot = &mujoco_humanoid_standup, .options = {steps_1000},
     .fixed = {standup_options, humanoid_observation, "use_contact_forces=true"})
TASK(standup_v5, "mujoco/HumanoidStandup-v5", "a human figure gets up (Gymnasium, MuJoCo): 348 numbers, 17 torques",
     .version = 5, .robot = &mujoco_humanoid_standup, .options = {steps_1000, standup_options, humanoid_observation},
     .fixed = {"use_contact_forces=true"})

static const char reacher_options[] = "reward_dist_weight=1 reward_control_weight=1 frame_skip=2 xml_file=reacher.xml";
TASK(reacher_v4, "mujoco/Reacher-v4", "an arm reaches a target (Gymnasium, MuJoCo): 11 numbers, 2 torques",
     .version = 4, .robot = &mujoco_reacher, .options = {steps_50}, .fixed = {reacher_options})
TASK(reacher_v5, "mujoco/Reacher-v5", "an arm reaches a target (Gymnasium, MuJoCo): 10 numbers, 2 torques",
     .version = 5, .robot = &mujoco_reacher, .options = {steps_50, reacher_options})

// Pusher-v4 runs with MuJoCo 2 only.
TASK(pusher_v5, "mujoco/Pusher-v5", "an arm pushes an object to a goal (Gymnasium, MuJoCo): 23 numbers, 7 torques",
     .version = 5, .robot = &mujoco_pusher,
     .options = {steps_100, "reward_near_weight=0.5 reward_dist_weight=1 reward_control_weight=0.1 frame_skip=5 "
                            "xml_file=pusher_v5.xml"})

#define PENDULUM_ABOUT "balance a pole on a cart (Gymnasium, MuJoCo): 4 numbers, 1 force"
static const char pendulum_options[] = "reset_noise_scale=0.01 frame_skip=2 xml_file=inverted_pendulum.xml";
TASK(pendulum_v4, "mujoco/InvertedPendulum-v4", PENDULUM_ABOUT, .version = 4, .robot = &mujoco_pendulum,
     .options = {steps_1000}, .fixed = {pendulum_options})
TASK(pendulum_v5, "mujoco/InvertedPendulum-v5", PENDULUM_ABOUT, .version = 5, .robot = &mujoco_pendulum,
     .options = {steps_1000, pendulum_options})

static const char double_pendulum_options[] =
    "healthy_reward=10 reset_noise_scale=0.1 frame_skip=5 xml_file=inverted_double_pendulum.xml";
TASK(double_pendulum_v4, "mujoco/InvertedDoublePendulum-v4",
     "balance two poles, one on the other (Gymnasium, MuJoCo): 11 numbers, 1 force", .version = 4,
     .robot = &mujoco_double_pendulum, .options = {steps_1000}, .fixed = {double_pendulum_options})
TASK(double_pendulum_v5, "mujoco/InvertedDoublePendulum-v5",
     "balance two poles, one on the other (Gymnasium, MuJoCo): 9 numbers, 1 force", .version = 5,
     .robot = &mujoco_double_pendulum, .options = {steps_1000, double_pendulum_options})

FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    static const struct farm_env_api *const all[] = {
        &half_cheetah_v4_api,    &half_cheetah_v5_api, &hopper_v4_api,   &hopper_v5_api,   &walker2d_v4_api,
        &walker2d_v5_api,        &ant_v4_api,          &ant_v5_api,      &humanoid_v4_api, &humanoid_v5_api,
        &standup_v4_api,         &standup_v5_api,      &swimmer_v4_api,  &swimmer_v5_api,  &reacher_v4_api,
        &reacher_v5_api,         &pusher_v5_api,       &pendulum_v4_api, &pendulum_v5_api, &double_pendulum_v4_api,
        &double_pendulum_v5_api,
    };
    return index < sizeof all / sizeof *all ? all[index] : NULL;
}
