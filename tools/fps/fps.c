// `farm fps`: how fast the environments run in the farm, against the bare simulator measured in the same run, and where
// the frames go on their way to a trained policy. Measurements are farm_fps_run.h's, the search farm_fps_tune.h's; here
// are the command line, the ladder and the account. Runs in the supervisor's process.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/statistics.h"
#include "base/time.h"
#include "tools/fps/run.h"
#include "tools/fps/tune.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"

enum { ROUNDS_MOST = 40, AB_ROUNDS = 3, RUNGS_MAX = 6 };
static const double ROUND_LEAST_S = 0.8, SECONDS_LEAST = 0.5, SECONDS_MOST = 3600;
static const double TURNS_SHARE = 0.6, RUNG_SHARE = 0.15; // of --seconds, where there is a ladder
static const double GOOD_SHARE = 0.9;                     // a rung that keeps so much of the one before is none's fault

struct options {
    struct farm_recipe recipe;
    const char *recipe_file, *ladder, *numa, *out;
    double seconds;
    bool json, quiet, numa_ab, tune;
};

struct rung {
    const char *name, *what;
    double agent_steps_per_s, of_before; // NAN: not measured
    double actor_wait_share, learner_wait_share;
    uint32_t actors, lanes, width;                     // 0: says nothing
    char why[sizeof((struct farm_error *)0)->message]; // why it was not measured; "": it was
};

struct fps {
    struct options *options;
    struct farm_recipe recipe; // as the farm's turns run it
    enum farm_fps_numa numa;
    bool ladder;
    uint64_t start_ns;
    struct farm_fps_result result;
    double farm, one, all; // medians, NAN: none
    double farm_spread, one_spread, all_spread;
    double farm_cpu_ns, one_cpu_ns; // of a step
    double ab[FARM_FPS_NUMAS][AB_ROUNDS];
    uint32_t ab_count[FARM_FPS_NUMAS];
    struct rung rungs[RUNGS_MAX];
    size_t rung_count;
    bool interrupted;
};

// Median of a copy, and (75th - 25th percentile) / median; NAN without values.
static double median(const double *values, uint32_t count, double *spread) {
    double sorted[FARM_FPS_ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *sorted);
    return farm_median(sorted, count, spread);
}

// ---- recipe ----

static enum farm_status load_recipe(struct options *options, struct farm_error *err) {
    struct farm_recipe *recipe = &options->recipe;
    enum farm_status status = farm_recipe_flags_settle(recipe, options->recipe_file, NULL, err);
    recipe->frames = 0; // the measurement says when it ends
    recipe->seconds = 0;
    return status;
}

// The farm's own recipe: train's, but for the lanes' width where nobody chose it. What a shipped recipe says of that is
// for learning.
static enum farm_status choose_recipe(struct fps *fps, struct farm_error *err) {
    fps->recipe = fps->options->recipe;
    if (farm_recipe_set_by(&fps->recipe, "envs_per_actor", FARM_LAYER_FILE) && fps->recipe.envs_per_actor)
        return FARM_OK;
    return farm_fps_choose_width(&fps->recipe, err);
}

// ---- the turns ----

static struct farm_fps_turns plan_turns(const struct fps *fps) {
    const double seconds = fps->options->seconds * (fps->ladder ? TURNS_SHARE : 1);
    const double rounds = floor(seconds / ROUND_LEAST_S);
    const uint32_t count = rounds < 1 ? 1 : rounds < ROUNDS_MOST ? (uint32_t)rounds : ROUNDS_MOST;
    const double round_s = seconds / count;
    return (struct farm_fps_turns){.rounds = count,
                                   .farm_s = 0.4 * round_s,
                                   .warm_s = 0.1 * round_s,
                                   .bare_s = 0.25 * round_s,
                                   .talks = !fps->options->quiet};
}

static enum farm_status measure(struct fps *fps, struct farm_error *err) {
    const struct farm_fps_turns turns = plan_turns(fps);
    enum farm_status status = farm_fps_measure(&fps->recipe, fps->numa, &turns, fps->options->quiet, &fps->result, err);
    const struct farm_fps_samples *samples = &fps->result.samples;
    fps->farm = median(samples->farm, samples->farm_count, &fps->farm_spread);
    fps->one = median(samples->one, samples->one_count, &fps->one_spread);
    fps->all = median(samples->all, samples->all_count, &fps->all_spread);
    double ignored;
    fps->farm_cpu_ns = median(samples->farm_cpu_ns, samples->farm_count, &ignored);
    fps->one_cpu_ns = median(samples->one_cpu_ns, samples->one_count, &ignored);
    fps->interrupted |= fps->result.interrupted;
    return status;
}

