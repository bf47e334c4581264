// clang-format off
// The lane: the ring of steps of one group of W environments that an actor steps together. Memory only: nothing here
// makes a system call (sleeping is in wait.h), takes a lock or does a read-modify-write.
//
//   produced  steps the actor has published          writer: actor
//   acted     steps that have been answered; LOCAL: taken in   writer: inference
//   consumed  steps the actor may overwrite           writer: the lane's owner on the learner's side
//   always: consumed <= acted <= produced <= consumed + C, and produced <= acted + farm_lane_ahead_max:
//           CENTRAL 1 (an actor publishes n+1 only after reading answer n), LOCAL C (an actor waits for room only)
//
// Memory order. Each pair is release store -> acquire load of one counter, by the side named in the function's name:
//   P  actor writes step n's arrays, then produced = n+1 (release)      ->  learner loads produced (acquire), reads the arrays
//   A  inference writes answer n's arrays, then acted = n+1 (release)  ->  actor loads acted (acquire), reads the action
//   C  readers load step n's arrays, then consumed = n+1 (release)     ->  actor loads consumed (acquire), overwrites the slot
// LOCAL: the answer to step n is one of the arrays of step n, so P covers it; acted = n+1 (release) says that inference
// has copied and checked step n. Actors do not read it; the supervisor and the next learner do.
// C needs release although it stores nothing else: it keeps the reader's earlier loads from moving below it.
// Step n+1 after answer n needs no further pair: the actor itself goes from A to P in program order.
// clang-format on
#ifndef FARM_RING_LANE_H
#define FARM_RING_LANE_H

#include <stdbool.h>

#include "ring/spec.h"

// An answer field of a lane.
struct farm_answer_array {
    uint8_t *at;                 // [slots][rows][bytes]
    size_t bytes;                // of one environment, or of one step where rows is 1
    uint32_t every, slots, rows; // see struct farm_answer_spec
    uint32_t values;             // of one row
};

