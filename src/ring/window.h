// Windows: the way training reads a lane. Window k of a lane covers steps [k*stride, k*stride + length); V-trace's and
// PPO's windows of T transitions have stride T and length T+1, so neighbours share the boundary step. Nothing is
// copied: a window is three numbers. Runs in the learner. No window is handed out twice, none is skipped while its
// reader lives.
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

struct farm_ring; // ring.h

// A window in the hands of training: environments [env_from, env_from + env_count) over steps [start, start + length).
struct farm_window {
    struct farm_lane *lane; // the learner's view
    struct farm_window_cursor *cursor;
    struct farm_ring *ring;  // the lane's
    uint32_t lane_id, shard; // of the whole farm
    uint64_t start;
    uint32_t env_from, env_count;
};

// Windows of one environment that a lane of `steps` steps holds before its actor has to wait, history of frames
// included; 0: not one.
uint64_t farm_window_capacity(const struct farm_window_shape *shape, uint64_t steps);

// Whether rings that hold `capacity` windows in all let an update of `count` be filled, whatever the order in which
// lanes of at most `width_max` environments hand theirs over. The rule for plans, for the watchdog and for the trainer.
static inline bool farm_window_update_fits(uint64_t capacity, uint64_t count, uint32_t width_max) {
    return count && capacity >= count + width_max;
}

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