// ---- placements against each other ----

static enum farm_status compare_placements(struct fps *fps, struct farm_error *err) {
    const struct farm_fps_turns turns = {.rounds = 1,
                                         .farm_s = 0.8 * fps->options->seconds / (FARM_FPS_NUMAS * AB_ROUNDS),
                                         .warm_s = 0.2 * fps->options->seconds / (FARM_FPS_NUMAS * AB_ROUNDS)};
    enum farm_status status = FARM_OK;
    for (uint32_t r = 0; r < AB_ROUNDS; r++)
        for (int i = 0; i < FARM_FPS_NUMAS && !status && !fps->interrupted; i++) {
            const int numa = r % 2 ? FARM_FPS_NUMAS - 1 - i : i;
            status = farm_fps_measure(&fps->recipe, (enum farm_fps_numa)numa, &turns, true, &fps->result, err);
            const struct farm_fps_samples *samples = &fps->result.samples;
            if (samples->farm_count) fps->ab[numa][fps->ab_count[numa]++] = samples->farm[0];
            fps->interrupted |= fps->result.interrupted;
            if (!fps->options->quiet && samples->farm_count)
                farm_log_info("round %u of %d: %s %.4g steps/s; %s", r + 1, AB_ROUNDS,
                              farm_fps_numa_name((enum farm_fps_numa)numa), samples->farm[0], fps->result.ring_note);
        }
    return status;
}

static double placement(const struct fps *fps, enum farm_fps_numa numa, double *spread) {
    return median(fps->ab[numa], fps->ab_count[numa], spread);
}

// ---- the ladder ----

static struct rung *add_rung(struct fps *fps, const char *name, const char *what, double rate) {
    const double nothing = (double)NAN;
    struct rung *rung = &fps->rungs[fps->rung_count];
    *rung =
        (struct rung){.name = name,
                      .what = what,
                      .agent_steps_per_s = rate,
                      .of_before = fps->rung_count ? rate / fps->rungs[fps->rung_count - 1].agent_steps_per_s : nothing,
                      .actor_wait_share = nothing,
                      .learner_wait_share = nothing};
    fps->rung_count++;
    return rung;
}

static void set_shape(struct rung *rung, uint32_t actors, uint32_t lanes, uint32_t width) {
    rung->actors = actors;
    rung->lanes = lanes;
    rung->width = width;
}

// A rung with a network. Observations or actions that cannot be trained yet are no failure of the measurement.
static enum farm_status add_learning(struct fps *fps, const char *name, const char *what,
                                     const struct farm_fps_rung *measured, enum farm_status status,
                                     struct farm_error *err) {
    struct rung *rung = add_rung(fps, name, what, measured->agent_steps_per_s);
    rung->actor_wait_share = measured->actor_wait_share;
    rung->learner_wait_share = measured->learner_wait_share;
    set_shape(rung, measured->actors, measured->lanes, measured->width);
    fps->interrupted |= measured->interrupted;
    if (status == FARM_E_UNSUPPORTED) snprintf(rung->why, sizeof rung->why, "%s", err->message);
    return status == FARM_E_UNSUPPORTED ? FARM_OK : status;
}

