// Which f32 numbers from an environment make sense. Both sides of a lane ask: the actor, where the recipe wants it to
// act on bad values, and the learner, which believes no actor. Pure functions.
#ifndef FARM_BASE_NUMBER_H
#define FARM_BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Numbers beyond it make no sense: their products in a network of ordinary weights would leave f32's range.
#define FARM_NUMBER_MAX 1e9f

// Whether all are finite and of at most that magnitude. Magnitudes of floats are in the order of their bits, NaN and
// infinities last.
static inline bool farm_numbers_sensible(const float *numbers, size_t count) {
    const float most = FARM_NUMBER_MAX;
    uint32_t most_bits, bits, beyond = 0;
    memcpy(&most_bits, &most, sizeof most_bits);
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, &numbers[i], sizeof bits);
        beyond |= most_bits - (bits & INT32_MAX); // the top bit, where it is
    }
    return beyond <= INT32_MAX;
}

#endif
