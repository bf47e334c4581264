// Whether one training thread or all compute a pass. Small passes are faster in one; the size at which that changes
// depends on the net and the machine. So some passes are timed in turn with one thread and with all, and again later,
// because other processes disturb. Runs on the training thread.
#ifndef FARM_LEARNER_CPU_THREAD_CHOICE_H
#define FARM_LEARNER_CPU_THREAD_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct farm_thread_choice {
    uint32_t threads;     // all of them
    bool fixed;           // all compute every pass
    uint64_t least_ns[2]; // shortest timed pass with one thread, with all
    uint32_t passes;      // since the first one of the newest timing
    bool logged;
};

// Threads of the next pass: 1 or all.
uint32_t farm_thread_choice_next(const struct farm_thread_choice *choice);

// After that pass: how long it took. Logs the first choice.
void farm_thread_choice_add(struct farm_thread_choice *choice, uint64_t pass_ns);

#endif
