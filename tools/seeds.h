// `farm train --seeds`: a `farm train` for each seed, each in its own folder.
#ifndef FARM_TOOLS_SEEDS_H
#define FARM_TOOLS_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

struct farm_seeds_request {
    const char *list, *env, *run; // "1,2,5-8"; run NULL: a new folder of runs/
    int64_t parallel;             // how many train side by side
    bool json;
    int argc;
    char **argv; // of `farm train`
};

// Trains each seed in RUN/seed-N, prints their table or one document, and returns the exit status of `farm train`: 1 if
// a seed failed, which ends no other. SIGINT, SIGTERM and SIGHUP end all, with their checkpoints.
int farm_train_seeds(const struct farm_seeds_request *request);

#endif
