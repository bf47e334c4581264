// The interface of backends, which compute: the CPU (cpu/) and CUDA (cuda/). A backend reads frames in place from the
// lanes and everything else from the learner's checked copies (validator.h), writes answers into the lanes, and holds
// parameters and optimiser. The learner chooses rows, windows and times. `infer` runs on each shard's inference thread,
// `join` and `leave` on the admitter's, everything else on the training thread, all at the same time; create and
// destroy while none of them runs. After an error the learner writes a checkpoint of state() and ends.
#ifndef FARM_LEARNER_BACKEND_H
#define FARM_LEARNER_BACKEND_H

#include "algo/algo.h"
#include "base/log.h"
#include "learner/config.h"
#include "policy/policy.h"
#include "ring/ring.h"

// One optimiser step over units of a slot (algo.h): columns, or rows t * columns + c. At most farm_algo_pass_units.
struct farm_pass {
    const uint32_t *indices; // [count] of the units to train on; NULL: all
    uint32_t count;          // number of indices; 0: all units
    double learning_rate;
    double schedule; // the scheduled learning rate, as a share of the first
};

struct farm_pass_stats {
    double terms[FARM_ALGO_TERMS_MAX]; // the algorithm's, sums over rows; term 0 is the weight
    double grad_norm;                  // the last pass's, before clipping, or the first that is not finite:
                                       // it and the next passes have changed nothing
    uint64_t bad_step;                 // then: that pass, counted as optimiser_step
    const char *bad_tensor;            // and the tensor nearest to the loss whose gradient is not finite; NULL: unknown
    const float *priorities;           // replay: [columns of the iteration], until the next begin; NULL: none
    bool copied;                       // a device lost later leaves this version or a newer one in state()
};

// Parameter sets: the one in training, then those of the algorithm's plan (1 + index).
enum { FARM_SET_ONLINE };

// What a checkpoint holds: named vectors of f32 [parameter_count] each, the parameters in training first (name ""), and
// counts.
enum { FARM_BACKEND_VECTORS_MAX = 8 };
struct farm_backend_state {
    uint32_t vector_count;
    struct farm_backend_vector {
        const char *name; // "", "optimiser.first", "optimiser.second", then the plan's sets
        float *values;
    } vectors[FARM_BACKEND_VECTORS_MAX];
    uint64_t optimiser_step; // passes so far
    uint64_t version;        // the newest published parameters'
};

struct farm_lanes; // lanes.h

struct farm_backend_config {
    const struct farm_learner_config *learner; // outlives the backend, as plan and net do
    const struct farm_algo_plan *plan;         // epochs 0: it only infers (a player's)
    const struct farm_net *net;
    struct farm_head head;          // for the environment's actions
    bool greedy;                    // inference takes the most probable action
    uint32_t width_max;             // environments of the widest lane
    uint32_t columns_max;           // most columns of an iteration
    const struct farm_lanes *lanes; // all places, for a backend that maps rings; outlives the backend
    uint32_t shards;                // >= 1
};

struct farm_backend;

enum { FARM_BACKEND_SLOTS = 2 };

struct farm_backend_ops {
    const char *name;  // "cpu", "cuda"
    bool stores_acted; // infer stores `acted` after each whole answer; else the caller does
    bool shards;       // serves more than one
    bool overlaps;     // gains if the next iteration begins before this one's finish
    enum farm_status (*create)(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err);
    void (*destroy)(struct farm_backend *backend);

    // The arithmetic of all its executors. NULL: actors cannot compute as it does.
    const struct farm_arithmetic *(*arithmetic)(const struct farm_backend *backend);

    // Forward pass, sampling; writes action, policy, value and version into lanes of this shard before it returns. At
    // most inference.batch_max rows.
    enum farm_status (*infer)(struct farm_backend *backend, uint32_t shard, const struct farm_policy_rows *rows,
                              uint32_t count, struct farm_error *err);

    // A ring joins, whose lanes no other thread uses yet (after an error nothing is left of it), or leaves, whose lanes
    // no infer and no slot uses any more. Called by another thread while infer and passes run. NULL: nothing to do.
    enum farm_status (*join)(struct farm_backend *backend, uint32_t ring, struct farm_error *err);
    void (*leave)(struct farm_backend *backend, uint32_t ring);

    // An iteration: begin gathers its windows (shard after shard) into a slot, which is in use until the finish after
    // its last pass, and computes targets if the plan wants them once. Each pass computes a gradient over some units,
    // clips it and makes an optimiser step; a gradient that is not finite changes nothing. copy makes a set of the plan
    // equal to the one in training, as it is after the passes so far. publish makes a set the parameters of inference,
    // as version `version`. finish waits for all of it and returns sums over the passes since the
    // last finish. begin, pass and copy may return early. copy NULL: no algorithm with sets.
    enum farm_status (*begin)(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err);
    enum farm_status (*pass)(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err);
    enum farm_status (*copy)(struct farm_backend *backend, uint32_t set, struct farm_error *err);
    enum farm_status (*publish)(struct farm_backend *backend, uint32_t set, uint64_t version, struct farm_error *err);
    enum farm_status (*finish)(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err);

    // The present state; the last copy if the device is lost. Valid until the next begin.
    struct farm_backend_state (*state)(struct farm_backend *backend);
    // After the caller wrote into the vectors of state(): publishes those in training as version `version`.
    enum farm_status (*state_changed)(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                      struct farm_error *err);
};

// A state with one moment (RMSProp: first NULL) or two.
struct farm_backend_state farm_backend_state_of(float *params, float *first, float *second, uint64_t optimiser_step,
                                                uint64_t version);

// Adds the plan's sets, in its order.
void farm_backend_state_add(struct farm_backend_state *state, const struct farm_algo_plan *plan, float *const *sets);

// The vector of this name; NULL: the state has no such vector.
float *farm_backend_vector(const struct farm_backend_state *state, const char *name);

// The tensor nearest to the loss whose gradient, in [parameter_count], is not finite; NULL: only the norm overflowed.
const char *farm_backend_bad_tensor(const struct farm_net *net, const float *gradients);

extern const struct farm_backend_ops farm_backend_cpu;

// ---- a backend in a shared object (libfarm_cuda.so), which stays in the process ----

// For the module, which has another copy of libfarm.
struct farm_backend_host {
    const char *commit; // the program's; the module must have the same one, because they share structs
    enum farm_log_level log_level;
    const char *log_role;
    const uint64_t *stopped_ns; // base/time.h
};

// The module's one function, farm_cuda_backend. Returns NULL if the commits differ; *commit is the module's.
typedef const struct farm_backend_ops *farm_backend_entry(const struct farm_backend_host *host, const char **commit);

// Only after the fork, so that no other process initialises CUDA. path NULL: no module. FARM_E_NOT_FOUND,
// FARM_E_UNSUPPORTED.
enum farm_status farm_backend_module_open(const char *path, const struct farm_backend_ops **ops,
                                          struct farm_error *err);

#endif
