// See checkpoint_writer.h.
#include "learner/checkpoint_writer.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "learner/boards.h"
#include "learner/checkpoint.h"

enum { NAME_BYTES = 64, JOB_LOOK_US = 1000 };
static const double FIRST_CHECKPOINT_S = 20; // for a learner that dies early; also until a failed file's next attempt

static uint64_t frames_of(const struct dirent *entry) {
    return strtoull(entry->d_name, NULL, 10);
}

static int newest_first(const struct dirent **a, const struct dirent **b) {
    return (frames_of(*b) > frames_of(*a)) - (frames_of(*b) < frames_of(*a));
}

// "<frames>.safetensors"
static int is_checkpoint(const struct dirent *entry) {
    const size_t digits = strspn(entry->d_name, "0123456789");
    return digits && strcmp(entry->d_name + digits, ".safetensors") == 0;
}

// "<name>.safetensors.tmp.<pid>", left by a learner that was killed while it wrote.
static int is_half_written(const struct dirent *entry) {
    return strstr(entry->d_name, ".safetensors.tmp.") != NULL;
}

// Removes the files that `choose` selects, except the newest `kept` and those of more than `newest` frames.
static void remove_files(const char *folder, int (*choose)(const struct dirent *), uint64_t newest, uint32_t kept) {
    struct dirent **names;
    int count = scandir(folder, &names, choose, newest_first);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (frames_of(names[i]) <= newest && !(kept && kept--)) unlink(path);
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
    const struct farm_totals *before = &writer->parts->config->before;
    const uint64_t start_ns = farm_load_relaxed(&stats->start_ns);
    const double wall_s = before->wall_s + (start_ns ? (double)(farm_now_ns() - start_ns) * 1e-9 : 0);
    return (struct farm_checkpoint_moment){
        .version = writer->version,
        .totals = {.wall_s = writer->parts->config->deterministic.on ? 0 : wall_s,
                   .frames = farm_load_relaxed(&stats->frames),
                   .agent_steps = before->agent_steps + farm_load_relaxed(&stats->agent_steps),
                   .updates = before->updates + farm_load_relaxed(&stats->updates),
                   .episodes = before->episodes + farm_load_relaxed(&stats->episodes)},
        .return_mean = farm_stats_get(&stats->return_mean),
        .games = farm_load_relaxed(&stats->games)};
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
            return farm_fail(
                err, FARM_E_INVALID,
                "training has diverged: parameters are not finite and not saved (a smaller --lr or --grad-norm-clip)");
    return FARM_OK;
}

// Metadata: the figures of the copy's moment, the replay's manifest if it is not "", then the learner's own pairs.
static enum farm_status write_file(const struct farm_checkpoint_writer *writer, const struct farm_backend_state *state,
                                   const char *folder, const char *name, const char *manifest, struct farm_error *err) {
    const struct farm_learner_config *learner = writer->parts->config;
    const struct farm_checkpoint_moment *moment = &writer->copied;
    const struct farm_totals *totals = &moment->totals;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"frames", totals->frames},  {"agent_steps", totals->agent_steps},      {"updates", totals->updates},
        {"version", state->version}, {"optimiser_step", state->optimiser_step}, {"episodes", totals->episodes},
    };
    enum { NUMBERS = sizeof numbers / sizeof *numbers, REALS = 3 };
    char texts[NUMBERS + REALS][32], head[FARM_HEAD_TEXT_BYTES], path[4096], games[FARM_LANES_GAMES_BYTES],
        policy[FARM_POLICY_TEXT_BYTES];
    const char *pairs[FARM_CHECKPOINT_PAIRS_MAX][2] = {[NUMBERS] = {"return_mean", texts[NUMBERS]},
                                                       [NUMBERS + 1] = {"wall_s", texts[NUMBERS + 1]},
                                                       [NUMBERS + 2] = {"learning_rate_factor", texts[NUMBERS + 2]},
                                                       [NUMBERS + REALS] = {"head", head}};
    uint32_t count = NUMBERS + REALS + 1;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        snprintf(texts[i], sizeof texts[i], "%" PRIu64, numbers[i].value);
        pairs[i][0] = numbers[i].name;
        pairs[i][1] = texts[i];
    }
    snprintf(texts[NUMBERS], sizeof texts[NUMBERS], "%.6g", moment->return_mean);
    snprintf(texts[NUMBERS + 1], sizeof texts[NUMBERS + 1], "%.3f", totals->wall_s);
    snprintf(texts[NUMBERS + 2], sizeof texts[NUMBERS + 2], "%.17g", writer->parts->rate_factor);
    farm_head_describe(&writer->parts->head, head);
    if (learner->deterministic.on) {
        farm_lanes_write_games(learner->stats, games);
        memcpy(pairs[count++], (const char *[2]){"games", games}, sizeof *pairs);
    }
    if (manifest[0]) memcpy(pairs[count++], (const char *[2]){"replay", manifest}, sizeof *pairs);
    char *spaces = farm_checkpoint_spaces(&writer->parts->lanes.model.env);
    if (spaces) memcpy(pairs[count++], (const char *[2]){"spaces", spaces}, sizeof *pairs);
    if (!farm_boards_text(writer->parts, policy, err)) // an opponent's
        memcpy(pairs[count++], (const char *[2]){"policy", policy}, sizeof *pairs);
    for (uint32_t i = 0; i < learner->checkpoints.metadata_count && count < FARM_CHECKPOINT_PAIRS_MAX; i++, count++)
        memcpy(pairs[count], learner->checkpoints.metadata[i], sizeof pairs[count]);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const enum farm_status status =
        farm_checkpoint_save(path, &writer->parts->net, state, (const char *const(*)[2])pairs, count, err);
    free(spaces);
    return status;
}

