// See validator.h.
#include "intake/validator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "kernels/head.h"

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
        validator->copied[f] = ring->spec.env.obs[f].dtype != FARM_U8 || (int)f == validator->mask;
        if (validator->copied[f]) checked->obs[f] = new_rows(slots, checked->obs_bytes[f], &ok);
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
        if (validator->copied[f]) free(validator->checked.obs[f]);
    for (uint32_t f = 0; f < validator->checked.answer_count && validator->checked.local; f++)
        free(validator->checked.answer[f].at);
    *validator = (struct farm_validator){0};
}

// The fence keeps the compiler from reading the actor's memory again instead of the copy.
static void copy_once(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static bool known_flags(unsigned flags) {
    const unsigned ends = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED | FARM_STEP_GAME_END;
    return !(flags & ~FARM_STEP_ALL) && (flags & FARM_STEP_LAST || !(flags & ends));
}

static void note_bad(struct farm_validator *validator, uint64_t field, uint64_t n, uint32_t environment,
                     uint64_t element, double value) {
    struct farm_bad_value *first = &validator->first_bad;
    if (first->known) return;
    first->known = 2;
    first->field = field;
    first->step = n;
    first->environment = environment;
    first->element = element;
    farm_stats_set(&first->value, value);
}

void farm_validator_report(const struct farm_validator *validator, struct farm_bad_value *run) {
    if (farm_load_relaxed(&run->known) || !farm_claim_relaxed(&run->known)) return;
    const size_t from = offsetof(struct farm_bad_value, field);
    memcpy(&run->field, &validator->first_bad.field, sizeof *run - from);
    farm_store_release(&run->known, 2);
}

static void make_senseless(float *reward, uint8_t *flags) {
    *reward = 0;
    *flags = FARM_STEP_FIRST | FARM_STEP_LAST | FARM_STEP_SENSELESS;
}

// An observation field of step n, after its rewards and flags.
static uint64_t copy_field(struct farm_validator *validator, uint32_t f, uint64_t n) {
    const struct farm_lane *lane = &validator->checked;
    const struct farm_field_spec *field = &validator->spec->env.obs[f];
    const size_t bytes = lane->obs_bytes[f], count = bytes / farm_dtype_bytes(field->dtype);
    uint8_t *own = farm_lane_obs(lane, f, n, 0);
    uint64_t bad = 0;
    copy_once(own, farm_lane_obs(validator->shared, f, n, 0), bytes * lane->width);
    for (uint32_t e = 0; e < lane->width; e++) {
        void *row = own + e * bytes;
        const size_t element = farm_field_find_invalid(field, row, count);
        if (element == count) continue;
        note_bad(validator, FARM_BAD_OBS + f, n, e, element,
                 field->dtype == FARM_F32 ? (double)((const float *)row)[element] : ((const int32_t *)row)[element]);
        bad++;
        memset(row, 0, bytes);
        make_senseless(&farm_lane_reward(lane, n)[e], &farm_lane_flags(lane, n)[e]);
    }
    for (uint32_t e = 0; e < lane->width && (int)f == validator->mask; e++) {
        const int blocked = farm_head_mask_blocked(&validator->spec->env.action, own + e * bytes);
        if (blocked < 0 || farm_lane_flags(lane, n)[e] & FARM_STEP_LAST) continue;
        note_bad(validator, FARM_BAD_OBS + f, n, e, (uint64_t)blocked, 0);
        bad++;
        make_senseless(&farm_lane_reward(lane, n)[e], &farm_lane_flags(lane, n)[e]);
    }
    return bad;
}

static bool is_action(const struct farm_action_spec *spec, const void *action) {
    const int32_t *chosen = action;
    if (spec->kind == FARM_ACTION_CONTINUOUS) return farm_numbers_sensible(action, spec->dims);
    for (uint32_t d = 0; d < spec->dims; d++)
        if (chosen[d] < 0 || (uint32_t)chosen[d] >= spec->sizes[d]) return false;
    return true;
}

// Sensible numbers; of discrete actions also -infinity, except for those taken, whose log-probability is finite (with
// LAST none is taken). `action` has been checked.
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

// LAST of the actor's, not of a step that makes no sense.
enum { ENDS = FARM_STEP_LAST | FARM_STEP_SENSELESS };

static bool is_answer(const struct farm_validator *validator, uint32_t f, uint64_t n, uint32_t row, uint64_t newest) {
    const struct farm_answer_spec *spec = &validator->spec->answer[f];
    const struct farm_action_spec *action = &validator->spec->env.action;
    const void *own = farm_lane_answer_at(&validator->checked, f, n, row);
    if (f == FARM_ANSWER_ACTION) return is_action(action, own);
    if (f == FARM_ANSWER_POLICY)
        return is_policy(action, own, spec->values, farm_lane_action(&validator->checked, n, row),
                         (farm_lane_flags(&validator->checked, n)[row] & ENDS) == FARM_STEP_LAST);
    if (f == FARM_ANSWER_VERSION) return *(const uint64_t *)own <= newest;
    return spec->dtype != FARM_F32 || farm_numbers_sensible(own, spec->values);
}

// An answer field of all environments of step n of a LOCAL lane; `action` comes before `policy`.
static uint64_t copy_answer(struct farm_validator *validator, uint32_t f, uint64_t n, uint64_t newest) {
    const struct farm_lane *lane = &validator->checked;
    const struct farm_answer_array *array = &lane->answer[f];
    uint64_t bad = 0;
    if (n % array->every) return 0;
    copy_once(farm_lane_answer_at(lane, f, n, 0), farm_lane_answer_at(validator->shared, f, n, 0),
              array->bytes * array->rows);
    for (uint32_t row = 0; row < array->rows; row++) {
        if (is_answer(validator, f, n, row, newest)) continue;
        note_bad(validator, FARM_BAD_ANSWER + f, n, row, 0, 0);
        bad++;
        memset(farm_lane_answer_at(lane, f, n, row), 0, array->bytes);
        for (uint32_t e = row; e < (array->rows == lane->width ? row + 1 : lane->width); e++)
            make_senseless(&farm_lane_reward(lane, n)[e], &farm_lane_flags(lane, n)[e]);
    }
    return bad;
}

uint64_t farm_validator_step(struct farm_validator *validator, uint64_t n, uint64_t newest) {
    const struct farm_lane *lane = &validator->checked;
    float *reward = farm_lane_reward(lane, n);
    uint8_t *flags = farm_lane_flags(lane, n);
    uint64_t bad = 0;
    copy_once(reward, farm_lane_reward(validator->shared, n), lane->width * sizeof *reward);
    copy_once(flags, farm_lane_flags(validator->shared, n), lane->width);
    for (uint32_t e = 0; e < lane->width; e++) {
        const bool known = known_flags(flags[e]);
        if (known && farm_numbers_sensible(&reward[e], 1)) continue;
        note_bad(validator, known ? FARM_BAD_REWARD : FARM_BAD_FLAGS, n, e, 0, known ? (double)reward[e] : flags[e]);
        bad++;
        make_senseless(&reward[e], &flags[e]);
    }
    for (uint32_t f = 0; f < lane->obs_count; f++)
        if (validator->copied[f]) bad += copy_field(validator, f, n);
    for (uint32_t f = 0; f < lane->answer_count && lane->local; f++) bad += copy_answer(validator, f, n, newest);
    return bad;
}
