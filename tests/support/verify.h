// Whether a ring is sound: counters, flags and rewards of all its lanes.
#ifndef TESTS_SUPPORT_VERIFY_H
#define TESTS_SUPPORT_VERIFY_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "ring/ring.h"

struct findings {
    char *text;
    size_t bytes, used;
    int count;
};

__attribute__((format(printf, 2, 3))) static inline void add_finding(struct findings *findings, const char *format,
                                                                     ...) {
    findings->count++;
    if (findings->used >= findings->bytes) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(findings->text + findings->used, findings->bytes - findings->used, format, args);
    va_end(args);
    if (n > 0) findings->used += (size_t)n;
    if (findings->used < findings->bytes - 1) {
        findings->text[findings->used++] = '\n';
        findings->text[findings->used] = 0;
    }
}

static inline void verify_step(const struct farm_lane *lane, uint32_t l, uint64_t n, uint64_t oldest,
                               struct findings *findings) {
    const uint8_t *flags = farm_lane_flags(lane, n);
    const float *reward = farm_lane_reward(lane, n);
    for (uint32_t e = 0; e < lane->width; e++) {
        unsigned now = flags[e], before = n > oldest ? farm_lane_flags(lane, n - 1)[e] : 0;
        if (now & ~FARM_STEP_ALL)
            add_finding(findings, "lane %u step %llu environment %u: unknown flags 0x%x", l, (unsigned long long)n, e,
                        now);
        if ((now & (FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED | FARM_STEP_GAME_END)) && !(now & FARM_STEP_LAST))
            add_finding(findings, "lane %u step %llu environment %u: an end (0x%x) without LAST", l,
                        (unsigned long long)n, e, now);
        if (n == 0 && !(now & FARM_STEP_FIRST)) add_finding(findings, "lane %u step 0 environment %u: no FIRST", l, e);
        if (lane->last[0] && before & FARM_STEP_FIRST) before = 0; // its episode has begun
        if (n > oldest && (before & FARM_STEP_LAST) && !(now & FARM_STEP_FIRST))
            add_finding(findings, "lane %u step %llu environment %u: no FIRST after LAST", l, (unsigned long long)n, e);
        if (!isfinite(reward[e]))
            add_finding(findings, "lane %u step %llu environment %u: reward is not finite", l, (unsigned long long)n,
                        e);
    }
}

// Checks a ring after a crash. Returns the number of broken rules (0: sound) and writes one line each, with lane and
// step, into text. A ring in use may appear one step off.
static inline int verify_lanes(const struct farm_ring *ring, char *text, size_t text_bytes) {
    struct findings findings = {.text = text, .bytes = text_bytes};
    if (text_bytes) text[0] = 0;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        const struct farm_lane *lane = &ring->lanes[l];
        // In this order, because each counter bounds the one before it and may grow meanwhile.
        uint64_t consumed = farm_load_acquire(&lane->down->consumed);
        uint64_t acted = farm_load_acquire(&lane->down->acted);
        uint64_t produced = farm_load_acquire(&lane->up->produced);
        if (acted > produced)
            add_finding(&findings, "lane %u: %llu steps answered but %llu published", l, (unsigned long long)acted,
                        (unsigned long long)produced);
        else if (produced - acted > farm_lane_ahead_max(lane))
            add_finding(&findings, "lane %u: %llu steps published but only %llu answered: an actor waits for %s", l,
                        (unsigned long long)produced, (unsigned long long)acted, lane->local ? "room" : "each answer");
        if (consumed > acted)
            add_finding(&findings, "lane %u: %llu steps consumed but %llu answered", l, (unsigned long long)consumed,
                        (unsigned long long)acted);
        else if (produced - consumed > lane->steps)
            add_finding(&findings, "lane %u: %llu unconsumed steps in a ring of %u", l,
                        (unsigned long long)(produced - consumed), lane->steps);
        else
            for (uint64_t n = consumed; n < produced; n++) verify_step(lane, l, n, consumed, &findings);
    }
    return findings.count;
}

#endif
