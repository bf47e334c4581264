// Which f32 numbers of an environment are valid. Both sides of a lane check: the actor, if the recipe has it act on bad
// values, and the learner, which trusts no actor. Pure functions.
#ifndef FARM_BASE_NUMBER_H
#define FARM_BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Larger magnitudes are invalid: their products in a network of ordinary weights would leave f32's range.
#define FARM_NUMBER_MAX 1e9f

// Whether all are finite and at most FARM_NUMBER_MAX. Floats' bits order like their magnitudes, infinities, NaN last.
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
