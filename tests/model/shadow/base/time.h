// Replaces src/base/time.h in the model tests: no time passes, so a lost wake-up is a deadlock.
#ifndef FARM_BASE_TIME_H
#define FARM_BASE_TIME_H

#include <stdint.h>
#include <time.h>

static inline uint64_t farm_now_ns(void) {
    return 0;
}

#endif
