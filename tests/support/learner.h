// What tests of the learner's process share: a configuration that learns, and what its answers must be.
#ifndef TESTS_SUPPORT_LEARNER_H
#define TESTS_SUPPORT_LEARNER_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "../learner/rings.h"
#include "algo/vtrace.h"
#include "learner/backend.h"
#include "learner/checkpoint.h"
#include "learner/learner.h"
#include "ring/lane.h"

// V-trace with Adam over an "mlp" of flat observations, f32, one training thread; the caller adds rings, bell, stats,
// seed and batch sizes, and changes what its test is about.
static inline struct farm_learner_config test_learner_config(int flat, int actions, uint32_t unroll) {
    struct farm_error err = {0};
    const struct farm_net_spec *mlp = farm_net_find("mlp", &err);
    cr_assert(mlp != NULL, "%s", err.message);
    return (struct farm_learner_config){.net = *mlp,
                                        .io = {.stack = 1, .flat = flat, .actions = actions},
                                        .algo = {.unroll = unroll,
                                                 .stack = 1,
                                                 .algo = &farm_vtrace,
                                                 .option = {0.9f, 0.01f, 0.5f, 1, 1, 1, 1}, // in the order of vtrace.h
                                                 .reward_scale = 1,
                                                 .optimiser = FARM_OPTIMISER_ADAM,
                                                 .lr = 0.001,
                                                 .lr_end = 0.001,
                                                 .adam_beta1 = 0.9,
                                                 .adam_beta2 = 0.999,
                                                 .adam_epsilon = 1e-8},
                                        .precision = FARM_PRECISION_F32,
                                        .train_threads = 1,
                                        .frames_per_step = 1};
}

// One pass over these windows, published as `version`.
static inline enum farm_status test_train(const struct farm_backend_ops *ops, struct farm_backend *backend,
                                          const struct farm_window *windows, uint32_t count, double learning_rate,
                                          uint64_t version, struct farm_pass_stats *stats, struct farm_error *err) {
    const struct farm_pass pass = {.learning_rate = learning_rate};
    enum farm_status status = ops->begin(backend, 0, windows, count, err);
    if (!status) status = ops->pass(backend, 0, &pass, err);
    if (!status) status = ops->publish(backend, version, err);
    return status ? status : ops->finish(backend, stats, err);
}

static inline float *test_params(const struct farm_backend_ops *ops, struct farm_backend *backend) {
    const struct farm_backend_state state = ops->state(backend);
    return farm_backend_vector(&state, "");
}

// The newest checkpoint of the learner's folder, its path and metadata: of finite numbers, with the optimiser's state,
// after an update. Returns its three vectors, parameters first, to be freed.
static inline float *test_newest_checkpoint(const struct farm_learner_config *learner, char *path, size_t bytes,
                                            struct farm_checkpoint_metadata *metadata) {
    char name[256];
    struct farm_error err = {0};
    struct farm_net net;
    bool has_optimiser;
    cr_assert_geq(test_folder_files(learner->checkpoint_dir, name, sizeof name), 1, "no checkpoint");
    snprintf(path, bytes, "%s/%s", learner->checkpoint_dir, name);
    cr_assert_eq(farm_net_make(&learner->net, &learner->io, &net, &err), FARM_OK, "%s", err.message);
    const size_t count = net.parameter_count;
    float *vectors = calloc(3 * count, sizeof *vectors);
    struct farm_backend_state state = farm_backend_state_of(vectors, vectors + count, vectors + 2 * count, 0, 0);
    cr_assert_eq(farm_checkpoint_load(path, &net, &state, &has_optimiser, metadata, &err), FARM_OK, "%s", err.message);
    cr_assert(has_optimiser);
    for (size_t i = 0; i < 3 * count; i++) cr_assert(isfinite(vectors[i]));
    cr_assert_gt(farm_checkpoint_get_u64(metadata, "version"), 0);
    return vectors;
}

// The logits and values of step n are those that observation rows[e] of each environment has under the parameters, by a
// forward pass of its own; NULL: those that the seed gives. `who`: whose lane it is, for the message.
static inline void test_expect_answers_under(const struct farm_learner_config *learner, const float *params,
                                             const struct farm_lane *lane, uint64_t n, const void *const *rows,
                                             const char *who) {
    struct farm_error err = {0};
    struct farm_net net;
    struct farm_executor *executor;
    cr_assert_eq(farm_net_make(&learner->net, &learner->io, &net, &err), FARM_OK, "%s", err.message);
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_executor_config config = {.net = &net, .batch_max = 1, .arithmetic = &f32};
    cr_assert_eq(farm_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    float *seeded = malloc(net.parameter_count * sizeof *seeded);
    float *logits = malloc((size_t)learner->io.actions * sizeof *logits);
    farm_net_init(&net, learner->seed, seeded);
    farm_executor_load(executor, params ? params : seeded);
    for (uint32_t e = 0; e < lane->width; e++) {
        float value;
        farm_executor_forward(executor, &rows[e], farm_sequence_rows(1), logits, &value);
        cr_assert_float_eq(farm_lane_value(lane, n)[e], value, 1e-5, "%s step %lu environment %u", who, n, e);
        for (int a = 0; a < learner->io.actions; a++)
            cr_assert_float_eq(farm_lane_policy(lane, n, e)[a], logits[a], 1e-5, "%s step %lu environment %u", who, n,
                               e);
    }
    farm_executor_destroy(executor);
    free(seeded);
    free(logits);
}

static inline void test_expect_answers(const struct farm_learner_config *learner, const struct farm_lane *lane,
                                       uint64_t n, const void *const *rows, const char *who) {
    test_expect_answers_under(learner, NULL, lane, n, rows, who);
}

#endif
