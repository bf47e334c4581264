// Windows: the way training reads a lane. Window k of a lane covers steps [k*stride, k*stride + length); V-trace's
// unroll of T transitions has stride T and length T+1, so neighbours share the boundary step. Nothing is copied: a
// window is three numbers. Runs in the learner. No window is handed out twice, none is skipped while its reader lives.
#ifndef FARM_RING_WINDOW_H
#define FARM_RING_WINDOW_H

#include "ring/lane.h"

struct farm_window_shape {
    uint32_t stride, length;
    uint32_t stack; // frames a step reads backwards (>= 1): stack-1 steps before the window's start stay held
};

// A reader's place in one lane: `next` is the start of its next window, `held` the start of the oldest window it still
// works on.
struct farm_window_cursor {
    uint64_t next, held;
};

// Starts at the first window boundary whose steps and stack are all still in the ring (a learner that came back), at 0
// in a new one.
void farm_window_cursor_start(const struct farm_lane *lane, const struct farm_window_shape *shape,
                              struct farm_window_cursor *cursor);

// Windows that can be taken when `steps` steps of the lane are there: all but the last of a window's steps answered,
// the last one published. A learner that believes no actor's counter passes its own count of answered steps.
uint64_t farm_window_ready(const struct farm_window_shape *shape, const struct farm_window_cursor *cursor,
                           uint64_t steps);

// Takes the next window; returns its first step. Call only when one is ready.
uint64_t farm_window_take(const struct farm_window_shape *shape, struct farm_window_cursor *cursor);

// All windows that start before `start` + stride are done with: the cursor lets go of them. Touches `held` only, so one
// thread may take windows while another one finishes them.
void farm_window_done(const struct farm_window_shape *shape, struct farm_window_cursor *cursor, uint64_t start);

// The first step that this reader still needs: what it contributes to `consumed`.
uint64_t farm_window_needs(const struct farm_window_shape *shape, const struct farm_window_cursor *cursor);

#endif
