// `farm fps --tune`: finds actors, environments per actor, lanes and pinning by trials, and writes them as a recipe.
// The search varies one key after another under random actions; the two best settings are measured again.
#ifndef FARM_TOOLS_FPS_TUNE_H
#define FARM_TOOLS_FPS_TUNE_H

#include "tools/fps/run.h"

struct farm_fps_tuning {
    const struct farm_recipe *recipe; // the user's: environment and its options
    const struct farm_recipe *start;  // where the search begins: has a width
    enum farm_fps_numa numa;
    double seconds;   // to measure in, about
    const char *path; // the recipe to write
    bool json, quiet;
};

// Prints the result on stdout. A signal ends the search, and the best setting so far is written. FARM_E_DEAD: no
// setting was measured, nothing is written. FARM_E_IO: the result is printed, but not written.
enum farm_status farm_fps_tune(const struct farm_fps_tuning *tuning, struct farm_error *err);

#endif
