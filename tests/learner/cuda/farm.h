// Rigs (tests/support/rig.h) for tests of the CUDA backend's host code: what they learn follows from a setting. A run
// returns a record, to be compared with that of another backend or setting.
#ifndef TESTS_LEARNER_CUDA_FARM_H
#define TESTS_LEARNER_CUDA_FARM_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../support/rig.h"
#include "emulator.h"
#include "learner/cuda/backend.h"
#include "learner/cuda/context.h"
#include "vendor_emulator.h"

enum { RINGS = 2, LANES = 2, WIDTH = 3, SIDE = 12, FRAME_STACK = 3, FLAT = 5, ACTIONS = 4, UNROLL = 4, STEPS = 20 };
enum { DICT_WIDTH = 8, DICT_STACK = 2, CHOICES = 3, DICT_FLAT = FLAT + CHOICES + ACTIONS + 1 }; // setting.dict
enum { LANE_COUNT = RINGS * LANES, ENVIRONMENTS = LANE_COUNT * WIDTH, ROUNDS = 27, OBS_MAX = SIDE * SIDE };

struct setting {
    bool frames;
    uint32_t shards; // if 2: ring r belongs to shard r
    uint32_t batch, micro_batch, infer_batch_max;
    uint32_t passes; // over an iteration, in two epochs of different order; 0: one pass over all
    bool loss_mean;
    uint64_t spin_ns;
    enum farm_mirror mirror;
    enum farm_emulator_way obs_way; // the only fast way for registered frames
    bool bf16;
    bool sync;      // trains on windows before their last step is answered
    bool ppo;       // PPO in place of V-trace
    uint32_t q;     // DQN or, with an LSTM, R2D2, of as many steps; ppo: PQN
    bool masked;    // some actions are forbidden
    bool squash;    // two numbers through tanh in place of discrete actions, in bounds of +-1 and +-3
    bool sigma;     // squash: with the network's deviations
    bool dict;      // with frames: two colour images beside numbers, a choice, the last action and reward
    bool normalise; // observations and rewards; without frames: in the network "separate"
    uint32_t lstm;  // layers of an LSTM; 0: none
    uint32_t burn_in;
    float reward; // if not 0: of one lane's every tenth step, scaled by the largest float; others have none
};

// The emulator shows as many GPUs.
struct setting usual_setting(bool frames, uint32_t shards);

// All answers of a run, and the parameters at its end.
struct record {
    int32_t action[ROUNDS][ENVIRONMENTS];
    bool squash;
    float sample[ROUNDS][ENVIRONMENTS][2], squashed[ROUNDS][ENVIRONMENTS][2]; // in place of `action`
    float logits[ROUNDS][ENVIRONMENTS][ACTIONS], value[ROUNDS][ENVIRONMENTS];
    uint64_t version[ROUNDS][LANE_COUNT];
    float priorities[ROUNDS][ENVIRONMENTS];
    struct farm_pass_stats stats[ROUNDS];
    float *params;
    size_t count;
    uint64_t updates;
    uint64_t inferred[FARM_EMULATOR_WAYS], trained[FARM_EMULATOR_WAYS]; // bytes read of registered memory
    uint64_t counted[2]; // bytes that the backend reports: inference, training
};

// ---- a farm, its backend ----

struct rig *open_farm(struct setting setting);
const struct setting *setting_of(const struct rig *farm);
enum farm_status open_backend(struct rig *farm, const struct farm_backend_ops *ops);
void must_open_backend(struct rig *farm, const struct farm_backend_ops *ops);
struct rig *open_ready(struct setting setting);                  // with the CUDA backend
struct rig *open_played(struct setting setting, uint64_t steps); // which has answered `steps` steps

// After the last farm nothing of the GPU may be in use.
void close_farm(struct rig *farm);
void close_farm_at(struct rig **farm);
#define with_farm __attribute__((cleanup(close_farm_at))) struct rig // closed at the end of its scope
void expect_nothing_left(void);

// The backend has chosen the setting's way.
void expect_obs_path(const struct rig *farm);
void expect_refused(struct setting setting, enum farm_status status, const char *word);

// ---- actors and the learner's loop ----

// Whether step n begins an episode.
bool is_first(uint64_t lane, uint64_t env, uint64_t n);
void write_step(struct rig *farm, uint32_t id, uint64_t n);

// A step of all lanes: publish_lanes, then rig_answer.
void publish_lanes(struct rig *farm);
enum farm_status play_step(struct rig *farm);
void play_to(struct rig *farm, uint64_t steps);

void must_update(struct rig *farm);

// ---- runs ----

void record_answers(struct rig *farm, struct record *record);
void record_update(struct rig *farm, struct record *record);
void record_end(struct rig *farm, struct record *record);
void free_record(struct record *record);
void free_record_at(struct record **record);
#define with_record __attribute__((cleanup(free_record_at))) struct record // freed at the end of its scope

// Adds the bytes read of registered memory since `before`, by way.
void add_bytes_read(uint64_t *sum, const struct farm_emulator_account *before);

// Plays ROUNDS steps and makes every update that their windows allow. leaves: ring 1 leaves and joins again after every
// seventh step.
struct record *run_farm(struct rig *farm, bool leaves);
struct record *run_alone(struct setting setting, const struct farm_backend_ops *ops);

double distance(const float *a, const float *b, size_t count);
void expect_same(const struct record *ours, const struct record *theirs, const char *what);

// Runs a farm whose ring 1 leaves and joins while ring 0 is served: no number differs from those of `steady`. Closes
// the farm, frees `steady`.
void expect_absence_changes_nothing(struct rig *farm, struct record *steady);

#endif
