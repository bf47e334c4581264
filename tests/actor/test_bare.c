// The bare loop and the random actions that it shares with the responder: actor/bare.h, actor/random_actions.h.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "actor/bare.h"
#include "base/time.h"

static struct { uint64_t made, freed, resets, steps, wrong; } seen;

enum { LENGTH = 7, SIZE = 5 };

struct toy {
    int step;
    uint64_t seed;
    void *obs;
};

static int toy_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t error_bytes) {
    memset(spec, 0, sizeof *spec);
    spec->obs_count = 2;
    spec->obs[0] = (struct farm_field_spec){.name = "a", .dtype = FARM_F32, .rank = 1, .dims = {3}};
    spec->obs[1] = (struct farm_field_spec){.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {5}};
    spec->action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {SIZE}};
    spec->frames_per_step = 1;
    return 0;
}

static void *toy_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct toy *toy = calloc(1, sizeof *toy);
    toy->seed = config->seed;
    seen.made++;
    return toy;
}

static void toy_destroy(void *self) {
    seen.freed++;
    free(self);
}

static void toy_reset(void *self, void *const *obs) {
    struct toy *toy = self;
    seen.wrong += toy->step != 0 && toy->step != LENGTH; // within an episode
    toy->step = 0;
    toy->obs = obs[0];
    seen.resets++;
    memset(obs[0], 1, 12);
    memset(obs[1], 0, 5);
    ((uint8_t *)obs[1])[2] = 2; // the only choice
}

static uint32_t toy_step(void *self, const void *action, void *const *obs, float *reward) {
    struct toy *toy = self;
    int32_t a;
    memcpy(&a, action, sizeof a);
    seen.wrong += a < 0 || a >= SIZE || !((uint8_t *)obs[1])[a] || toy->obs != obs[0] ||
                  toy->step == LENGTH; // its own, fixed buffer
    seen.steps++;
    memset(obs[0], 3, 12);
    memset(obs[1], 0, 5);
    ((uint8_t *)obs[1])[toy->step % 5] = ((uint8_t *)obs[1])[0] = 4;
    *reward = 0;
    return ++toy->step == LENGTH ? FARM_STEP_TERMINATED : 0;
}

static const struct farm_env_api toy_api = FARM_ENV_API("test/toy", "counts", toy, toy_destroy);

Test(actor, bare_loop_counts_transitions_and_resets_ended_environments) {
    const struct farm_actor_config config = {.api = &toy_api, .seed = 3};
    struct farm_bare bare;
    struct farm_error err;
    uint64_t taken_ns;
    cr_assert_eq(farm_bare_open(&config, 10, &bare, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(seen.made, 10);
    const uint64_t start = farm_now_ns();
    uint64_t steps = farm_bare_run(&bare, 5000000, &taken_ns);
    cr_assert(taken_ns >= 5000000 && taken_ns <= farm_now_ns() - start);
    steps += farm_bare_run(&bare, 1, &taken_ns); // continues
    cr_assert_eq(steps, seen.steps);
    cr_assert_eq(seen.wrong, 0);
    // Each environment: a reset, then seven steps; all are at the same call.
    const uint64_t passes = (seen.steps + seen.resets) / 10;
    cr_assert_eq(seen.resets, (passes + LENGTH) / (LENGTH + 1) * 10);
    farm_bare_close(&bare);
    cr_assert_eq(seen.freed, 10);
}

Test(actor, random_actions_are_uniform_over_the_choices) {
    const struct farm_action_spec spec = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {7}};
    enum { DRAWS = 7 * 10001 };
    static int32_t actions[DRAWS];
    struct farm_random_actions source;
    int count[7] = {0}, pairs[7][7] = {{0}};
    farm_random_actions_start(&spec, 9, &source);
    farm_random_actions_draw(&source, DRAWS, actions);
    for (int i = 0; i < DRAWS; i++) {
        cr_assert(actions[i] >= 0 && actions[i] < 7);
        count[actions[i]]++;
        if (i) pairs[actions[i - 1]][actions[i]]++;
    }
    for (int a = 0; a < 7; a++) {
        cr_assert(abs(count[a] - 10001) < 500, "%d times %d", count[a], a); // five standard deviations
        for (int b = 0; b < 7; b++) cr_assert(abs(pairs[a][b] - 1429) < 190, "%d after %d: %d", b, a, pairs[a][b]);
    }
}

Test(actor, random_actions_differ_between_rows_and_seeds) {
    const struct farm_action_spec spec = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {1000000}};
    struct farm_random_actions source, other;
    int32_t rows[3][3]; // an odd width
    farm_random_actions_start(&spec, 1, &source);
    farm_random_actions_start(&spec, 2, &other);
    farm_random_actions_draw(&source, 3, rows[0]);
    farm_random_actions_draw(&source, 3, rows[1]);
    farm_random_actions_draw(&other, 3, rows[2]);
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < i; k++) cr_assert_neq(rows[i / 3][i % 3], rows[k / 3][k % 3]);
}

Test(actor, random_actions_with_several_dimensions_keep_each_range) {
    struct farm_action_spec spec = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 3, .sizes = {2, 1, 9}};
    struct farm_random_actions source;
    int32_t whole[300][3];
    float real[300][3];
    int most[3] = {0};
    farm_random_actions_start(&spec, 1, &source);
    farm_random_actions_draw(&source, 300, whole);
    for (int e = 0; e < 300; e++)
        for (int i = 0; i < 3; i++) {
            cr_assert(whole[e][i] >= 0 && whole[e][i] < (int)spec.sizes[i]);
            if (whole[e][i] > most[i]) most[i] = whole[e][i];
        }
    cr_assert(most[0] == 1 && most[1] == 0 && most[2] == 8);

    spec = (struct farm_action_spec){
        .kind = FARM_ACTION_CONTINUOUS, .dims = 3, .low = {-2, 5, -INFINITY}, .high = {3, 5, INFINITY}};
    farm_random_actions_start(&spec, 1, &source);
    farm_random_actions_draw(&source, 300, real);
    float low = 9, high = -9;
    for (int e = 0; e < 300; e++) {
        cr_assert(real[e][0] >= -2 && real[e][0] < 3 && real[e][1] == 5 && fabsf(real[e][2]) <= 1);
        low = fminf(low, real[e][0]);
        high = fmaxf(high, real[e][0]);
    }
    cr_assert(low < -1.8f && high > 2.8f, "%g to %g", low, high);

    spec = (struct farm_action_spec){
        .kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {5, -INFINITY}, .high = {INFINITY, -7}};
    farm_random_actions_start(&spec, 1, &source);
    farm_random_actions_draw(&source, 300, real);
    for (int i = 0; i < 600; i += 2) {
        const float *row = &real[0][0] + i;
        cr_assert(row[0] >= 5 && row[0] <= 7 && row[1] >= -9 && row[1] <= -7, "%g %g", row[0], row[1]);
    }
}
