// See local.h.
#include "policy/local.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "intake/validator.h"
#include "policy/describe.h"
#include "policy/policy.h"

enum { POLL_US = 1000 };

struct own_lane {
    struct farm_validator validator; // its copy is the lane that is answered, with zeros for senseless numbers
    struct farm_lane shared;         // the ring's as a CENTRAL one: what this process answers needs no check
    float *state;                    // [width][net.state] before the next step
    struct farm_policy *policy;
};

struct farm_local {
    struct farm_board *board;
    struct farm_ring *ring, own; // own: of opponents; else without lanes
    struct farm_policy_description policy;
    uint32_t actor;
    sigset_t all; // signals
    struct own_lane lanes[FARM_LANES_MAX];
};

// ---- opening ----

// False: the actor is to end. Shows the supervisor that no environment hangs.
static bool may_wait(const struct farm_local *local) {
    uint64_t *heartbeat = &local->ring->up_control->heartbeat;
    if (farm_sigterm_caught() || farm_load_relaxed(&local->ring->down_control->stop)) return false;
    farm_store_relaxed(heartbeat, farm_load_relaxed(heartbeat) + 1);
    usleep(POLL_US);
    return true;
}

// This process is both sides of the opponents' lanes: their steps before n are answered, and free.
static void go_on(struct farm_lane *lane, uint64_t n) {
    lane->produced_local = n;
    farm_lane_answer(lane, n - 1);
    farm_lane_release(lane, n);
}

static enum farm_status make_opponents(struct farm_local *local, uint32_t rows, struct farm_error *err) {
    const struct farm_ring *ring = local->ring;
    const struct farm_net *net = &local->policy.net;
    struct farm_ring_spec spec = {ring->spec.lanes, rows, (uint32_t)net->io.stack + 2, .env = ring->spec.env};
    spec.env.agents = 1;
    spec.autoreset = ring->spec.autoreset;
    farm_ring_spec_answers(&spec);
    if (local->policy.head.samples) farm_ring_spec_sample(&spec);
    if (net->state) farm_ring_spec_state(&spec, (uint32_t)net->state, 1);
    const enum farm_status status = farm_ring_create_private(&spec, local->actor, &local->own, err);
    for (uint32_t l = 0; l < spec.lanes && !status; l++)
        go_on(&local->own.lanes[l], farm_lane_actor_next(&ring->lanes[l]));
    local->ring = &local->own;
    return status;
}

static enum farm_status understand(struct farm_local *local, const struct farm_board_description *board,
                                   uint32_t opponents, struct farm_error *err) {
    struct farm_policy_description *policy = &local->policy;
    enum farm_status status = farm_policy_understand(board->text, &local->ring->spec.env, policy, err);
    if (!status && opponents) status = make_opponents(local, opponents, err);
    const struct farm_ring_spec *spec = &local->ring->spec;
    if (!status) status = farm_policy_check_ring(&policy->net, &policy->head, spec, err);
    if (status) return status;
    if (policy->net.parameter_count != local->board->count || (uint32_t)policy->net.io.stack > spec->steps)
        return farm_fail(err, FARM_E_INVALID, "the board holds %zu parameters, and network %s has %zu",
                         (size_t)local->board->count, policy->net.spec.text, policy->net.parameter_count);
    if (policy->plain) farm_log_info("actor %u: this CPU lacks the learner's arithmetic: infers in f32", local->actor);
    return FARM_OK;
}