// Training as `farm train` does it, inference with the same actors and lanes, and these under random actions where they
// are not those of the farm's turns. Measured from below, told from above.
static enum farm_status climb(struct fps *fps, struct farm_error *err) {
    const double seconds = RUNG_SHARE * fps->options->seconds;
    struct farm_fps_rung training, inference = {0};
    struct farm_fps_result again = {0};
    struct farm_recipe recipe = fps->options->recipe;
    enum farm_status status, infers = FARM_OK;
    if (!fps->options->quiet) farm_log_info("with training: farm train's own job");
    enum farm_status trains = farm_fps_learn(&recipe, true, seconds, &training, err);
    if (trains && trains != FARM_E_UNSUPPORTED) return trains;
    const bool same = trains || (training.lanes == fps->result.lanes && training.width == fps->result.width &&
                                 training.actors == fps->result.actors);
    inference.agent_steps_per_s = inference.actor_wait_share = inference.learner_wait_share = (double)NAN;
    infers = trains;
    recipe.actors = training.actors;
    recipe.lanes = training.lanes;
    recipe.envs_per_actor = (int64_t)training.lanes * training.width;
    if (!trains && !training.interrupted) {
        if (!fps->options->quiet) farm_log_info("with inference alone");
        infers = farm_fps_learn(&recipe, false, seconds, &inference, err);
    }
    if (!same && !training.interrupted && !inference.interrupted) {
        const struct farm_fps_turns turns = {.rounds = 1, .farm_s = 0.5 * seconds, .warm_s = 0.1 * seconds};
        if (!fps->options->quiet) farm_log_info("the farm with training's lanes");
        if ((status = farm_fps_measure(&recipe, fps->numa, &turns, true, &again, err))) return status;
        fps->interrupted |= again.interrupted;
        double spread;
        set_shape(add_rung(fps, "farm_train_lanes", "the farm, lanes as farm train has them",
                           median(again.samples.farm, again.samples.farm_count, &spread)),
                  again.actors, again.lanes, again.width);
    }
    status = add_learning(fps, "inference", "with inference", &inference, infers, err);
    if (!status) status = add_learning(fps, "training", "with training", &training, trains, err);
    return status;
}

static enum farm_status make_ladder(struct fps *fps, struct farm_error *err) {
    const struct farm_fps_result *result = &fps->result;
    add_rung(fps, "bare_times_cores", "the bare loop on one core, times cores", fps->one * result->cores);
    add_rung(fps, "bare_all_cores", "bare loops on all cores at once", fps->all);
    set_shape(add_rung(fps, "farm", "the farm, random actions", fps->farm), result->actors, result->lanes,
              result->width);
    return fps->ladder && !fps->interrupted ? climb(fps, err) : FARM_OK;
}

static const struct rung *find_rung(const struct fps *fps, const char *name) {
    for (size_t i = 0; i < fps->rung_count; i++)
        if (strcmp(fps->rungs[i].name, name) == 0 && isfinite(fps->rungs[i].agent_steps_per_s)) return &fps->rungs[i];
    return NULL;
}

// What the way from the bare simulator to the last rung that was measured loses most at; where no rung loses much, the
// emulator itself is what takes the time.
static const char *bottleneck(const struct fps *fps) {
    const struct rung *all = find_rung(fps, "bare_all_cores"), *farm = find_rung(fps, "farm"),
                      *lanes = find_rung(fps, "farm_train_lanes"), *inference = find_rung(fps, "inference"),
                      *training = find_rung(fps, "training");
    if (!all || !farm) return NULL;
    const double base = lanes ? lanes->agent_steps_per_s : farm->agent_steps_per_s;
    const struct {
        const char *name;
        double kept;
    } losses[] = {
        {"hand-off", base / all->agent_steps_per_s},
        {"inference", inference ? inference->agent_steps_per_s / base : 1},
        {"training", inference && training ? training->agent_steps_per_s / inference->agent_steps_per_s : 1},
    };
    size_t worst = 0;
    for (size_t i = 1; i < sizeof losses / sizeof *losses; i++)
        if (losses[i].kept < losses[worst].kept) worst = i;
    return losses[worst].kept < GOOD_SHARE ? losses[worst].name : "emulator";
}

// ---- the account ----

static json_t *rungs_json(const struct fps *fps) {
    json_t *list = json_array();
    for (size_t i = 0; i < fps->rung_count; i++) {
        const struct rung *rung = &fps->rungs[i];
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "rung", rung->name);
        farm_json_set_real(object, "agent_steps_per_s", rung->agent_steps_per_s);
        farm_json_set_real(object, "of_before", rung->of_before);
        if (rung->actors) {
            farm_json_set_int(object, "actors", rung->actors);
            farm_json_set_int(object, "envs_per_actor", (uint64_t)rung->lanes * rung->width);
            farm_json_set_int(object, "lanes", rung->lanes);
        }
        if (isfinite(rung->actor_wait_share)) {
            farm_json_set_real(object, "actor_wait_share", rung->actor_wait_share);
            farm_json_set_real(object, "learner_wait_share", rung->learner_wait_share);
        }
        if (rung->why[0]) farm_json_set_text(object, "not_measured", rung->why);
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *list_of(const double *values, uint32_t count) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) json_array_append_new(list, json_real(values[i]));
    return list;
}