// ---- the best ----

static double read_best_return(const char *folder) {
    char path[4096];
    struct farm_checkpoint_metadata metadata;
    struct farm_error err;
    snprintf(path, sizeof path, "%s/%s", folder, FARM_CHECKPOINT_BEST);
    const enum farm_status status = farm_checkpoint_read_metadata(path, &metadata, &err);
    if (status && status != FARM_E_NOT_FOUND) farm_log_warn("%s: the next best checkpoint replaces it", err.message);
    if (status) return -(double)INFINITY;
    const char *text = farm_checkpoint_get(&metadata, "return_mean");
    const double value = text ? strtod(text, NULL) : (double)NAN;
    farm_checkpoint_metadata_free(&metadata);
    return isfinite(value) ? value : -(double)INFINITY;
}

static void keep_best(struct farm_checkpoint_writer *writer, const struct farm_backend_state *state) {
    struct farm_error err;
    const double value = writer->copied.return_mean;
    if (writer->copied.games < FARM_STATS_RETURNS || !(value > writer->best_return)) return;
    if (write_file(writer, state, writer->parts->config->checkpoints.dir, FARM_CHECKPOINT_BEST, "", &err))
        farm_log_warn("%s: a checkpoint of the best mean return, %.4g, is not kept as the best", err.message, value);
    else
        writer->best_return = value;
}

// ---- the numbered files ----

static const char *name_of(const struct farm_checkpoint_moment *moment, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%012" PRIu64 ".safetensors", moment->totals.frames);
    return name;
}

// Writes the replay's manifest first: the checkpoint holds its name.
static enum farm_status write_numbered(struct farm_checkpoint_writer *writer, const struct farm_backend_state *state,
                                       struct farm_error *err) {
    const struct farm_learner_config *learner = writer->parts->config;
    struct farm_replay_store *store = writer->parts->store;
    char name[NAME_BYTES], stem[NAME_BYTES], manifest[FARM_REPLAY_NAME_BYTES] = "";
    name_of(&writer->copied, name);
    snprintf(stem, sizeof stem, "%.*s", (int)strspn(name, "0123456789"), name);
    enum farm_status status = check_finite(state, writer->parts->net.parameter_count, err);
    if (status) return status;
    if (store) status = farm_replay_write(store, stem, manifest, err);
    if (!status) status = write_file(writer, state, learner->checkpoints.dir, name, manifest, err);
    if (status) return farm_fail_in(err, status, "checkpoint");
    writer->saved_version = state->version;
    writer->saved = true;
    farm_stats_add(&learner->stats->checkpoints, 1);
    farm_store_release(&learner->stats->checkpoint_frames, writer->copied.totals.frames); // the file is there
    if (learner->checkpoints.keep)
        remove_files(learner->checkpoints.dir, is_checkpoint, writer->copied.totals.frames, learner->checkpoints.keep);
    if (store) farm_replay_clean(store, manifest);
    keep_best(writer, state);
    return FARM_OK;
}

// Copies of what training changes.
struct farm_checkpoint_job {
    struct farm_checkpoint_writer writer;
    struct farm_backend_state state;
    enum farm_status status;
    struct farm_error error;
    float vectors[];
};