// One policy for all lanes, or, where lanes keep their parameters for a window, one for each.
static enum farm_status make_lane(struct farm_local *local, uint32_t l, uint64_t packed_layout,
                                  struct farm_error *err) {
    const struct farm_policy_description *policy = &local->policy;
    struct own_lane *own = &local->lanes[l];
    const struct farm_lane *lane = &local->ring->lanes[l];
    const uint64_t next = farm_lane_actor_next(lane);
    struct farm_ring view = *local->ring;
    own->shared = *lane;
    own->shared.local = false;
    view.lanes = &own->shared;
    enum farm_status status = farm_validator_open(&view, 0, &own->validator, err);
    if (status) return status;
    own->validator.spec = &local->ring->spec;
    for (uint64_t n = next < lane->steps ? 0 : next - lane->steps; n < next; n++)
        (void)farm_validator_step(&own->validator, n, UINT64_MAX);
    own->state = calloc(lane->width * (size_t)policy->net.state + 1, sizeof *own->state);
    if (!own->state) return farm_fail(err, FARM_E_LIMIT, "no memory for the states of %u environments", lane->width);
    own->policy = local->lanes[0].policy;
    if (l && policy->refresh == 1) return FARM_OK;
    const struct farm_policy_config config = {.net = &policy->net,
                                              .head = policy->head,
                                              .arithmetic = &policy->arithmetic,
                                              .board = local->board,
                                              .rows_max = lane->width,
                                              .sampler = policy->sampler,
                                              .using = &local->ring->up_control->using,
                                              .packed_layout = packed_layout,
                                              .refresh = policy->refresh};
    return farm_policy_make(&config, &own->policy, err);
}

enum farm_status farm_local_open(int board_fd, struct farm_ring *ring, uint32_t opponents, uint32_t actor,
                                 struct farm_local **out, struct farm_error *err) {
    struct farm_board_description board;
    struct farm_local *local = calloc(1, sizeof *local);
    *out = NULL;
    enum farm_status status = local ? farm_board_open(board_fd, false, &local->board, err)
                                    : farm_fail(err, FARM_E_LIMIT, "no memory for an actor's policy");
    if (status) {
        close(board_fd);
        free(local);
        return status;
    }
    local->ring = ring;
    local->actor = actor;
    sigfillset(&local->all);
    bool ready;
    while (!(ready = farm_load_acquire(&local->board->head->newest) && farm_board_described(local->board, &board)) &&
           may_wait(local)) {
    }
    if (ready) status = understand(local, &board, opponents, err);
    for (uint32_t l = 0; l < ring->spec.lanes && ready && !status; l++)
        status = make_lane(local, l, board.packed_layout, err);
    if (ready && !status)
        *out = local;
    else
        farm_local_close(local);
    return status;
}

void farm_local_close(struct farm_local *local) {
    if (!local) return;
    for (uint32_t l = 0; l < FARM_LANES_MAX; l++) {
        struct own_lane *own = &local->lanes[l];
        if (!l || own->policy != local->lanes[0].policy) farm_policy_free(own->policy);
        farm_validator_close(&own->validator);
        free(own->state);
    }
    farm_board_free(local->board);
    farm_ring_close(&local->own);
    free(local);
}

// ---- answering ----

void farm_local_answer(struct farm_local *local, uint32_t l, uint64_t n) {
    struct own_lane *own = &local->lanes[l];
    struct farm_lane *lane = &own->validator.checked;
    const struct farm_policy_rows rows = {.lane = lane,
                                          .lane_id = local->actor * local->ring->spec.lanes + l,
                                          .n = n,
                                          .env_count = lane->width,
                                          .state = own->state};
    struct farm_error never;
    sigset_t before;
    (void)farm_validator_step(&own->validator, n, UINT64_MAX);
    pthread_sigmask(SIG_BLOCK, &local->all, &before);
    (void)farm_policy_answer(own->policy, &rows, 1, &never);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (lane->state && (n + 1) % lane->answer[lane->state].every == 0) // zeros if step n + 1 begins an episode
        memcpy(farm_lane_answer_at(lane, lane->state, n + 1, 0), own->state,
               lane->width * lane->answer[lane->state].bytes);
}

struct farm_ring *farm_local_opponents(struct farm_local *local) {
    return &local->own;
}

void farm_local_play(struct farm_local *local, uint32_t l) {
    struct farm_lane *lane = &local->own.lanes[l];
    farm_local_answer(local, l, farm_lane_actor_next(lane));
    go_on(lane, farm_lane_actor_next(lane) + 1);
}
