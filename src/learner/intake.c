// See intake.h.
#include "learner/intake.h"

#include <stdlib.h>
#include <string.h>

#include "base/number.h"

static void *steps_of(const struct farm_lane *lane, size_t bytes, bool *ok) {
    void *memory = calloc((size_t)lane->steps * lane->width, bytes);
    if (!memory) *ok = false;
    return memory;
}

enum farm_status farm_intake_open(const struct farm_ring *ring, uint32_t lane, struct farm_intake *intake,
                                  struct farm_error *err) {
    *intake = (struct farm_intake){.shared = &ring->lanes[lane], .checked = ring->lanes[lane]};
    struct farm_lane *checked = &intake->checked;
    bool ok = true;
    checked->reward = steps_of(checked, sizeof *checked->reward, &ok);
    checked->flags = steps_of(checked, sizeof *checked->flags, &ok);
    for (uint32_t f = 0; f < checked->obs_count; f++) {
        const uint32_t dtype = ring->spec.env.obs[f].dtype;
        intake->number[f] = dtype != FARM_U8;
        intake->real[f] = dtype == FARM_F32;
        if (intake->number[f]) checked->obs[f] = steps_of(checked, checked->obs_bytes[f], &ok);
    }
    if (ok) return FARM_OK;
    farm_intake_close(intake);
    return farm_fail(err, FARM_E_LIMIT, "no memory for a checked copy of %u steps of %u environments", ring->spec.steps,
                     ring->spec.width);
}

void farm_intake_close(struct farm_intake *intake) {
    if (!intake->shared) return;
    free(intake->checked.reward);
    free(intake->checked.flags);
    for (uint32_t f = 0; f < intake->checked.obs_count; f++)
        if (intake->number[f]) free(intake->checked.obs[f]);
    *intake = (struct farm_intake){0};
}

// The fence keeps the compiler from reading the actor's memory again where the copy is asked.
static void copy_once(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static bool known_flags(unsigned flags) {
    const unsigned ends = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED | FARM_STEP_GAME_END;
    return !(flags & ~FARM_STEP_ALL) && (flags & FARM_STEP_LAST || !(flags & ends));
}

static void make_senseless(float *reward, uint8_t *flags) {
    *reward = 0;
    *flags = FARM_STEP_FIRST | FARM_STEP_LAST | FARM_STEP_SENSELESS;
}

// One field of all environments of step n, behind their rewards and flags.
static uint64_t take_field(struct farm_intake *intake, uint32_t f, uint64_t n) {
    const struct farm_lane *lane = &intake->checked;
    const size_t bytes = lane->obs_bytes[f];
    uint8_t *own = farm_lane_obs(lane, f, n, 0);
    uint64_t bad = 0;
    copy_once(own, farm_lane_obs(intake->shared, f, n, 0), bytes * lane->width);
    for (uint32_t e = 0; e < lane->width && intake->real[f]; e++) {
        float *row = (float *)(void *)(own + e * bytes);
        if (farm_numbers_sensible(row, bytes / sizeof *row)) continue;
        bad++;
        memset(row, 0, bytes);
        make_senseless(&farm_lane_reward(lane, n)[e], &farm_lane_flags(lane, n)[e]);
    }
    return bad;
}

uint64_t farm_intake_step(struct farm_intake *intake, uint64_t n) {
    const struct farm_lane *lane = &intake->checked;
    float *reward = farm_lane_reward(lane, n);
    uint8_t *flags = farm_lane_flags(lane, n);
    uint64_t bad = 0;
    copy_once(reward, farm_lane_reward(intake->shared, n), lane->width * sizeof *reward);
    copy_once(flags, farm_lane_flags(intake->shared, n), lane->width);
    for (uint32_t e = 0; e < lane->width; e++) {
        if (known_flags(flags[e]) && farm_numbers_sensible(&reward[e], 1)) continue;
        bad++;
        make_senseless(&reward[e], &flags[e]);
    }
    for (uint32_t f = 0; f < lane->obs_count; f++)
        if (intake->number[f]) bad += take_field(intake, f, n);
    return bad;
}
