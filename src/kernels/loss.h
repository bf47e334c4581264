// IMPALA's loss over rows of training steps, with its gradients worked out by hand (Espeholt et al. 2018, section 4.2):
//
//   L = sum over rows of weight * ( -advantage * log pi(action) + baseline_cost * 1/2 (vs - V)^2 - entropy_cost * H(pi)
//   )
//
// A sum, not a mean: the caller scales. vs and advantage come from vtrace.h and are constants: no gradient flows into
// them. A row of weight 0 contributes exactly nothing, whatever its other inputs hold. Runs in the learner, on the
// caller's arrays; no state.
#ifndef FARM_KERNELS_LOSS_H
#define FARM_KERNELS_LOSS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/sample.h"

struct farm_loss_config {
    float baseline_cost; // IMPALA: .5
    float entropy_cost;  // IMPALA: .01
    float rho_bar;       // as in V-trace; only counts how many ratios it clips
};

struct farm_loss_batch {
    int rows;                      // >= 0
    int actions;                   // A >= 1
    const float *logits;           // [rows][A] of the policy in training; -INFINITY: forbidden action
    const float *behaviour_logits; // [rows][A] of the policy that acted
    const int32_t *action;         // [rows] taken, in [0, A) where the weight is not 0
    const float *value;            // [rows] V(obs)
    const float *vs;               // [rows] value targets
    const float *advantage;        // [rows]
    const float *weight;           // [rows]
    float *dlogits;                // [rows][A] out: dL/dlogits
    float *dvalue;                 // [rows] out: dL/dV
};

// What one row adds. Every term already carries the row's weight; divide sums by the sum of `weight` for means.
struct farm_loss_terms {
    float policy;   // -advantage * log pi(action)
    float baseline; // 1/2 (vs - V)^2, without its cost
    float entropy;  // H(pi), nats, without its cost
    float kl;       // KL(mu || pi), nats, exact over the actions
    float clipped;  // 1 where pi/mu > rho_bar
    float weight;
};

// Sums of the terms over rows. Zero it before the first call; calls add, so micro-batches sum up.
struct farm_loss_stats {
    double policy, baseline, entropy, kl, clipped, weight;
};

static inline FARM_HD void farm_loss_stats_add(struct farm_loss_stats *sum, const struct farm_loss_stats *more) {
    sum->policy += more->policy;
    sum->baseline += more->baseline;
    sum->entropy += more->entropy;
    sum->kl += more->kl;
    sum->clipped += more->clipped;
    sum->weight += more->weight;
}

// L of the rows summed up in *stats.
static inline FARM_HD double farm_loss_total(const struct farm_loss_config *config,
                                             const struct farm_loss_stats *stats) {
    return stats->policy + config->baseline_cost * stats->baseline - config->entropy_cost * stats->entropy;
}

// KL(mu || pi) = sum mu (log mu - log pi), from both rows of logits and their normalisers.
static inline FARM_HD float farm_kl_divergence(const float *behaviour_logits, struct farm_softmax mu_softmax,
                                               const float *logits, struct farm_softmax pi_softmax, int actions) {
    float kl = 0;
    for (int a = 0; a < actions; a++) {
        const float log_mu = farm_softmax_log(mu_softmax, behaviour_logits[a]), mu = expf(log_mu);
        if (mu > 0) kl += mu * (log_mu - farm_softmax_log(pi_softmax, logits[a]));
    }
    return kl;
}

// Gradient of one row's policy and entropy terms:
//   d(-advantage log pi(action))/dlogit_a = advantage (pi_a - [a = action]),   d(-H)/dlogit_a = pi_a (log pi_a + H).
// Returns H(pi).
static inline FARM_HD float farm_policy_gradient(const float *logits, struct farm_softmax softmax, int actions,
                                                 int action, float advantage, float entropy_cost, float weight,
                                                 float *dlogits) {
    float entropy = 0;
    for (int a = 0; a < actions; a++) {
        const float log_pi = farm_softmax_log(softmax, logits[a]), pi = expf(log_pi);
        dlogits[a] = pi;
        if (pi > 0) entropy -= pi * log_pi;
    }
    for (int a = 0; a < actions; a++) {
        const float pi = dlogits[a];
        const float drift = pi > 0 ? pi * (farm_softmax_log(softmax, logits[a]) + entropy) : 0;
        dlogits[a] = weight * (advantage * (pi - (a == action ? 1.0f : 0.0f)) + entropy_cost * drift);
    }
    return entropy;
}

// One row: writes its gradients, returns its terms.
static inline FARM_HD struct farm_loss_terms farm_loss_row(const struct farm_loss_config *config,
                                                           const struct farm_loss_batch *batch, int row) {
    const int actions = batch->actions;
    const size_t first = (size_t)row * (size_t)actions;
    const float weight = batch->weight[row];
    struct farm_loss_terms terms;
    if (weight == 0) {
        for (int a = 0; a < actions; a++) batch->dlogits[first + (size_t)a] = 0;
        batch->dvalue[row] = 0;
        terms.policy = terms.baseline = terms.entropy = terms.kl = terms.clipped = terms.weight = 0;
        return terms;
    }
    const float *logits = batch->logits + first, *behaviour_logits = batch->behaviour_logits + first;
    const int action = batch->action[row];
    const struct farm_softmax pi = farm_softmax_of(logits, actions), mu = farm_softmax_of(behaviour_logits, actions);
    const float log_pi = farm_softmax_log(pi, logits[action]);
    const float log_ratio = log_pi - farm_softmax_log(mu, behaviour_logits[action]);
    const float error = batch->vs[row] - batch->value[row];

    terms.entropy = weight * farm_policy_gradient(logits, pi, actions, action, batch->advantage[row],
                                                  config->entropy_cost, weight, batch->dlogits + first);
    batch->dvalue[row] = -weight * config->baseline_cost * error;
    terms.policy = -weight * batch->advantage[row] * log_pi;
    terms.baseline = weight * 0.5f * error * error;
    terms.kl = weight * farm_kl_divergence(behaviour_logits, mu, logits, pi, actions);
    terms.clipped = expf(log_ratio) > config->rho_bar ? weight : 0;
    terms.weight = weight;
    return terms;
}

// All rows; adds their terms to *stats. Outputs must not overlap inputs. Cannot fail; an action outside [0, A) on a row
// that has weight is a broken invariant.
void farm_loss(const struct farm_loss_config *config, const struct farm_loss_batch *batch,
               struct farm_loss_stats *stats);

// log softmax(logits)[action] of one row: V-trace's two inputs. An action out of range (a LAST step's is ignored and
// may be anything) gives 0.
static inline FARM_HD float farm_log_prob_row(const float *logits, int actions, int action) {
    return action >= 0 && action < actions ? farm_log_prob(logits, actions, action) : 0;
}

// farm_log_prob_row of all rows: logits [rows][actions], action [rows], out [rows].
void farm_log_prob_rows(const float *logits, const int32_t *action, int rows, int actions, float *out);

#endif
