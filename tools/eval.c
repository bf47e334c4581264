// `farm eval`: plays a trained policy with the same actors, lanes and inference as in training, but no learning. The
// checkpoint names environment, options and network. Games are played to their end: a lost life does not end them.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "envs/scores.h"
#include "learner/checkpoint.h"
#include "report/progress.h"
#include "run/checkpoints.h"
#include "run/run.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"
#include "tools/shared/video.h"

enum { PRUNED_TRIES = 10 };

struct options {
    struct farm_recipe recipe;
    int64_t episodes;
    bool best, greedy, json, quiet;
    const char *what;                // run folder or checkpoint
    struct farm_video_options video; // path NULL: no film
};

struct evaluation {
    const struct options *options;
    struct farm_run run;
    struct farm_progress progress;
    char checkpoint[FARM_RUN_PATH_MAX + 64];
    int held; // the open checkpoint; -1: none
    char held_path[48];
    uint64_t trained_frames;
    struct farm_video video; // while it is filmed
    json_t *film;            // its result
    bool film_failed;
};

// ---- the checkpoint ----

static enum farm_status find_checkpoint(const struct options *options, char *path, size_t path_bytes,
                                        struct farm_error *err) {
    const enum farm_status status = farm_run_choose_checkpoint(options->what, options->best, path, path_bytes, err);
    const bool found = !status && strstr(path, "/" FARM_CHECKPOINT_BEST);
    if (!options->best || found || access(options->what, F_OK)) return status;
    if (!status && strcmp(path, options->what) == 0)
        return farm_fail(err, FARM_E_USAGE, "--best chooses a checkpoint of a run's folder, but %s is a file", path);
    return farm_fail(err, FARM_E_NOT_FOUND,
                     "--best: %s has none that can be read: one is written after %d games of one run", options->what,
                     FARM_STATS_RETURNS);
}

static enum farm_status apply_metadata(const struct farm_checkpoint_metadata *metadata, int fd, const char *path,
                                       struct farm_recipe *recipe, struct farm_error *err) {
    const unsigned uses = FARM_USE_POLICY | FARM_USE_NET; // other keys are chosen for this machine
    enum farm_status status = farm_recipe_flags_metadata(recipe, FARM_LAYER_FILE, uses, metadata, fd, path, err);
    if (status) return status;
    struct farm_error ignored;
    const char *life = farm_env_life_option(recipe->env);
    char option[64];
    snprintf(option, sizeof option, "env.%s", life ? life : "");
    return life ? farm_recipe_set(recipe, FARM_LAYER_FILE, option, "false", &ignored) : FARM_OK;
}

static enum farm_status read_checkpoint(struct evaluation *evaluation, struct farm_recipe *recipe,
                                        struct farm_error *err) {
    struct farm_checkpoint_metadata metadata;
    enum farm_status status;
    for (int tries = 0; tries < PRUNED_TRIES; tries++) { // a training beside it removes old ones
        if (evaluation->held >= 0) close(evaluation->held);
        status = find_checkpoint(evaluation->options, evaluation->checkpoint, sizeof evaluation->checkpoint, err);
        if (status) return status;
        evaluation->held = open(evaluation->checkpoint, O_RDONLY | O_CLOEXEC);
        status = farm_checkpoint_read_metadata(evaluation->checkpoint, &metadata, err);
        if (status != FARM_E_NOT_FOUND) break;
    }
    if (status) return status;
    snprintf(evaluation->held_path, sizeof evaluation->held_path, "/proc/%ld/fd/%d", (long)getpid(), evaluation->held);
    farm_checkpoint_metadata_free(&metadata);
    status = farm_checkpoint_read_metadata(evaluation->held_path, &metadata, err); // its name may be another's by now
    if (status) return status;
    status = apply_metadata(&metadata, evaluation->held, evaluation->checkpoint, recipe, err);
    evaluation->trained_frames = farm_checkpoint_get_u64(&metadata, "frames");
    farm_checkpoint_metadata_free(&metadata);
    recipe->frames = 0;
    return status ? status : farm_recipe_settle(recipe, err);
}

