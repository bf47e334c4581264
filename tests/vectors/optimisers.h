// RMSProp and Adam as optax 0.2.8 computes them, written by make_rl.py.
#ifndef FARM_TESTS_OPTIMISERS_H
#define FARM_TESTS_OPTIMISERS_H

#include "vectors.h"

enum { OPT_COUNT = 37, OPT_STEPS = 8 };

struct opt_vectors {
    float initial[OPT_COUNT], grads[OPT_STEPS][OPT_COUNT], rates[OPT_STEPS], norms[OPT_STEPS];
    float rmsprop[OPT_STEPS][OPT_COUNT], adam[OPT_STEPS][OPT_COUNT]; // the parameters after each update
};

static inline const struct opt_vectors *opt_vectors(void) {
    static struct opt_vectors vectors;
    vectors_read("tests/vectors/optimisers.bin", &vectors, sizeof vectors);
    return &vectors;
}

#endif