static json_t *placements_json(const struct fps *fps) {
    json_t *object = farm_json_object(false);
    double bound_spread;
    const double bound = placement(fps, FARM_FPS_NUMA_BIND, &bound_spread);
    for (int i = 0; i < FARM_FPS_NUMAS; i++) {
        json_t *one = farm_json_object(false);
        double spread;
        const double rate = placement(fps, (enum farm_fps_numa)i, &spread);
        farm_json_set_real(one, "agent_steps_per_s", rate);
        farm_json_set_real(one, "spread", spread);
        farm_json_set_real(one, "of_bind", rate / bound);
        farm_json_set(one, "rounds", list_of(fps->ab[i], fps->ab_count[i]));
        farm_json_set(object, farm_fps_numa_name((enum farm_fps_numa)i), one);
    }
    return object;
}

static const char *numa_note(const struct fps *fps) {
    return fps->result.nodes == 1 ? "one NUMA node: all placements are the same" : NULL;
}

static double efficiency(const struct fps *fps) {
    return fps->farm / (fps->one * fps->result.cores);
}

static void set_farm(json_t *document, const struct fps *fps) {
    const struct farm_fps_result *result = &fps->result;
    const struct farm_fps_samples *samples = &result->samples;
    farm_json_set_int(document, "frames", samples->agent_steps * result->frames_per_step);
    farm_json_set_int(document, "agent_steps", samples->agent_steps);
    farm_json_set_real(document, "farm_s", samples->farm_s);
    farm_json_set_real(document, "frames_per_s", fps->farm * result->frames_per_step);
    farm_json_set_real(document, "agent_steps_per_s", fps->farm);
    farm_json_set_real(document, "agent_steps_per_s_spread", fps->farm_spread);
    farm_json_set_real(document, "bare_agent_steps_per_s", fps->one);
    farm_json_set_real(document, "bare_agent_steps_per_s_spread", fps->one_spread);
    farm_json_set_real(document, "bare_all_cores_agent_steps_per_s", fps->all);
    farm_json_set_real(document, "bare_all_cores_agent_steps_per_s_spread", fps->all_spread);
    farm_json_set_int(document, "bare_loops", samples->bare_loops);
    farm_json_set_real(document, "efficiency", efficiency(fps));
    farm_json_set_real(document, "efficiency_all_cores", fps->farm / fps->all);
    farm_json_set_real(document, "cpu_ns_per_agent_step", fps->farm_cpu_ns);
    farm_json_set_real(document, "bare_cpu_ns_per_agent_step", fps->one_cpu_ns);
    farm_json_set_real(document, "cpu_efficiency", fps->one_cpu_ns / fps->farm_cpu_ns);
}

static void set_shapes(json_t *document, const struct fps *fps) {
    const struct farm_fps_result *result = &fps->result;
    farm_json_set_real(document, "cores", result->cores);
    farm_json_set_int(document, "actors", result->actors);
    farm_json_set_int(document, "envs_per_actor", (uint64_t)result->lanes * result->width);
    farm_json_set_int(document, "lanes", result->lanes);
    farm_json_set_int(document, "ring_steps", result->steps);
    farm_json_set_int(document, "ring_bytes", result->ring_bytes);
    farm_json_set_bool(document, "pinned", result->pinned);
    farm_json_set_text(document, "numa", farm_fps_numa_name(fps->numa));
    farm_json_set_int(document, "numa_nodes", result->nodes);
    farm_json_set_text(document, "numa_note", numa_note(fps));
    farm_json_set_text(document, "ring", result->ring_note);
}

static json_t *document_of(const struct fps *fps, const char *failure) {
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "env", fps->recipe.env);
    farm_json_set_int(document, "seed", (uint64_t)fps->recipe.seed);
    farm_json_set_real(document, "wall_s", (double)(farm_now_ns() - fps->start_ns) * 1e-9);
    if (fps->options->numa_ab) {
        farm_json_set(document, "numa_ab", placements_json(fps));
    } else {
        set_farm(document, fps);
        farm_json_set(document, "ladder", rungs_json(fps));
        farm_json_set_text(document, "bottleneck", bottleneck(fps));
    }
    set_shapes(document, fps);
    farm_json_set_bool(document, "interrupted", fps->interrupted);
    farm_json_set_text(document, "error", failure);
    return document;
}