static void run_job(void *context) {
    struct farm_checkpoint_job *job = context;
    job->status = write_numbered(&job->writer, &job->state, &job->error);
}

static enum farm_status post_job(struct farm_checkpoint_writer *writer, const struct farm_backend_state *state,
                                 struct farm_error *err) {
    const size_t count = writer->parts->net.parameter_count;
    if (!writer->job) writer->job = malloc(sizeof *writer->job + state->vector_count * count * sizeof(float));
    struct farm_checkpoint_job *job = writer->job;
    if (!job) return farm_fail(err, FARM_E_LIMIT, "no memory for a copy of %zu parameters", count);
    job->writer = *writer;
    job->state = *state;
    for (uint32_t v = 0; v < state->vector_count; v++) {
        job->state.vectors[v].values = job->vectors + v * count;
        memcpy(job->state.vectors[v].values, state->vectors[v].values, count * sizeof(float));
    }
    if (writer->lock) pthread_mutex_lock(writer->lock);
    farm_replay_copy(writer->parts->store);
    if (writer->lock) pthread_mutex_unlock(writer->lock);
    writer->posted = true;
    farm_replay_post(writer->parts->store, run_job, job);
    return FARM_OK;
}

// Waits for the job.
static enum farm_status end_job(struct farm_checkpoint_writer *writer, struct farm_error *err) {
    const struct farm_checkpoint_job *job = writer->job;
    while (farm_replay_is_busy(writer->parts->store)) usleep(JOB_LOOK_US);
    writer->posted = false;
    writer->saved_version = job->writer.saved_version;
    writer->saved = job->writer.saved;
    writer->best_return = job->writer.best_return;
    if (job->status) *err = job->error;
    return job->status;
}

// Writes a checkpoint or has it written (posted).
static enum farm_status begin_save(struct farm_checkpoint_writer *writer, struct farm_error *err) {
    if (!writer->parts->config->checkpoints.dir) return FARM_OK;
    const struct farm_backend_state state = writer->parts->ops->state(writer->parts->backend);
    if (state.version >= writer->version) // newer: the failed update was published
        writer->copied = read_moment(writer);
    else if (!worth_saving(writer, &state))
        return FARM_OK;
    return writer->parts->store ? post_job(writer, &state, err) : write_numbered(writer, &state, err);
}

enum farm_status farm_checkpoint_writer_save(struct farm_checkpoint_writer *writer, struct farm_error *err) {
    if (writer->posted) (void)end_job(writer, err); // what follows has all of it
    const enum farm_status status = begin_save(writer, err);
    return writer->posted ? end_job(writer, err) : status;
}

// Writes the file into a new folder in `base`, which only this user may enter. path: of the file.
static enum farm_status save_in(const struct farm_checkpoint_writer *writer, const char *base, char *path, size_t bytes,
                                struct farm_error *err) {
    const struct farm_backend_state state = writer->parts->ops->state(writer->parts->backend);
    char folder[1024], name[NAME_BYTES];
    int fd;
    snprintf(folder, sizeof folder, "%s/farm-checkpoint-XXXXXX", base);
    if (!mkdtemp(folder)) return farm_fail_errno(err, FARM_E_IO, "%s", folder);
    const enum farm_status status = write_file(writer, &state, folder, name_of(&writer->copied, name), "", err);
    if (status) rmdir(folder);
    snprintf(path, bytes, "%s/%s", folder, name);
    if (!status && !farm_file_open_own(path, O_RDONLY, &fd, NULL)) fchmod(fd, 0600), close(fd);
    return status;
}

// In $TMPDIR, then in /tmp, after the run's folder has refused the file with *err.
static enum farm_status save_elsewhere(const struct farm_checkpoint_writer *writer, struct farm_error *err) {
    const char *const base = getenv("TMPDIR"), *const run = writer->parts->config->checkpoints.dir;
    const struct farm_error refused = *err;
    char path[1024 + NAME_BYTES];
    struct farm_error first = {.status = FARM_OK}, again = {.status = FARM_OK};
    enum farm_status status = FARM_E_NOT_FOUND;
    if (base && base[0] == '/') status = save_in(writer, base, path, sizeof path, &first);
    if (status && !(base && strcmp(base, "/tmp") == 0)) status = save_in(writer, "/tmp", path, sizeof path, &again);
    if (status)
        return farm_fail(err, refused.status, "%s; %s%s%s: the newest parameters are lost", refused.message,
                         first.message, first.message[0] && again.message[0] ? "; " : "", again.message);
    return farm_fail(err, refused.status,
                     "%s; saved as %s instead: move that file to %s, and --resume continues from it", refused.message,
                     path, run);
}

