// clang-format off
// The lane: the ring of the last C steps of W environments that an actor steps together. Plain memory: no system call
// (sleeping is in wait.h), no lock, no read-modify-write.
//
//   produced  steps the actor has published          writer: actor
//   acted     steps answered; LOCAL: checked and copied   writer: inference
//   granted   LOCAL: steps the actor may answer          writer: inference
//   consumed  steps the actor may overwrite           writer: the lane's owner in the learner
//   always: consumed <= acted <= produced <= consumed + C, and produced <= acted + farm_lane_ahead_max:
//           CENTRAL 1 (an actor publishes step n+1 after reading answer n), LOCAL C (an actor waits for room and grants)
//
// Memory order. Each pair is a release store and an acquire load of one counter:
//   P  actor writes step n's arrays, then produced = n+1 (release)      ->  learner loads produced (acquire), reads the arrays
//   A  inference writes answer n's arrays, then acted = n+1 (release)  ->  actor loads acted (acquire), reads the action
//   C  readers load step n's arrays, then consumed = n+1 (release)     ->  actor loads consumed (acquire), overwrites the slot
//   G  LOCAL: parameters are published, then granted > n (release)  ->  actor loads granted (acquire), answers step n
// LOCAL: answer n becomes visible with step n+1: the actor writes it among step n+1's arrays, so P covers it. It writes
// it when the slot of step n+1 is free, so learners that still copy the answer C steps before have finished (C).
// acted = n+1 is for the supervisor and the next learner.
// C needs release although it publishes no data: the reader's earlier loads must not move below the store.
// Between answer n and step n+1 the actor's program order suffices.
// clang-format on
#ifndef FARM_RING_LANE_H
#define FARM_RING_LANE_H

#include <stdbool.h>

#include "ring/spec.h"

struct farm_answer_array {
    uint8_t *at;                 // [slots][rows][bytes]
    size_t bytes;                // size of a row
    uint32_t every, slots, rows; // see struct farm_answer_spec
    uint32_t values;             // in one row
};

// One process's view of a lane. `up` is mapped read-only in the learner, `down` in the actor: a stray store faults.
struct farm_lane {
    struct farm_up_control *up_control;
    struct farm_up_lane *up;
    struct farm_down_lane *down;
    uint8_t *obs[FARM_OBS_FIELDS_MAX];                       // field f: u8 [C][W][obs_bytes[f]]
    float *reward;                                           // [C][W]
    uint8_t *flags;                                          // [C][W], FARM_STEP_*
    uint8_t *last[FARM_OBS_FIELDS_MAX];                      // SAME_STEP: u8 [2][W][obs_bytes[f]]; else NULL
    struct farm_answer_array answer[FARM_ANSWER_FIELDS_MAX]; // CENTRAL: in `down`; LOCAL: in `up`
    float *leaf; // [leaf_slots][W], replay: what the learner's index of windows holds; NULL: no replay
    size_t obs_bytes[FARM_OBS_FIELDS_MAX];
    uint32_t leaf_every, leaf_slots;
    uint32_t obs_count, answer_count;
    uint32_t control; // answer field by which the learner's side resets environments; 0: none
    uint32_t state;   // answer field of a recurrent policy's state, CENTRAL: `carry` is the next one; 0: none
    uint32_t width, steps;
    bool local; // FARM_ANSWERS_LOCAL
    // The actor's copies, so that it rarely loads the peer's cache lines.
    uint64_t produced_local, consumed_seen;
};

static inline size_t farm_lane_slot(const struct farm_lane *lane, uint64_t n) {
    return (size_t)(n % lane->steps);
}
static inline void *farm_lane_obs(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env) {
    return lane->obs[field] + (farm_lane_slot(lane, n) * lane->width + env) * lane->obs_bytes[field];
}
static inline float *farm_lane_reward(const struct farm_lane *lane, uint64_t n) {
    return lane->reward + farm_lane_slot(lane, n) * lane->width;
}
static inline uint8_t *farm_lane_flags(const struct farm_lane *lane, uint64_t n) {
    return lane->flags + farm_lane_slot(lane, n) * lane->width;
}
// SAME_STEP: the last observation of the episode that ended with step n (FIRST with LAST); valid until step n + 2.
static inline void *farm_lane_last(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env) {
    return lane->last[field] + (n % 2 * lane->width + env) * lane->obs_bytes[field];
}
// Row `env` of an answer field at step n, or at the newest multiple of `every` before n; every 0: at n mod 2.
static inline void *farm_lane_answer_at(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env) {
    const struct farm_answer_array *array = &lane->answer[field];
    const uint64_t k = array->every <= 1 ? n : n / array->every;
    return array->at + (size_t)(k % array->slots * array->rows + env) * array->bytes;
}
// LOCAL: the step whose value of an answer field is published with step n: the step before, whose answer that is; of
// `state`, n itself. False: the field has no value there.
static inline bool farm_lane_answer_with(const struct farm_lane *lane, uint32_t field, uint64_t n, uint64_t *at) {
    *at = field && field == lane->state ? n : n - 1;
    return lane->local && *at <= n && *at % lane->answer[field].every == 0;
}
static inline void *farm_lane_action(const struct farm_lane *lane, uint64_t n, uint32_t env) {
    return farm_lane_answer_at(lane, FARM_ANSWER_ACTION, n, env);
}
static inline float *farm_lane_policy(const struct farm_lane *lane, uint64_t n, uint32_t env) {
    return farm_lane_answer_at(lane, FARM_ANSWER_POLICY, n, env);
}
// The words of `control` by which the answer to step n - 1 resets environment `env`; NULL: it does not.
static inline const uint64_t *farm_lane_reset(const struct farm_lane *lane, uint64_t n, uint32_t env) {
    const uint64_t *words = lane->control && n ? farm_lane_answer_at(lane, lane->control, n - 1, env) : NULL;
    return words && words[FARM_CONTROL_DO] & FARM_CONTROL_RESET ? words : NULL;
}
// Replay: leaves [W] of the window that starts at `start`, a multiple of leaf_every. Writer: the learner; anyone may
// read.
static inline float *farm_lane_leaf(const struct farm_lane *lane, uint64_t start) {
    return lane->leaf + (size_t)(start / lane->leaf_every % lane->leaf_slots) * lane->width;
}
static inline float *farm_lane_value(const struct farm_lane *lane, uint64_t n) {
    return farm_lane_answer_at(lane, FARM_ANSWER_VALUE, n, 0);
}
static inline uint64_t *farm_lane_version(const struct farm_lane *lane, uint64_t n) {
    return farm_lane_answer_at(lane, FARM_ANSWER_VERSION, n, 0);
}