static void tell_rate(const char *what, double rate, double of_before) {
    printf("  %-44s %8s", what, farm_format_count(rate).text);
    if (!isfinite(of_before)) printf("%9s", "");
    if (isfinite(of_before)) printf("  x %.3f", of_before);
}

static void tell_ladder(const struct fps *fps) {
    printf("\nagent steps/s, and what each keeps of the one before:\n");
    for (size_t i = 0; i < fps->rung_count; i++) {
        const struct rung *rung = &fps->rungs[i];
        tell_rate(rung->what, rung->agent_steps_per_s, rung->of_before);
        if (rung->actors) printf("  (%u x %u environments)", rung->actors, rung->lanes * rung->width);
        if (isfinite(rung->actor_wait_share)) printf("  lanes wait %.0f %%", 100 * rung->actor_wait_share);
        printf("%s%s\n", rung->why[0] ? "  " : "", rung->why);
    }
    if (bottleneck(fps)) printf("Most is lost to: %s.\n", bottleneck(fps));
}

static void tell_placements(const struct fps *fps) {
    double spread;
    const double bound = placement(fps, FARM_FPS_NUMA_BIND, &spread);
    printf("\n%s: where the rings lie, agent steps/s and of bind:\n", fps->recipe.env);
    for (int i = 0; i < FARM_FPS_NUMAS; i++) {
        const double rate = placement(fps, (enum farm_fps_numa)i, &spread);
        tell_rate(farm_fps_numa_name((enum farm_fps_numa)i), rate, rate / bound);
        printf("  (spread %.1f %%)\n", 100 * spread);
    }
}

static void tell(const struct fps *fps) {
    const struct farm_fps_result *result = &fps->result;
    if (fps->options->numa_ab) {
        tell_placements(fps);
    } else {
        printf("\n%s: %u actor%s x %u lanes x %u environments x %u steps, %.1f MB of rings%s\n", fps->recipe.env,
               result->actors, result->actors == 1 ? "" : "s", result->lanes, result->width, result->steps,
               (double)result->ring_bytes / 1e6, fps->interrupted ? "; stopped by a signal" : "");
        tell_ladder(fps);
        if (isfinite(efficiency(fps)))
            printf("Efficiency: %.3f of the bare loop x %.3g cores; %.3f of bare loops on all cores at once.\n"
                   "CPU time of a step: %.4g ns in the farm, %.4g ns in the bare loop: %.3f.\n",
                   efficiency(fps), result->cores, fps->farm / fps->all, fps->farm_cpu_ns, fps->one_cpu_ns,
                   fps->one_cpu_ns / fps->farm_cpu_ns);
    }
    if (numa_note(fps)) printf("(%s.)\n", numa_note(fps));
}

static enum farm_status give_account(const struct fps *fps, const char *failure, struct farm_error *err) {
    if (!fps->options->json) {
        if (!failure) tell(fps);
        return FARM_OK;
    }
    json_t *document = document_of(fps, failure);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

// ---- the command ----

static enum farm_status check_options(struct fps *fps, struct farm_error *err) {
    const struct options *options = fps->options;
    if (strcmp(options->ladder, "on") != 0 && strcmp(options->ladder, "off") != 0)
        return farm_fail(err, FARM_E_USAGE, "--ladder: '%.40s' is none of on, off", options->ladder);
    if (!farm_fps_numa_find(options->numa, &fps->numa))
        return farm_fail(err, FARM_E_USAGE, "--numa: '%.40s' is none of bind, interleave, remote, off", options->numa);
    if (!(options->seconds >= SECONDS_LEAST && options->seconds <= SECONDS_MOST))
        return farm_fail(err, FARM_E_USAGE, "--seconds: between %g and %g", SECONDS_LEAST, SECONDS_MOST);
    if (options->tune && options->numa_ab)
        return farm_fail(err, FARM_E_USAGE, "--tune and --numa-ab: one of them at a time");
    fps->ladder = strcmp(options->ladder, "on") == 0 && !options->numa_ab;
    return FARM_OK;
}

static enum farm_status run(struct fps *fps, struct farm_error *err) {
    enum farm_status status = choose_recipe(fps, err), account;
    struct farm_error account_error;
    if (status) return status;
    if (fps->options->numa_ab) {
        status = compare_placements(fps, err);
    } else {
        status = measure(fps, err);
        if (!status) status = make_ladder(fps, err);
    }
    account = give_account(fps, status ? err->message : NULL, &account_error);
    if (!status && account) *err = account_error;
    return status ? status : account;
}

static enum farm_status run_tuning(struct fps *fps, struct farm_error *err) {
    const struct options *options = fps->options;
    const struct farm_fps_tuning tuning = {.recipe = &options->recipe,
                                           .start = &fps->recipe,
                                           .numa = fps->numa,
                                           .seconds = options->seconds,
                                           .path = options->out,
                                           .json = options->json,
                                           .quiet = options->quiet};
    enum farm_status status = choose_recipe(fps, err);
    return status ? status : farm_fps_tune(&tuning, err);
}

// Signals wait while nothing runs that could take them; farm_supervisor_run finds them.
static void hold_signals(sigset_t *before) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, before);
}