// ---- while it plays ----

static void clear_line(void *context) {
    struct evaluation *evaluation = context;
    farm_progress_clear(&evaluation->progress);
}

static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    struct evaluation *evaluation = context;
    if (evaluation->video.pipe >= 0 && farm_video_ended(&evaluation->video)) return FARM_TURN_STOP;
    if (evaluation->options->quiet || !farm_progress_due(&evaluation->progress, now_ns)) return FARM_TURN_ON;
    struct farm_sample sample;
    farm_run_sample(&evaluation->run.sampler, now_ns, &sample);
    if (sample.total.wall_s > 0) farm_progress_draw(&evaluation->progress, &sample, now_ns);
    return FARM_TURN_ON;
}

// ---- the report ----

static void print_film(const struct evaluation *evaluation, bool interrupted) {
    const json_t *film = evaluation->film, *mean = json_object_get(film, "return_mean");
    const long long games = json_integer_value(json_object_get(film, "games"));
    if (!film) return;
    printf("video: %s, %lld frames, %s s, ", evaluation->options->video.path,
           (long long)json_integer_value(json_object_get(film, "frames")),
           farm_format_figure(json_real_value(json_object_get(film, "seconds"))).text);
    if (games) printf("%lld whole game%s", games, games == 1 ? "" : "s");
    if (games && json_is_real(mean)) printf(" of return %s", farm_format_figure(json_real_value(mean)).text);
    if (games < evaluation->options->video.games)
        printf("%scut %s", games ? ", then " : "", interrupted ? "by a signal" : "(--video-seconds)");
    printf(".\n");
}

