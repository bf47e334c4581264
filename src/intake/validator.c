// See validator.h.
#include "intake/validator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "kernels/head.h"

static bool is_copied(const struct farm_ring_spec *spec, uint32_t field, int mask) {
    return spec->env.obs[field].dtype != FARM_U8 || (int)field == mask;
}

uint64_t farm_validator_bytes(const struct farm_ring_spec *spec, const struct farm_ring_layout *layout) {
    uint64_t row = sizeof(float) + 1, last = 0, answers = 0; // reward, flags
    int mask;
    if (farm_head_mask_field(&spec->env, &mask, NULL)) mask = -1;
    for (uint32_t f = 0; f < spec->env.obs_count; f++)
        if (is_copied(spec, f, mask)) row += layout->obs_bytes[f], last += layout->obs_bytes[f];
    for (uint32_t f = 0; f < spec->answer_count && spec->answers == FARM_ANSWERS_LOCAL; f++)
        answers += (uint64_t)farm_answer_slots(spec, f) * farm_answer_rows(spec, f) * layout->answer_bytes[f];
    return (uint64_t)spec->steps * spec->width * row + (spec->autoreset ? 2 * spec->width * last : 0) + answers;
}

static void *new_rows(uint64_t rows, size_t bytes, bool *ok) {
    void *memory = calloc(rows, bytes);
    if (!memory) *ok = false;
    return memory;
}

enum farm_status farm_validator_open(const struct farm_ring *ring, uint32_t lane, struct farm_validator *validator,
                                     struct farm_error *err) {
    *validator = (struct farm_validator){.shared = &ring->lanes[lane],
                                         .spec = &ring->spec,
                                         .checked = ring->lanes[lane],
                                         .first_bad = {.actor = ring->down.header->owner, .lane = lane}};
    struct farm_lane *checked = &validator->checked;
    const uint64_t slots = (uint64_t)checked->steps * checked->width;
    bool ok = true;
    if (farm_head_mask_field(&ring->spec.env, &validator->mask, NULL)) validator->mask = -1; // the learner refuses it
    checked->reward = new_rows(slots, sizeof *checked->reward, &ok);
    checked->flags = new_rows(slots, sizeof *checked->flags, &ok);
    for (uint32_t f = 0; f < checked->obs_count; f++) {
        validator->copied[f] = is_copied(&ring->spec, f, validator->mask);
        if (validator->copied[f]) checked->obs[f] = new_rows(slots, checked->obs_bytes[f], &ok);
        if (validator->copied[f] && checked->last[f])
            checked->last[f] = new_rows(2 * (uint64_t)checked->width, checked->obs_bytes[f], &ok);
    }
    for (uint32_t f = 0; f < checked->answer_count && checked->local; f++) {
        struct farm_answer_array *answer = &checked->answer[f];
        answer->at = new_rows((uint64_t)answer->slots * answer->rows, answer->bytes, &ok);
    }
    if (ok) return FARM_OK;
    farm_validator_close(validator);
    return farm_fail(err, FARM_E_LIMIT, "no memory for a checked copy of %u steps of %u environments", ring->spec.steps,
                     ring->spec.width);
}

void farm_validator_close(struct farm_validator *validator) {
    if (!validator->shared) return;
    free(validator->checked.reward);
    free(validator->checked.flags);
    for (uint32_t f = 0; f < validator->checked.obs_count; f++)
        if (validator->copied[f]) free(validator->checked.obs[f]), free(validator->checked.last[f]);
    for (uint32_t f = 0; f < validator->checked.answer_count && validator->checked.local; f++)
        free(validator->checked.answer[f].at);
    *validator = (struct farm_validator){0};
}

