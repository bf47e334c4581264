// Copies and checks what actors write. Rewards, flags, observations that are numbers, action masks and the answers of
// LOCAL lanes are copied once into the reader's memory and checked there; inference, accounting and training read the
// copy, so a later store of the actor changes nothing. u8 frames are read in place: every byte is a pixel. Runs in the
// lane's inference thread; training gets the copies through the window source's lock. Does not judge whether a step is
// plausible.
#ifndef FARM_INTAKE_VALIDATOR_H
#define FARM_INTAKE_VALIDATOR_H

#include "intake/stats.h"
#include "ring/ring.h"

// Flag in the copies only: the step made no sense. FIRST and LAST come with it, so that the transitions into and out of
// it are not trained on and no stack of frames reaches across it.
#define FARM_STEP_SENSELESS 0x80u

// Whether a step's checked flags end an episode and begin the next one (same-step resets).
static inline bool farm_step_renews(const struct farm_lane *lane, unsigned flags) {
    return lane->last[0] &&
           (flags & (FARM_STEP_FIRST | FARM_STEP_LAST | FARM_STEP_SENSELESS)) == (FARM_STEP_FIRST | FARM_STEP_LAST);
}

struct farm_validator {
    const struct farm_lane *shared; // the actor's arrays
    const struct farm_ring_spec *spec;
    struct farm_lane checked; // the lane with own arrays of reward, flags, copied obs and last fields, LOCAL answers
    bool copied[FARM_OBS_FIELDS_MAX]; // obs field f: i32, f32 or the action mask
    int mask;                         // obs field of action masks (kernels/head.h), or -1
    struct farm_bad_value first_bad;  // the lane's
};

// lane: index in a ring that outlives the validator. FARM_E_LIMIT.
enum farm_status farm_validator_open(const struct farm_ring *ring, uint32_t lane, struct farm_validator *validator,
                                     struct farm_error *err);
// Memory of a lane's copies.
uint64_t farm_validator_bytes(const struct farm_ring_spec *spec, const struct farm_ring_layout *layout);
void farm_validator_close(struct farm_validator *validator); // safe on a zeroed one

// Copies published step n, LOCAL: with the answer to step n - 1 and the state before n, then checks the copies: numbers
// that make sense (base/number.h; i32 within the field's choices), known flags, an episode's end only with LAST, LAST
// only with FIRST if resets are in the same step; an action mask that permits a choice of each action, except with LAST
// (alone); LOCAL: existing actions that the mask permits, `version` at most `newest` (the newest published), and
// sensible numbers in f32 answer fields, or -infinity in `policy` for an action that was not taken; actions and
// policies of LAST are free. A step that fails, LOCAL: whose action fails, becomes SENSELESS with reward 0, a field
// that fails becomes zeros (a mask stays). Training may read step n - 1 meanwhile, but no answer to the last step of a
// window. Returns the number of invalid values; an environment's reward and flags are one value, as is each of its
// observation and answer fields.
uint64_t farm_validator_step(struct farm_validator *validator, uint64_t n, uint64_t newest);

// Makes the lane's first invalid value the run's, unless another lane has done so. The lane has one.
void farm_validator_report(const struct farm_validator *validator, struct farm_bad_value *run);

#endif
