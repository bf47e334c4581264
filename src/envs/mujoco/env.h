// Shared by the files of mujoco.so (mujoco.c): a task's settings, its robot and one environment.
#ifndef FARM_ENVS_MUJOCO_ENV_H
#define FARM_ENVS_MUJOCO_ENV_H

#include <mujoco/mujoco.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <farm/env.h>

enum {
    MUJOCO_BODIES_MAX = 3,
    MUJOCO_PARTS_MAX = 8,
    MUJOCO_TEXTS_MAX = 3,
    MUJOCO_FILE_BYTES = 256,
    MUJOCO_BODY_BYTES = 64
};

struct range {
    double low, high;
};

// The values of options and Gymnasium's defaults.
struct settings {
    double forward_reward_weight, ctrl_cost_weight, contact_cost_weight, healthy_reward, reset_noise_scale;
    double reward_near_weight, reward_dist_weight, reward_control_weight;
    struct range contact_cost_range, contact_force_range, healthy_state_range, healthy_z_range, healthy_angle_range;
    bool terminate_when_unhealthy, exclude_positions, use_contact_forces;
    bool include_cinert, include_cvel, include_qfrc_actuator, include_cfrc_ext;
    int64_t frame_skip, max_episode_steps;
    char xml_file[MUJOCO_FILE_BYTES], main_body[MUJOCO_BODY_BYTES];
};

struct mujoco_env;

// The common part of a task's versions.
struct robot {
    int nq_least, nv_least, sites_least;             // minima of a model
    const char *bodies[MUJOCO_BODIES_MAX];           // required in the model
    int skipped;                                     // first positions, not observed by default
    double velocity_limit;                           // observed velocities are clipped to it
    void (*parts)(struct mujoco_env *env);           // lists the parts of the observation
    void (*start)(struct mujoco_env *env);           // adds a reset's noise to the model's position
    double (*measure)(const struct mujoco_env *env); // the reward compares it before and after; may be NULL
    bool (*healthy)(const struct mujoco_env *env);   // may be NULL
    double (*reward)(const struct mujoco_env *env, double before, bool *terminated);
};

struct task {
    const char *name;
    int version;
    const struct robot *robot;
    const char *options[MUJOCO_TEXTS_MAX]; // "key=default key=default ..."
    const char *fixed[MUJOCO_TEXTS_MAX];   // the same, but fixed
};

// A part of the observation: `count` numbers of mjData, transformed.
struct part {
    enum part_kind { COPY, CLIP, SINE, COSINE, DIFFERENCE } kind;
    int count;
    const mjtNum *from, *minus;
    struct range clip;
};

struct mujoco_env {
    const struct task *task;
    struct settings settings;
    struct mujoco_model *shared;
    const mjModel *model;
    mjData *data;
    uint64_t random;
    int64_t steps; // in this episode
    double dt;     // seconds in one agent step
    int main_body, body[MUJOCO_BODIES_MAX];
    bool needs_contact_forces;
    int part_count;
    struct part parts[MUJOCO_PARTS_MAX];
};

// ---- settings.c ----

// Defaults of the task, then the given options. False with a message in error.
bool mujoco_settings_read(const struct task *task, const struct farm_env_config *config, struct settings *settings,
                          char *error, size_t error_bytes);
// Parses all of [text, end); accepts infinities, refuses NaN.
bool mujoco_parse_number(const char *text, const char *end, double *number);

// ---- model.c ----

// The model of a file, shared by all current holders; NULL with a message in error. Any thread.
struct mujoco_model *mujoco_model_acquire(const char *file, char *error, size_t error_bytes);
void mujoco_model_release(struct mujoco_model *shared);
const mjModel *mujoco_model_of(const struct mujoco_model *shared);

// ---- robot.c ----

extern const struct robot mujoco_cheetah, mujoco_swimmer, mujoco_hopper, mujoco_walker, mujoco_ant, mujoco_humanoid,
    mujoco_humanoid_standup, mujoco_reacher, mujoco_pusher, mujoco_pendulum, mujoco_double_pendulum;

// Writes the observation; mujoco_observed returns its length.
void mujoco_observe(const struct mujoco_env *env, float *out);
int mujoco_observed(const struct mujoco_env *env);

#endif
