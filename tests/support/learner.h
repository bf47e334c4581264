// What tests of the learner share: the rig, temporary folders, a check of answers against a forward pass, and one of
// checkpoints.
#ifndef TESTS_SUPPORT_LEARNER_H
#define TESTS_SUPPORT_LEARNER_H

#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "learner/checkpoint.h"
#include "rig.h"

static inline void test_folder_make(char *path, size_t bytes) {
    const char *base = getenv("TMPDIR");
    snprintf(path, bytes, "%s/farm-learner-XXXXXX", base ? base : "/tmp");
    cr_assert(mkdtemp(path) != NULL);
}

// Number of files in a folder; `last` (may be NULL): the alphabetically last name of a numbered checkpoint.
static inline int test_folder_files(const char *folder, char *last, size_t bytes) {
    int count = 0;
    DIR *open = opendir(folder);
    cr_assert(open != NULL);
    if (last) last[0] = 0;
    for (struct dirent *entry; (entry = readdir(open));) {
        if (entry->d_name[0] == '.') continue;
        count++;
        const char *dot = strrchr(entry->d_name, '.');
        if (last && dot && isdigit((unsigned char)entry->d_name[0]) && strcmp(dot, ".safetensors") == 0 &&
            strcmp(entry->d_name, last) > 0)
            snprintf(last, bytes, "%s", entry->d_name);
    }
    closedir(open);
    return count;
}

static inline void test_folder_remove(const char *folder) {
    DIR *open = opendir(folder);
    for (struct dirent *entry; open && (entry = readdir(open));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.') unlink(path);
    }
    if (open) closedir(open);
    rmdir(folder);
}

// One pass over these windows, published as `version`.
static inline enum farm_status test_train(const struct farm_backend_ops *ops, struct farm_backend *backend,
                                          const struct farm_window *windows, uint32_t count, double learning_rate,
                                          uint64_t version, struct farm_pass_stats *stats, struct farm_error *err) {
    const struct farm_pass pass = {.learning_rate = learning_rate};
    enum farm_status status = ops->begin(backend, 0, windows, count, err);
    if (!status) status = ops->pass(backend, 0, &pass, err);
    if (!status) status = ops->publish(backend, FARM_SET_ONLINE, version, err);
    return status ? status : ops->finish(backend, stats, err);
}

// Loads the newest checkpoint of the learner's folder; it must hold finite numbers and the optimiser's state after an
// update. Returns its three vectors, parameters first, to be freed, its path and its metadata.
static inline float *test_newest_checkpoint(const struct farm_learner_config *learner, char *path, size_t bytes,
                                            struct farm_checkpoint_metadata *metadata) {
    char name[256];
    struct farm_error err = {0};
    struct farm_net net;
    bool has_optimiser;
    cr_assert_geq(test_folder_files(learner->checkpoints.dir, name, sizeof name), 1, "no checkpoint");
    snprintf(path, bytes, "%s/%s", learner->checkpoints.dir, name);
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

// Checks logits and values of step n against a forward pass over the observations in rows, farm_net_pointers of each
// environment. params: NULL: those that the learner's seed gives. `name`: of the lane, for messages.
static inline void test_expect_answers(const struct farm_learner_config *learner, const float *params,
                                       const struct farm_lane *lane, uint64_t n, const void *const *rows,
                                       const char *name) {
    struct farm_error err = {0};
    struct farm_net net;
    struct farm_executor *executor;
    cr_assert_eq(farm_net_make(&learner->net, &learner->io, &net, &err), FARM_OK, "%s", err.message);
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_executor_config config = {.net = &net, .batch_max = 1, .arithmetic = &f32};
    cr_assert_eq(farm_executor_create(&config, &executor, &err), FARM_OK, "%s", err.message);
    float *seeded = malloc(net.parameter_count * sizeof *seeded);
    float *logits = malloc((size_t)learner->io.actions * sizeof *logits);
    farm_net_init(&net, learner->init, learner->seed, seeded);
    farm_executor_load(executor, params ? params : seeded);
    for (uint32_t e = 0; e < lane->width; e++) {
        float value;
        farm_executor_forward(executor, &rows[e * (size_t)farm_net_pointers(&net)], farm_sequence_rows(1), logits,
                              &value);
        cr_assert_float_eq(farm_lane_value(lane, n)[e], value, 1e-5, "%s step %lu environment %u", name, n, e);
        for (int a = 0; a < learner->io.actions; a++)
            cr_assert_float_eq(farm_lane_policy(lane, n, e)[a], logits[a], 1e-5, "%s step %lu environment %u", name, n,
                               e);
    }
    farm_executor_destroy(executor);
    free(seeded);
    free(logits);
}

// The same with the observations that lie in the lane.
static inline void test_expect_lane_answers(const struct farm_learner_config *learner, const float *params,
                                            const struct farm_lane *lane, uint64_t n, const char *name) {
    const void *rows[64];
    for (uint32_t e = 0; e < lane->width; e++) rows[e] = farm_lane_obs(lane, 0, n, e);
    test_expect_answers(learner, params, lane, n, rows, name);
}

#endif
