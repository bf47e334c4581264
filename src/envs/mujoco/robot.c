// Observations, starts of episodes and rewards of the tasks, as in Gymnasium, on mjData; v4 and v5 are `version`.
#include <math.h>

#include "envs/mujoco/env.h"

// ---- random numbers: SplitMix64 (Steele, Lea, Flood 2014) ----

static double uniform(uint64_t *state, double low, double high) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return low + (high - low) * 0x1p-53 * (double)((z ^ z >> 31) >> 11);
}

// Box and Muller 1958.
static double normal(uint64_t *state) {
    const double radius = sqrt(-2 * log1p(-uniform(state, 0, 1)));
    return radius * cos(2 * 3.14159265358979323846 * uniform(state, 0, 1));
}

// ---- observations ----

// Parts without numbers are not kept.
static struct part *add_part(struct mujoco_env *env, enum part_kind kind, int count, const mjtNum *from) {
    struct part *part = &env->parts[env->part_count];
    *part = (struct part){.kind = kind, .count = count, .from = from};
    if (count > 0) env->part_count++;
    return part;
}

// Positions, velocities and optional parts of robots with a free body; v5 leaves out rows that are always 0.
static void runner_parts(struct mujoco_env *env) {
    const struct settings *s = &env->settings;
    const struct robot *robot = env->task->robot;
    const mjData *d = env->data;
    const int skipped = s->exclude_positions ? robot->skipped : 0, nv = (int)env->model->nv;
    const int world = env->task->version == 5, bodies = (int)env->model->nbody - world, free_joint = world ? 6 : 0;
    add_part(env, COPY, (int)env->model->nq - skipped, d->qpos + skipped);
    add_part(env, CLIP, nv, d->qvel)->clip = (struct range){-robot->velocity_limit, robot->velocity_limit};
    if (s->include_cinert) add_part(env, COPY, 10 * bodies, d->cinert + 10 * world);
    if (s->include_cvel) add_part(env, COPY, 6 * bodies, d->cvel + 6 * world);
    if (s->include_qfrc_actuator) add_part(env, COPY, nv - free_joint, d->qfrc_actuator + free_joint);
    if (s->include_cfrc_ext) add_part(env, CLIP, 6 * bodies, d->cfrc_ext + 6 * world)->clip = s->contact_force_range;
}

static const mjtNum *position_of(const struct mujoco_env *env, int body) {
    return env->data->xpos + 3 * env->body[body];
}

enum { FINGERTIP, TARGET };

static void reacher_parts(struct mujoco_env *env) {
    const mjData *d = env->data;
    add_part(env, COSINE, 2, d->qpos);
    add_part(env, SINE, 2, d->qpos);
    add_part(env, COPY, (int)env->model->nq - 2, d->qpos + 2);
    add_part(env, COPY, 2, d->qvel);
    const int dimensions = env->task->version == 5 ? 2 : 3;
    add_part(env, DIFFERENCE, dimensions, position_of(env, FINGERTIP))->minus = position_of(env, TARGET);
}

enum { TIPS_ARM, OBJECT, GOAL };

static void pusher_parts(struct mujoco_env *env) {
    add_part(env, COPY, 7, env->data->qpos);
    add_part(env, COPY, 7, env->data->qvel);
    for (int body = TIPS_ARM; body <= GOAL; body++) add_part(env, COPY, 3, position_of(env, body));
}

static void double_pendulum_parts(struct mujoco_env *env) {
    const mjData *d = env->data;
    const int links = (int)env->model->nq - 1, nv = (int)env->model->nv;
    const struct range ten = {-10, 10};
    add_part(env, COPY, 1, d->qpos);
    add_part(env, SINE, links, d->qpos + 1);
    add_part(env, COSINE, links, d->qpos + 1);
    add_part(env, CLIP, nv, d->qvel)->clip = ten;
    add_part(env, CLIP, env->task->version == 5 ? 1 : nv, d->qfrc_constraint)->clip = ten;
}

static double clip(double x, struct range range) {
    return x < range.low ? range.low : x > range.high ? range.high : x; // NaN stays
}

static double observe_number(const struct part *part, int i) {
    const double x = part->from[i];
    switch (part->kind) {
    case COPY:
        return x;
    case CLIP:
        return clip(x, part->clip);
    case SINE:
        return sin(x);
    case COSINE:
        return cos(x);
    case DIFFERENCE:
        return x - part->minus[i];
    }
    return x;
}

void mujoco_observe(const struct mujoco_env *env, float *out) {
    for (const struct part *part = env->parts; part < env->parts + env->part_count; part++)
        for (int i = 0; i < part->count; i++) *out++ = (float)observe_number(part, i);
}

int mujoco_observed(const struct mujoco_env *env) {
    int count = 0;
    for (int i = 0; i < env->part_count; i++) count += env->parts[i].count;
    return count;
}

// ---- starts of episodes ----

static void add_uniform(struct mujoco_env *env, mjtNum *numbers, mjtSize count, double scale) {
    for (mjtSize i = 0; i < count; i++) numbers[i] += uniform(&env->random, -scale, scale);
}

