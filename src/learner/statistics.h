// Running statistics that normalise what networks and algorithms read: mean and variance of the numbers
// and pixels of observations, and the variance of discounted returns, by which rewards are divided. They are tensors of
// the parameters (normalise.*, nn/net.h), change at publish only, and so are versioned, checkpointed and, in
// evaluation, frozen like weights. For every backend. Runs on the training thread.
#ifndef FARM_LEARNER_STATISTICS_H
#define FARM_LEARNER_STATISTICS_H

#include "learner/iteration.h"
#include "nn/net.h"

struct farm_statistics;

// Of `count` numbers; the variance divides by count. All zeros: none.
struct farm_moments {
    double count, mean, variance;
};

// Those of both sets together (Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
// sample variances").
void farm_moments_merge(struct farm_moments *into, const struct farm_moments *more);

// *out: NULL if the network normalises nothing; the functions below accept that. lanes, width_max: of the farm, for
// normalised rewards. Borrows net and algo. FARM_E_LIMIT: no memory; FARM_E_INVALID: the algorithm has no discount.
enum farm_status farm_statistics_make(const struct farm_net *net, const struct farm_algo_config *algo, uint32_t lanes,
                                      uint32_t width_max, struct farm_statistics **out, struct farm_error *err);
void farm_statistics_free(struct farm_statistics *statistics);

// Continues those of these parameters: the first ones, or a checkpoint's.
void farm_statistics_load(struct farm_statistics *statistics, const float *params);

// Adds an iteration's windows, after farm_iteration_list and before anything else reads it: the first `stride` steps of
// each, so that neighbouring windows count a step once. Observations: without steps that made no sense. Returns: G =
// discount * G + reward (clipped and scaled), from 0 after an episode's end and in a window that does not continue the
// environment's last one; sets the iteration's reward_scale, 1 / sqrt(variance of G + 1e-8).
void farm_statistics_begin(struct farm_statistics *statistics, struct farm_iteration *iteration);

// Writes the tensors, at publish.
void farm_statistics_write(const struct farm_statistics *statistics, float *params);

#endif
