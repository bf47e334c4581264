// `farm train`: recipe, run folder, progress, metrics, and the report at the end; run/run.h runs the processes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "config/env_name.h"
#include "envs/scores.h"
#include "kernels/optimiser.h"
#include "learner/checkpoint.h"
#include "report/progress.h"
#include "report/sink.h"
#include "run/checkpoints.h"
#include "run/rate.h"
#include "tools/init_from.h"
#include "tools/seeds.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"

enum { EARLY_GAMES = 20, SINKS_MAX = 3 };

struct options {
    struct farm_recipe recipe;
    const char *recipe_file, *run;
    enum farm_cli_switch resuming; // as given; FARM_CLI_WORD: auto
    bool resume;                   // this session continues a run
    bool json, quiet;
    const char *init_from;
    char init[FARM_RUN_PATH_MAX + 64]; // the file that it names; "": none
    struct farm_listen_flags listen;
    const char *seeds;
    int64_t parallel;
};

// The recipe as metadata of every checkpoint, so that a checkpoint alone shows how it was made.
struct metadata {
    char keys[FARM_RECIPE_KEYS_MAX + FARM_RECIPE_OPTIONS_MAX][72];
    char values[FARM_RECIPE_KEYS_MAX + FARM_RECIPE_OPTIONS_MAX][FARM_RECIPE_PATH_BYTES];
    const char *pairs[FARM_RECIPE_KEYS_MAX + FARM_RECIPE_OPTIONS_MAX][2];
};

struct training {
    const struct options *options;
    struct farm_run run;
    struct farm_run_dir folder;
    char checkpoint_folder[FARM_RUN_PATH_MAX + 32], replay_folder[FARM_RUN_PATH_MAX + 32];
    struct metadata metadata;
    struct farm_sink sinks[SINKS_MAX];
    size_t sink_count;
    struct farm_progress progress;
    uint64_t metrics_ns;           // when the next line is due
    struct farm_run_sampler drawn; // for the progress line; the run's own sampler is for the metrics
    double return_early;           // mean return over the first games; NAN until there are enough
    struct farm_sample ended;      // --resume auto found the run at its end; total.frames 0: no
};

#define BEST "checkpoints/" FARM_CHECKPOINT_BEST

// ---- recipe ----

static enum farm_status load_layers(struct options *options, struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 64], best[FARM_RUN_PATH_MAX + 64];
    const char *run = options->run, *base = NULL;
    struct stat info;
    if (options->resuming && !run) return farm_fail(err, FARM_E_USAGE, "--resume needs --run DIR, the run to continue");
    if (options->resuming && strlen(run) <= FARM_RUN_PATH_MAX - 64) { // farm_run_dir_open refuses a longer one
        const bool held = farm_run_dir_checkpoint(run, 0, path, sizeof path) ||
                          access(farm_run_dir_file(run, BEST, best, sizeof best), F_OK) == 0;
        options->resume = options->resuming == FARM_CLI_ON || held;
        farm_run_dir_file(run, "recipe.yaml", path, sizeof path);
        if (!stat(path, &info) && info.st_size) // a crash may leave an empty one
            base = path;
        else if (options->resume && farm_run_find_checkpoint(run, NULL, NULL, path, sizeof path))
            base = path;
        if (options->resume && !base)
            return farm_fail(err, FARM_E_NOT_FOUND,
                             "--resume: %s holds no run (neither recipe.yaml nor a checkpoint that can be read)", run);
        if (base && base[strlen(base) - 1] != 'l')
            farm_log_info("recipe.yaml is missing or empty: the recipe is that of %s", base);
    }
    if (options->init_from && options->resuming == FARM_CLI_ON)
        return farm_fail(
            err, FARM_E_USAGE,
            "--init-from starts a new run, --resume goes on with one: leave one of them out (--resume auto "
            "starts from it, then goes on)");
    const enum farm_status status = farm_recipe_flags_settle(&options->recipe, options->recipe_file, base, err);
    if (status || !options->init_from || options->resume) return status;
    return farm_init_from_find(options->init_from, &options->recipe, options->init, sizeof options->init, err);
}

static enum farm_status save_recipe(const struct training *training, struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 32];
    size_t bytes;
    char *text = farm_recipe_format(&training->run.plan.recipe, &bytes);
    if (!text) return farm_fail(err, FARM_E_LIMIT, "no memory for the recipe");
    farm_run_dir_file(training->folder.path, "recipe.yaml", path, sizeof path);
    enum farm_status status = farm_file_replace_own(path, text, bytes, true, err);
    free(text);
    return status;
}

static void fill_metadata(struct training *training) {
    const struct farm_recipe *recipe = &training->run.plan.recipe;
    struct metadata *metadata = &training->metadata;
    uint32_t count = 0;
    const struct farm_recipe_key *key;
    for (size_t i = 0; (key = farm_recipe_key_at(recipe, i)); i++) {
        if (!farm_recipe_counts(recipe, i)) continue;
        snprintf(metadata->keys[count], sizeof metadata->keys[count], "recipe.%s", key->name);
        farm_recipe_value(recipe, i, metadata->values[count], sizeof metadata->values[count]);
        count++;
    }
    for (size_t i = 0; i < recipe->option_count; i++, count++) {
        snprintf(metadata->keys[count], sizeof metadata->keys[count], "recipe.env.%s", recipe->options[i].key);
        snprintf(metadata->values[count], sizeof metadata->values[count], "%s", recipe->options[i].value);
    }
    for (uint32_t i = 0; i < count; i++) {
        metadata->pairs[i][0] = metadata->keys[i];
        metadata->pairs[i][1] = metadata->values[i];
    }
    training->run.workers.learner.checkpoints.metadata = (const char *const(*)[2])metadata->pairs;
    training->run.workers.learner.checkpoints.metadata_count = count;
}

