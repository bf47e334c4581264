// Windows: how training reads a lane. Window k covers steps [k*stride, k*stride + length). V-trace's and PPO's windows
// of T transitions have stride T and length T+1 and a burn-in more, so neighbours share steps. A window is three
// numbers; no data is copied. Runs in the learner. While a reader lives, it takes each window once, in order.
#ifndef FARM_RING_WINDOW_H
#define FARM_RING_WINDOW_H

#include "ring/lane.h"

struct farm_window_shape {
    uint32_t stride, length;
    uint32_t stack;   // frames a step reads backwards (>= 1): stack-1 steps before the window's start stay held
    uint32_t burn_in; // of `length`: first steps, which only warm up a recurrent policy's state
};

// A reader's place in one lane: the start of its next window, and of the oldest window that it still holds.
struct farm_window_cursor {
    uint64_t next, held;
};

struct farm_ring; // ring.h

// A window in training: environments [env_from, env_from + env_count) over steps [start, start + length).
struct farm_window {
    struct farm_lane *lane; // the learner's view
    struct farm_window_cursor *cursor;
    struct farm_ring *ring;  // the lane's
    uint32_t lane_id, shard; // numbers in the whole farm
    uint64_t start;
    uint32_t env_from, env_count;
    uint64_t leaf; // replay: its number in the source's index
    float weight;  // scales its loss, > 0; 1 without replay
};

// Windows of one environment, with their history of frames, that fit a lane of `steps` steps.
uint64_t farm_window_capacity(const struct farm_window_shape *shape, uint64_t steps);

// Whether rings that hold `capacity` windows in all can fill an update of `count` windows, in any order of lanes of at
// most `width_max` environments.
static inline bool farm_window_update_fits(uint64_t capacity, uint64_t count, uint32_t width_max) {
    return count && capacity >= count + width_max;
}

// Starts at the first window whose steps and stack are still in the ring (after a restart), or at 0 in a new ring.
void farm_window_cursor_start(const struct farm_lane *lane, const struct farm_window_shape *shape,
                              struct farm_window_cursor *cursor);

// Windows that can be taken when the lane has `steps` steps. The learner passes its own count of answered steps, not
// the actor's counter.
uint64_t farm_window_ready(const struct farm_window_shape *shape, const struct farm_window_cursor *cursor,
                           uint64_t steps);

// Takes the next window; returns its first step. Call only when one is ready.
uint64_t farm_window_take(const struct farm_window_shape *shape, struct farm_window_cursor *cursor);

// Releases all windows that start before `start` + stride. Writes `held` only: another thread may take windows
// meanwhile.
void farm_window_done(const struct farm_window_shape *shape, struct farm_window_cursor *cursor, uint64_t start);

// The first step that this reader needs: its contribution to `consumed`.
uint64_t farm_window_needs(const struct farm_window_shape *shape, const struct farm_window_cursor *cursor);

// Replay: the start of the oldest window, from `first` on, that stays in a ring of `steps` steps when its actor may
// write all steps before `end`: it and its history are not overwritten, or it is pinned. pins: [slots], the window that
// starts at n has number n / stride mod slots.
uint64_t farm_window_oldest(const struct farm_window_shape *shape, uint64_t first, uint64_t end, uint32_t steps,
                            const uint32_t *pins, uint32_t slots);

#endif
