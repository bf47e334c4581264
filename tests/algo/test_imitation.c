// An algorithm in one file: it imitates the actors' own choices. It proves that an algorithm needs nothing else: the
// table `imitation` is all that the learner, its trainer and the CPU backend get. See CONTRIBUTING.md.
#include "../learner/rings.h"

#include "../support/learner.h"

#include <math.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kernels/random.h"
#include "ring/wait.h"

TestSuite(imitation, .timeout = 60);

enum { LANES = 2, WIDTH = 5, STEPS = 48, FLAT = 4, ACTIONS = 4, UNROLL = 8, BATCH = WIDTH, FRAMES = 40000 };

// ---- the algorithm: L = sum over rows with a transition of -log pi(action) ----

// What `adapt` saw. The value that environment e predicts is 10^e, so the sum of an epoch's values says how often it
// trained on each.
static struct {
    uint64_t count, incomplete;
    double first_loss;
    bool last; // no epoch follows
} epochs;

static void imitation_row(const struct farm_algo_rows *rows, int row, float *terms) {
    if (!farm_algo_transition(rows->flags[row], rows->flags[row + rows->columns])) {
        farm_algo_no_gradient(rows, row);
        return;
    }
    const size_t at = (size_t)row * (size_t)rows->head.outputs;
    const uint8_t *action = rows->action + (size_t)row * (size_t)rows->head.action_bytes;
    const struct farm_head_terms head =
        farm_head_gradient(&rows->head, rows->policy + at, rows->behaviour + at, action, 1, 0, 1, rows->dpolicy + at);
    rows->dvalue[row] = 0;
    terms[0] = 1;
    terms[1] = -head.log_prob;
    terms[2] = rows->behaviour_value[row];
}

static enum farm_status imitation_plan(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                                       struct farm_error *err) {
    plan->epochs = 2;
    plan->minibatches = 2;
    return FARM_OK;
}

static bool imitation_adapt(const struct farm_algo_config *config, const double *terms, double *learning_rate) {
    if (!epochs.count++) epochs.first_loss = terms[1] / terms[0];
    epochs.incomplete += terms[2] != 11111 * UNROLL;
    *learning_rate /= 2;
    return !epochs.last;
}

static const struct farm_algo imitation = {
    .recipe = {.name = "imitation", .about = "imitates the actors' choices"},
    .statistics = {"loss_imitation", "value"},
    .plan = imitation_plan,
    .adapt = imitation_adapt,
    .row = imitation_row,
};

// ---- its rows ----

Test(imitation, the_gradient_is_that_of_the_loss) {
    enum { TIME = 3, COLUMNS = 2, OUTPUTS = 4, ROWS = TIME * COLUMNS, ALL = ROWS + COLUMNS };
    static const uint8_t flags[ALL] = {FARM_STEP_FIRST, 0, 0, FARM_STEP_LAST, 0, FARM_STEP_FIRST, FARM_STEP_FIRST, 0};
    static const bool trains[ROWS] = {true, true, true, false, false, true};
    float policy[ALL * OUTPUTS], dpolicy[ALL * OUTPUTS], dvalue[ALL], value[ALL] = {0}, behaviour[ALL * OUTPUTS] = {0};
    int32_t action[ALL];
    for (int i = 0; i < ALL * OUTPUTS; i++) policy[i] = 4 * farm_random_uniform(1, 0, (uint64_t)i) - 2;
    for (int i = 0; i < ALL; i++) action[i] = i < ROWS && trains[i] ? i % OUTPUTS : -1;
    memset(dpolicy, 0x7f, sizeof dpolicy);
    memset(dvalue, 0x7f, sizeof dvalue);
    const struct farm_algo_rows rows = {.head = farm_head_categorical(OUTPUTS),
                                        .steps = TIME,
                                        .columns = COLUMNS,
                                        .policy = policy,
                                        .value = value,
                                        .behaviour = behaviour,
                                        .behaviour_value = value,
                                        .action = (const uint8_t *)action,
                                        .reward = value,
                                        .flags = flags,
                                        .dpolicy = dpolicy,
                                        .dvalue = dvalue};
    double terms[FARM_ALGO_TERMS_MAX] = {0};
    farm_algo_differentiate(&imitation, &rows, terms);
    cr_assert_eq(terms[0], 4);
    float gradient[ALL * OUTPUTS];
    memcpy(gradient, dpolicy, sizeof gradient);
    for (int i = 0; i < ALL; i++) cr_assert_eq(dvalue[i], 0, "value of row %d", i);
    for (int i = 0; i < ALL * OUTPUTS; i++) {
        const float saved = policy[i], step = 0.01f;
        double up[FARM_ALGO_TERMS_MAX] = {0}, down[FARM_ALGO_TERMS_MAX] = {0};
        policy[i] = saved + step;
        farm_algo_differentiate(&imitation, &rows, up);
        policy[i] = saved - step;
        farm_algo_differentiate(&imitation, &rows, down);
        policy[i] = saved;
        const double slope = (up[1] - down[1]) / (2 * (double)step);
        cr_assert_float_eq(gradient[i], slope, 2e-4, "row %d output %d: %g, not %g", i / OUTPUTS, i % OUTPUTS,
                           (double)gradient[i], slope);
        if (i / OUTPUTS >= ROWS || !trains[i / OUTPUTS]) cr_assert_eq(gradient[i], 0, "row %d", i / OUTPUTS);
    }
}

