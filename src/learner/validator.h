// What the learner believes of an actor's steps: the one place that reads what an actor wrote, once, by copy. Rewards,
// flags, observations that are numbers and the answers of LOCAL lanes are copied into the learner's own memory when
// their step comes up for an answer, and checked there; inference, accounting and training read the copy, so that
// nothing an actor stores later can change what was checked, nor make three readers see three different steps. u8
// frames are read where they lie: every byte is a pixel. Runs in the learner's inference thread (the copies are handed
// to training through the queue's lock); expects nothing of the memory's other side. Does not judge whether a step is
// plausible.
#ifndef FARM_LEARNER_VALIDATOR_H
#define FARM_LEARNER_VALIDATOR_H

#include "ring/ring.h"

// A flag of the learner's own, in its copies only: the step made no sense. It comes with FIRST and LAST, so neither the
// transition into this step nor the one out of it is trained on, and no stack of frames reaches across it.
#define FARM_STEP_SENSELESS 0x80u

struct farm_validator {
    const struct farm_lane *shared; // the actor's arrays
    const struct farm_ring_spec *spec;
    struct farm_lane checked; // the same lane; reward, flags, obs (but for u8 fields) and LOCAL answers are the
                              // learner's own
    bool number[FARM_OBS_FIELDS_MAX], real[FARM_OBS_FIELDS_MAX]; // obs field f: i32 or f32; f32
};

// A lane of a ring that outlives the validator. FARM_E_LIMIT.
enum farm_status farm_validator_open(const struct farm_ring *ring, uint32_t lane, struct farm_validator *validator,
                                     struct farm_error *err);
void farm_validator_close(struct farm_validator *validator); // safe on a zeroed one

// Copies step n, published, and checks it: numbers that make sense (base/number.h), known flags, an episode's
// end only with LAST; LOCAL: actions that exist, `version` at most `newest`, the newest published, and sensible
// numbers in f32 answer fields, but for -infinity in `policy`, where an action that was not taken is masked. What fails
// becomes a step with SENSELESS and reward 0; a field that fails becomes zeros. Returns how many values made no sense:
// of each environment its reward with its flags, each observation field and each answer field.
uint64_t farm_validator_step(struct farm_validator *validator, uint64_t n, uint64_t newest);

#endif
