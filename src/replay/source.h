// Window sources, from which training takes its windows: the interface and its implementations. Inference threads
// push complete windows; the training thread takes those of an iteration and gives them back. The trainer calls every
// function but farm_window_source_released under its lock. Nothing is copied: a lane keeps a window's steps until
// `done`.
#ifndef FARM_REPLAY_SOURCE_H
#define FARM_REPLAY_SOURCE_H

#include "intake/stats.h"
#include "ring/ring.h"
#include "ring/window.h"

enum { FARM_WINDOW_SHARDS_MAX = 1024 };

struct farm_window_source;

struct farm_window_source_ops {
    void (*destroy)(struct farm_window_source *source);

    // A lane joins, before its first push; a ring's lanes leave with their waiting windows.
    void (*admit)(struct farm_window_source *source, const struct farm_lane *lane, uint32_t lane_id, uint32_t shard);
    void (*forget)(struct farm_window_source *source, const struct farm_ring *ring, uint32_t first_lane);

    // A window of all environments of its lane is complete. Returns the lane's ticket.
    uint64_t (*push)(struct farm_window_source *source, const struct farm_window *window);

    // Whether take may find enough windows: the trainer then wakes the training thread.
    bool (*ready)(const struct farm_window_source *source);

    // Takes an iteration's windows, shard after shard, into out [windows_max]. Returns their number; 0: not enough yet.
    // version: the newest published.
    uint32_t (*take)(struct farm_window_source *source, uint64_t version, struct farm_window *out);

    // These windows were trained on: releases their steps. priorities: [count], or NULL.
    void (*done)(struct farm_window_source *source, const struct farm_window *windows, uint32_t count,
                 const float *priorities);

    // The last iteration's parameters are published.
    void (*published)(struct farm_window_source *source);
};

struct farm_window_source {
    const struct farm_window_source_ops *ops;
    struct farm_window_shape shape;
    uint32_t windows_max;                      // in one take
    uint64_t dropped;                          // environments' windows that were not trained on
    uint64_t released[FARM_WINDOW_SHARDS_MAX]; // released tickets; the source writes, inference threads read
    bool holds;                                // tickets may have to wait: inference is woken when some are released
    bool polls;                                // take depends on time too and is called every FARM_WINDOW_POLL_NS
    uint32_t ahead; // steps that a LOCAL lane may go on with behind a window, before the window's ticket is released
    double share;   // part of the run that has passed; the trainer sets it before take
};

enum { FARM_WINDOW_POLL_NS = 250000000 };

// The shard's inference thread: whether a lane with this ticket may be answered.
static inline bool farm_window_source_released(const struct farm_window_source *source, uint32_t shard,
                                               uint64_t ticket) {
    return farm_load_acquire(&source->released[shard]) >= ticket;
}

// For implementations: gives the lane's steps up to the next window back to its actor.
void farm_window_release(const struct farm_window_shape *shape, const struct farm_window *window);

// Which windows `prioritised` hands out. Whatever the order, windows leave by age only.
enum farm_replay_order {
    FARM_REPLAY_PRIORITISED, // with probability in proportion to priority^exponent
    FARM_REPLAY_UNIFORM,
    FARM_REPLAY_OLDEST, // counted from the newest window of each lane
    FARM_REPLAY_NEWEST,
    FARM_REPLAY_HIGHEST,
};

// Counts are windows of single environments.
struct farm_replay_config {
    uint64_t start; // inserted before training begins
    double ratio;   // > 0: how often a window is trained on, on average
    enum farm_replay_order order;
    bool repeats;                     // an iteration may hold a window more than once
    float exponent;                   // alpha, >= 0
    float importance, importance_end; // beta, at the run's start and end: weights (N * P)^-beta over their largest
    uint32_t transitions;             // trained steps of a window: one without any transition is never handed out
    uint32_t width, steps;            // most environments of a lane; steps of every ring
    uint64_t seed;
    bool lockstep; // deterministic: one window of every lane, then all updates that are due
    void (*first)(void *context, const struct farm_window *window, float *priorities); // [env_count] out, of a new
    void *first_context;      // window, on an inference thread; NULL: new windows get the highest so far
    struct farm_stats *stats; // its replay_ words
};

// What a source is made from; each reads what it needs.
struct farm_window_source_config {
    struct farm_window_shape shape;
    uint32_t shards;
    uint32_t share[FARM_WINDOW_SHARDS_MAX]; // each shard's windows of an iteration
    uint32_t lanes;                         // places for lanes, of the whole farm
    uint32_t capacity;                      // windows of lanes that can wait (farm_window_capacity, all lanes)
    uint32_t max_lag;                       // in versions; 0: no limit
    uint64_t grace_ns; // longest wait for a lane whose actor does nothing; 0: 5 s; UINT64_MAX: no end
    struct farm_replay_config replay;
};

// fifo: first in, first out; a lane's window may be split between two iterations. With max_lag at most that many
// iterations' windows wait, and further lanes wait with their tickets; windows begun more than max_lag versions ago are
// dropped, unless training has part of them or of an earlier window of their lane.
// sync: an iteration is one window of every lane in lane order, and no lane is answered beyond its window before the
// new parameters are published. A lane whose actor does nothing for grace_ns is left out, and its late window is
// dropped.
// prioritised: windows stay in the rings and are handed out again and again, environment by environment. A push evicts
// the oldest windows, so that the actor has room during a pass, but none in training. Tickets keep actors, and take
// keeps training, at `ratio`. A ring that leaves drops its windows.
#define FARM_WINDOW_SOURCES(X) X(fifo) X(sync) X(prioritised)

#define SOURCE_MAKE(name)                                                                                              \
    enum farm_status farm_##name##_make(const struct farm_window_source_config *config,                                \
                                        struct farm_window_source **out, struct farm_error *err);
FARM_WINDOW_SOURCES(SOURCE_MAKE)
#undef SOURCE_MAKE

// Makes the source of this name (a plan's, algo/algo.h). FARM_E_LIMIT; FARM_E_INVALID: no such source.
enum farm_status farm_window_source_make(const char *name, const struct farm_window_source_config *config,
                                         struct farm_window_source **out, struct farm_error *err);

#endif
