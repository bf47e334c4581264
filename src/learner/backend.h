// What computes: the table of functions behind which the CPU and CUDA (cuda/) stand. A backend reads frames in place
// from the lanes and everything else from the learner's checked copies (validator.h: it checks nothing again), writes
// answers into the lanes, and holds parameters and optimiser. It decides nothing: the learner says which rows, which
// windows and when. Runs in the learner process; `infer` on each shard's inference thread, `join` and `leave` on one of
// their own, everything else on the training thread, all at the same time; create and destroy while none of them runs.
//
// An error is final: the learner ends with it, after a checkpoint of what state() still has.
#ifndef FARM_LEARNER_BACKEND_H
#define FARM_LEARNER_BACKEND_H

#include "algo/algo.h"
#include "learner/config.h"
#include "ring/ring.h"

// Environments [env_from, env_from + env_count) of step n of a lane: to be answered.
struct farm_infer_rows {
    struct farm_lane *lane;
    uint32_t lane_id; // of the whole farm: stream of its random numbers
    uint64_t n;
    uint32_t env_from, env_count;
};

// One optimiser step over the columns (windows of one environment) that the slot's windows hold, in their order.
struct farm_pass {
    const uint32_t *columns; // [count] numbers of the columns to train on; NULL: all
    uint32_t count;          // of columns; 0 for all
    double learning_rate;
};

struct farm_pass_stats {
    double terms[FARM_ALGO_TERMS_MAX]; // the algorithm's, sums over rows; term 0 is the weight
    double grad_norm;                  // of the last pass, before clipping; not finite: a pass changed nothing
    bool copied;                       // if the device is lost later, state() gives this version or a newer one
};

// What a checkpoint holds: named vectors of f32 [parameter_count] each, the parameters first (name ""), and counts.
enum { FARM_BACKEND_VECTORS_MAX = 8 };
struct farm_backend_state {
    uint32_t vector_count;
    struct farm_backend_vector {
        const char *name; // "", "optimiser.first", "optimiser.second", ...
        float *values;
    } vectors[FARM_BACKEND_VECTORS_MAX];
    uint64_t optimiser_step; // passes so far
    uint64_t version;        // of the newest published parameters
};

struct farm_lanes; // lanes.h

struct farm_backend_config {
    const struct farm_learner_config *learner; // outlives the backend
    const struct farm_algo_plan *plan;         // likewise
    const struct farm_net *net;                // likewise
    struct farm_head head;                     // of the environment's actions
    uint32_t width_max;                        // environments of the widest lane
    uint32_t columns_max;                      // windows of one environment that an iteration has at most
    // Every lane that rows and windows name, by its number in the farm, with its shard, and the rings they lie in;
    // places may be vacant. Outlive the backend. For a backend that maps them for a device.
    const struct farm_lanes *lanes;
    uint32_t shards; // >= 1
};

struct farm_backend;

enum { FARM_BACKEND_SLOTS = 2 };

struct farm_backend_ops {
    const char *name;  // "cpu", "cuda"
    bool stores_acted; // infer stores `acted` too, behind each whole answer; else the caller does
    bool shards;       // it can serve more than one
    bool overlaps;     // the next iteration's begin gains from being called before this one's finish
    enum farm_status (*create)(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err);
    void (*destroy)(struct farm_backend *backend);

    // Forward, sample, write action, policy, value and version into the lanes, which are all of this shard. At most
    // infer_batch_max rows in all. The answers are in the lanes when it returns.
    enum farm_status (*infer)(struct farm_backend *backend, uint32_t shard, const struct farm_infer_rows *rows,
                              uint32_t count, struct farm_error *err);

    // A ring that comes, whose lanes are in the table and in no other hands yet (on an error nothing of it is left),
    // and one that goes, whose lanes are in no infer and no slot any more. Called by another thread, while infer and
    // passes run. NULL: there is nothing to do.
    enum farm_status (*join)(struct farm_backend *backend, uint32_t ring, struct farm_error *err);
    void (*leave)(struct farm_backend *backend, uint32_t ring);

    // An iteration: begin gathers its windows (shard after shard) into a slot, whose memory stays in use until the
    // finish after its last pass; each pass is a gradient over some of its columns, clip, optimiser step; publish makes
    // the parameters that come of it version `version` for inference; finish waits for all of it and gives the sums
    // over the passes since the finish before. begin and pass may return before the work is done. A gradient that is
    // not finite changes nothing (grad_norm says so).
    enum farm_status (*begin)(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err);
    enum farm_status (*pass)(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err);
    enum farm_status (*publish)(struct farm_backend *backend, uint64_t version, struct farm_error *err);
    enum farm_status (*finish)(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err);

    // The state as it is now or, if the device is lost, as it was last known; valid until the next begin.
    struct farm_backend_state (*state)(struct farm_backend *backend);
    // After the caller wrote into the vectors of state(): publishes them as version `version`.
    enum farm_status (*state_changed)(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                      struct farm_error *err);
};

// The state of an optimiser with one (RMSProp: first NULL) or two moments.
struct farm_backend_state farm_backend_state_of(float *params, float *first, float *second, uint64_t optimiser_step,
                                                uint64_t version);

// The vector of this name; NULL: the state has no such vector.
float *farm_backend_vector(const struct farm_backend_state *state, const char *name);

extern const struct farm_backend_ops farm_backend_cpu;

#endif