// ---- run folder ----

// before: what a file without the key was made with.
static enum farm_status check_equal(const struct farm_checkpoint_metadata *metadata, const char *key, const char *now,
                                    const char *before, const char *file, struct farm_error *err) {
    char full[64];
    snprintf(full, sizeof full, "recipe.%s", key);
    const char *held = farm_checkpoint_get(metadata, full), *then = held ? held : before;
    if (strcmp(then, now) == 0) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "--resume: %s was made with %s %s, not %s", file, key, then, now);
}

// Files may be moved, or lie elsewhere on another machine: a file that the user names now replaces the run's. Its
// spaces and the network's tensors show whether it is the same environment.
static enum farm_status check_env(const struct farm_checkpoint_metadata *metadata, const char *now, const char *file,
                                  struct farm_error *err) {
    const char *held = farm_checkpoint_get(metadata, "recipe.env");
    char then[FARM_RECIPE_PATH_BYTES];
    snprintf(then, sizeof then, "%s", held ? held : "");
    farm_env_name_settle(then); // older runs keep the user's spelling
    if (strcmp(then, now) == 0) return FARM_OK;
    if (!farm_env_names_file(then) || !farm_env_names_file(now))
        return check_equal(metadata, "env", now, "(unknown)", file, err);
    farm_log_warn("--resume: %s was made with env %s, and goes on with %s", file, then, now);
    return FARM_OK;
}

// Action-values and a policy's logits may have the same shapes.
static enum farm_status check_head(const struct farm_checkpoint_metadata *metadata, const struct farm_algo *algo,
                                   const char *file, struct farm_error *err) {
    const char *held = farm_checkpoint_get(metadata, "head");
    if (!held || (strstr(held, "_q ") != NULL) == algo->q) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "--resume: %s was made with policy %.100s, which --algo %s does not train",
                     file, held, algo->recipe.name);
}

// The newest readable checkpoint's header names what the run was made with; other values are wrong usage.
static enum farm_status check_settings(const struct training *training, struct farm_error *err) {
    const struct farm_recipe *recipe = &training->run.plan.recipe;
    const struct farm_recipe_key *key;
    struct farm_checkpoint_metadata metadata;
    char path[FARM_RUN_PATH_MAX + 64], now[FARM_RECIPE_PATH_BYTES];
    size_t i = 0;
    do {
        if (!farm_run_dir_checkpoint(training->folder.path, i++, path, sizeof path)) return FARM_OK;
    } while (farm_checkpoint_read_metadata(path, &metadata, err));
    enum farm_status status = check_env(&metadata, recipe->env, path, err);
    for (size_t k = 0; (key = farm_recipe_key_at(recipe, k)) && !status; k++)
        if (key->uses & FARM_USE_NET)
            status = check_equal(&metadata, key->name, farm_recipe_value(recipe, k, now, sizeof now),
                                 key->before ? key->before : key->default_text, path, err);
    if (!status) status = check_head(&metadata, training->run.plan.algo.algo, path, err);
    farm_checkpoint_metadata_free(&metadata);
    // A damaged one is the next search's to skip.
    if (!status && farm_run_read_replay(&training->run.plan, path, false, NULL, err) == FARM_E_USAGE)
        status = FARM_E_USAGE;
    return status;
}

static bool is_env_option(const char *key) {
    return strncmp(key, "recipe.env.", 11) == 0;
}

// Whether the checkpoint's environment, its options, parts and wrappers are this run's.
static bool is_of_env(const struct farm_checkpoint_metadata *metadata, const struct farm_learner_checkpoints *ours) {
    static const char *const keys[] = {"recipe.env", "recipe.obs_keep", "recipe.obs_drop", "recipe.wrap"};
    char then[FARM_RECIPE_PATH_BYTES];
    uint32_t options = 0;
    for (uint32_t i = 0; i < metadata->count; i++) options += is_env_option(metadata->keys[i]);
    for (uint32_t i = 0; i < ours->metadata_count; i++) {
        const char *key = ours->metadata[i][0], *held = farm_checkpoint_get(metadata, key);
        bool counts = is_env_option(key);
        options -= counts;
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) counts |= strcmp(key, keys[k]) == 0;
        snprintf(then, sizeof then, "%s", held ? held : is_env_option(key) ? "" : "none"); // older files lack the lists
        if (strcmp(key, keys[0]) == 0) farm_env_name_settle(then);
        if (counts && strcmp(then, ours->metadata[i][1]) != 0) return false;
    }
    return !options;
}

// The best checkpoint of another environment, or of other options, is not comparable: it gets a name of its own.
static void set_other_best_aside(const struct training *training) {
    char best[FARM_RUN_PATH_MAX + 64], aside[FARM_RUN_PATH_MAX + 64], name[64];
    struct farm_checkpoint_metadata metadata;
    farm_run_dir_file(training->folder.path, BEST, best, sizeof best);
    if (farm_checkpoint_read_metadata(best, &metadata, NULL)) return;
    const bool equal = is_of_env(&metadata, &training->run.workers.learner.checkpoints);
    snprintf(name, sizeof name, "checkpoints/best-%012llu.safetensors",
             (unsigned long long)farm_checkpoint_get_u64(&metadata, "frames"));
    farm_checkpoint_metadata_free(&metadata);
    farm_run_dir_file(training->folder.path, name, aside, sizeof aside);
    if (!equal && rename(best, aside) == 0)
        farm_log_warn("--resume: %s is of another environment or other options: it is now %s", best, aside);
}