static int fps_main(struct options *options) {
    struct farm_error err = {0};
    sigset_t before;
    struct fps *fps = calloc(1, sizeof *fps);
    if (!fps) return farm_fail_errno(&err, FARM_E_LIMIT, "farm fps"), farm_report_error("farm fps", &err);
    fps->options = options;
    fps->start_ns = farm_now_ns();
    fps->farm = fps->one = fps->all = (double)NAN;
    if (options->quiet) farm_log_set_level(FARM_LOG_WARN);
    hold_signals(&before);
    enum farm_status status = check_options(fps, &err);
    if (!status) status = options->tune ? run_tuning(fps, &err) : run(fps, &err);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(fps);
    return status ? farm_report_error("farm fps", &err) : 0;
}

int farm_cmd_fps(int argc, char **argv) {
    struct options options = {.seconds = 20, .ladder = "on", .numa = "bind", .out = "tuned.yaml"};
    const struct farm_cli_flag flags[] = {
        {"seconds", FARM_CLI_DOUBLE, &options.seconds, "S", "time to measure in, start-up not counted (20)"},
        {"ladder", FARM_CLI_STRING, &options.ladder, "on|off", "also with inference, and with training (on)"},
        {"numa", FARM_CLI_STRING, &options.numa, "WHERE", "rings: bind, interleave, remote or off (bind)"},
        {"numa-ab", FARM_CLI_BOOL, &options.numa_ab, NULL, "all four placements by turns, and what each keeps of bind"},
        {"tune", FARM_CLI_BOOL, &options.tune, NULL,
         "searches actors, environments an actor, lanes and pinning, and writes a recipe"},
        {"out", FARM_CLI_STRING, &options.out, "FILE", "of --tune (tuned.yaml)"},
        {"recipe", FARM_CLI_STRING, &options.recipe_file, "FILE",
         "recipe (YAML) over the one shipped for the environment"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress and no plan on stderr"},
    };
    const struct farm_cli cli = {
        .program = "farm fps",
        .synopsis = "[--env E] [--seconds S] [--ladder on|off] [--numa WHERE | --numa-ab | --tune] [--json] "
                    "[--KEY VALUE ...]",
        .about =
            "How fast environments step in the farm: the same actors, lanes and rings as in training, answered with\n"
            "random actions by a stand-in for the learner. Measured by turns with the bare simulator, the best loop\n"
            "that can be written for it: fixed buffers, the same kind of actions, resets included, one core and all\n"
            "cores at once. Rates are medians of the turns, in agent steps (transitions). efficiency is the farm's\n"
            "rate by (bare loop on one core x cores). Then the ladder: what is left with inference, with training.\n"
            "Where nobody says --envs-per-actor, a moment's measurement of the environment chooses it.",
        .examples = "  farm fps --env ale/Pong\n"
                    "  farm fps --env native/cartpole --seconds 5 --ladder off --json\n"
                    "  farm fps --env ale/Pong --numa-ab --seconds 60\n"
                    "  farm fps --env ale/Pong --tune && farm train --env ale/Pong --recipe tuned.yaml\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    bool help;
    enum farm_status status = farm_recipe_flags_parse(&cli, argc, argv, NULL, &options.recipe, &help, &err);
    if (!status && help) return 0;
    if (!status) status = load_recipe(&options, &err);
    return status ? farm_report_error("farm fps", &err) : fps_main(&options);
}
