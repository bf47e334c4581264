// A policy: a network with its head, the newest parameters, and the random numbers of a job. One call answers rows of
// lanes: it lists observations, computes one forward pass, applies action masks, chooses actions and writes every
// answer field where the lane has it (CENTRAL: in `down`; LOCAL: in `up`). A recurrent policy reads and writes `carry`,
// or, for LOCAL lanes, which have none, memory of the caller. For any process that acts; one thread uses a policy. Does
// not check what actors wrote (the lane may be a checked copy), wait for steps, or store counters: the caller does.
// Computes on the CPU; src/learner/cuda/inference.h answers the same rows on a GPU.
#ifndef FARM_POLICY_POLICY_H
#define FARM_POLICY_POLICY_H

#include "base/bitmap.h"
#include "board/board.h"
#include "kernels/head.h"
#include "nn/executor.h"
#include "ring/lane.h"

// Environments [env_from, env_from + env_count) of step n of a lane, to be answered.
struct farm_policy_rows {
    struct farm_lane *lane;
    uint32_t lane_id; // in the whole farm: stream of its random numbers
    uint64_t n;
    uint32_t env_from, env_count;
    float *state; // [env_count][net->state] of a recurrent policy, before and after the step; NULL: the lane's `carry`
};

struct farm_policy_config {
    const struct farm_net *net;               // outlives the policy
    struct farm_head head;                    // for the environment's actions
    const struct farm_arithmetic *arithmetic; // copied
    struct farm_board *board;                 // its parameters; outlives the policy, which becomes a reader of it
    uint32_t rows_max;                        // most environments of one call
    struct farm_sampler sampler;
    uint64_t *using;        // its announcement on the board, which the writer watches; NULL: its own, in this process
    uint64_t packed_layout; // the board's, whose packed weights are read in place if the executor's is equal; 0: never
    uint32_t refresh;       // takes newer parameters when a step that is a multiple of it is answered; 0: at each
    const struct farm_bitmap *cpus; // CPUs of the thread that will answer, whose node then has the memory; NULL: any
};

struct farm_policy;

// FARM_E_LIMIT: no memory; or what the executor refuses. Loads no parameters.
enum farm_status farm_policy_make(const struct farm_policy_config *config, struct farm_policy **out,
                                  struct farm_error *err);
void farm_policy_free(struct farm_policy *policy); // NULL is permitted

// Answers rows [count], at most rows_max environments, with the newest parameters: action, sample, policy, value,
// version, and the state after the step.
enum farm_status farm_policy_answer(struct farm_policy *policy, const struct farm_policy_rows *rows, uint32_t count,
                                    struct farm_error *err);

#endif