// No numbered checkpoint is usable. If the best one is, it can be copied to its number.
static enum farm_status refuse_resume(const struct training *training, struct farm_error *err) {
    const char *run = training->folder.path;
    struct farm_checkpoint_metadata metadata;
    struct farm_error unfit;
    char best[FARM_RUN_PATH_MAX + 64], copy[FARM_RUN_PATH_MAX + 64], number[48];
    char then[480] = "Start in another folder, without --resume";
    farm_run_dir_file(run, BEST, best, sizeof best);
    if (!farm_run_try_checkpoint(&training->run.plan, best, &unfit) &&
        !farm_checkpoint_read_metadata(best, &metadata, &unfit)) {
        snprintf(number, sizeof number, "checkpoints/%012llu.safetensors",
                 (unsigned long long)farm_checkpoint_get_u64(&metadata, "frames"));
        farm_checkpoint_metadata_free(&metadata);
        farm_run_dir_file(run, number, copy, sizeof copy);
        snprintf(then, sizeof then, "To go on from its best one: `cp %.200s %.200s`", farm_format_word(best).text,
                 farm_format_word(copy).text);
    }
    return farm_fail(err, FARM_E_NOT_FOUND,
                     "--resume: %s holds no checkpoint that can be read and fits; it is unchanged. %s", run, then);
}

// A session that the recipe's frames or seconds leave nothing for: wrong usage, unless it was to find that out.
static enum farm_status check_left(struct training *training, const struct farm_checkpoint_metadata *metadata,
                                   struct farm_error *err) {
    const struct farm_run_plan *plan = &training->run.plan;
    const struct farm_totals *before = &training->run.workers.learner.before;
    const bool automatic = training->options->resuming == FARM_CLI_WORD;
    char played[96], seconds[48] = "";
    if (!plan->deterministic) snprintf(seconds, sizeof seconds, ", or --seconds %.0f", ceil(2 * before->wall_s));
    if (plan->recipe.frames && before->frames >= (uint64_t)plan->recipe.frames)
        snprintf(played, sizeof played, "%llu frames, all of --frames %lld", (unsigned long long)before->frames,
                 (long long)plan->recipe.frames);
    else if (plan->recipe.seconds > 0 && before->wall_s >= plan->recipe.seconds)
        snprintf(played, sizeof played, "%.4g s, all of --seconds %.4g", before->wall_s, plan->recipe.seconds);
    else
        return FARM_OK;
    farm_fail(err, FARM_E_USAGE, "--resume%s: %s has played %s. To go on: --frames %s%s", automatic ? " auto" : "",
              training->folder.path, played, farm_format_count(2 * (double)before->frames).text, seconds);
    if (!automatic) return err->status;
    const char *mean = farm_checkpoint_get(metadata, "return_mean");
    training->ended = (struct farm_sample){.total = *before,
                                           .before = *before,
                                           .return_mean = mean ? strtod(mean, NULL) : (double)NAN,
                                           .return_std = (double)NAN,
                                           .eval_return_mean = (double)NAN,
                                           .eval_return_std = (double)NAN};
    return FARM_OK;
}

static const char *end_text(double frames, double seconds, char text[64]) {
    if (frames > 0 && seconds > 0)
        snprintf(text, 64, "--frames %s --seconds %.6g", farm_format_count(frames).text, seconds);
    else if (frames > 0 || seconds > 0)
        snprintf(text, 64, frames > 0 ? "--frames %.15g" : "--seconds %.6g", frames > 0 ? frames : seconds);
    else
        snprintf(text, 64, "open");
    return text;
}

// What another end, or another learning rate, makes of the schedule here. The checkpoint has what it was made with.
static void note_schedule(const struct training *training, const struct farm_checkpoint_metadata *metadata) {
    const struct farm_recipe *recipe = &training->run.plan.recipe;
    const struct farm_totals *before = &training->run.workers.learner.before;
    const double now[] = {(double)recipe->frames, recipe->seconds, recipe->lr, recipe->lr_end, recipe->lr_hold};
    static const char *const keys[] = {"recipe.frames", "recipe.seconds", "recipe.lr", "recipe.lr_end",
                                       "recipe.lr_hold"};
    double then[5], rate[2];
    char ends[2][64];
    for (int i = 0; i < 5; i++) {
        const char *value = farm_checkpoint_get(metadata, keys[i]);
        then[i] = value ? strtod(value, NULL) : now[i];
    }
    for (int i = 0; i < 2; i++) {
        const double *of = i ? now : then;
        rate[i] = farm_learning_rate_linear(
            of[2], of[3], of[4], farm_schedule_share(before->frames, (uint64_t)of[0], before->wall_s, of[1]));
    }
    if (memcmp(now, then, sizeof now) == 0) return;
    farm_log_warn(
        "--resume: the run's end was %s and is %s: its learning rate is %.3g here and becomes %.3g, then %.3g at "
        "the end",
        end_text(then[0], then[1], ends[0]), end_text(now[0], now[1], ends[1]), rate[0], rate[1],
        now[0] > 0 || now[1] > 0 ? now[3] : now[2]);
}

