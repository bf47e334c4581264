// The optimiser on the CPU: threads share the parameters in blocks, add several gradients up and step along the sum.
// Sums have the same order for any number of threads. Called by the training thread.
#ifndef FARM_LEARNER_CPU_OPTIMISE_H
#define FARM_LEARNER_CPU_OPTIMISE_H

#include "learner/backend.h"
#include "learner/pool.h"

struct farm_cpu_optimiser {
    const struct farm_net *net;
    struct farm_optimiser_config config;
    struct farm_optimiser_state state;
    struct farm_optimiser_factors factors; // the present step's
    float *params;                         // in training
    const float *trainable;                // [parameter_count] 1, or 0 for what the optimiser leaves; NULL: all ones
    bool *masked;                          // [blocks] whether `trainable` has a 0 there
    float **gradients; // [gradient_count] the caller's, of [parameter_count]; the first one becomes the sum of all
    uint32_t gradient_count;
    double *squares;        // [blocks] of that sum
    struct farm_pool *pool; // computes the present sum and step; NULL: the caller alone
    uint32_t threads;
};

// Begins with config, net, state and params set; makes room for `most` gradients. mask [parameter_count] receives what
// farm_net_trainable gives and stays as it is until free. FARM_E_LIMIT: no memory.
enum farm_status farm_cpu_optimiser_make(struct farm_cpu_optimiser *optimiser, uint32_t most, float *mask,
                                         struct farm_error *err);
void farm_cpu_optimiser_free(struct farm_cpu_optimiser *optimiser); // safe on a zeroed one

// Adds the gradients up, which all change, in `threads` threads of the pool.
void farm_cpu_optimiser_sum(struct farm_cpu_optimiser *optimiser, struct farm_pool *pool, uint32_t threads);

// The step along that sum times `scale`, with its figures into *stats. A gradient that is not finite changes nothing.
void farm_cpu_optimiser_step(struct farm_cpu_optimiser *optimiser, float learning_rate, double scale,
                             struct farm_pass_stats *stats);

#endif
