// What the files of mujoco.so share: a task's settings, its robot (what is observed, how an episode starts, what a step
// is worth) and one environment. See envs/mujoco/mujoco.c.
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

// Everything that options and Gymnasium's defaults decide.
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

// What the versions of a task have in common.
struct robot {
    int nq_least, nv_least, sites_least;             // of a model that it can be played with
    const char *bodies[MUJOCO_BODIES_MAX];           // that the model must have
    int skipped;                                     // first positions, left out of observations unless asked for
    double velocity_limit;                           // velocities are observed clipped to it
    void (*parts)(struct mujoco_env *env);           // lists what is observed
    void (*start)(struct mujoco_env *env);           // adds a reset's noise to the model's own position
    double (*measure)(const struct mujoco_env *env); // what a reward compares before and after; may be NULL
    bool (*healthy)(const struct mujoco_env *env);   // may be NULL
    double (*reward)(const struct mujoco_env *env, double before, bool *terminated);
};

struct task {
    const char *name;
    int version;
    const struct robot *robot;
    const char *options[MUJOCO_TEXTS_MAX]; // "key=default key=default ...": those that may be given
    const char *fixed[MUJOCO_TEXTS_MAX];   // the same, but not to be changed
};

// A piece of the observation: `count` numbers of mjData's, and what is done with them.
struct part {
    enum { COPY, CLIP, SINE, COSINE, DIFFERENCE } how;
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
    int64_t steps; // of this episode
    double dt;     // of one agent step
    int main_body;
    int body[MUJOCO_BODIES_MAX];
    bool needs_contact_forces;
    int part_count;
    struct part parts[MUJOCO_PARTS_MAX];
};

// ---- settings.c ----

// Defaults of the task, then the options given. False with a sentence in error.
bool mujoco_settings_read(const struct task *task, const struct farm_env_config *config, struct settings *settings,
                          char *error, size_t error_bytes);
// A number that is all of [text, end); infinities are numbers, NaN is not.
bool mujoco_parse_number(const char *text, const char *end, double *number);

// ---- model.c ----

// The model of a file, loaded once for all who hold it at the same time; NULL with a sentence in error. Any thread.
struct mujoco_model *mujoco_model_take(const char *file, char *error, size_t error_bytes);
void mujoco_model_return(struct mujoco_model *shared);
const mjModel *mujoco_model_of(const struct mujoco_model *shared);

// ---- robot.c ----

extern const struct robot mujoco_cheetah, mujoco_swimmer, mujoco_hopper, mujoco_walker, mujoco_ant, mujoco_humanoid,
    mujoco_humanoid_standup, mujoco_reacher, mujoco_pusher, mujoco_pendulum, mujoco_double_pendulum;

// Writes the observation; how many numbers it has.
void mujoco_observe(const struct mujoco_env *env, float *out);
int mujoco_observed(const struct mujoco_env *env);

#endif