static enum farm_status resume_run(struct training *training, struct farm_error *err) {
    struct farm_run_workers *workers = &training->run.workers;
    enum farm_status status = check_settings(training, err);
    if (status) return status;
    if (!farm_run_find_checkpoint(training->folder.path, &training->run.plan, &training->run.caller,
                                  workers->checkpoint, sizeof workers->checkpoint))
        return refuse_resume(training, err);
    struct farm_checkpoint_metadata metadata;
    status = farm_checkpoint_read_metadata(workers->checkpoint, &metadata, err);
    if (status) return status;
    struct farm_totals *before = &workers->learner.before;
    *before = farm_checkpoint_totals(&metadata);
    if (!(before->wall_s > 0)) { // deterministic runs have no clock in their checkpoints
        char metrics[FARM_RUN_PATH_MAX + 32];
        farm_run_dir_file(training->folder.path, farm_sink_jsonl.name, metrics, sizeof metrics);
        before->wall_s = farm_sink_wall_s(metrics, before->frames);
    }
    status = check_left(training, &metadata, err);
    if (!status && !training->ended.total.frames) note_schedule(training, &metadata);
    farm_checkpoint_metadata_free(&metadata);
    if (status || training->ended.total.frames) return status;
    workers->learner.checkpoints.load = workers->checkpoint;
    farm_log_info("%sgoing on from %s", training->options->resuming == FARM_CLI_WORD ? "--resume auto: " : "",
                  workers->checkpoint);
    return FARM_OK;
}

// The run's folder and checkpoints name the environment for any folder; options->recipe keeps the user's words.
static void keep_lasting_name(struct farm_run_plan *plan) {
    struct farm_error err;
    if (farm_recipe_set(&plan->recipe, FARM_LAYER_FLAG, "env", plan->env.lasting, &err))
        farm_log_warn("farm eval and --resume will find %s from this folder only: %s", plan->recipe.env, err.message);
}

// The numbered checkpoints are farm_run_dir_open's to refuse.
static enum farm_status refuse_other_best(const struct training *training, struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 64];
    farm_run_dir_file(training->folder.path, BEST, path, sizeof path);
    if (access(path, F_OK) != 0) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "%s is of another run: move it, or choose another folder", path);
}

static enum farm_status open_run(struct training *training, struct farm_error *err) {
    const struct options *options = training->options;
    struct farm_run_plan *plan = &training->run.plan;
    struct farm_run_workers *workers = &training->run.workers;
    keep_lasting_name(plan);
    enum farm_status status = options->init[0] ? farm_init_from_check(plan, options->init, err) : FARM_OK;
    if (status) return status;
    workers->learner.checkpoints.init = options->init[0] ? options->init : NULL;
    status = farm_run_dir_open(options->run, plan->env.name, options->resume, &training->folder, err);
    if (!status && options->resume) status = resume_run(training, err);
    if (status || training->ended.total.frames) return status;
    if (!options->resume) status = refuse_other_best(training, err);
    if (!status) status = farm_run_check_room(training->folder.path, plan, workers->learner.before.wall_s, err);
    if (status) return status;
    if (options->resuming && !options->resume)
        farm_log_info("--resume auto: %s holds no checkpoint: the run starts", training->folder.path);
    farm_run_dir_file(training->folder.path, "checkpoints", training->checkpoint_folder,
                      sizeof training->checkpoint_folder);
    workers->run_path = training->folder.path;
    workers->learner.checkpoints.dir = training->checkpoint_folder;
    if (plan->passes.replay && plan->recipe.replay_save)
        workers->learner.checkpoints.replay =
            farm_run_dir_file(training->folder.path, "replay", training->replay_folder, sizeof training->replay_folder);
    workers->learner.checkpoints.replay_rings = plan->actors;
    workers->learner.checkpoints.every_s = plan->recipe.checkpoint_every;
    workers->learner.checkpoints.every_frames = (uint64_t)plan->recipe.eval_every;
    workers->learner.checkpoints.keep = (uint32_t)plan->recipe.checkpoints_keep;
    workers->learner.target.frames = (uint64_t)plan->recipe.frames;
    workers->learner.target.seconds = plan->recipe.seconds;
    return farm_run_evaluation_open(&training->run.evaluation, options->resuming != FARM_CLI_OFF, err);
}

static enum farm_status open_sinks(struct training *training, struct farm_error *err) {
    const struct farm_recipe *recipe = &training->run.plan.recipe;
    const struct farm_sink_format *formats[SINKS_MAX] = {&farm_sink_jsonl, recipe->csv ? &farm_sink_csv : NULL,
                                                         recipe->tensorboard ? &farm_sink_tensorboard : NULL};
    struct farm_run_sampler sampler = training->run.sampler; // a copy, because no interval begins here
    struct farm_sample first;
    farm_run_sample(&sampler, farm_now_ns(), &first);
    for (int i = 0; i < SINKS_MAX; i++) {
        if (!formats[i]) continue;
        enum farm_status status =
            farm_sink_open(formats[i], training->folder.path, training->options->resuming != FARM_CLI_OFF, &first,
                           &training->sinks[training->sink_count], err);
        if (status) return status;
        training->sink_count++;
    }
    return FARM_OK;
}

