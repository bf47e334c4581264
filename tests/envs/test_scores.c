#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "envs/scores.h"

// The value of the key for this return; NAN: null. option: "key=value" or NULL.
static double score(const char *name, const char *option, double value, const char *key) {
    static struct farm_env env; // too large for the stack
    char text[64];
    json_t *document = farm_json_object(false);
    snprintf(env.name, sizeof env.name, "%s", name);
    snprintf(text, sizeof text, "%s", option ? option : "=");
    env.option_count = option != NULL;
    env.options[0].value = strchr(text, '=') + 1;
    *strchr(text, '=') = 0;
    env.options[0].key = text;
    farm_score_set_json(&env, value, document);
    const json_t *found = json_object_get(document, key);
    const double result = json_is_real(found) ? json_real_value(found) : (double)NAN;
    cr_assert_eq(json_is_null(json_object_get(document, "normalised_to")), farm_score_format(&env, value).text[0] == 0);
    json_decref(document);
    return result;
}

Test(scores, are_0_for_the_lower_and_1_for_the_upper_published_score) {
    static const struct {
        const char *name, *option, *key;
        double low, high;
    } rows[] = {
        {"ale/Pong", NULL, "human_normalised", -20.7, 14.6},
        {"ale/ms_pacman", "mode=-1", "human_normalised", 307.3, 6951.6},
        {"ale/Breakout", "max_frames=108000", "human_normalised", 1.7, 30.5},
        {"ale/Skiing", "frame_skip=5", "human_normalised", -17098.1, -4336.9},
        {"procgen/coinrun", "distribution_mode=easy", "normalised_score", 5, 10},
        {"procgen/starpilot", "distribution_mode=easy", "normalised_score", 2.5, 64},
        {"procgen/starpilot", NULL, "normalised_score", 1.5, 35},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_float_eq(score(rows[i].name, rows[i].option, rows[i].low, rows[i].key), 0, 1e-12, "%s", rows[i].name);
        cr_assert_float_eq(score(rows[i].name, rows[i].option, rows[i].high, rows[i].key), 1, 1e-12, "%s",
                           rows[i].name);
    }
}

Test(scores, do_not_exist_for_another_game) {
    static const char *const rows[][3] = {
        {"ale/Pong", "mode=1", "human_normalised"},
        {"ale/Pong", "max_frames=1000", "human_normalised"},
        {"ale/Pong", NULL, "normalised_score"},
        {"ale/Tetris", NULL, "human_normalised"},
        {"procgen/coinrun", "distribution_mode=exploration", "normalised_score"},
        {"native/breakout", NULL, "human_normalised"},
        {"native/breakout", NULL, "normalised_score"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert(isnan(score(rows[i][0], rows[i][1], 1, rows[i][2])), "%s %s", rows[i][0], rows[i][1]);
}
