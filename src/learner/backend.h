// What computes: the table of functions behind which the CPU and CUDA (cuda/) stand. A backend reads frames in place
// from the lanes and everything else from the learner's checked copies (intake.h: it checks nothing again), writes
// answers into the lanes, and holds parameters and optimiser. It decides nothing: which rows, which windows and when is
// the learner's. Runs in the learner process; `infer` on each shard's inference thread, `join` and `leave` on one of
// their own, everything else on the training thread, all at the same time; create and destroy where none of them runs.
//
// An error is for good: the learner ends with it, after a checkpoint of what state() still has.
#ifndef FARM_LEARNER_BACKEND_H
#define FARM_LEARNER_BACKEND_H

#include "kernels/loss.h"
#include "learner/config.h"
#include "ring/ring.h"

// Environments [env_from, env_from + env_count) of step n of a lane: to be answered.
struct farm_infer_rows {
    struct farm_lane *lane;
    uint32_t lane_id; // of the whole farm: stream of its random numbers
    uint64_t n;
    uint32_t env_from, env_count;
};

// The unrolls of environments [env_from, env_from + env_count) over steps [start, start + T]: to be trained on.
struct farm_train_unrolls {
    const struct farm_lane *lane;
    uint32_t lane_id; // of the whole farm
    uint64_t start;
    uint32_t env_from, env_count;
};

struct farm_train_update {
    const struct farm_train_unrolls *unrolls; // at most farm_learner_share of each shard's lanes, one at least; shard
    uint32_t count;                           // after shard
    double learning_rate;
};

struct farm_train_stats {
    struct farm_loss_stats loss; // sums over rows with weight
    double grad_norm;            // before clipping
    bool copied;                 // where the device is lost later, state() gives this version or a newer one
};

// The state that a checkpoint holds. Vectors are f32 [parameter_count]; `first` is NULL for RMSProp.
struct farm_backend_state {
    float *params, *first, *second;
    uint64_t optimiser_step;
    uint64_t version; // updates so far
};

struct farm_backend_config {
    const struct farm_learner_config *learner; // outlives the backend
    const struct farm_net *net;                // likewise
    uint32_t width_max;                        // environments of the widest lane
    // Every lane that rows and unrolls will name, by its number in the farm, with its shard, and the rings they lie in;
    // places may be vacant. Outlive the backend. Read by a backend that maps them for a device; the CPU's does without.
    const struct farm_lanes *lanes;
    uint32_t shards; // >= 1
};

struct farm_backend;
struct farm_lanes; // lanes.h

struct farm_backend_ops {
    const char *name;  // "cpu", "cuda"
    bool stores_acted; // infer stores `acted` too, behind each whole answer; else that is the caller's to do
    bool shards;       // it can serve more than one
    bool begins_next;  // train makes use of `next`
    enum farm_status (*create)(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err);
    void (*destroy)(struct farm_backend *backend);

    // Forward, sample, write action, logits, value and version into the lanes, which are all of this shard. At most
    // infer_batch_max rows in all. The answers are in the lanes when it returns.
    enum farm_status (*infer)(struct farm_backend *backend, uint32_t shard, const struct farm_infer_rows *rows,
                              uint32_t count, struct farm_error *err);

    // Where rings come and go: one that has come, whose lanes are in the table and in nobody else's hands yet (what it
    // fails with leaves nothing behind), and one that goes, whose lanes are in no infer or train any more. Called by
    // another thread, while infer and train run. NULL: there is nothing to do.
    enum farm_status (*join)(struct farm_backend *backend, uint32_t ring, struct farm_error *err);
    void (*leave)(struct farm_backend *backend, uint32_t ring);

    // One update: gradient of the loss over all unrolls, clip, optimiser step, new version for inference. A gradient
    // that is not finite changes nothing (grad_norm says so). next: the update that the next call will make, where the
    // caller has it already, else NULL; a backend may begin it.
    enum farm_status (*train)(struct farm_backend *backend, const struct farm_train_update *update,
                              const struct farm_train_update *next, struct farm_train_stats *stats,
                              struct farm_error *err);

    uint64_t (*version)(const struct farm_backend *backend); // updates so far

    // The state as it is now, or, where the device is lost, as it was last known; valid until the next train.
    struct farm_backend_state (*state)(struct farm_backend *backend);
    // After the caller wrote into what state() points to: makes it the parameters of version `version`.
    enum farm_status (*state_changed)(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                      struct farm_error *err);
};

extern const struct farm_backend_ops farm_backend_cpu;

#endif