// The folder becomes this session's. What refuses a run comes before, and leaves its recipe and metrics.
static enum farm_status take_folder(struct training *training, struct farm_error *err) {
    char metrics[FARM_RUN_PATH_MAX + 32];
    enum farm_status status = open_sinks(training, err);
    if (!status) status = save_recipe(training, err);
    if (!status && training->options->resume) set_other_best_aside(training);
    if (status || !training->options->resume || !training->run.plan.deterministic) return status;
    farm_run_dir_file(training->folder.path, farm_sink_jsonl.name, metrics, sizeof metrics);
    farm_sink_cut(metrics, training->run.workers.learner.before.frames); // later lines come again
    return FARM_OK;
}

// ---- while it runs ----

static void clear_line(void *context) {
    struct training *training = context;
    farm_progress_clear(&training->progress);
}

static void write_metrics(struct training *training, const struct farm_sample *sample) {
    struct farm_error note;
    for (size_t i = 0; i < training->sink_count; i++)
        if (farm_sink_write(&training->sinks[i], sample, &note))
            farm_run_warn(&training->run.caller, "%s", note.message);
}

static void sample_metrics(struct training *training, uint64_t now_ns) {
    struct farm_sample sample;
    farm_run_watch_memory(&training->run.watch);
    farm_run_sample(&training->run.sampler, now_ns, &sample);
    write_metrics(training, &sample);
}

static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    struct training *training = context;
    const uint64_t metrics_every_ns = (uint64_t)(training->run.plan.recipe.metrics_every * 1e9);
    if (!training->run.events.start_ns) return FARM_TURN_ON;
    if (!training->metrics_ns) {
        training->metrics_ns = now_ns + metrics_every_ns;
        training->run.sampler.time_ns = training->run.events.start_ns;
        training->drawn = training->run.sampler;
    }
    struct farm_sample sample;
    const uint64_t episodes = farm_load_relaxed(&training->run.rings.stats->episodes);
    if (isnan(training->return_early) && episodes >= EARLY_GAMES) {
        struct farm_run_sampler early = training->drawn; // a copy, because a sample starts the next interval
        farm_run_sample(&early, now_ns, &sample);
        training->return_early = sample.return_mean;
    }
    if (farm_progress_due(&training->progress, now_ns)) {
        farm_run_sample(&training->drawn, now_ns, &sample);
        if (!training->options->quiet) farm_progress_draw(&training->progress, &sample, now_ns);
    }
    if (now_ns >= training->metrics_ns && !training->run.plan.deterministic) {
        sample_metrics(training, now_ns);
        training->metrics_ns = now_ns + metrics_every_ns;
    }
    return FARM_TURN_ON;
}

static void on_update(void *context) {
    sample_metrics(context, farm_now_ns());
}

// ---- the report ----

// Replaces the rates since the previous sample by means over this session.
static void average_over_run(const struct training *training, struct farm_sample *sample) {
    const struct farm_totals session = farm_sample_session(sample);
    const double wall_s = session.wall_s > 0 ? session.wall_s : (double)INFINITY;
    sample->frames_per_s = (double)session.frames / wall_s;
    sample->agent_steps_per_s = (double)session.agent_steps / wall_s;
}

// The same for nodes connected at the end, since each joined. Overwrites the sessions' list, which is not read again.
static void average_over_sessions(struct training *training) {
    struct farm_run_sessions *sessions = &training->run.sessions;
    for (uint32_t i = 0; i < sessions->node_count; i++) {
        struct farm_sample_node *node = &sessions->nodes[i];
        const double present_s = node->present_s > 0 ? node->present_s : (double)INFINITY;
        node->env_steps_per_s = (double)node->env_steps / present_s;
        node->bytes_in_per_s = (double)node->bytes_in / present_s;
        node->bytes_out_per_s = (double)node->bytes_out / present_s;
    }
}

// The run's usable checkpoints at its end, also those before a resume.
struct saved {
    char newest[FARM_RUN_PATH_MAX + 64], best[FARM_RUN_PATH_MAX + 64]; // "": none
    double best_return;                                                // NAN: none
    uint64_t best_frames;
};

static struct saved find_saved(const struct training *training) {
    struct saved saved = {.best_return = (double)NAN};
    struct farm_checkpoint_metadata metadata;
    if (!farm_run_find_checkpoint(training->folder.path, NULL, NULL, saved.newest, sizeof saved.newest))
        saved.newest[0] = 0;
    farm_run_dir_file(training->folder.path, BEST, saved.best, sizeof saved.best);
    if (farm_checkpoint_read_metadata(saved.best, &metadata, NULL)) {
        saved.best[0] = 0;
        return saved;
    }
    const char *value = farm_checkpoint_get(&metadata, "return_mean");
    saved.best_return = value ? strtod(value, NULL) : (double)NAN;
    saved.best_frames = farm_checkpoint_get_u64(&metadata, "frames");
    farm_checkpoint_metadata_free(&metadata);
    return saved;
}

// The i-th file that grows by records, and its name without the session; NULL after the last.
static const struct farm_appended *appended_at(const struct training *training, size_t i, const char **name) {
    const struct farm_appended *evals = &training->run.evaluation.lines;
    *name = i < training->sink_count ? training->sinks[i].format->name : "evals.jsonl";
    if (i < training->sink_count) return &training->sinks[i].file;
    return i == training->sink_count && evals->fd >= 0 ? evals : NULL;
}