// One process's view of one lane. Pointers into `up` are read-only on the learner's side and those into `down` on the
// actor's: a stray store faults instead of corrupting the peer.
struct farm_lane {
    struct farm_up_control *up_control;
    struct farm_up_lane *up;
    struct farm_down_lane *down;
    uint8_t *obs[FARM_OBS_FIELDS_MAX];                       // field f: u8 [C][W][obs_bytes[f]]
    float *reward;                                           // [C][W]
    uint8_t *flags;                                          // [C][W], FARM_STEP_*
    struct farm_answer_array answer[FARM_ANSWER_FIELDS_MAX]; // CENTRAL: in `down`; LOCAL: in `up`
    size_t obs_bytes[FARM_OBS_FIELDS_MAX];
    uint32_t obs_count, answer_count;
    uint32_t width, steps;
    bool local; // FARM_ANSWERS_LOCAL
    // The actor's own copies, so that the busy path reads the peer's cache lines only when it must.
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
// Answer field of step n, a multiple of its `every` (of another step: of the newest multiple before it), row `env`.
static inline void *farm_lane_answer_at(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env) {
    const struct farm_answer_array *array = &lane->answer[field];
    const uint64_t k = array->every == 1 ? n : n / array->every;
    return array->at + (size_t)(k % array->slots * array->rows + env) * array->bytes;
}
static inline void *farm_lane_action(const struct farm_lane *lane, uint64_t n, uint32_t env) {
    return farm_lane_answer_at(lane, FARM_ANSWER_ACTION, n, env);
}
static inline float *farm_lane_policy(const struct farm_lane *lane, uint64_t n, uint32_t env) {
    return farm_lane_answer_at(lane, FARM_ANSWER_POLICY, n, env);
}
static inline float *farm_lane_value(const struct farm_lane *lane, uint64_t n) {
    return farm_lane_answer_at(lane, FARM_ANSWER_VALUE, n, 0);
}
static inline uint64_t *farm_lane_version(const struct farm_lane *lane, uint64_t n) {
    return farm_lane_answer_at(lane, FARM_ANSWER_VERSION, n, 0);
}

// How many steps an actor may have published beyond `acted`: the one rule that differs between CENTRAL and LOCAL. All
// judgements of counters (sound, restore, verify, what the learner takes in) follow from it.
static inline uint64_t farm_lane_ahead_max(const struct farm_lane *lane) {
    return lane->local ? lane->steps : 1;
}

// Whether all of `produced` published steps have their answers; always, if LOCAL. Pair A.
static inline bool farm_lane_has_answers(const struct farm_lane *lane, uint64_t produced) {
    return lane->local || farm_load_acquire(&lane->down->acted) >= produced;
}

// ---- the actor's side: one thread ----

// The number of the step that the actor writes next.
static inline uint64_t farm_lane_actor_next(const struct farm_lane *lane) {
    return lane->produced_local;
}

// Whether slot `next` may be overwritten (backpressure). Reads `consumed` only when the copy says full. Pair C.
static inline bool farm_lane_actor_can_write(struct farm_lane *lane) {
    if (lane->produced_local - lane->consumed_seen < lane->steps) return true;
    lane->consumed_seen = farm_load_acquire(&lane->down->consumed);
    return lane->produced_local - lane->consumed_seen < lane->steps;
}

// Whether every published step has its answer, i.e. the action of step next-1 may be read.
static inline bool farm_lane_actor_answered(const struct farm_lane *lane) {
    return farm_lane_has_answers(lane, lane->produced_local);
}

// Publishes step `next`, whose arrays are written. Pair P; then the doorbell, behind produced, so that whoever has seen
// the bell finds the step.
static inline void farm_lane_actor_publish(struct farm_lane *lane) {
    farm_store_release(&lane->up->produced, ++lane->produced_local);
    farm_store_release(&lane->up_control->doorbell, farm_load_relaxed(&lane->up_control->doorbell) + 1);
}

// A new actor process on a lane that another one had: takes `produced` as it stands and rings the doorbell once more,
// for the old one may have died between its two stores. When farm_lane_actor_answered says yes, the new actor may
// overwrite slot `next` (never published, perhaps half written) and publish it with FIRST for every environment.
void farm_lane_actor_take_over(struct farm_lane *lane);

// ---- the supervisor: counters that an actor may have scribbled over (farm_ring_counters_sound, farm_ring_restore)
// ----

// Whether `produced` is one that an honest actor may have stored, with both sides alive: from acted to acted +
// farm_lane_ahead_max, as far as there is room.
bool farm_lane_sound(const struct farm_lane *lane);

// Between the death of an actor and the start of the next: a `produced` that lies becomes acted where the ring is full,
// else acted + 1, with FIRST in that step for every environment: whether or not the learner is answering it (LOCAL:
// taking it in) this moment, both sides agree, and it is a step that trains nothing. Returns whether it lied.
bool farm_lane_restore(struct farm_lane *lane);

// ---- the learner's side ----

// Steps published so far. Pair P.
static inline uint64_t farm_lane_produced(const struct farm_lane *lane) {
    return farm_load_acquire(&lane->up->produced);
}
// Steps answered so far (LOCAL: taken in), as their one writer (or an observer that needs no arrays) reads it.
static inline uint64_t farm_lane_acted(const struct farm_lane *lane) {
    return farm_load_acquire(&lane->down->acted);
}
// Answer n = acted is in its arrays: the actor may read it. Pair A. LOCAL: step n is taken in. By the one inference
// thread of this lane.
static inline void farm_lane_answer(struct farm_lane *lane, uint64_t n) {
    farm_store_release(&lane->down->acted, n + 1);
}
static inline uint64_t farm_lane_consumed(const struct farm_lane *lane) {
    return farm_load_acquire(&lane->down->consumed);
}
// The actor may overwrite every step before n. Pair C. By the lane's owner alone; never decreases.
static inline void farm_lane_release(struct farm_lane *lane, uint64_t n) {
    farm_store_release(&lane->down->consumed, n);
}

// The frames of the `stack` steps up to step n of environment env, oldest first, into rows[0..stack): NULL before the
// episode's FIRST. Steps n-stack+1..n must be held (not consumed).
void farm_lane_stack(const struct farm_lane *lane, unsigned field, uint64_t n, uint32_t env, unsigned stack,
                     const void **rows);

#endif
