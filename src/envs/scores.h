// What a mean return is worth: (R - low) / (high - low) with published constants of the game, for the reports of
// `farm train` and `farm eval`. A pure table.
//
// ale/GAME: human-normalised, low is uniformly random play, high a professional tester's. Both are means of games that
// begin with up to 30 no-ops and end after 108,000 frames at the latest: Wang et al. 2016 ("Dueling network
// architectures", tables 2 and 3, which extend Mnih et al. 2015), and so in Rainbow and Agent57; copied from
// google-deepmind/dqn_zoo, dqn_zoo/atari_data.py.
//
// procgen/GAME, distribution modes easy and hard: normalised return with R_min (no use of the observation) and R_max
// (the best possible or seen), Cobbe et al. 2020 ("Leveraging procedural generation", appendix C).
//
// An entry counts only where the game is the one that was measured: ale/* without the options `mode` and `difficulty`
// and with the default `max_frames`. Options that change how it is played or seen (sticky actions, frame skip, lives,
// levels, observations) do not matter here: they belong beside the figure.
#ifndef FARM_ENVS_SCORES_H
#define FARM_ENVS_SCORES_H

#include "base/json.h"
#include "envs/env.h"

// Sets the keys human_normalised (ale/*), normalised_score (procgen/*) and normalised_to (what 0 and 1 are), those
// without an entry to null, as docs/METRICS.md has them. return_mean may be NAN.
void farm_score_set_json(const struct farm_env *env, double return_mean, json_t *document);

struct farm_score_text {
    char text[96];
};
// ", human-normalised 1.07 (0: random, -20.7; 1: human, 14.6)"; "" without an entry or a return.
struct farm_score_text farm_score_format(const struct farm_env *env, double return_mean);

#endif
