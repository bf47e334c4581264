// Monotonic time. Runs in every process.
#ifndef FARM_BASE_TIME_H
#define FARM_BASE_TIME_H

#include <stdint.h>
#include <time.h>

// How long the command has stood stopped (Ctrl-Z); one for all processes that it has forked. supervisor/guardian.c sets
// it; a library that links its own copy of this file takes its program's.
extern const uint64_t *farm_stopped_ns;

// CLOCK_MONOTONIC in nanoseconds, less the time for which the whole command stood stopped.
static inline uint64_t farm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
           __atomic_load_n(farm_stopped_ns, __ATOMIC_RELAXED);
}

// CLOCK_PROCESS_CPUTIME_ID and the like in nanoseconds; 0 if there is no such clock.
static inline uint64_t farm_clock_ns(clockid_t clock) {
    struct timespec now;
    return clock_gettime(clock, &now) ? 0 : (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// CPU time of the calling thread in nanoseconds.
static inline uint64_t farm_thread_cpu_ns(void) {
    return farm_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

#endif
