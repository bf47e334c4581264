// The table of rings and lanes of a process that answers actors, and the games played in them: what is answered,
// returns of running games, counts. Used by the inference threads, each of which owns the lanes of its shard. Each ring
// has a place; places may be vacant, and rings join and leave while the others are served (learner/learner.c).
#ifndef FARM_INTAKE_LANES_H
#define FARM_INTAKE_LANES_H

#include <pthread.h>

#include "intake/stats.h"
#include "intake/validator.h"
#include "ring/wait.h"
#include "ring/window.h"

// One running game of one environment.
struct farm_game {
    double reward_sum;
    uint32_t steps;
    bool known;          // seen from its start (not if it ran when this process started)
    bool ended_last;     // the previous step was LAST
    uint64_t generation; // the generation of the actor that plays it
    uint32_t left;       // with a quota: games of this environment still to be counted
};

struct farm_intake_lane {
    struct farm_ring *ring;
    struct farm_validator validator;
    struct farm_lane *lane; // the validator's: with checked copies of what the actor wrote; NULL: a vacant place
    uint32_t id;            // index in farm_lanes.lanes
    uint32_t shard;         // answers it
    uint64_t answered;      // steps answered (LOCAL: taken in): the value of `acted`
    uint32_t env_done;      // environments of step `answered` that a batch has answered
    bool taken;             // step `answered` is taken in
    bool queued;            // in the queue of lanes that wait
    bool held;              // its ticket keeps it out of the queue
    uint64_t ticket;        // the newest window's: no answer before its release (replay/source.h)
    uint64_t granted;       // LOCAL: steps that the actor may answer, as the lane has it
    uint64_t bad;           // invalid values of the step that was taken in last
    uint64_t warned;        // 1 + the actor's generation at the last warning about a counter; 0: no warning
    uint64_t waiting_ns;    // when step `answered` was taken in
    struct farm_window_cursor cursor; // `next` is the inference thread's, `held` the training thread's
    struct farm_game *games;          // [width]
};

struct farm_lanes {
    uint32_t ring_count, lane_count; // places, the vacant ones too
    uint32_t width_max;
    uint64_t environments;          // at the start
    struct farm_ring_spec model;    // every ring's shape
    struct farm_ring *rings;        // [ring_count]
    struct farm_intake_lane *lanes; // [lane_count], ring after ring
    uint32_t *first_lane;           // [ring_count]
    int *up_writable;               // [ring_count] descriptors, while the backend is made or a ring joins; -1: none
    pthread_mutex_t lock;           // guards the figures of ended games, here and in the stats
    uint64_t quota;                 // games that farm_lanes_set_quota lets count; 0: all
    struct farm_game_sums {
        double count, returns, squares, lengths;
    } all_games; // counted
};

// Opens every ring (owns the descriptors after success; -1: a vacant place) with checked copies of the steps in its
// lanes, all of shard 0. model: every ring's shape; NULL: the first ring's (FARM_E_INVALID without any ring).
enum farm_status farm_lanes_open(const int (*fds)[2], uint32_t ring_count, const struct farm_window_shape *shape,
                                 const struct farm_ring_spec *model, struct farm_lanes *lanes, struct farm_error *err);
// Gives each ring's lanes to a shard.
void farm_lanes_divide(struct farm_lanes *lanes, const uint32_t *ring_shard);
void farm_lanes_close(struct farm_lanes *lanes);

static inline bool farm_lanes_has(const struct farm_lanes *lanes, uint32_t ring) {
    return lanes->lanes[lanes->first_lane[ring]].lane != NULL;
}

// Shard that owns an occupied place.
static inline uint32_t farm_lanes_shard(const struct farm_lanes *lanes, uint32_t ring) {
    return lanes->lanes[lanes->first_lane[ring]].shard;
}
static inline bool farm_lanes_serves(const struct farm_lanes *lanes, uint32_t ring, uint32_t shard) {
    return farm_lanes_has(lanes, ring) && farm_lanes_shard(lanes, ring) == shard;
}

// Opens a ring in a vacant place for a shard; owns its descriptors in any case. No other thread uses the place yet.
// FARM_E_INVALID: no such vacant place, or a ring of another shape; errors of farm_ring_open.
enum farm_status farm_lanes_join(struct farm_lanes *lanes, uint32_t ring, const int fds[2], uint32_t shard,
                                 const struct farm_window_shape *shape, struct farm_error *err);
// Closes a ring whose lanes no thread uses any more; its place is vacant.
void farm_lanes_leave(struct farm_lanes *lanes, uint32_t ring);

// Lends a writable descriptor of a ring's `up` (owns it), for a device that registers no read-only memory
// (cuda/registered.h); closes all of them.
void farm_lanes_lend_writable(struct farm_lanes *lanes, uint32_t ring, int fd);
void farm_lanes_end_writable(struct farm_lanes *lanes);

// Sets what farm_learner_notify wakes: an eventfd (owns it), or -1: the ring's actor. Before any thread answers the
// ring.
void farm_lanes_set_wake(struct farm_lanes *lanes, uint32_t ring, int eventfd);

// Evaluation: counts `games` only, spread over the environments, so that short games do not crowd out long ones. Means
// are over all of them.
void farm_lanes_set_quota(struct farm_lanes *lanes, uint64_t games);

// Takes in the lane's step `answered`, if it is published and its slot is free for the answer: copies and checks it
// (`newest`: the newest published version, for LOCAL lanes; with the answer to the step before), and, CENTRAL, keeps a
// recurrent policy's state before it. A counter that no honest actor can have stored is ignored, with a warning and a
// count once an actor's life; the lane is suspended until the counter is right again. Pairs P and C.
bool farm_lanes_take_in(struct farm_intake_lane *lane, uint64_t newest, struct farm_stats *stats);

// Adds the step that was taken in last to the stats: transitions, rewards, ends of games, invalid values (their steps
// count as nothing else). Returns the transitions.
uint64_t farm_lanes_account(struct farm_lanes *lanes, struct farm_intake_lane *lane, struct farm_stats *stats);

// The last games of the stats as text, the oldest first, for a checkpoint; and back, in place of those that they hold.
enum { FARM_LANES_GAMES_BYTES = 48 * FARM_STATS_RETURNS };
void farm_lanes_write_games(const struct farm_stats *stats, char text[FARM_LANES_GAMES_BYTES]);
void farm_lanes_read_games(struct farm_stats *stats, const char *text);

#endif