static enum farm_status report_result(struct evaluation *evaluation, bool interrupted, struct farm_error *err) {
    const struct options *options = evaluation->options;
    const struct farm_recipe *recipe = &evaluation->run.plan.recipe;
    struct farm_sample sample;
    farm_run_sample(&evaluation->run.sampler, farm_now_ns(), &sample);
    farm_progress_end(&evaluation->progress);
    if (!options->json) print_film(evaluation, interrupted);
    if (!options->json)
        farm_progress_print_rejected(sample.rejected_steps, sample.rejected_steps + sample.total.agent_steps, "steps");
    if (!options->json && !sample.total.episodes) {
        printf("%s: no game has ended.\n", recipe->env);
        return FARM_OK;
    }
    if (!options->json) {
        printf("%s, %llu game%s%s: mean return %s, standard deviation %s%s (%s).\n", recipe->env,
               (unsigned long long)sample.total.episodes, sample.total.episodes == 1 ? "" : "s",
               interrupted ? " until a signal" : "", farm_format_figure(sample.return_mean).text,
               farm_format_figure(sample.return_std).text,
               farm_score_format(&evaluation->run.plan.env, sample.return_mean).text, evaluation->checkpoint);
        return FARM_OK;
    }
    static const char *const keys[] = {"episodes",          "return_mean",    "return_std",
                                       "length_mean_steps", "agent_steps",    "wall_s",
                                       "bad_values",        "rejected_steps", NULL};
    json_t *document = farm_json_object(true), *figures = farm_sample_json(&sample);
    farm_json_set_text(document, "env", recipe->env);
    farm_json_set_text(document, "checkpoint", evaluation->checkpoint);
    farm_json_set_int(document, "checkpoint_frames", evaluation->trained_frames);
    farm_json_set_int(document, "seed", (uint64_t)recipe->seed);
    farm_json_set_bool(document, "greedy", options->greedy);
    farm_json_copy(document, figures, keys);
    farm_score_set_json(&evaluation->run.plan.env, sample.return_mean, document);
    farm_json_set_bool(document, "interrupted", interrupted);
    if (options->video.path)
        farm_json_set(document, "video", evaluation->film ? json_incref(evaluation->film) : json_null());
    json_decref(figures);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static void free_run(struct evaluation *evaluation) {
    farm_run_free(&evaluation->run);
    memset(&evaluation->run, 0, sizeof evaluation->run);
}

// Plays so many games; evaluation->run keeps their figures until free_run.
static enum farm_status play(struct evaluation *evaluation, const struct farm_recipe *recipe, int64_t episodes,
                             bool *interrupted, struct farm_error *err) {
    struct farm_run *run = &evaluation->run;
    const struct farm_run_request request = {
        .recipe = recipe, .play = {(uint64_t)episodes, evaluation->options->greedy}, .quiet = true};
    enum farm_status status = farm_run_make(run, &request, err);
    if (status) return status;
    run->workers.learner.checkpoints.load = evaluation->checkpoint;
    run->workers.learner.checkpoints.held = evaluation->held_path;
    run->workers.video = evaluation->video.pipe;
    if ((status = farm_run_build(run, err))) return status;
    run->caller = (struct farm_run_caller){.context = evaluation, .clear_line = clear_line, .on_tick = on_tick};
    return farm_run_execute(run, interrupted, err);
}

// Mean return of the film's games, the first of its run (more may be played while it is encoded); NAN: unknown.
static double mean_of_film(const struct farm_stats *stats, uint64_t games) {
    const uint64_t played = farm_load_relaxed(&stats->games);
    double sum = 0;
    if (games == played && games) return farm_stats_get(&stats->return_mean);
    if (!games || games > played || played > FARM_STATS_RETURNS || farm_load_relaxed(&stats->bad_values))
        return (double)NAN;
    for (uint64_t i = 0; i < games; i++) sum += farm_stats_get(&stats->returns[i]);
    return sum / (double)games;
}

// A film has a run of its own, before the evaluation, in which one environment plays: no other run does any work for
// it, and its games are whole. mujoco/* has no pictures, but Gymnasium's same task draws.
static enum farm_status record_film(struct evaluation *evaluation, const struct farm_recipe *given, bool *interrupted,
                                    struct farm_error *err) {
    static const char mujoco[] = "mujoco/";
    const struct options *options = evaluation->options;
    struct farm_recipe recipe = *given;
    struct farm_error of_film;
    char name[sizeof recipe.env];
    recipe.actors = recipe.lanes = recipe.envs_per_actor = 1;
    enum farm_status status = FARM_OK;
    const bool draws_by_gl = strncmp(recipe.env, mujoco, strlen(mujoco)) == 0;
    if (draws_by_gl) {
        snprintf(name, sizeof name, "gym/%.*s", (int)sizeof name - 5, recipe.env + strlen(mujoco));
        farm_log_info("filming %s: it is the same task, and can draw", name);
        status = farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env", name, err);
    }
    if (!status) status = farm_video_start(&options->video, &evaluation->video, err);
    if (status) return status;
    status = play(evaluation, &recipe, options->video.games, interrupted, err);
    if (status && draws_by_gl)
        farm_fail_in(err, status,
                     "no film: it needs OpenGL by MUJOCO_GL=egl (Debian: libegl1 libgl1-mesa-dri) or osmesa "
                     "(libosmesa6)");
    farm_progress_clear(&evaluation->progress);
    const enum farm_status encoded = farm_video_finish(&evaluation->video, &evaluation->film, &of_film);
    if (evaluation->film) {
        const json_int_t games = json_integer_value(json_object_get(evaluation->film, "games"));
        const double mean = status ? (double)NAN : mean_of_film(evaluation->run.rings.stats, (uint64_t)games);
        farm_json_set_real(evaluation->film, "return_mean", mean);
    }
    if (!status && encoded == FARM_E_INTERRUPTED) *interrupted = true;
    if (!*interrupted) free_run(evaluation);
    if (!status && encoded && !*interrupted) {
        *err = of_film;
        status = encoded;
    }
    return status;
}

static enum farm_status run_evaluation(struct evaluation *evaluation, struct farm_error *err) {
    const struct options *options = evaluation->options;
    struct farm_recipe recipe = options->recipe;
    bool interrupted = false;
    enum farm_status status = read_checkpoint(evaluation, &recipe, err);
    if (!status && options->video.path && record_film(evaluation, &recipe, &interrupted, err)) {
        evaluation->film_failed = true;
        (void)farm_report_error("farm eval", err);
    }
    if (!status && !interrupted) status = play(evaluation, &recipe, options->episodes, &interrupted, err);
    return status ? status : report_result(evaluation, interrupted, err);
}

static int run_command(const struct options *options) {
    static struct evaluation evaluation;
    struct farm_error err = {0};
    evaluation.options = options;
    evaluation.video.pipe = evaluation.held = -1;
    if (options->quiet) farm_log_set_level(FARM_LOG_WARN);
    farm_progress_start(&evaluation.progress, STDERR_FILENO, farm_now_ns());
    enum farm_status status = run_evaluation(&evaluation, &err);
    farm_progress_end(&evaluation.progress);
    const int exit_status = status ? farm_report_error("farm eval", &err) : evaluation.film_failed;
    json_decref(evaluation.film);
    if (evaluation.held >= 0) close(evaluation.held);
    farm_run_free(&evaluation.run);
    return exit_status;
}

int farm_cmd_eval(int argc, char **argv) {
    static struct options options = {
        .episodes = 20, .video = {.games = 1, .seconds = 300}}; // has a recipe: too large for a small stack
    const struct farm_cli_flag flags[] = {
        {"episodes", FARM_CLI_INT, &options.episodes, "N", "whole games to play (20)"},
        {"best", FARM_CLI_BOOL, &options.best, NULL,
         "RUN's best checkpoint, by mean return while it trained, instead of the newest"},
        {"greedy", FARM_CLI_BOOL, &options.greedy, NULL,
         "the most probable action, or that of the highest value, instead of a random one"},
        {"video", FARM_CLI_STRING, &options.video.path, "FILE",
         "also films a game as a player sees it: .mp4 (H.264) or .gif (20 frames/s at most)"},
        {"video-episodes", FARM_CLI_INT, &options.video.games, "N", "whole games in the film (1)"},
        {"video-seconds", FARM_CLI_DOUBLE, &options.video.seconds, "S", "cuts the film after S seconds (300)"},
        {"video-fps", FARM_CLI_INT, &options.video.rate_hz, "HZ",
         "speed of the film (0: 60 for ale/*, render_fps for gym/*, 15 for others)"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress on stderr"},
    };
    const struct farm_cli cli = {
        .program = "farm eval",
        .synopsis = "RUN_OR_CHECKPOINT [--best] [--episodes N] [--greedy] [--video FILE] [--json] [--KEY VALUE ...]",
        .about =
            "Plays a trained policy without learning and prints its mean return, unclipped, over whole games. RUN is\n"
            "a run's folder (its newest checkpoint plays; --best: its best), CHECKPOINT a safetensors file that farm "
            "train wrote.\n"
            "Environment, options and network come from the checkpoint; --env and --env.OPTION override the first "
            "two.\n"
            "If others can change the file or its folder, what loads code (plugin:, libenv:, gym/PACKAGE:ID, wrap) "
            "must\n"
            "be named by such a flag.",
        .examples = "  farm eval runs/native_breakout-20260101-1\n"
                    "  farm eval runs/ale_Pong-20260101-1 --episodes 100 --env.repeat_action_probability 0.25 --json\n"
                    "  farm eval runs/ale_Pong-20260101-1 --video pong.mp4\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    int exit_status;
    if (!farm_read_recipe_flags(&cli, FARM_USE_EVAL, argc, argv, &options.what, &options.recipe, &exit_status))
        return exit_status;
    enum farm_status status = FARM_OK;
    if (!options.what) status = farm_fail(&err, FARM_E_USAGE, "which run? (farm eval --help shows the usage)");
    if (!status && (options.episodes < 1 || options.episodes > 1000000))
        status = farm_fail(&err, FARM_E_USAGE, "--episodes: between 1 and 1000000");
    if (!status && options.video.path) status = farm_video_check(&options.video, &err);
    return status ? farm_report_error(cli.program, &err) : run_command(&options);
}