enum farm_status farm_checkpoint_writer_end(struct farm_checkpoint_writer *writer, struct farm_error *err) {
    const enum farm_status status = farm_checkpoint_writer_save(writer, err);
    const bool refused = status == FARM_E_IO || status == FARM_E_PERMISSION || status == FARM_E_NOT_FOUND;
    return refused ? save_elsewhere(writer, err) : status;
}

// The next multiple.
static void set_due_frames(struct farm_checkpoint_writer *writer, uint64_t frames) {
    const uint64_t every = writer->parts->config->checkpoints.every_frames;
    writer->due_frames = every ? frames - frames % every + every : 0;
}

// soon: at the first checkpoint of a learner, and after a failure, which may be a full disk.
static void set_due_ns(struct farm_checkpoint_writer *writer, bool soon) {
    const double every_s = writer->parts->config->checkpoints.every_s,
                 soon_s = every_s > 0 ? fmin(every_s, FIRST_CHECKPOINT_S) : FIRST_CHECKPOINT_S;
    writer->due_ns = soon || every_s > 0 ? farm_now_ns() + (uint64_t)((soon ? soon_s : every_s) * 1e9) : 0;
}

bool farm_checkpoint_writer_requested(const struct farm_checkpoint_writer *writer) {
    const struct farm_stats *stats = writer->parts->config->stats;
    return farm_load_relaxed(&stats->checkpoints_wanted) != farm_load_relaxed(&stats->checkpoints_answered);
}

// Whether a file is due or requested; sets when the next one is.
static bool begin_turn(struct farm_checkpoint_writer *writer) {
    const struct farm_stats *stats = writer->parts->config->stats;
    const uint64_t frames = farm_load_relaxed(&stats->frames);
    const bool timed = writer->due_ns && farm_now_ns() >= writer->due_ns,
               counted = writer->due_frames && frames >= writer->due_frames;
    writer->wanted = farm_load_relaxed(&stats->checkpoints_wanted);
    if (timed) set_due_ns(writer, false);
    if (counted) set_due_frames(writer, frames);
    return timed || counted || farm_checkpoint_writer_requested(writer);
}

void farm_checkpoint_writer_turn(struct farm_checkpoint_writer *writer) {
    const struct farm_learner_config *learner = writer->parts->config;
    struct farm_error error = {.status = FARM_OK};
    if (writer->posted ? farm_replay_is_busy(writer->parts->store) : !begin_turn(writer)) return;
    const bool failed = writer->posted ? end_job(writer, &error) : begin_save(writer, &error);
    if (writer->posted) return;
    const bool again = strncmp(error.message, writer->said, sizeof writer->said - 1) == 0;
    if (failed) set_due_ns(writer, true);
    if (failed && !again)
        farm_log_warn("%s: training continues, next attempt in %.0f s", error.message,
                      (double)(writer->due_ns - farm_now_ns()) * 1e-9);
    snprintf(writer->said, sizeof writer->said, "%.255s", failed ? error.message : "");
    if (farm_load_relaxed(&learner->stats->checkpoints_answered) == writer->wanted) return;
    farm_store_relaxed(&learner->stats->checkpoints_answered, writer->wanted);
    char name[NAME_BYTES];
    if (!failed) farm_log_info("SIGUSR1: %s/%s is written", learner->checkpoints.dir, name_of(&writer->copied, name));
}

void farm_checkpoint_writer_copied(struct farm_checkpoint_writer *writer) {
    writer->copied = read_moment(writer);
}

void farm_checkpoint_writer_start(struct farm_checkpoint_writer *writer, const struct farm_learner_parts *parts) {
    const struct farm_learner_config *learner = parts->config;
    *writer =
        (struct farm_checkpoint_writer){.parts = parts, .version = parts->version, .saved_version = parts->version};
    if (learner->checkpoints.every_s > 0) set_due_ns(writer, true);
    writer->copied = read_moment(writer);
    set_due_frames(writer, writer->copied.totals.frames);
    if (!learner->checkpoints.dir) return;
    remove_files(learner->checkpoints.dir, is_half_written, UINT64_MAX, 0);
    writer->best_return = read_best_return(learner->checkpoints.dir);
}
