// An algorithm in one file, an example for CONTRIBUTING.md: it imitates the actors' own choices. The table `imitation`
// is all that the learner, its trainer and the CPU backend get.
#include "../support/test_farm.h"

TestSuite(imitation, .timeout = 60);

enum { BATCH = WIDTH, FRAMES = 40000 };

// ---- the algorithm: L = sum over rows with a transition of -log pi(action) ----

// What `adapt` saw. The test actor predicts 10^e in environment e, so the sum of an epoch's values shows how often the
// epoch trained on each environment.
static struct {
    uint64_t count, incomplete;
    double first_loss, recent_loss; // means of the first epoch, and of the last 32 or so
    bool last;                      // no epoch follows
} epochs;

static void imitation_row(const struct farm_algo_rows *rows, int row, float *terms) {
    if (!farm_step_leads(rows->flags[row], rows->flags[row + rows->columns])) {
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
    plan->minibatch = BATCH / 2;
    plan->sets[0] = (struct farm_algo_set){"target", 4}; // passes of an update
    plan->sets[1] = (struct farm_algo_set){"first", UINT64_MAX};
    return FARM_OK;
}

static bool imitation_adapt(const struct farm_algo_config *config, const double *terms, bool last,
                            double *rate_factor) {
    if (!epochs.count++) epochs.first_loss = epochs.recent_loss = terms[1] / terms[0];
    epochs.recent_loss += (terms[1] / terms[0] - epochs.recent_loss) / 32; // one has few rows
    epochs.incomplete += terms[2] != 1111 * UNROLL;
    *rate_factor = last ? 1 : 0.5;
    return !epochs.last;
}

static const struct farm_algo imitation = {
    .recipe = {.name = "imitation", .about = "imitates the actors' choices"},
    .statistics = {{.key = "loss_imitation"}, {.key = "value"}},
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

// Runs the learner for so many frames of an actor that runs the policy itself.
static void train_for(uint64_t frames, struct test_farm *farm) {
    struct farm_error err = {0};
    test_farm_open(farm, 1, FARM_ANSWERS_LOCAL);
    farm->actors[0].game = UINT32_MAX;
    const pid_t actor = test_actor_fork(farm, 0, farm->bell);
    test_farm_lend(farm);
    farm->config.algo.algo = &imitation;
    farm->config.algo.batch = BATCH;
    farm->config.algo.lr = farm->config.algo.lr_end = 0.004;
    farm->config.target.frames = frames;
    cr_assert_eq(farm_learner_run(&farm->config, &err), 0, "%s", err.message);
    test_actor_stop(farm, 0, actor);
}

// The last checkpoint's sets: the parameters of the newest update, and the initial ones.
static void expect_sets(const struct test_farm *farm) {
    char path[4096], name[256];
    struct farm_checkpoint_metadata metadata;
    struct farm_error err = {0};
    struct farm_net net;
    bool has_optimiser;
    cr_assert_geq(test_folder_files(farm->folder, name, sizeof name), 1);
    snprintf(path, sizeof path, "%s/%s", farm->folder, name);
    cr_assert_eq(farm_net_make(&farm->config.net, &farm->config.io, &net, &err), FARM_OK, "%s", err.message);
    const size_t count = net.parameter_count, bytes = count * sizeof(float);
    float *vectors = malloc(4 * bytes), *sets[] = {vectors + count, vectors + 2 * count};
    struct farm_algo_plan plan;
    cr_assert_eq(farm_algo_plan_make(&farm->config.algo, &plan, &err), FARM_OK, "%s", err.message);
    struct farm_backend_state state = farm_backend_state_of(vectors, NULL, NULL, 0, 0);
    farm_backend_state_add(&state, &plan, sets);
    for (uint32_t k = 0; k < 2; k++) cr_assert_eq(farm_backend_vector(&state, plan.sets[k].name), sets[k]);
    cr_assert_eq(farm_checkpoint_load(path, &net, &state, &has_optimiser, &metadata, &err), FARM_OK, "%s", err.message);
    farm_checkpoint_metadata_free(&metadata);
    farm_net_init(&net, farm->config.init, farm->config.seed, vectors + 3 * count);
    cr_assert_arr_eq(sets[0], vectors, bytes);
    cr_assert_arr_eq(sets[1], vectors + 3 * count, bytes);
    free(vectors);
}

Test(imitation, the_learner_comes_to_choose_as_the_actors_do) {
    struct test_farm farm;
    train_for(FRAMES, &farm);
    const struct farm_stats *stats = &farm.shared->stats;
    const double loss = farm_stats_get(&stats->algo[0]);
    cr_assert_gt(epochs.first_loss, 1.2, "log %d = 1.39 before training, not %g", ACTIONS, epochs.first_loss);
    cr_assert_lt(epochs.recent_loss, 0.3, "-log pi(action) after %lu updates", stats->updates);
    cr_assert_lt(loss, 0.7, "-log pi(action) of the last update's few rows");
    cr_assert_eq(epochs.count, 2 * stats->updates);
    cr_assert_eq(epochs.incomplete, 0, "%lu epochs did not train on each column once", epochs.incomplete);
    expect_sets(&farm);
    cr_assert_float_eq(farm_stats_get(&stats->learning_rate), farm.config.algo.lr / 2, 1e-9, "of the last epoch");
    test_farm_close(&farm);
}

Test(imitation, adapt_may_end_the_epochs) {
    struct test_farm farm;
    epochs.last = true;
    train_for(FRAMES / 20, &farm);
    cr_assert_gt(test_farm_updates(&farm), 1);
    cr_assert_eq(epochs.count, test_farm_updates(&farm));
    test_farm_close(&farm);
}