// Copies what is judged of step n. The fence keeps the compiler from reading the actor's memory again instead of a
// copy.
static void copy_step(const struct farm_validator *validator, uint64_t n) {
    const struct farm_lane *shared = validator->shared, *own = &validator->checked;
    memcpy(farm_lane_reward(own, n), farm_lane_reward(shared, n), own->width * sizeof *own->reward);
    memcpy(farm_lane_flags(own, n), farm_lane_flags(shared, n), own->width);
    for (uint32_t f = 0; f < own->obs_count; f++)
        if (validator->copied[f])
            memcpy(farm_lane_obs(own, f, n, 0), farm_lane_obs(shared, f, n, 0), own->obs_bytes[f] * own->width);
    for (uint32_t e = 0; e < own->width && own->last[0]; e++)
        for (uint32_t f = 0; f < own->obs_count && farm_step_renews(own, farm_lane_flags(own, n)[e]); f++)
            if (validator->copied[f])
                memcpy(farm_lane_last(own, f, n, e), farm_lane_last(shared, f, n, e), own->obs_bytes[f]);
    for (uint32_t f = 0; f < own->answer_count; f++) {
        uint64_t at;
        if (!farm_lane_answer_with(own, f, n, &at)) continue;
        memcpy(farm_lane_answer_at(own, f, at, 0), farm_lane_answer_at(shared, f, at, 0),
               own->answer[f].bytes * own->answer[f].rows);
        for (uint32_t e = 0; e < own->width && at == n; e++) // a new episode's state
            if (farm_lane_flags(own, n)[e] & FARM_STEP_FIRST)
                memset(farm_lane_answer_at(own, f, n, e), 0, own->answer[f].bytes);
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static bool known_flags(unsigned flags, bool same_step) {
    const unsigned ends = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED | FARM_STEP_GAME_END;
    if (same_step && (flags & (FARM_STEP_FIRST | FARM_STEP_LAST)) == FARM_STEP_LAST) return false;
    return !(flags & ~FARM_STEP_ALL) && (flags & FARM_STEP_LAST || !(flags & ends));
}

void farm_validator_report(const struct farm_validator *validator, struct farm_bad_value *run) {
    if (farm_load_relaxed(&run->known) || !farm_claim_relaxed(&run->known)) return;
    const size_t from = offsetof(struct farm_bad_value, field);
    memcpy(&run->field, &validator->first_bad.field, sizeof *run - from);
    farm_store_release(&run->known, 2);
}

static void make_senseless(const struct farm_lane *lane, uint64_t n, uint32_t e) {
    farm_lane_reward(lane, n)[e] = 0;
    farm_lane_flags(lane, n)[e] = FARM_STEP_FIRST | FARM_STEP_LAST | FARM_STEP_SENSELESS;
}

// Makes step n of an environment senseless because of one value, and keeps the lane's first such value. Returns 1.
static uint64_t reject(struct farm_validator *validator, uint64_t n, uint32_t e, uint64_t field, uint64_t element,
                       double value) {
    struct farm_bad_value *first = &validator->first_bad;
    make_senseless(&validator->checked, n, e);
    if (first->known) return 1;
    first->known = 2;
    first->field = field;
    first->step = n;
    first->environment = e;
    first->element = element;
    farm_stats_set(&first->value, value);
    return 1;
}

static uint64_t judge_rewards_and_flags(struct farm_validator *validator, uint64_t n) {
    const float *reward = farm_lane_reward(&validator->checked, n);
    const uint8_t *flags = farm_lane_flags(&validator->checked, n);
    uint64_t bad = 0;
    unsigned wrong = 0;
    for (uint32_t e = 0; e < validator->checked.width; e++)
        wrong |= !known_flags(flags[e], validator->checked.last[0] != NULL);
    if (!wrong && farm_numbers_sensible(reward, validator->checked.width)) return 0; // as almost always
    for (uint32_t e = 0; e < validator->checked.width; e++)
        if (!known_flags(flags[e], validator->checked.last[0] != NULL))
            bad += reject(validator, n, e, FARM_BAD_FLAGS, 0, flags[e]);
        else if (!farm_numbers_sensible(&reward[e], 1))
            bad += reject(validator, n, e, FARM_BAD_REWARD, 0, (double)reward[e]);
    return bad;
}

// The observation of an environment at step n, or its last one.
static uint64_t judge_row(struct farm_validator *validator, uint32_t f, uint64_t n, uint32_t e, void *row) {
    const struct farm_field_spec *field = &validator->spec->env.obs[f];
    const size_t bytes = validator->checked.obs_bytes[f], count = bytes / farm_dtype_bytes(field->dtype);
    const size_t element = farm_field_find_invalid(field, row, count);
    if (element == count) return 0;
    const double value = field->dtype == FARM_F32 ? (double)((float *)row)[element] : ((int32_t *)row)[element];
    memset(row, 0, bytes);
    return reject(validator, n, e, FARM_BAD_OBS + f, element, value);
}

// After rewards and flags: a step that is senseless needs no mask. Of steps that an earlier process answered, only the
// newest one still has its last observation.
static uint64_t judge_observation(struct farm_validator *validator, uint32_t f, uint64_t n) {
    const struct farm_lane *lane = &validator->checked;
    const uint8_t *flags = farm_lane_flags(lane, n);
    const bool has_last = lane->last[0] && n + 1 >= farm_lane_acted(lane);
    const struct farm_field_spec *field = &validator->spec->env.obs[f];
    const size_t all = lane->width * farm_field_values(field);
    uint64_t bad = 0;
    if ((int)f != validator->mask && !has_last && field->dtype == FARM_F32 &&
        farm_numbers_sensible(farm_lane_obs(lane, f, n, 0), all))
        return 0; // as almost always
    for (uint32_t e = 0; e < lane->width; e++) {
        void *row = farm_lane_obs(lane, f, n, e);
        const bool renews = farm_step_renews(lane, flags[e]);
        bad += judge_row(validator, f, n, e, row);
        if (renews && has_last) bad += judge_row(validator, f, n, e, farm_lane_last(lane, f, n, e));
        if ((int)f != validator->mask || (flags[e] & FARM_STEP_LAST && !farm_step_renews(lane, flags[e]))) continue;
        const int blocked = farm_head_mask_blocked(&validator->spec->env.action, row);
        if (blocked >= 0) bad += reject(validator, n, e, FARM_BAD_OBS + f, (uint64_t)blocked, 0);
    }
    return bad;
}

static bool is_action(const struct farm_action_spec *spec, const void *action) {
    return spec->kind == FARM_ACTION_CONTINUOUS ? farm_numbers_sensible(action, spec->dims)
                                                : farm_action_find_invalid(spec, action, 1) == spec->dims;
}

// Sensible numbers, or -infinity for discrete actions that were not taken (with LAST none is taken). `action` has been
// checked.
static bool is_policy(const struct farm_action_spec *spec, const float *policy, uint32_t count, const void *action,
                      bool last) {
    const int32_t *chosen = action;
    if (spec->kind == FARM_ACTION_CONTINUOUS) return farm_numbers_sensible(policy, count);
    for (uint32_t i = 0; i < count; i++)
        if (policy[i] != -INFINITY && !farm_numbers_sensible(&policy[i], 1)) return false;
    for (uint32_t d = 0; d < spec->dims && !last; policy += spec->sizes[d++])
        if (policy[chosen[d]] == -INFINITY) return false;
    return true;
}

// LAST alone is the actor's; with SENSELESS it is reject's.
enum { ENDS = FARM_STEP_LAST | FARM_STEP_SENSELESS };

// Of discrete actions, which exist.
static bool is_permitted(const struct farm_action_spec *spec, const uint8_t *mask, const int32_t *action) {
    for (uint32_t d = 0; d < spec->dims; mask += spec->sizes[d++])
        if (!mask[action[d]]) return false;
    return true;
}

static bool is_answer(const struct farm_validator *validator, uint32_t f, uint64_t n, uint32_t row, uint64_t newest) {
    const struct farm_answer_spec *spec = &validator->spec->answer[f];
    const struct farm_action_spec *action = &validator->spec->env.action;
    const struct farm_lane *lane = &validator->checked;
    const void *own = farm_lane_answer_at(lane, f, n, row);
    const bool last = (farm_lane_flags(lane, n)[row] & ENDS) == FARM_STEP_LAST;
    if (f == FARM_ANSWER_ACTION)
        return is_action(action, own) &&
               (validator->mask < 0 || farm_lane_flags(lane, n)[row] & ENDS ||
                is_permitted(action, farm_lane_obs(lane, (uint32_t)validator->mask, n, row), own));
    if (f == FARM_ANSWER_POLICY) return is_policy(action, own, spec->values, farm_lane_action(lane, n, row), last);
    if (f == FARM_ANSWER_VERSION) return *(const uint64_t *)own <= newest;
    return spec->dtype != FARM_F32 || farm_numbers_sensible(own, spec->values);
}

// What comes with step n, after rewards, flags and observations; `action` before `policy`.
static uint64_t judge_answer(struct farm_validator *validator, uint32_t f, uint64_t n, uint64_t newest) {
    const struct farm_lane *lane = &validator->checked;
    const struct farm_answer_array *array = &lane->answer[f];
    uint64_t bad = 0, at;
    for (uint32_t row = 0; farm_lane_answer_with(lane, f, n, &at) && row < array->rows; row++) {
        if (is_answer(validator, f, at, row, newest)) continue;
        bad += reject(validator, n, row, FARM_BAD_ANSWER + f, 0, 0);
        memset(farm_lane_answer_at(lane, f, at, row), 0, array->bytes);
        for (uint32_t e = 1; e < lane->width && array->rows < lane->width; e++) make_senseless(lane, n, e);
    }
    return bad;
}

uint64_t farm_validator_step(struct farm_validator *validator, uint64_t n, uint64_t newest) {
    const struct farm_lane *lane = &validator->checked;
    copy_step(validator, n);
    uint64_t bad = judge_rewards_and_flags(validator, n);
    for (uint32_t f = 0; f < lane->obs_count; f++)
        if (validator->copied[f]) bad += judge_observation(validator, f, n);
    for (uint32_t f = 0; f < lane->answer_count; f++) bad += judge_answer(validator, f, n, newest);
    return bad;
}