static void start_uniform(struct mujoco_env *env) {
    add_uniform(env, env->data->qpos, env->model->nq, env->settings.reset_noise_scale);
    add_uniform(env, env->data->qvel, env->model->nv, env->settings.reset_noise_scale);
}

static void start_normal(struct mujoco_env *env) {
    const double scale = env->settings.reset_noise_scale;
    add_uniform(env, env->data->qpos, env->model->nq, scale);
    for (mjtSize i = 0; i < env->model->nv; i++) env->data->qvel[i] += scale * normal(&env->random);
}

// The target, moved by the last two joints, lies in a disc.
static void start_reacher(struct mujoco_env *env) {
    mjData *d = env->data;
    mjtNum *goal = d->qpos + env->model->nq - 2;
    add_uniform(env, d->qpos, env->model->nq - 2, 0.1);
    do {
        goal[0] = uniform(&env->random, -0.2, 0.2);
        goal[1] = uniform(&env->random, -0.2, 0.2);
    } while (goal[0] * goal[0] + goal[1] * goal[1] >= 0.2 * 0.2);
    add_uniform(env, d->qvel, env->model->nv - 2, 0.005);
}

// The arm starts as the model has it; the object, moved by the joints before the goal's two, not too near the goal.
static void start_pusher(struct mujoco_env *env) {
    mjData *d = env->data;
    mjtNum *object = d->qpos + env->model->nq - 4, *goal = object + 2;
    do {
        object[0] = uniform(&env->random, -0.3, 0);
        object[1] = uniform(&env->random, -0.2, 0.2);
    } while (object[0] * object[0] + object[1] * object[1] <= 0.17 * 0.17);
    goal[0] = goal[1] = 0;
    add_uniform(env, d->qvel, env->model->nv - 4, 0.005);
}

// ---- what a step is worth ----

static double squares(const mjtNum *numbers, int count, struct range range) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        const double x = clip(numbers[i], range);
        sum += x * x;
    }
    return sum;
}

static double ctrl_squares(const struct mujoco_env *env) {
    return squares(env->data->ctrl, (int)env->model->nu, (struct range){-INFINITY, INFINITY});
}

static double contact_cost(const struct mujoco_env *env) {
    const struct settings *s = &env->settings;
    const double sum = squares(env->data->cfrc_ext, 6 * (int)env->model->nbody, s->contact_force_range);
    return clip(s->contact_cost_weight * sum, s->contact_cost_range);
}

static double first_position(const struct mujoco_env *env) {
    return env->data->qpos[0];
}

static double main_body_position(const struct mujoco_env *env) {
    return env->data->xpos[3 * env->main_body];
}

static double mass_centre(const struct mujoco_env *env) {
    double moment = 0, mass = 0;
    for (mjtSize b = 0; b < env->model->nbody; b++) {
        moment += env->model->body_mass[b] * env->data->xipos[3 * b];
        mass += env->model->body_mass[b];
    }
    return moment / mass;
}

static bool strictly_within(double x, struct range range) {
    return range.low < x && x < range.high;
}

static bool walker_healthy(const struct mujoco_env *env) {
    const mjtNum *qpos = env->data->qpos;
    return strictly_within(qpos[1], env->settings.healthy_z_range) &&
           strictly_within(qpos[2], env->settings.healthy_angle_range);
}

static bool hopper_healthy(const struct mujoco_env *env) {
    const struct range state = env->settings.healthy_state_range;
    bool healthy = walker_healthy(env);
    for (mjtSize i = 2; i < env->model->nq; i++) healthy &= strictly_within(env->data->qpos[i], state);
    for (mjtSize i = 0; i < env->model->nv; i++) healthy &= strictly_within(env->data->qvel[i], state);
    return healthy;
}

static bool humanoid_healthy(const struct mujoco_env *env) {
    return strictly_within(env->data->qpos[2], env->settings.healthy_z_range);
}

static bool ant_healthy(const struct mujoco_env *env) {
    const struct range range = env->settings.healthy_z_range;
    const double z = env->data->qpos[2];
    bool healthy = range.low <= z && z <= range.high;
    for (mjtSize i = 0; i < env->model->nq; i++) healthy &= isfinite(env->data->qpos[i]);
    for (mjtSize i = 0; i < env->model->nv; i++) healthy &= isfinite(env->data->qvel[i]);
    return healthy;
}

// Speed, plus a reward for health (v4: at an episode's end too), minus squares of controls and contact forces.
static double runner_reward(const struct mujoco_env *env, double before, bool *terminated) {
    const struct settings *s = &env->settings;
    const bool healthy = !env->task->robot->healthy || env->task->robot->healthy(env);
    const bool survives = healthy || (env->task->version == 4 && s->terminate_when_unhealthy);
    const double forward = s->forward_reward_weight * ((env->task->robot->measure(env) - before) / env->dt);
    double cost = s->ctrl_cost_weight * ctrl_squares(env);
    if (s->use_contact_forces) cost += contact_cost(env);
    *terminated = !healthy && s->terminate_when_unhealthy;
    return forward + survives * s->healthy_reward - cost;
}

