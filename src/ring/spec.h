// The shape of one actor's rings, and the layout of its two segments as a pure function of the shape. A test compares
// docs/shm-layout.md with it. Runs in every process; no I/O.
#ifndef FARM_RING_SPEC_H
#define FARM_RING_SPEC_H

#include <farm/env.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/atomics.h"
#include "base/status.h"
#include "shm/segment.h"

enum { FARM_LANES_MAX = 64, FARM_WIDTH_MAX = 65536, FARM_ANSWER_FIELDS_MAX = 8 };

// Which side answers. CENTRAL: the learner, in `down`; the actor publishes step n+1 after reading answer n. LOCAL: the
// actor runs the policy, and the answer to step n, in `up`, becomes visible with step n+1.
enum farm_answers { FARM_ANSWERS_CENTRAL, FARM_ANSWERS_LOCAL };

// Where the next episode begins: a step of its own behind the last one (FIRST), or the last one itself (FIRST with
// LAST), whose observation is the next episode's first; the last observation then lies in the fields `last`.
enum farm_autoreset { FARM_AUTORESET_NEXT_STEP, FARM_AUTORESET_SAME_STEP };

// Answer field "control": words of an environment. NUMBERS and what follows: doubles, NAN leaves a number unchanged.
enum { FARM_CONTROL_DO, FARM_CONTROL_SEED, FARM_CONTROL_NUMBERS, FARM_CONTROL_NUMBERS_MAX = 16 };
// Bits of DO: reset the environment instead of stepping it, with the seed of the word SEED.
enum { FARM_CONTROL_RESET = 1, FARM_CONTROL_RESEED = 2 };

// Answer fields of every ring; a ring may have further ones.
enum {
    FARM_ANSWER_ACTION,
    FARM_ANSWER_POLICY,
    FARM_ANSWER_VALUE,
    FARM_ANSWER_VERSION,
    FARM_ANSWERS_STANDARD,
    FARM_ANSWER_SAMPLE = FARM_ANSWERS_STANDARD, // if the policy has samples (farm_ring_spec_sample)
};

// Extends enum farm_dtype, for answer fields only: eight bytes.
enum { FARM_U64 = 4 };

// An answer field. It has K = ceil(C / every) slots; step n, a multiple of `every`, lies at (n / every) mod K. every 0:
// two slots, step n at n mod 2, for what each step hands to the next.
struct farm_answer_spec {
    char name[FARM_FIELD_NAME_MAX];
    uint32_t dtype;
    uint32_t values;   // for each environment, or, with per_step, for the step
    uint32_t every;    // steps from one value to the next, 0..C
    uint32_t per_step; // 1: one row for all environments of a step
};

// In the header page (user area) of both segments, so that a receiver needs the descriptors only. All lanes of an actor
// have one shape.
struct farm_ring_spec {
    uint32_t lanes;   // L, 1..FARM_LANES_MAX
    uint32_t width;   // W environments a lane: a multiple of env.agents, because each agent is one of them
    uint32_t steps;   // C steps a ring
    uint32_t answers; // enum farm_answers
    struct farm_env_spec env;
    uint32_t answer_count; // FARM_ANSWERS_STANDARD..FARM_ANSWER_FIELDS_MAX
    struct farm_answer_spec answer[FARM_ANSWER_FIELDS_MAX];
    uint32_t leaf_every;   // replay: steps from one window's start to the next one's, each with a leaf; 0: no replay
    uint32_t autoreset;    // enum farm_autoreset
    uint32_t number_count; // of `control`
    char numbers[FARM_CONTROL_NUMBERS_MAX][FARM_FIELD_NAME_MAX]; // their names, options of the environment
};
_Static_assert(sizeof(struct farm_ring_spec) <= FARM_SEGMENT_USER_BYTES, "the spec fits the header page");