// Steps that an actor may publish beyond `acted`: the one rule that differs between CENTRAL and LOCAL. Every check of
// counters uses it.
static inline uint64_t farm_lane_ahead_max(const struct farm_lane *lane) {
    return lane->local ? lane->steps : 1;
}

// Whether `produced` steps are answered (pair A); LOCAL: whether the actor may answer them (pair G).
static inline bool farm_lane_has_answers(const struct farm_lane *lane, uint64_t produced) {
    return farm_load_acquire(lane->local ? &lane->down->granted : &lane->down->acted) >= produced;
}

// ---- the actor's side: one thread ----

// The next step to write.
static inline uint64_t farm_lane_actor_next(const struct farm_lane *lane) {
    return lane->produced_local;
}

// Whether the next step's slot is free (backpressure). Loads `consumed` only if its copy shows a full ring. Pair C.
static inline bool farm_lane_actor_can_write(struct farm_lane *lane) {
    if (lane->produced_local - lane->consumed_seen < lane->steps) return true;
    lane->consumed_seen = farm_load_acquire(&lane->down->consumed);
    return lane->produced_local - lane->consumed_seen < lane->steps;
}

// Whether the action of the newest published step may be read; LOCAL: written, if the next slot is free too.
static inline bool farm_lane_actor_answered(const struct farm_lane *lane) {
    return farm_lane_has_answers(lane, lane->produced_local);
}

// Publishes the next step, whose arrays are written. Pair P. The doorbell follows `produced`: a learner that sees the
// bell finds the step.
static inline void farm_lane_actor_publish(struct farm_lane *lane) {
    farm_store_release(&lane->up->produced, ++lane->produced_local);
    farm_store_release(&lane->up_control->doorbell, farm_load_relaxed(&lane->up_control->doorbell) + 1);
}

// A new actor process takes over a dead one's lane: it continues at `produced` and rings the doorbell, because the dead
// one may have died between its two stores. Once farm_lane_actor_answered, it may overwrite the next slot (perhaps half
// written) and publish it with FIRST for every environment.
void farm_lane_actor_take_over(struct farm_lane *lane);

// ---- the supervisor: counters that an actor may have overwritten ----

// Whether an honest actor can have stored `produced`: from acted to acted + farm_lane_ahead_max, within the ring. Both
// sides may run meanwhile.
bool farm_lane_sound(const struct farm_lane *lane);

// Between an actor's death and its successor's start: replaces an invalid `produced` by acted if the ring is full, else
// by acted + 1, with FIRST in that step for every environment. Both sides then agree even if the learner is answering
// that step at this moment, and the step trains nothing. Returns whether the counter was invalid.
bool farm_lane_restore(struct farm_lane *lane);

// ---- the learner's side ----

// Pair P.
static inline uint64_t farm_lane_produced(const struct farm_lane *lane) {
    return farm_load_acquire(&lane->up->produced);
}
// For the counter's writer, and for observers that read no arrays.
static inline uint64_t farm_lane_acted(const struct farm_lane *lane) {
    return farm_load_acquire(&lane->down->acted);
}
// Publishes answer n = acted, whose arrays are written (LOCAL: step n is checked). Pair A. Only the lane's inference
// thread calls it.
static inline void farm_lane_answer(struct farm_lane *lane, uint64_t n) {
    farm_store_release(&lane->down->acted, n + 1);
}
// LOCAL: lets the actor answer every step before n. Pair G. Only the lane's inference thread calls it; n never
// decreases.
static inline void farm_lane_grant(struct farm_lane *lane, uint64_t n) {
    farm_store_release(&lane->down->granted, n);
}
static inline uint64_t farm_lane_consumed(const struct farm_lane *lane) {
    return farm_load_acquire(&lane->down->consumed);
}
// Lets the actor overwrite every step before n. Pair C. Only the lane's owner calls it; n never decreases.
static inline void farm_lane_release(struct farm_lane *lane, uint64_t n) {
    farm_store_release(&lane->down->consumed, n);
}

// The frames of the `stack` steps up to step n of environment env, oldest first, into rows[0..stack): NULL before the
// episode's FIRST. Steps n-stack+1..n must be held (not consumed).
void farm_lane_stack(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env, unsigned stack,
                     const void **rows);

#endif
