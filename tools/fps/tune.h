// `farm fps --tune`: finds actors, environments an actor, lanes and pinning by trying, and writes them as a recipe. A
// search along one key after the other from where `farm fps` starts, under random actions; the two best settings are
// measured again before one is chosen. Runs in the supervisor's process.
#ifndef FARM_TOOLS_FPS_TUNE_H
#define FARM_TOOLS_FPS_TUNE_H

#include "tools/fps/run.h"

struct farm_fps_tuning {
    const struct farm_recipe *recipe; // as the user gave it: names the environment and its options
    const struct farm_recipe *start;  // with a width, where the search begins
    enum farm_fps_numa numa;
    double seconds;   // to measure in, about
    const char *path; // of the recipe to write
    bool json, quiet;
};

// Prints its account on stdout. A signal ends the search: what was best until then is written. FARM_E_DEAD, and nothing
// is written, where no setting has been measured.
enum farm_status farm_fps_tune(const struct farm_fps_tuning *tuning, struct farm_error *err);

#endif