// Each counter has two cache lines, because cores prefetch them in pairs.
// Words in `up`, written by the actor, or by the bridge in a remote actor's place.
struct farm_up_control {
    uint64_t doorbell; // counts publishes of all lanes
    uint64_t pad0[15];
    uint64_t asleep; // 1 while the actor sleeps on down.wake, or is about to
    uint64_t pad1[15];
    uint64_t heartbeat; // environments made, reset and stepped: tells a hung environment from a waiting actor
    uint64_t abandoned; // episodes given up because of invalid numbers (recipe key bad_values)
    uint64_t pad2[14];
    uint64_t using; // LOCAL: 1 + the buffer of its node's parameter board that it reads (board/board.h); 0: none
    uint64_t pad3[15];
};
struct farm_up_lane {
    uint64_t produced; // steps published
    uint64_t pad0[15];
};

// Words in `down`, written by the learner's side.
struct farm_down_control {
    uint32_t wake; // futex word; writers: the learner threads that answer or release, by atomic addition
    uint32_t pad0[31];
    uint64_t asleep; // 1 while that inference thread sleeps on its eventfd, or is about to
    uint64_t pad1[15];
    uint64_t stop; // 1: the actor ends after its current step; writer: the supervisor
    uint64_t pad2[15];
};
struct farm_down_lane {
    uint64_t acted; // steps answered; LOCAL: checked by the learner; writer: inference
    uint64_t pad0[15];
    uint64_t granted; // LOCAL: steps that the actor may answer; writer: inference
    uint64_t pad1[15];
    uint64_t consumed; // steps the actor may overwrite; writer: the lane's owner in the learner
    uint64_t pad2[15];
    uint64_t generation; // earlier actors of this lane; writer: the supervisor
    uint64_t pad3[15];
};

// Whether a frozen policy plays an agent of an environment's `agents`, by the recipe key `opponents` (0: half, rounded
// down): if they are half, the odd ones, as a two-player game's second player; else the last ones.
static inline bool farm_opponent_plays(uint32_t agents, uint32_t opponents, uint32_t agent) {
    const uint32_t count = opponents ? opponents : agents / 2;
    return count * 2 == agents ? agent % 2 : agent + count >= agents;
}

// Byte offsets from the start of a segment. Arrays of lane l lie at `lane_offset + l * lane_stride + field offset`;
// step n of environment e of a field at slot (n mod C) * W + e. Every array starts on a cache line, every lane on a
// page. Answer fields lie in `down` (CENTRAL), or in `up` behind the flags (LOCAL).
struct farm_ring_layout {
    size_t up_bytes, down_bytes;
    size_t up_control, up_lanes;     // struct farm_up_control, struct farm_up_lane[L]
    size_t down_control, down_lanes; // struct farm_down_control, struct farm_down_lane[L]
    size_t up_arrays, up_stride;     // first lane's arrays, bytes a lane
    size_t down_arrays, down_stride;
    size_t obs[FARM_OBS_FIELDS_MAX], reward, flags; // within a lane's arrays in `up`
    size_t answer[FARM_ANSWER_FIELDS_MAX];          // within a lane's arrays
    size_t leaf;                                    // within a lane's arrays in `down`; only with leaf_every
    size_t last[FARM_OBS_FIELDS_MAX];               // within a lane's arrays in `up`; SAME_STEP only
    size_t obs_bytes[FARM_OBS_FIELDS_MAX];          // one environment's observation field
    size_t answer_bytes[FARM_ANSWER_FIELDS_MAX];    // one environment's (per_step: one step's) answer field
    uint64_t hash;                                  // hash of spec and offsets: the segments' layout_hash
};

// Bytes of one element, and of one field of one environment; 0 if the spec is invalid.
size_t farm_dtype_bytes(uint32_t dtype);
size_t farm_field_bytes(const struct farm_field_spec *field);

// Index of the first of values[0..count) of a field that is invalid: f32 that is not sensible (base/number.h), i32
// outside 0..choices-1 if the field has choices. count: all are valid. u8 is not checked.
size_t farm_field_find_invalid(const struct farm_field_spec *field, const void *values, size_t count);

// Values of one environment's field, and whether all of them are valid.
static inline size_t farm_field_values(const struct farm_field_spec *field) {
    return farm_field_bytes(field) / farm_dtype_bytes(field->dtype);
}
static inline bool farm_field_is_valid(const struct farm_field_spec *field, const void *values) {
    const size_t count = farm_field_values(field);
    return farm_field_find_invalid(field, values, count) == count;
}

