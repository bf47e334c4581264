// One step, read over and over while another process changes it: what is taken in is what was checked.
#include "../support/learner.h"

#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/time.h"
#include "intake/validator.h"

TestSuite(intake, .timeout = 90);

enum { ACTIONS = 3, CHOICES = 3 }; // actions; choices of the second observation field
static const uint64_t LIMIT_NS = 8000000000u;

static void change_forever(struct farm_lane *lane) {
    const float numbers[] = {0.5f, NAN, -1, INFINITY, 2, 3e38f};
    const uint8_t flags[] = {0, 0xff, FARM_STEP_FIRST, FARM_STEP_GAME_END};
    for (uint64_t i = 0;; i++)
        for (uint32_t e = 0; e < lane->width; e++) {
            *(volatile float *)farm_lane_obs(lane, 0, 0, e) = numbers[i % 6];
            *(volatile int32_t *)farm_lane_obs(lane, 1, 0, e) = (int32_t)(i / 19 % (CHOICES + 2)) - 1;
            *(volatile float *)&farm_lane_reward(lane, 0)[e] = numbers[(i / 3) % 6];
            *(volatile uint8_t *)&farm_lane_flags(lane, 0)[e] = flags[(i / 5) % 4];
            *(volatile int32_t *)farm_lane_action(lane, 0, e) = (int32_t)(i / 7 % 6) - 1;
            *(volatile float *)&farm_lane_policy(lane, 0, e)[i % ACTIONS] = numbers[(i / 11) % 6];
            *(volatile float *)&farm_lane_value(lane, 0)[e] = numbers[(i / 13) % 6];
            *(volatile uint64_t *)farm_lane_version(lane, 0) = i / 17 % 64 ? 0 : 8;
        }
}

static bool is_sound(const struct farm_lane *lane, uint32_t e) {
    const unsigned flags = farm_lane_flags(lane, 0)[e];
    const float reward = farm_lane_reward(lane, 0)[e], obs = *(float *)farm_lane_obs(lane, 0, 0, e);
    const int32_t action = *(int32_t *)farm_lane_action(lane, 0, e);
    const float value = farm_lane_value(lane, 0)[e];
    bool numbers = reward >= -1 && reward <= 2 && obs >= -1 && obs <= 2 && value >= -1 && value <= 2;
    for (uint32_t a = 0; a < ACTIONS; a++) numbers = numbers && fabsf(farm_lane_policy(lane, 0, e)[a]) <= 2;
    if (action < 0 || action >= ACTIONS || *farm_lane_version(lane, 0) > 7) return false;
    if (*(const uint32_t *)farm_lane_obs(lane, 1, 0, e) >= CHOICES) return false;
    if (flags == (FARM_STEP_FIRST | FARM_STEP_LAST | FARM_STEP_SENSELESS)) return reward == 0 && numbers;
    return (flags == 0 || flags == FARM_STEP_FIRST) && numbers;
}

Test(intake, what_is_taken_in_is_what_was_checked) {
    enum { WIDE = 64, TIMES = 100000 };
    struct farm_ring_spec spec = farm_ring_spec_plain(1, WIDE, 4, FARM_F32, 1, ACTIONS);
    spec.answers = FARM_ANSWERS_LOCAL;
    spec.env.obs[spec.env.obs_count++] =
        (struct farm_field_spec){.name = "card", .dtype = FARM_I32, .rank = 1, .dims = {1}, .choices = CHOICES};
    struct farm_error err = {0};
    struct farm_validator validator;
    with_views ring = views_of(spec);
    cr_assert_eq(farm_validator_open(&ring.learner, 0, &validator, &err), FARM_OK, "%s", err.message);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const struct farm_ring actor = open_view(&ring.made, FARM_RING_ACTOR);
        change_forever(&actor.lanes[0]);
    }
    uint64_t bad = 0, good = 0;
    const uint64_t start = farm_now_ns();
    for (uint64_t i = 0; i < TIMES || (good == 0 && farm_now_ns() - start < LIMIT_NS); i++) {
        bad += farm_validator_step(&validator, 0, 7);
        for (uint32_t e = 0; e < WIDE; e++) {
            cr_assert(is_sound(&validator.checked, e), "flags 0x%x reward %g after %lu", validator.checked.flags[e],
                      (double)validator.checked.reward[e], i);
            good += validator.checked.reward[e] > 0;
        }
    }
    cr_assert(bad > 0 && good > 0, "%lu bad values, %lu good rewards: nothing was at stake", bad, good);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    farm_validator_close(&validator);
}