// ---- through the learner ----

// An actor that answers itself: it always chooses the largest of its observation's numbers.
static void act(const struct farm_ring *made, int bell) {
    const float policy[ACTIONS] = {0};
    struct farm_ring ring;
    test_ring_view(made, FARM_RING_ACTOR, &ring);
    for (uint32_t l = 0;;) {
        if (!farm_actor_wait(&ring, NULL, 0, 1000000000, &l)) continue;
        struct farm_lane *lane = &ring.lanes[l];
        const uint64_t n = farm_lane_actor_next(lane);
        for (uint32_t e = 0; e < WIDTH; e++) {
            float *obs = farm_lane_obs(lane, 0, n, e);
            for (uint32_t i = 0; i < FLAT; i++)
                obs[i] = 2 * farm_random_uniform(5, farm_random_stream(l, e), n * FLAT + i) - 1;
            const int32_t chosen = farm_categorical_greedy(obs, FLAT);
            memcpy(farm_lane_action(lane, n, e), &chosen, sizeof chosen);
            memcpy(farm_lane_policy(lane, n, e), policy, sizeof policy);
            farm_lane_value(lane, n)[e] = (float)pow(10, e);
            farm_lane_reward(lane, n)[e] = 0;
            farm_lane_flags(lane, n)[e] = n ? 0 : FARM_STEP_FIRST;
        }
        *farm_lane_version(lane, n) = 0;
        farm_lane_actor_publish(lane);
        farm_actor_notify(&ring, bell);
    }
}

// Runs the learner until it has seen so many frames.
static void learn(uint64_t frames, struct farm_learner_config *config, struct farm_stats *stats) {
    struct farm_ring_spec spec = test_ring_spec(LANES, WIDTH, STEPS, FLAT, ACTIONS);
    struct test_ring ring;
    struct farm_error err = {0};
    spec.answers = FARM_ANSWERS_LOCAL;
    farm_ring_spec_answers(&spec);
    test_ring_open(&spec, &ring);
    const int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const int fds[1][2] = {{dup(ring.made.up.fd_readonly), dup(ring.made.down.fd)}};
    const pid_t actor = fork();
    cr_assert(bell >= 0 && actor >= 0);
    if (actor == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        act(&ring.made, bell);
    }
    *config = test_learner_config(FLAT, ACTIONS, UNROLL);
    config->ring_fds = fds;
    config->ring_count = 1;
    config->shards[0].eventfd = bell;
    config->stats = stats;
    config->algo.algo = &imitation;
    config->algo.batch = BATCH;
    config->algo.lr = config->algo.lr_end = 0.004;
    config->infer_batch_max = LANES * WIDTH;
    config->frames_target = frames;
    cr_assert_eq(farm_learner_run(config, &err), 0, "%s", err.message);
    kill(actor, SIGKILL);
    waitpid(actor, NULL, 0);
    close(bell);
    test_ring_close(&ring);
}

Test(imitation, the_learner_comes_to_choose_as_the_actors_do) {
    struct farm_learner_config config;
    struct farm_stats stats = {0};
    learn(FRAMES, &config, &stats);
    const double loss = farm_stats_get(&stats.algo[0]);
    cr_assert_gt(epochs.first_loss, 1.2, "log %d = 1.39 before training, not %g", ACTIONS, epochs.first_loss);
    cr_assert_lt(loss, 0.3, "-log pi(action) after %lu updates", stats.updates);
    cr_assert_eq(epochs.count, 2 * stats.updates);
    cr_assert_eq(epochs.incomplete, 0, "%lu epochs did not train on each column once", epochs.incomplete);
    cr_assert_float_eq(farm_stats_get(&stats.learning_rate), config.algo.lr / 4, 1e-9, "halved after each epoch");
}

Test(imitation, adapt_may_end_the_epochs) {
    struct farm_learner_config config;
    struct farm_stats stats = {0};
    epochs.last = true;
    learn(FRAMES / 20, &config, &stats);
    cr_assert_gt(stats.updates, 1);
    cr_assert_eq(epochs.count, stats.updates);
}
