// Where training takes its windows from: the interface, and what every implementation shares. The inference threads
// push complete windows, the training thread takes an iteration's worth and gives them back. A source is a plain data
// structure: the trainer calls every function but farm_window_source_released under its lock. Copies nothing: a window
// stays in its lane, which keeps its steps until `done`.
#ifndef FARM_REPLAY_SOURCE_H
#define FARM_REPLAY_SOURCE_H

#include "ring/ring.h"
#include "ring/window.h"

enum { FARM_WINDOW_SHARDS_MAX = 32 };

struct farm_window_source;

struct farm_window_source_ops {
    void (*destroy)(struct farm_window_source *source);

    // A lane comes (before its first push): `width` environments; and a ring's lanes leave, with what waits of them.
    void (*admit)(struct farm_window_source *source, const struct farm_lane *lane, uint32_t lane_id, uint32_t shard);
    void (*forget)(struct farm_window_source *source, const struct farm_ring *ring, uint32_t first_lane);

    // A window of all environments of its lane is complete. Returns the ticket with which the lane may be answered
    // again: now, if farm_window_source_released says so.
    uint64_t (*push)(struct farm_window_source *source, const struct farm_window *window);

    // Whether take may find enough: worth waking the training thread for.
    bool (*ready)(const struct farm_window_source *source);

    // Takes an iteration's windows, shard after shard, into out [windows_max]: how many; 0: there are not enough yet.
    // version: the newest published.
    uint32_t (*take)(struct farm_window_source *source, uint64_t version, struct farm_window *out);

    // These windows were trained on: their lanes may move on. priorities: [count], or NULL.
    void (*done)(struct farm_window_source *source, const struct farm_window *windows, uint32_t count,
                 const float *priorities);

    // The parameters that the last iteration gave are published.
    void (*published)(struct farm_window_source *source);
};

struct farm_window_source {
    const struct farm_window_source_ops *ops;
    struct farm_window_shape shape;
    uint32_t windows_max;                      // the most that one take gives
    uint64_t dropped;                          // environments' windows that were not trained on
    uint64_t released[FARM_WINDOW_SHARDS_MAX]; // released tickets; the source writes, inference threads read
    bool holds; // lanes may have to wait with their tickets: wake inference when tickets are released
    bool looks; // take depends on time too: call it every FARM_WINDOW_LOOK_NS
};

enum { FARM_WINDOW_LOOK_NS = 250000000 };

// Inference thread of the shard: whether a lane with this ticket may be answered.
static inline bool farm_window_source_released(const struct farm_window_source *source, uint32_t shard,
                                               uint64_t ticket) {
    return farm_load_acquire(&source->released[shard]) >= ticket;
}

// For implementations: gives a whole lane's steps up to the window's end back to its actor.
void farm_window_release(const struct farm_window_shape *shape, const struct farm_window *window);

struct farm_fifo_config {
    struct farm_window_shape shape;
    uint32_t shards;
    uint32_t share[FARM_WINDOW_SHARDS_MAX]; // windows of an iteration that are of the shard
    uint32_t capacity;                      // lanes' windows that can wait at all (farm_window_capacity, all lanes)
    uint32_t max_lag;                       // 0: none is dropped
};

// First in, first out: a window of a lane may be spread over two iterations. With max_lag at most that many iterations'
// windows wait (then lanes that hand over more wait), and those that were begun more than max_lag versions ago are
// dropped, unless they or an earlier window of their lane are partly trained on. FARM_E_LIMIT.
enum farm_status farm_fifo_make(const struct farm_fifo_config *config, struct farm_window_source **out,
                                struct farm_error *err);

struct farm_sync_config {
    struct farm_window_shape shape;
    uint32_t shards;
    uint32_t lanes;    // places for lanes, of the whole farm
    uint64_t grace_ns; // how long an iteration waits for a lane whose actor does nothing; 0: 5 s
};

// Synchronous: an iteration is one window of every lane, in the order of the lanes, and no lane is answered beyond its
// window before the parameters that come of it are published. A lane whose actor does nothing for grace_ns is left out;
// the window that it hands over later is dropped. FARM_E_LIMIT.
enum farm_status farm_sync_make(const struct farm_sync_config *config, struct farm_window_source **out,
                                struct farm_error *err);

#endif
