// A policy over lanes of both modes: the same observations give the same answers, wherever the answer fields lie.
#include "policy/policy.h"

#include "../support/learner.h"

enum { POLICY_WIDTH = 3, POLICY_FLAT = 4, POLICY_ACTIONS = 5, POLICY_STEPS = 12 };

struct side {
    struct views ring;
    struct farm_lane *writes; // the view that may write answers
    struct farm_policy *policy;
};

static struct farm_learner_config learner;
static struct farm_net net;
static struct farm_arithmetic arithmetic;
static struct farm_board *board;
static float *params;

static void open_side(enum farm_answers answers, struct side *side) {
    struct farm_error err = {0};
    struct farm_ring_spec spec =
        farm_ring_spec_plain(1, POLICY_WIDTH, POLICY_STEPS, FARM_F32, POLICY_FLAT, POLICY_ACTIONS);
    spec.answers = answers;
    side->ring = views_of(spec);
    side->writes = answers == FARM_ANSWERS_LOCAL ? &side->ring.actor.lanes[0] : &side->ring.learner.lanes[0];
    const struct farm_policy_config config = {.net = &net,
                                              .head = farm_head_categorical(POLICY_ACTIONS),
                                              .arithmetic = &arithmetic,
                                              .board = board,
                                              .rows_max = POLICY_WIDTH,
                                              .sampler = {.seed = 3}};
    cr_assert_eq(farm_policy_make(&config, &side->policy, &err), FARM_OK, "%s", err.message);
}

static void close_side(struct side *side) {
    farm_policy_free(side->policy);
    close_views(&side->ring);
}

// The actor's part of step n; all episodes begin at step 0.
static void observe(struct side *side, uint64_t n) {
    struct farm_lane *lane = &side->ring.actor.lanes[0];
    for (uint32_t env = 0; env < POLICY_WIDTH; env++)
        for (uint32_t i = 0; i < POLICY_FLAT; i++)
            ((float *)farm_lane_obs(lane, 0, n, env))[i] =
                farm_random_uniform(7, farm_random_stream(0, env), n * POLICY_FLAT + i);
    memset(farm_lane_flags(lane, n), n ? 0 : FARM_STEP_FIRST, POLICY_WIDTH);
}

static void answer(struct side *side, uint64_t n, uint32_t env_from, uint32_t env_count) {
    struct farm_error err = {0};
    const struct farm_policy_rows rows = {
        .lane = side->writes, .lane_id = 2, .n = n, .env_from = env_from, .env_count = env_count};
    cr_assert_eq(farm_policy_answer(side->policy, &rows, 1, &err), FARM_OK, "%s", err.message);
}

static void set_up(void) {
    struct farm_error err = {0};
    learner = test_learner_config(POLICY_FLAT, POLICY_ACTIONS, 4);
    cr_assert_eq(farm_net_make(&learner.net, &learner.io, &net, &err), FARM_OK, "%s", err.message);
    arithmetic = farm_arithmetic_uniform(&net, FARM_PRECISION_F32, (struct farm_form){0});
    params = malloc(net.parameter_count * sizeof *params);
    farm_net_init(&net, learner.init, 1, params);
    const struct farm_board_request request = {.count = net.parameter_count, .buffers = 4, .node = -1};
    cr_assert_eq(farm_board_create(&request, &board, &err), FARM_OK, "%s", err.message);
    farm_board_publish(board, params, 1);
}

static void tear_down(void) {
    farm_board_free(board);
    free(params);
}

TestSuite(policy, .init = set_up, .fini = tear_down);

Test(policy, answers_central_and_local_lanes_alike) {
    struct side central, local;
    open_side(FARM_ANSWERS_CENTRAL, &central);
    open_side(FARM_ANSWERS_LOCAL, &local);
    for (uint64_t n = 0; n < POLICY_STEPS; n++) {
        observe(&central, n);
        observe(&local, n);
        answer(&central, n, 0, POLICY_WIDTH);
        answer(&local, n, 0, POLICY_WIDTH);
        for (uint32_t field = 0; field < central.writes->answer_count; field++) {
            const struct farm_answer_array *array = &central.writes->answer[field];
            cr_assert_arr_eq(farm_lane_answer_at(central.writes, field, n, 0),
                             farm_lane_answer_at(local.writes, field, n, 0), array->rows * array->bytes,
                             "field %u of step %lu", field, n);
        }
        cr_assert_eq(*farm_lane_version(local.writes, n), 1);
    }
    close_side(&central);
    close_side(&local);
}

Test(policy, answers_only_the_rows_and_by_the_newest_parameters) {
    struct side side;
    open_side(FARM_ANSWERS_CENTRAL, &side);
    observe(&side, 0);
    answer(&side, 0, 1, 2);
    const float first = farm_lane_value(side.writes, 0)[1];
    cr_assert_eq(farm_lane_value(side.writes, 0)[0], 0);
    cr_assert_neq(first, 0);
    for (size_t i = 0; i < net.parameter_count; i++) params[i] *= 2;
    farm_board_publish(board, params, 2);
    answer(&side, 0, 1, 1);
    cr_assert_eq(*farm_lane_version(side.writes, 0), 2);
    cr_assert_neq(farm_lane_value(side.writes, 0)[1], first);
    close_side(&side);
}