static json_t *missing_json(const struct training *training) {
    const struct farm_appended *file;
    const char *name;
    json_t *missing = farm_json_object(false);
    for (size_t i = 0; (file = appended_at(training, i, &name)); i++) farm_json_set_int(missing, name, file->missing);
    return missing;
}

static void print_missing(const struct training *training) {
    const struct farm_appended *file;
    const char *name;
    for (size_t i = 0; (file = appended_at(training, i, &name)); i++)
        if (file->missing)
            printf("%s lacks %llu of %llu records of this session: it could not be written (%s).\n", name,
                   (unsigned long long)file->missing, (unsigned long long)(file->missing + file->written),
                   strerror(file->why));
}

// failure: why the run failed; NULL: it did not.
static json_t *result_json(const struct training *training, const struct farm_sample *sample, bool interrupted,
                           const char *failure) {
    static const char *const rates[] =
        {"wall_s",     "frames",  "agent_steps", "frames_per_s",     "agent_steps_per_s", "episodes",    "return_mean",
         "return_std", "updates", "actors",      "eval_return_mean", "eval_return_std",   "eval_frames", NULL},
                             *const resumed[] = {"resumed_wall_s",   "resumed_frames",  "resumed_agent_steps",
                                                 "resumed_episodes", "resumed_updates", NULL},
                             *const events[] = {"actor_restarts", "learner_restarts", "checkpoints", "bad_values",
                                                "rejected_steps", "actors_hung",      NULL};
    const struct farm_run_plan *plan = &training->run.plan;
    json_t *document = farm_json_object(true), *figures = farm_sample_json(sample);
    farm_json_set_text(document, "env", training->options->recipe.env);
    farm_json_set_int(document, "seed", (uint64_t)plan->recipe.seed);
    farm_json_set_text(document, "net", plan->recipe.net);
    farm_json_copy(document, figures, rates);
    farm_score_set_json(&plan->env, sample->return_mean, document);
    if (sample->before.frames) farm_json_copy(document, figures, resumed);
    farm_json_set_int(document, "environments", (uint64_t)sample->actors * plan->lanes * plan->width);
    farm_json_copy(document, figures, events);
    if (sample->listens) farm_json_copy(document, figures, (const char *const[]){"nodes", NULL});
    farm_json_set_bool(document, "interrupted", interrupted);
    farm_json_set_text(document, "run_dir", training->folder.path);
    const struct saved saved = find_saved(training);
    farm_json_set_text(document, "checkpoint", saved.newest[0] ? saved.newest : NULL);
    farm_json_set_text(document, "best_checkpoint", saved.best[0] ? saved.best : NULL);
    farm_json_set_real(document, "best_return_mean", saved.best_return);
    farm_json_set(document, "records_missing", missing_json(training));
    farm_json_set_text(document, "error", failure);
    json_decref(figures);
    return document;
}

static void print_saved(const struct training *training, const struct saved *saved) {
    const char *run = training->folder.path;
    if (!saved->newest[0]) printf("Recipe and metrics are in %s. There is no checkpoint.\n", run);
    if (saved->newest[0]) printf("Recipe and metrics are in %s, the newest checkpoint is %s\n", run, saved->newest);
    if (saved->best[0])
        printf("The best checkpoint is %s (mean return %s at %s frames; farm eval --best)\n", saved->best,
               farm_format_figure(saved->best_return).text, farm_format_count((double)saved->best_frames).text);
}

// Without a checkpoint there is nothing to play or to resume. An interrupted run goes on to its own end.
static void print_next_steps(const struct training *training, const struct saved *saved,
                             const struct farm_sample *sample, bool interrupted) {
    const char *run = training->folder.path, *env = training->options->recipe.env;
    const struct farm_word_text word = farm_format_word(run);
    printf("\nWhat to try next:\n");
    if (saved->newest[0]) {
        printf("  farm eval %s --episodes 20      plays it without learning\n", word.text);
        if (interrupted)
            printf("  farm train --run %s --resume      continues this run\n", word.text);
        else if (training->run.plan.recipe.seconds > 0)
            printf("  farm train --run %s --resume --seconds %.0f      continues this run\n", word.text,
                   ceil(2 * sample->total.wall_s));
        else
            printf("  farm train --run %s --resume --frames %llu      continues this run\n", word.text,
                   2 * (unsigned long long)sample->total.frames);
    }
    printf("  farm train --env %s      %s\n", strncmp(env, "ale/", 4) == 0 ? "ale/Breakout" : "ale/Pong",
           "a real Atari game");
}

static void warn_without_update(const struct training *training, const struct farm_sample *sample) {
    const struct farm_recipe *recipe = &training->run.plan.recipe;
    const struct farm_totals session = farm_sample_session(sample);
    if (session.updates || !session.agent_steps) return;
    const unsigned long long steps = session.agent_steps;
    if (training->run.plan.passes.sync)
        farm_log_warn("no update: an iteration, one window of %lld steps of every environment, was not complete after "
                      "%llu steps of all: nothing was learned. Run longer, or lower --unroll or --envs-per-actor",
                      (long long)recipe->unroll, steps);
    else if (training->run.plan.passes.replay)
        farm_log_warn(
            "no update: training begins after --replay-start %lld steps of all environments, and this run had "
            "%llu: nothing was learned. Run longer, or lower --replay-start",
            (long long)recipe->replay_start, steps);
    else
        farm_log_warn(
            "no update: --batch %lld windows of %lld steps never came together in %llu steps of all environments: "
            "nothing was learned. Run longer, or lower --batch or --unroll",
            (long long)recipe->batch, (long long)recipe->unroll, steps);
}

