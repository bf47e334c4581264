// The lanes as the learner sees them, and the games played in them: who waits for an answer since when, returns of
// running games, counts. A lane is owned by the inference thread of its shard. A ring has a place in the table; places
// may be vacant, and rings come and go while the others are served (admitter.h). See learner.h.
#ifndef FARM_LEARNER_LANES_H
#define FARM_LEARNER_LANES_H

#include <pthread.h>

#include "learner/stats.h"
#include "learner/validator.h"
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
    struct farm_validator validator;
    struct farm_lane *lane; // the validator's: checked copies of what the actor wrote; NULL: its ring is not there
    uint32_t id;            // of the whole farm
    uint32_t shard;         // whose inference thread answers it
    uint64_t answered;      // steps answered (LOCAL: taken in): `acted`, whose writer we are
    uint32_t env_done;      // environments of step `answered` that have their answer, where one batch did not hold all
    bool taken;             // step `answered` is taken in
    bool queued;            // in the queue of lanes that wait
    bool held;              // its ticket keeps it out of the queue
    uint64_t ticket;        // of the last window handed to training: no answer before it passes (replay/source.h)
    uint64_t bad;           // values of the step in the queue that made no sense
    uint64_t warned;        // 1 + the generation of the actor whose counter was last complained of; 0: none
    uint64_t waiting_ns;    // since when
    struct farm_window_cursor cursor; // `next` is the inference thread's, `held` the training thread's
    struct farm_game *games;          // [width]
};

struct farm_lanes {
    uint32_t ring_count, lane_count; // places, the vacant ones too
    uint32_t width_max;
    uint64_t environments;           // at the start
    struct farm_ring_spec model;     // of the first ring; those that come later are like it
    struct farm_ring *rings;         // [ring_count]
    struct farm_learner_lane *lanes; // [lane_count], ring after ring
    uint32_t *first_lane;            // [ring_count]
    int *up_writable;                // [ring_count] descriptors, while a backend is made or lets a ring in; -1: none
    pthread_mutex_t lock;            // of what ended games leave: the figures here and those in the stats
    // figures over the games counted
    uint64_t games;
    double return_sum, return_squares, length_sum;
};

// Opens every ring (descriptors are owned after success; -1: a place that is vacant) and prepares its lanes, with
// checked copies of the steps that are in them; all are of shard 0. model: the shape of every ring, NULL: the first
// ring's (FARM_E_INVALID if there is no ring either).
enum farm_status farm_lanes_open(const int (*fds)[2], uint32_t ring_count, const struct farm_window_shape *shape,
                                 const struct farm_ring_spec *model, struct farm_lanes *lanes, struct farm_error *err);
// Gives each ring's lanes to a shard.
void farm_lanes_divide(struct farm_lanes *lanes, const uint32_t *ring_shard);
void farm_lanes_close(struct farm_lanes *lanes);

static inline bool farm_lanes_has(const struct farm_lanes *lanes, uint32_t ring) {
    return lanes->lanes[lanes->first_lane[ring]].lane != NULL;
}

// Whose a ring that is there is; whether it is there, and this shard's.
static inline uint32_t farm_lanes_shard(const struct farm_lanes *lanes, uint32_t ring) {
    return lanes->lanes[lanes->first_lane[ring]].shard;
}
static inline bool farm_lanes_serves(const struct farm_lanes *lanes, uint32_t ring, uint32_t shard) {
    return farm_lanes_has(lanes, ring) && farm_lanes_shard(lanes, ring) == shard;
}

// Opens a ring in a vacant place, for a shard; its descriptors are owned in any case. Nobody else looks at the place
// yet. FARM_E_INVALID: no such vacant place, or a ring of another shape; what opening says.
enum farm_status farm_lanes_join(struct farm_lanes *lanes, uint32_t ring, const int fds[2], uint32_t shard,
                                 const struct farm_window_shape *shape, struct farm_error *err);
// Closes a ring whose lanes nobody looks at any more: its place is vacant.
void farm_lanes_leave(struct farm_lanes *lanes, uint32_t ring);

// A descriptor of a ring's `up` that can write, owned from here on, for a backend whose device wants that of memory it
// only reads (cuda/registered.h); and the end of all of them.
void farm_lanes_lend_writable(struct farm_lanes *lanes, uint32_t ring, int fd);
void farm_lanes_end_writable(struct farm_lanes *lanes);

// Whom farm_learner_notify wakes for this ring: an eventfd, owned from here on, or -1 for its actor. Before any thread
// answers the ring.
void farm_lanes_set_wake(struct farm_lanes *lanes, uint32_t ring, int eventfd);

// Evaluation: spreads `games` over the environments, so that short games do not crowd out long ones.
void farm_lanes_set_quota(struct farm_lanes *lanes, uint64_t games);

// Whether the lane's step `answered` is published and its slot free for the answer; then the step is taken in: copied
// and checked (`newest`: the newest published version, for LOCAL lanes). An honest actor publishes one step and waits
// for its answer (LOCAL: publishes as long as there is room). A counter that says anything else was scribbled over: it
// is warned of, once an actor's life, counted, and the lane rests until the counter is right again or another actor
// has come. Pairs P and C.
bool farm_lanes_take_in(struct farm_learner_lane *lane, uint64_t newest, struct farm_stats *stats);

// Takes note of the step that was taken in last: counts transitions, adds rewards, ends games, counts what made no
// sense (which is none of these); into the stats. Returns how many transitions there were.
uint64_t farm_lanes_account(struct farm_lanes *lanes, struct farm_learner_lane *lane, bool quota,
                            struct farm_stats *stats);

#endif