// Index of the first of the values of `count` actions that is invalid: a choice out of its range, or a number that is
// not finite (one beyond its bounds is valid: the actor clips it). count * dims: all are valid.
static inline size_t farm_action_find_invalid(const struct farm_action_spec *action, const void *values, size_t count) {
    const uint8_t *at = values;
    size_t i = 0;
    for (uint32_t d = 0; i < count * action->dims; i++, d = d + 1 < action->dims ? d + 1 : 0) {
        uint32_t value;
        memcpy(&value, at + i * sizeof value, sizeof value);
        if (action->kind == FARM_ACTION_CONTINUOUS ? (value & 0x7f800000) == 0x7f800000 : value >= action->sizes[d])
            break;
    }
    return i;
}

// Whether the field is an image, and its shape (farm/env.h): channels last, or first (`planes`) if they are the fewest.
struct farm_image {
    uint32_t height, width, channels;
    bool planes;
};
bool farm_field_is_image(const struct farm_field_spec *field);
struct farm_image farm_field_image(const struct farm_field_spec *field);

// Checks the spec (bounds every count, size and product) and makes the layout. FARM_E_INVALID with the reason.
enum farm_status farm_ring_layout_make(const struct farm_ring_spec *spec, struct farm_ring_layout *layout,
                                       struct farm_error *err);

// Values of `policy` that an action spec needs: discrete n, multi-discrete the sum, continuous 2 * dims.
uint32_t farm_policy_outputs(const struct farm_action_spec *action);

// Sets the standard answer fields from spec->env.action: `action`, `policy` (logits, distribution parameters or q),
// `value`, and `version` of the parameters. Further fields may be appended.
void farm_ring_spec_answers(struct farm_ring_spec *spec);

// Appends `sample` to the standard fields of continuous actions: the draws of a squashed policy.
void farm_ring_spec_sample(struct farm_ring_spec *spec);

// Appends the fields of a recurrent policy with `floats` numbers of state an environment: `state`, what the forward
// pass of every step n that is a multiple of `every` receives (zeros with FIRST), and, CENTRAL, behind it `carry`: the
// pass of step n reads slot n mod 2 and writes the other one, so either survives a learner that dies between. The
// running state of a LOCAL lane is its actor's own.
void farm_ring_spec_state(struct farm_ring_spec *spec, uint32_t floats, uint32_t every);

// Appends `control`, by which the learner's side resets single environments, with spec->number_count numbers. CENTRAL.
void farm_ring_spec_control(struct farm_ring_spec *spec);

// Index of the answer field with this name; 0 (`action`) if there is none.
uint32_t farm_ring_spec_find(const struct farm_ring_spec *spec, const char *name);

// For measurements and tests: one observation field, `obs`, of `values` values, one discrete action, and the standard
// answer fields.
struct farm_ring_spec farm_ring_spec_plain(uint32_t lanes, uint32_t width, uint32_t steps, enum farm_dtype dtype,
                                           uint32_t values, uint32_t actions);

// Rows (environments, or 1) of a slot of an answer field, and its slots.
static inline uint32_t farm_answer_rows(const struct farm_ring_spec *spec, uint32_t field) {
    return spec->answer[field].per_step ? 1 : spec->width;
}
static inline uint32_t farm_answer_slots(const struct farm_ring_spec *spec, uint32_t field) {
    const uint32_t every = spec->answer[field].every;
    return every ? (spec->steps - 1) / every + 1 : 2;
}

// Slots of the leaves: the window that starts at step n, a multiple of leaf_every, has slot (n / leaf_every) mod K.
static inline uint32_t farm_leaf_slots(const struct farm_ring_spec *spec) {
    return spec->leaf_every ? (spec->steps - 1) / spec->leaf_every + 1 : 0;
}

// The smallest C for K windows in training at once: (K+1)*stride + length + stack (DESIGN "One structure").
uint64_t farm_ring_steps_needed(uint64_t windows, uint64_t stride, uint64_t length, uint64_t stack);

#endif
