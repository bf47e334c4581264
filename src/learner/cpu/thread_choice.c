// See thread_choice.h.
#include "learner/cpu/thread_choice.h"

#include "base/log.h"

// If one thread wins by less than a third, the next timing comes soon: a scheduler that keeps all threads on one CPU
// makes them a little slower than one.
enum { TIMED_PASSES = 16, PASSES_BETWEEN = 4096, PASSES_IF_CLOSE = 64 };

static bool one_wins(const struct farm_thread_choice *choice) {
    return choice->least_ns[0] < choice->least_ns[1];
}

static bool is_close(const struct farm_thread_choice *choice) {
    return one_wins(choice) && 4 * choice->least_ns[0] > 3 * choice->least_ns[1];
}

uint32_t farm_thread_choice_next(const struct farm_thread_choice *choice) {
    const bool alone = choice->passes < TIMED_PASSES ? choice->passes % 2 == 0 : one_wins(choice);
    return alone && !choice->fixed ? 1 : choice->threads;
}

void farm_thread_choice_add(struct farm_thread_choice *choice, uint64_t pass_ns) {
    if (choice->fixed) return;
    const uint32_t n = choice->passes++;
    uint64_t *least = &choice->least_ns[n % 2];
    if (n < TIMED_PASSES && (n < 2 || pass_ns < *least)) *least = pass_ns;
    if (n >= (is_close(choice) ? PASSES_IF_CLOSE : PASSES_BETWEEN)) choice->passes = 0;
    if (n != TIMED_PASSES - 1 || is_close(choice) || choice->threads == 1 || choice->logged) return;
    choice->logged = true;
    farm_log_info("a pass takes %.0f us in one training thread, %.0f us in %u: %s", 1e-3 * (double)choice->least_ns[0],
                  1e-3 * (double)choice->least_ns[1], choice->threads,
                  one_wins(choice) ? "one is used" : "all are used");
}
