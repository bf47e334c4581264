// See scores.h.
#include "envs/scores.h"

#include <math.h>
#include <string.h>

#include "base/format.h"
#include "config/env_name.h"

struct scale {
    const char *game; // lower case, without '_'
    double low, high;
};

// clang-format off
static const struct scale atari[] = {
    {"alien", 227.8, 7127.7}, {"amidar", 5.8, 1719.5}, {"assault", 222.4, 742}, {"asterix", 210, 8503.3},
    {"asteroids", 719.1, 47388.7}, {"atlantis", 12850, 29028.1}, {"bankheist", 14.2, 753.1},
    {"battlezone", 2360, 37187.5}, {"beamrider", 363.9, 16926.5}, {"berzerk", 123.7, 2630.4},
    {"bowling", 23.1, 160.7}, {"boxing", 0.1, 12.1}, {"breakout", 1.7, 30.5}, {"centipede", 2090.9, 12017},
    {"choppercommand", 811, 7387.8}, {"crazyclimber", 10780.5, 35829.4}, {"defender", 2874.5, 18688.9},
    {"demonattack", 152.1, 1971}, {"doubledunk", -18.6, -16.4}, {"enduro", 0, 860.5},
    {"fishingderby", -91.7, -38.7}, {"freeway", 0, 29.6}, {"frostbite", 65.2, 4334.7}, {"gopher", 257.6, 2412.5},
    {"gravitar", 173, 3351.4}, {"hero", 1027, 30826.4}, {"icehockey", -11.2, 0.9}, {"jamesbond", 29, 302.8},
    {"kangaroo", 52, 3035}, {"krull", 1598, 2665.5}, {"kungfumaster", 258.5, 22736.3},
    {"montezumarevenge", 0, 4753.3}, {"mspacman", 307.3, 6951.6}, {"namethisgame", 2292.3, 8049},
    {"phoenix", 761.4, 7242.6}, {"pitfall", -229.4, 6463.7}, {"pong", -20.7, 14.6}, {"privateeye", 24.9, 69571.3},
    {"qbert", 163.9, 13455}, {"riverraid", 1338.5, 17118}, {"roadrunner", 11.5, 7845}, {"robotank", 2.2, 11.9},
    {"seaquest", 68.4, 42054.7}, {"skiing", -17098.1, -4336.9}, {"solaris", 1236.3, 12326.7},
    {"spaceinvaders", 148, 1668.7}, {"stargunner", 664, 10250}, {"surround", -10, 6.5}, {"tennis", -23.8, -8.3},
    {"timepilot", 3568, 5229.2}, {"tutankham", 11.4, 167.6}, {"upndown", 533.4, 11693.2}, {"venture", 0, 1187.5},
    {"videopinball", 16256.9, 17667.9}, {"wizardofwor", 563.5, 4756.5}, {"yarsrevenge", 3092.9, 54576.9},
    {"zaxxon", 32.5, 9173.3},
};
static const struct scale procgen_easy[] = {
    {"bigfish", 1, 40}, {"bossfight", 0.5, 13}, {"caveflyer", 3.5, 12}, {"chaser", 0.5, 13}, {"climber", 2, 12.6},
    {"coinrun", 5, 10}, {"dodgeball", 1.5, 19}, {"fruitbot", -1.5, 32.4}, {"heist", 3.5, 10}, {"jumper", 3, 10},
    {"leaper", 3, 10}, {"maze", 5, 10}, {"miner", 1.5, 13}, {"ninja", 3.5, 10}, {"plunder", 4.5, 30},
    {"starpilot", 2.5, 64},
};
static const struct scale procgen_hard[] = {
    {"bigfish", 0, 40}, {"bossfight", 0.5, 13}, {"caveflyer", 2, 13.4}, {"chaser", 0.5, 14.2}, {"climber", 1, 12.6},
    {"coinrun", 5, 10}, {"dodgeball", 1.5, 19}, {"fruitbot", -0.5, 27.2}, {"heist", 2, 10}, {"jumper", 1, 10},
    {"leaper", 1.5, 10}, {"maze", 4, 10}, {"miner", 1.5, 20}, {"ninja", 2, 10}, {"plunder", 3, 30},
    {"starpilot", 1.5, 35},
};
// clang-format on

struct score {
    const struct scale *scale; // NULL: none
    const char *key, *word, *low_is, *high_is;
};
static const struct score human = {NULL, "human_normalised", "human-normalised", "random", "human"},
                          of_paper = {NULL, "normalised_score", "normalised", "Rmin", "Rmax"};

static const struct scale *find_game(const struct scale *scales, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (farm_env_name_alike(name, scales[i].game)) return &scales[i];
    return NULL;
}

static const char *option_of(const struct farm_env *env, const char *key, const char *without) {
    for (size_t i = 0; i < env->option_count; i++)
        if (strcmp(env->options[i].key, key) == 0) return env->options[i].value;
    return without;
}

#define FIND(scales, name) find_game(scales, sizeof(scales) / sizeof *(scales), name)

static const struct scale *find_atari(const struct farm_env *env, const char *name) {
    const bool measured = strcmp(option_of(env, "mode", "-1"), "-1") == 0 &&
                          strcmp(option_of(env, "difficulty", "-1"), "-1") == 0 &&
                          strcmp(option_of(env, "max_frames", "108000"), "108000") == 0;
    return measured ? FIND(atari, name) : NULL;
}

static const struct scale *find_procgen(const struct farm_env *env, const char *name) {
    const char *mode = option_of(env, "distribution_mode", "hard");
    if (strcmp(mode, "easy") == 0) return FIND(procgen_easy, name);
    return strcmp(mode, "hard") == 0 ? FIND(procgen_hard, name) : NULL;
}

static struct score score_of(const struct farm_env *env) {
    const bool is_atari = strncmp(env->name, "ale/", 4) == 0, is_procgen = strncmp(env->name, "procgen/", 8) == 0;
    struct score score = is_atari ? human : of_paper;
    if (is_atari) score.scale = find_atari(env, env->name + 4);
    if (is_procgen) score.scale = find_procgen(env, env->name + 8);
    return score;
}

static double normalise(const struct scale *scale, double return_mean) {
    return (return_mean - scale->low) / (scale->high - scale->low);
}

void farm_score_set_json(const struct farm_env *env, double return_mean, json_t *document) {
    const struct score score = score_of(env);
    char to[64];
    farm_json_set_real(document, human.key, (double)NAN);
    farm_json_set_real(document, of_paper.key, (double)NAN);
    farm_json_set_text(document, "normalised_to", NULL);
    if (!score.scale) return;
    snprintf(to, sizeof to, "0: %s, %.10g; 1: %s, %.10g", score.low_is, score.scale->low, score.high_is,
             score.scale->high);
    farm_json_set_real(document, score.key, normalise(score.scale, return_mean));
    farm_json_set_text(document, "normalised_to", to);
}

struct farm_score_text farm_score_format(const struct farm_env *env, double return_mean) {
    const struct score score = score_of(env);
    struct farm_score_text text = {""};
    if (score.scale && !isnan(return_mean))
        snprintf(text.text, sizeof text.text, ", %s %s (0: %s, %.10g; 1: %s, %.10g)", score.word,
                 farm_format_figure(normalise(score.scale, return_mean)).text, score.low_is, score.scale->low,
                 score.high_is, score.scale->high);
    return text;
}