static double standup_reward(const struct mujoco_env *env, double before, bool *terminated) {
    const double up = env->data->qpos[2] / env->model->opt.timestep;
    return up - env->settings.ctrl_cost_weight * ctrl_squares(env) - contact_cost(env) + 1;
}

static double distance(const struct mujoco_env *env, int a, int b) {
    const mjtNum *p = position_of(env, a), *q = position_of(env, b);
    return sqrt((p[0] - q[0]) * (p[0] - q[0]) + (p[1] - q[1]) * (p[1] - q[1]) + (p[2] - q[2]) * (p[2] - q[2]));
}

static double reacher_distance(const struct mujoco_env *env) {
    return distance(env, FINGERTIP, TARGET);
}

// v4 rewards the distance before the step.
static double reacher_reward(const struct mujoco_env *env, double before, bool *terminated) {
    const double far = env->task->version == 4 ? before : reacher_distance(env);
    return -far * env->settings.reward_dist_weight - ctrl_squares(env) * env->settings.reward_control_weight;
}

static double pusher_reward(const struct mujoco_env *env, double before, bool *terminated) {
    const struct settings *s = &env->settings;
    return -distance(env, OBJECT, GOAL) * s->reward_dist_weight - ctrl_squares(env) * s->reward_control_weight -
           distance(env, OBJECT, TIPS_ARM) * s->reward_near_weight;
}

// v4 rewards the last step too.
static double pendulum_reward(const struct mujoco_env *env, double before, bool *terminated) {
    bool finite = true;
    for (mjtSize i = 0; i < env->model->nq; i++) finite &= isfinite(env->data->qpos[i]);
    for (mjtSize i = 0; i < env->model->nv; i++) finite &= isfinite(env->data->qvel[i]);
    *terminated = !finite || fabs(env->data->qpos[1]) > 0.2;
    return env->task->version == 4 || !*terminated;
}

static double double_pendulum_reward(const struct mujoco_env *env, double before, bool *terminated) {
    const double x = env->data->site_xpos[0], y = env->data->site_xpos[2];
    const double v1 = env->data->qvel[1], v2 = env->data->qvel[2];
    *terminated = y <= 1;
    const double alive = env->task->version == 4 || !*terminated ? env->settings.healthy_reward : 0;
    return alive - (0.01 * x * x + (y - 2) * (y - 2)) - (1e-3 * v1 * v1 + 5e-3 * v2 * v2);
}

// ---- the robots ----

// Observed by runner_parts. In order: least positions and velocities, first positions left out, limit of velocities.
#define RUNNER(name, nq, nv, skipped_, limit, start_, measure_, healthy_, reward_)                                     \
    const struct robot name = {.nq_least = nq,                                                                         \
                               .nv_least = nv,                                                                         \
                               .skipped = skipped_,                                                                    \
                               .velocity_limit = limit,                                                                \
                               .parts = runner_parts,                                                                  \
                               .start = start_,                                                                        \
                               .measure = measure_,                                                                    \
                               .healthy = healthy_,                                                                    \
                               .reward = reward_}

RUNNER(mujoco_cheetah, 2, 1, 1, INFINITY, start_normal, first_position, NULL, runner_reward);
RUNNER(mujoco_swimmer, 3, 1, 2, INFINITY, start_uniform, first_position, NULL, runner_reward);
RUNNER(mujoco_hopper, 3, 3, 1, 10, start_uniform, first_position, hopper_healthy, runner_reward);
RUNNER(mujoco_walker, 3, 3, 1, 10, start_uniform, first_position, walker_healthy, runner_reward);
RUNNER(mujoco_ant, 3, 1, 2, INFINITY, start_normal, main_body_position, ant_healthy, runner_reward);
RUNNER(mujoco_humanoid, 3, 6, 2, INFINITY, start_uniform, mass_centre, humanoid_healthy, runner_reward);
RUNNER(mujoco_humanoid_standup, 3, 6, 2, INFINITY, start_uniform, NULL, NULL, standup_reward);
RUNNER(mujoco_pendulum, 2, 1, 0, INFINITY, start_uniform, NULL, NULL, pendulum_reward);

const struct robot mujoco_reacher = {
    .nq_least = 4,
    .nv_least = 4,
    .bodies = {[FINGERTIP] = "fingertip", [TARGET] = "target"},
    .parts = reacher_parts,
    .start = start_reacher,
    .measure = reacher_distance,
    .reward = reacher_reward,
};
const struct robot mujoco_pusher = {
    .nq_least = 11,
    .nv_least = 11,
    .bodies = {[TIPS_ARM] = "tips_arm", [OBJECT] = "object", [GOAL] = "goal"},
    .parts = pusher_parts,
    .start = start_pusher,
    .reward = pusher_reward,
};
const struct robot mujoco_double_pendulum = {
    .nq_least = 2,
    .nv_least = 3,
    .sites_least = 1,
    .parts = double_pendulum_parts,
    .start = start_normal,
    .reward = double_pendulum_reward,
};
