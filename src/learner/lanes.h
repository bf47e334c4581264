// The lanes as the learner sees them, and the games played in them: who waits for an answer since when, returns of
// running games, counts. Owned by the inference thread. See learner.h.
#ifndef FARM_LEARNER_LANES_H
#define FARM_LEARNER_LANES_H

#include "learner/board.h"
#include "ring/wait.h"
#include "ring/window.h"

// One running game of one environment.
struct farm_game {
    double reward_sum;
    uint32_t steps;
    bool known;          // seen from its start (a learner that came back has not seen the games that ran then)
    bool ended_last;     // the previous step was LAST
    uint64_t generation; // of the actor that plays it
    uint32_t left;       // evaluation: games of this environment still to be counted
};

struct farm_learner_lane {
    struct farm_ring *ring;
    struct farm_lane *lane;
    uint32_t id;         // of the whole farm
    uint64_t answered;   // steps answered: `acted`, whose writer we are
    uint32_t env_done;   // environments of step `answered` that have their answer, where one batch did not hold all
    bool queued;         // in the queue of lanes that wait
    uint64_t waiting_ns; // since when
    struct farm_window_cursor cursor; // `next` is the inference thread's, `held` the training thread's
    struct farm_game *games;          // [width]
};

struct farm_lanes {
    uint32_t ring_count, lane_count;
    uint32_t width_max;
    uint64_t environments;
    struct farm_ring *rings;          // [ring_count]
    struct farm_ring **ring_pointers; // [ring_count], for the doorbells
    struct farm_learner_lane *lanes;  // [lane_count], ring after ring
    uint32_t *first_lane;             // [ring_count]
    // figures over the games counted
    uint64_t games;
    double return_sum, return_squares, length_sum;
};

// Opens every ring (descriptors are owned after success) and prepares its lanes. stack: frames held for reading
// backwards.
enum farm_status farm_lanes_open(const int (*fds)[2], uint32_t ring_count, const struct farm_window_shape *shape,
                                 struct farm_lanes *lanes, struct farm_error *err);
void farm_lanes_close(struct farm_lanes *lanes);

// Evaluation: spreads `games` over the environments, so that short games do not crowd out long ones.
void farm_lanes_set_quota(struct farm_lanes *lanes, uint64_t games);

// Takes note of step n of a lane: counts transitions, adds rewards, ends games; into the board. Returns values that
// made no sense.
uint64_t farm_lanes_account(struct farm_lanes *lanes, struct farm_learner_lane *lane, uint64_t n, bool quota,
                            struct farm_board *board);

#endif