static void print_totals(const struct farm_totals *totals) {
    printf("%s frames in %s, %s games, %s updates", farm_format_count((double)totals->frames).text,
           farm_format_duration(totals->wall_s).text, farm_format_count((double)totals->episodes).text,
           farm_format_count((double)totals->updates).text);
}

static void print_summary(const struct training *training, const struct farm_sample *sample, bool interrupted,
                          bool failed) {
    char causes[768];
    farm_run_change_causes(&training->run.change, causes, sizeof causes);
    const struct farm_totals session = farm_sample_session(sample);
    printf("\n%s: ", training->options->recipe.env);
    print_totals(&sample->total);
    if (sample->before.frames) {
        printf("; since --resume ");
        print_totals(&session);
    }
    printf(" (%s frames/s)%s.\n", farm_format_count(sample->frames_per_s).text,
           failed        ? "; then it failed"
           : interrupted ? "; stopped by a signal"
                         : "");
    const struct farm_score_text score = farm_score_format(&training->run.plan.env, sample->return_mean);
    if (!isnan(sample->return_mean) && !isnan(training->return_early)) {
        printf("Mean return of the last 100 games: %s%s; of the first ones: %s.\n",
               farm_format_figure(sample->return_mean).text, score.text,
               farm_format_figure(training->return_early).text);
    } else if (!isnan(sample->return_mean)) {
        printf("Mean return of the last games: %s%s.\n", farm_format_figure(sample->return_mean).text, score.text);
    } else {
        printf("No game has ended yet.\n");
    }
    if (sample->eval_frames)
        printf("The last evaluation: mean return %s at %s frames (evals.jsonl has all).\n",
               farm_format_figure(sample->eval_return_mean).text, farm_format_count((double)sample->eval_frames).text);
    if (sample->actor_restarts)
        printf("Deaths of actors: %s. Actors started again: %llu.\n", causes,
               (unsigned long long)sample->actor_restarts);
    if (sample->actors_hung)
        printf("Actors whose environment hung: %llu (named above).\n", (unsigned long long)sample->actors_hung);
    farm_progress_print_rejected(sample->rejected_steps,
                                 sample->rejected_steps + farm_sample_session(sample).agent_steps, "steps");
    if (sample->listens)
        printf("Remote nodes at the end: %u, %u of them away.\n", sample->node_count, sample->nodes_away);
    print_missing(training);
    const struct saved saved = find_saved(training);
    print_saved(training, &saved);
    if (!failed) print_next_steps(training, &saved, sample, interrupted);
}

