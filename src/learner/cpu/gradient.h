// Gradients and the optimiser on the CPU. A gradient is one thread's: an executor, and the arrays of one forward and
// backward pass. The thread lists its units' observations where they lie in the lanes, gathers their small arrays
// (iteration.h), runs the algorithm and adds to a sum. Threads share an iteration, which does not change meanwhile, and
// have a gradient each.
#ifndef FARM_LEARNER_CPU_GRADIENT_H
#define FARM_LEARNER_CPU_GRADIENT_H

#include "learner/backend.h"
#include "learner/iteration.h"
#include "learner/pool.h"
#include "nn/executor.h"

struct farm_cpu_gradient_config {
    const struct farm_net *net; // outlives the gradient, as algo and plan do
    const struct farm_algo_config *algo;
    const struct farm_algo_plan *plan;
    const struct farm_arithmetic *arithmetic; // copied
    struct farm_head head;
    uint32_t units_max; // most units of one call
};

// A sum over units: of their gradients and of the algorithm's terms.
struct farm_cpu_sum {
    uint64_t work;   // that it was begun for
    float *gradient; // [parameter_count]
    double terms[FARM_ALGO_TERMS_MAX];
    uint64_t near, far; // units, by whether their ring is on the thread's node; if that is unknown, neither
};

struct farm_cpu_gradient;

// Rows of one forward pass over `units` units.
size_t farm_cpu_gradient_rows(const struct farm_algo_plan *plan, uint32_t units);

// FARM_E_LIMIT: no memory; or what the executor refuses.
enum farm_status farm_cpu_gradient_make(const struct farm_cpu_gradient_config *config, struct farm_cpu_gradient **out,
                                        struct farm_error *err);
void farm_cpu_gradient_free(struct farm_cpu_gradient *gradient); // NULL is permitted

// Parameters [parameter_count] of the following calls, which stay as they are until the last of them. `work` numbers a
// pass or a computation of targets: a repeated call for the same one does nothing. target: the plan's first set, of
// which `copy` numbers the states; NULL: it has none.
void farm_cpu_gradient_load(struct farm_cpu_gradient *gradient, const float *params, uint64_t work, const float *target,
                            uint64_t copy);

// Adds units indices[first .. first + count) of the iteration; indices NULL: units [first, first + count). The first
// call of a work with a sum sets it to zero; all its calls are this thread's. Writes the columns' priorities to the
// iteration.
void farm_cpu_gradient_add(struct farm_cpu_gradient *gradient, const struct farm_iteration *iteration,
                           const uint32_t *indices, uint32_t first, uint32_t count, struct farm_cpu_sum *sum);

// Targets once: gathers `count` columns, and writes the values of their last observations to the iteration. Threads may
// share the columns.
void farm_cpu_gradient_values(struct farm_cpu_gradient *gradient, struct farm_iteration *iteration,
                              const uint32_t *columns, uint32_t count);

// ---- the optimiser ----

// Threads share the parameters in blocks, add several gradients up and step along the sum. Sums have the same order for
// any number of threads. Called by the training thread.
struct farm_cpu_optimiser {
    const struct farm_net *net;
    struct farm_optimiser_config config;
    struct farm_optimiser_state state;
    struct farm_optimiser_factors factors; // the present step's
    float *params;                         // in training
    float *copies[FARM_POOL_GROUPS_MAX];   // [copy_count] of them, on other nodes
    uint32_t copy_count;
    const float *trainable; // [parameter_count] 1, or 0 for what the optimiser leaves; NULL: all ones
    bool *masked;           // [blocks] whether `trainable` has a 0 there
    float **gradients;      // [gradient_count] the caller's, of [parameter_count]; the first one becomes the sum of all
    uint32_t gradient_count;
    uint32_t of_group[FARM_POOL_GROUPS_MAX]; // how many of them are each group's of the pool, in its order
    double *squares;                         // [blocks] of that sum
    struct farm_pool *pool;                  // computes sum and step
    uint32_t threads;                        // that it uses
};

// Begins with config, net, state and params set; makes room for `most` gradients. mask [parameter_count] receives what
// farm_net_trainable gives and stays as it is until free. FARM_E_LIMIT: no memory.
enum farm_status farm_cpu_optimiser_make(struct farm_cpu_optimiser *optimiser, uint32_t most, float *mask,
                                         struct farm_error *err);
void farm_cpu_optimiser_free(struct farm_cpu_optimiser *optimiser); // safe on a zeroed one

// Adds the gradients up, which all change, in `threads` threads of the pool: first each group its own, then all.
void farm_cpu_optimiser_sum(struct farm_cpu_optimiser *optimiser, struct farm_pool *pool, uint32_t threads);

// The step along that sum times `scale`, with its figures into *stats. A gradient that is not finite changes nothing.
void farm_cpu_optimiser_step(struct farm_cpu_optimiser *optimiser, float learning_rate, double scale,
                             struct farm_pass_stats *stats);

#endif
