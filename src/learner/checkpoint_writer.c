// See checkpoint_writer.h.
#include "learner/checkpoint_writer.h"

#include <assert.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "learner/checkpoint.h"

static const double FIRST_CHECKPOINT_S = 20; // for a learner that dies early

static int newest_first(const struct dirent **a, const struct dirent **b) {
    return strcmp((*b)->d_name, (*a)->d_name);
}

static int is_checkpoint(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".safetensors") == 0;
}

// "<frames>.safetensors.tmp.<pid>", left by a learner that was killed while it wrote.
static int is_half_written(const struct dirent *entry) {
    return strstr(entry->d_name, ".safetensors.tmp.") != NULL;
}

// Removes the files that `choose` selects, except the first `kept` in falling order of names.
static void remove_files(const char *folder, int (*choose)(const struct dirent *), int kept) {
    struct dirent **names;
    int count = scandir(folder, &names, choose, newest_first);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (i >= kept) unlink(path);
        free(names[i]);
    }
    if (count >= 0) free(names);
}

static bool all_finite(const float *values, size_t count) {
    float sum = 0; // x * 0 is 0 for every finite x and NaN for every other
    for (size_t i = 0; values && i < count; i++) sum += values[i] * 0.0f;
    return sum == 0;
}

static struct farm_checkpoint_moment read_moment(const struct farm_checkpoint_writer *writer) {
    const struct farm_stats *stats = writer->parts->config->stats;
    return (struct farm_checkpoint_moment){.version = writer->version,
                                           .frames = farm_load_relaxed(&stats->frames),
                                           .agent_steps = farm_load_relaxed(&stats->agent_steps),
                                           .updates = farm_load_relaxed(&stats->updates),
                                           .episodes = farm_load_relaxed(&stats->episodes),
                                           .return_mean = farm_stats_get(&stats->return_mean)};
}

// Whether no file holds the state, which a lost device left.
static bool worth_saving(const struct farm_checkpoint_writer *writer, const struct farm_backend_state *state) {
    assert(state->version == writer->copied.version);
    if (state->version != writer->saved_version) return true;
    farm_log_warn("no checkpoint is written: the remaining parameters, version %" PRIu64 ", are %s", state->version,
                  writer->saved ? "those of the last one" : "the first ones");
    return false;
}

static enum farm_status check_finite(const struct farm_backend_state *state, size_t count, struct farm_error *err) {
    for (uint32_t v = 0; v < state->vector_count; v++)
        if (!all_finite(state->vectors[v].values, count))
            return farm_fail(err, FARM_E_INVALID,
                             "training has diverged: parameters are not finite; earlier checkpoints are intact "
                             "(a smaller --lr or --grad-norm-clip)");
    return FARM_OK;
}

// Metadata: the moment's figures, then the learner's own pairs.
static enum farm_status write_file(struct farm_checkpoint_writer *writer, const struct farm_backend_state *state,
                                   const struct farm_checkpoint_moment *moment, struct farm_error *err) {
    const struct farm_learner_config *learner = writer->parts->config;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"frames", moment->frames},  {"agent_steps", moment->agent_steps},      {"updates", moment->updates},
        {"version", state->version}, {"optimiser_step", state->optimiser_step}, {"episodes", moment->episodes},
    };
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    char texts[NUMBERS + 1][32], path[4096];
    const char *pairs[FARM_CHECKPOINT_PAIRS_MAX][2] = {[NUMBERS] = {"return_mean", texts[NUMBERS]}};
    uint32_t count = NUMBERS + 1;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        snprintf(texts[i], sizeof texts[i], "%" PRIu64, numbers[i].value);
        pairs[i][0] = numbers[i].name;
        pairs[i][1] = texts[i];
    }
    snprintf(texts[NUMBERS], sizeof texts[NUMBERS], "%.6g", moment->return_mean);
    for (uint32_t i = 0; i < learner->metadata_count && count < FARM_CHECKPOINT_PAIRS_MAX; i++, count++)
        memcpy(pairs[count], learner->metadata[i], sizeof pairs[count]);
    snprintf(path, sizeof path, "%s/%012" PRIu64 ".safetensors", learner->checkpoint_dir, moment->frames);
    return farm_checkpoint_save(path, &writer->parts->net, state, (const char *const(*)[2])pairs, count, err);
}

enum farm_status farm_checkpoint_writer_save(struct farm_checkpoint_writer *writer, struct farm_error *err) {
    const struct farm_learner_config *learner = writer->parts->config;
    if (!learner->checkpoint_dir) return FARM_OK;
    const struct farm_backend_state state = writer->parts->ops->state(writer->parts->backend);
    if (state.version >= writer->version) // newer: the failed update was published
        writer->copied = read_moment(writer);
    else if (!worth_saving(writer, &state))
        return FARM_OK;
    enum farm_status status = check_finite(&state, writer->parts->net.parameter_count, err);
    if (status) return status;
    status = write_file(writer, &state, &writer->copied, err);
    if (status) return farm_fail_in(err, status, "checkpoint");
    writer->saved_version = state.version;
    writer->saved = true;
    farm_stats_add(&learner->stats->checkpoints, 1);
    farm_store_relaxed(&learner->stats->checkpoint_frames, writer->copied.frames);
    remove_files(learner->checkpoint_dir, is_checkpoint, FARM_CHECKPOINTS_KEPT);
    return FARM_OK;
}

void farm_checkpoint_writer_turn(struct farm_checkpoint_writer *writer) {
    double every_s = writer->parts->config->checkpoint_every_s;
    if (every_s <= 0 || farm_now_ns() < writer->due_ns) return;
    struct farm_error error;
    if (farm_checkpoint_writer_save(writer, &error))
        farm_log_warn("%s: training continues, next attempt in %.0f s", error.message, every_s);
    writer->due_ns = farm_now_ns() + (uint64_t)(every_s * 1e9);
}

void farm_checkpoint_writer_copied(struct farm_checkpoint_writer *writer) {
    writer->copied = read_moment(writer);
}

void farm_checkpoint_writer_start(struct farm_checkpoint_writer *writer, const struct farm_learner_parts *parts) {
    const struct farm_learner_config *learner = parts->config;
    *writer =
        (struct farm_checkpoint_writer){.parts = parts, .version = parts->version, .saved_version = parts->version};
    writer->due_ns = farm_now_ns() + (uint64_t)(fmin(learner->checkpoint_every_s, FIRST_CHECKPOINT_S) * 1e9);
    writer->copied = read_moment(writer);
    if (learner->checkpoint_dir) remove_files(learner->checkpoint_dir, is_half_written, 0);
}