static enum farm_status report_result(struct training *training, bool interrupted, const char *failure,
                                      struct farm_error *err) {
    struct farm_sample sample;
    uint64_t now = farm_now_ns();
    farm_run_sample(&training->run.sampler, now, &sample);
    if (!training->options->quiet && training->run.events.start_ns)
        farm_progress_draw(&training->progress, &sample, now);
    farm_progress_end(&training->progress);
    if (!training->run.plan.deterministic && farm_sample_session(&sample).agent_steps) // it has its last update's line
        write_metrics(training, &sample);
    average_over_run(training, &sample);
    average_over_sessions(training);
    if (!failure) warn_without_update(training, &sample);
    if (!training->options->json) {
        print_summary(training, &sample, interrupted, failure != NULL);
        return FARM_OK;
    }
    json_t *document = result_json(training, &sample, interrupted, failure);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

// --resume auto of a run at its end, as of a job that is started again: success, with a line.
static enum farm_status report_ended(const struct training *training, struct farm_error *err) {
    const struct saved saved = find_saved(training);
    if (!training->options->json) {
        printf("%s\n", err->message);
        print_saved(training, &saved);
        return FARM_OK;
    }
    json_t *document = result_json(training, &training->ended, false, NULL);
    const enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static enum farm_status run_training(struct training *training, struct farm_error *err) {
    struct farm_run *run = &training->run;
    const struct options *options = training->options;
    const struct farm_run_request request = {
        .recipe = &options->recipe, .elastic = true, .quiet = options->quiet, .listen = options->listen.request};
    enum farm_status status = farm_run_make(run, &request, err);
    if (!status) status = open_run(training, err);
    if (status) return status;
    if (training->ended.total.frames) return report_ended(training, err);
    fill_metadata(training);
    if ((status = farm_run_build(run, err)) || (status = take_folder(training, err))) return status;
    run->caller = (struct farm_run_caller){
        .context = training, .clear_line = clear_line, .on_tick = on_tick, .on_update = on_update};
    bool interrupted;
    struct farm_error report_error;
    status = farm_run_execute(run, &interrupted, err);
    const enum farm_status reported = report_result(training, interrupted, status ? err->message : NULL, &report_error);
    if (!status && reported) *err = report_error;
    return status ? status : reported;
}

static int run_command(const struct options *options) {
    static struct training training;
    struct farm_error err = {0};
    training.options = options;
    training.folder.lock_fd = -1;
    training.return_early = (double)NAN;
    farm_progress_start(&training.progress, STDERR_FILENO, farm_now_ns());
    const int exit_status = run_training(&training, &err) ? farm_report_error("farm train", &err) : 0;
    for (size_t i = 0; i < training.sink_count; i++) farm_sink_close(&training.sinks[i]);
    farm_run_dir_close(&training.folder);
    farm_run_free(&training.run);
    return exit_status;
}

static enum farm_status check_seeds(const struct options *options, struct farm_error *err) {
    if (!options->seeds && options->parallel != 1)
        return farm_fail(err, FARM_E_USAGE, "--parallel goes with --seeds LIST");
    if (options->seeds &&
        (options->listen.request.address || farm_recipe_set_by(&options->recipe, "seed", FARM_LAYER_FLAG)))
        return farm_fail(err, FARM_E_USAGE, "--seeds goes neither with --seed nor with --listen");
    if (options->seeds && options->resuming && !options->run)
        return farm_fail(err, FARM_E_USAGE, "--resume needs --run DIR, whose seeds shall go on");
    return FARM_OK;
}

int farm_cmd_train(int argc, char **argv) {
    static struct options options = {.parallel = 1}; // has a recipe: too large for a small stack
    const struct farm_cli_flag flags[] = {
        {"recipe", FARM_CLI_STRING, &options.recipe_file, "FILE",
         "recipe (YAML) over the one shipped for the environment (--base none: over nothing)"},
        {"run", FARM_CLI_STRING, &options.run, "DIR", "the run's folder (default: runs/<env>-<date>-<n>)"},
        {"resume", FARM_CLI_SWITCH, &options.resuming, "auto",
         "continues from the last checkpoint of --run DIR, with its recipe; auto: starts the run if there is none, and "
         "ends at once if it has played all"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress and no plan on stderr"},
        {"init-from", FARM_CLI_STRING, &options.init_from, "RUN|FILE",
         "a new run begins with the parameters of a trained one (its best checkpoint, else the newest) or of a "
         "safetensors file, by name and shape; optimiser, schedules and counters begin afresh"},
        {"seeds", FARM_CLI_STRING, &options.seeds, "LIST",
         "trains each of these seeds, 1,2,3 or 1-3, in DIR/seed-N, one after another; one table at the end"},
        {"parallel", FARM_CLI_INT, &options.parallel, "N", "seeds side by side, on equal parts of the CPUs [1]"},
        FARM_LISTEN_FLAGS(options.listen),
    };
    const struct farm_cli cli = {
        .program = "farm train",
        .synopsis = "[--env E] [--frames N] [--seconds S] [--recipe FILE] [--run DIR [--resume [auto]]] [--json] "
                    "[--KEY VALUE ...]\n"
                    "       farm train ... --seeds 1,2,3 [--parallel N]\n"
                    "       farm train ... --listen ADDR:PORT --key FILE [--actors 0] [--expect-actors N]",
        .about =
            "Trains an agent: actor processes step environments, the learner answers and trains from\n"
            "the same shared memory. Ctrl-C stops it at any moment: a checkpoint is written and the exit status is 0.\n"
            "SIGUSR1 (kill -USR1, to this process) writes a checkpoint, and the run goes on; SIGUSR2 has no effect.\n"
            "`farm actors RUN +N` adds actors while it runs, `farm actors RUN -N` removes some.\n"
            "With --listen, actors of other machines join by `farm bridge --connect` while it runs. --actors 0 then\n"
            "means no actor on this machine: training waits for the first node. A node that is away for\n"
            "node_grace_s loses its places.\n"
            "All rates and wall_s count from the first answered step to the decision to stop; they exclude\n"
            "start-up and the last checkpoint. After --resume totals go on; rates are of the new session.\n"
            "docs/METRICS.md has the meaning of every figure.\n"
            "The later wins: defaults, the shipped recipe, --recipe, flags.",
        .examples =
            "  farm train                                    a small Breakout, for a minute\n"
            "  farm train --env native/catch --frames 500k --seed 3 --json\n"
            "  farm train --env ale/Pong --seconds 600 --lr 4e-4\n"
            "  farm train --env native/catch --seeds 1-5 --parallel 2\n"
            "  farm train --csv                              writes metrics.csv beside metrics.jsonl\n"
            "  farm train --env ale/Pong --eval-every 1M       also plays checkpoints: evals.jsonl\n"
            "  farm train --run runs/ale_Pong-20260101-1 --resume\n"
            "  farm train --env ale/Pong --run runs/job --resume auto      the same command starts and continues\n"
            "  farm train --env ale/Breakout --init-from runs/ale_Pong-20260101-1\n"
            "  farm train --env ale/Pong --run r --listen 0.0.0.0:7000 --key farm.key --expect-actors 64\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    int exit_status;
    if (!farm_read_recipe_flags(&cli, FARM_USE_TRAIN, argc, argv, NULL, &options.recipe, &exit_status))
        return exit_status;
    enum farm_status status = farm_listen_flags_settle(&options.listen, &err);
    if (!status) status = check_seeds(&options, &err);
    if (!status && !(options.seeds && options.resuming)) status = load_layers(&options, &err);
    const struct farm_seeds_request seeds = {.list = options.seeds,
                                             .env = options.recipe.env,
                                             .run = options.run,
                                             .parallel = options.parallel,
                                             .json = options.json,
                                             .argc = argc,
                                             .argv = argv};
    if (options.quiet) farm_log_set_level(FARM_LOG_WARN);
    if (!status && options.seeds) return farm_train_seeds(&seeds);
    if (!status) status = farm_run_choose_inference(&options.recipe, options.listen.request.address != NULL, &err);
    return status ? farm_report_error(cli.program, &err) : run_command(&options);
}
