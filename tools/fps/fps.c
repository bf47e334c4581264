// `farm fps`: measures how fast environments step in the farm, against the bare simulator in the same run, and how much
// of that rate remains with inference and with training (the ladder). run.h measures, tune.h searches for a setting.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/statistics.h"
#include "base/thread.h"
#include "base/time.h"
#include "report/progress.h"
#include "tools/fps/run.h"
#include "tools/fps/tune.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"

enum { ROUNDS_MAX = 40, RUNGS_MAX = 6, AB_ROUNDS = 3 };
static const double ROUND_MIN_S = 0.8, SECONDS_MIN = 0.5, SECONDS_MAX = 3600;
static const double TURNS_SHARE = 0.6, RUNG_SHARE = 0.15; // of --seconds, with a ladder
static const double GOOD_SHARE = 0.9;                     // share of the rung before: no bottleneck
static const double NOT_MEASURED = (double)NAN;

struct options {
    struct farm_recipe recipe;
    const char *recipe_file, *ladder, *numa, *inference, *out;
    double seconds;
    bool json, quiet, tune, numa_ab;
};

struct rung {
    const char *name, *what;
    struct farm_run_rate measured;                     // actors 0: does not apply
    double of_before;                                  // NAN: the first rung
    char why[sizeof((struct farm_error *)0)->message]; // why it was not measured; "": it was
};

struct fps {
    struct options *options;
    struct farm_recipe recipe; // for the farm's turns
    bool ladder;
    enum farm_fps_numa numa;
    double ab[FARM_FPS_NUMAS][AB_ROUNDS]; // rates of --numa-ab
    uint32_t ab_count[FARM_FPS_NUMAS];
    uint64_t start_ns;
    struct farm_fps_result result;
    double farm, one, all; // medians of the farm, of one bare loop and of all; NAN: none
    double farm_spread, one_spread, all_spread;
    double farm_cpu_ns, one_cpu_ns; // a step's
    struct rung rungs[RUNGS_MAX];
    size_t rung_count;
    bool interrupted;
};

// ---- recipe ----

static enum farm_status load_recipe(struct options *options, struct farm_error *err) {
    struct farm_recipe *recipe = &options->recipe;
    enum farm_status status = farm_recipe_flags_settle(recipe, options->recipe_file, NULL, err);
    recipe->frames = 0; // the measurement decides when it ends
    recipe->seconds = 0;
    // Long windows of a shipped recipe make an iteration last longer than the measurement.
    if (status || recipe->unroll <= 20 || farm_recipe_set_by(recipe, "unroll", FARM_LAYER_FILE)) return status;
    return farm_recipe_set(recipe, FARM_LAYER_FLAG, "unroll", "20", err);
}

// The farm's turns use train's recipe; envs_per_actor is chosen here unless the user set it (recipes' is for learning).
static enum farm_status choose_recipe(struct fps *fps, struct farm_error *err) {
    fps->recipe = fps->options->recipe;
    if (farm_recipe_set_by(&fps->recipe, "envs_per_actor", FARM_LAYER_FILE) && fps->recipe.envs_per_actor)
        return FARM_OK;
    return farm_fps_choose_width(&fps->recipe, err);
}

// ---- the turns ----

static struct farm_fps_turns plan_turns(const struct fps *fps) {
    const double seconds = fps->options->seconds * (fps->ladder ? TURNS_SHARE : 1);
    const double rounds = floor(seconds / ROUND_MIN_S);
    const uint32_t count = rounds < 1 ? 1 : rounds < ROUNDS_MAX ? (uint32_t)rounds : ROUNDS_MAX;
    const double round_s = seconds / count;
    return (struct farm_fps_turns){.rounds = count,
                                   .farm_s = 0.4 * round_s,
                                   .warm_s = 0.1 * round_s,
                                   .bare_s = 0.25 * round_s,
                                   .prints = !fps->options->quiet};
}

static enum farm_status measure(struct fps *fps, struct farm_error *err) {
    const struct farm_fps_turns turns = plan_turns(fps);
    enum farm_status status = farm_fps_measure(&fps->recipe, fps->numa, &turns, fps->options->quiet, &fps->result, err);
    struct farm_fps_samples *samples = &fps->result.samples;
    fps->farm = farm_median(samples->farm, samples->farm_count, &fps->farm_spread);
    fps->one = farm_median(samples->one, samples->one_count, &fps->one_spread);
    fps->all = farm_median(samples->all, samples->all_count, &fps->all_spread);
    fps->farm_cpu_ns = farm_median(samples->farm_cpu_ns, samples->farm_count, NULL);
    fps->one_cpu_ns = farm_median(samples->one_cpu_ns, samples->one_count, NULL);
    fps->interrupted |= fps->result.interrupted;
    return status;
}

// ---- --numa-ab ----

// All placements in turn, there and back, so that drift cancels.
static enum farm_status compare_placements(struct fps *fps, struct farm_error *err) {
    const double turn_s = fps->options->seconds / (FARM_FPS_NUMAS * AB_ROUNDS);
    const struct farm_fps_turns turns = {.rounds = 1, .farm_s = 0.8 * turn_s, .warm_s = 0.2 * turn_s};
    const struct farm_fps_samples *samples = &fps->result.samples;
    enum farm_status status = FARM_OK;
    for (int t = 0; t < FARM_FPS_NUMAS * AB_ROUNDS && !status && !fps->interrupted; t++) {
        const int round = t / FARM_FPS_NUMAS, i = t % FARM_FPS_NUMAS, numa = round % 2 ? FARM_FPS_NUMAS - 1 - i : i;
        status = farm_fps_measure(&fps->recipe, (enum farm_fps_numa)numa, &turns, true, &fps->result, err);
        fps->interrupted |= fps->result.interrupted;
        if (status || !samples->farm_count) continue;
        fps->ab[numa][fps->ab_count[numa]++] = samples->farm[0];
        if (!fps->options->quiet)
            farm_log_info("round %d of %d: %s %.4g steps/s; %s", round + 1, AB_ROUNDS, farm_fps_numa_names[numa],
                          samples->farm[0], fps->result.ring_note);
    }
    return status;
}

static double placement_rate(const struct fps *fps, int numa, double *spread) {
    double rates[AB_ROUNDS];
    memcpy(rates, fps->ab[numa], sizeof rates);
    return farm_median(rates, fps->ab_count[numa], spread);
}

static json_t *placements_json(const struct fps *fps) {
    json_t *object = farm_json_object(false);
    double spread;
    for (int i = 0; i < FARM_FPS_NUMAS; i++) {
        json_t *one = farm_json_object(false), *rounds = json_array();
        const double bind = placement_rate(fps, FARM_FPS_NUMA_BIND, NULL), rate = placement_rate(fps, i, &spread);
        for (uint32_t r = 0; r < fps->ab_count[i]; r++) farm_json_append(rounds, json_real(fps->ab[i][r]));
        farm_json_set_real(one, "agent_steps_per_s", rate);
        farm_json_set_real(one, "spread", spread);
        farm_json_set_real(one, "of_bind", rate / bind);
        farm_json_set(one, "rounds", rounds);
        farm_json_set(object, farm_fps_numa_names[i], one);
    }
    return object;
}

static void print_placements(const struct fps *fps) {
    printf("\n%s: placement of the rings, agent steps/s, and the share of bind:\n", fps->recipe.env);
    for (int i = 0; i < FARM_FPS_NUMAS; i++) {
        double spread;
        const double bind = placement_rate(fps, FARM_FPS_NUMA_BIND, NULL), rate = placement_rate(fps, i, &spread);
        printf("  %-44s %8s  x %.3f  (spread %.1f %%)\n", farm_fps_numa_names[i], farm_format_count(rate).text,
               rate / bind, 100 * spread);
    }
}

static const char *numa_note(const struct fps *fps) {
    return fps->result.nodes == 1 ? "one NUMA node: all placements are equal" : NULL;
}

// ---- --inference ----

static const char *const ways[] = {"central", "local", "both"};

static struct rung *add_rung(struct fps *fps, const char *name, const char *what, struct farm_run_rate measured) {
    struct rung *rung = &fps->rungs[fps->rung_count++];
    *rung = (struct rung){.name = name, .what = what, .measured = measured, .of_before = NOT_MEASURED};
    if (rung > fps->rungs) rung->of_before = measured.agent_steps_per_s / rung[-1].measured.agent_steps_per_s;
    return rung;
}

static enum farm_status compare_inference(struct fps *fps, struct farm_error *err) {
    const char *asked = fps->options->inference;
    const bool both = strcmp(asked, ways[2]) == 0;
    enum farm_status status = FARM_OK;
    for (int i = 0; i < 2 && !status && !fps->interrupted; i++) {
        struct farm_run_rate rate;
        if (!both && strcmp(asked, ways[i]) != 0) continue;
        status =
            farm_run_measure_inference(&fps->options->recipe, ways[i], fps->options->seconds / (1 + both), &rate, err);
        if (!status) add_rung(fps, ways[i], ways[i], rate);
        fps->interrupted |= rate.interrupted;
    }
    return status;
}

// ---- the ladder ----

static struct farm_run_rate rung_of_rate(double rate) {
    return (struct farm_run_rate){
        .agent_steps_per_s = rate, .actor_wait_share = NOT_MEASURED, .learner_wait_share = NOT_MEASURED};
}

static struct farm_run_rate rung_of_farm(struct farm_fps_result *result) {
    struct farm_run_rate rung = rung_of_rate(farm_median(result->samples.farm, result->samples.farm_count, NULL));
    rung.actors = result->actors;
    rung.lanes = result->lanes;
    rung.width = result->width;
    return rung;
}

// A rung with a network. Observations or actions that cannot be trained yet are not a failure of the measurement.
static enum farm_status add_learning(struct fps *fps, const char *name, const char *what,
                                     const struct farm_run_rate *measured, enum farm_status status,
                                     struct farm_error *err) {
    struct rung *rung = add_rung(fps, name, what, *measured);
    fps->interrupted |= measured->interrupted;
    if (status != FARM_E_UNSUPPORTED) return status;
    snprintf(rung->why, sizeof rung->why, "%s", err->message);
    return FARM_OK;
}

static void log_part(const struct fps *fps, const char *text) {
    if (!fps->options->quiet) farm_log_info("%s", text);
}

// Measures training as `farm train` does it, then inference with the same actors and lanes, then random actions with
// these if they differ from those of the farm's turns. The ladder has them in the opposite order.
static enum farm_status measure_learning(struct fps *fps, struct farm_error *err) {
    const double seconds = RUNG_SHARE * fps->options->seconds;
    struct farm_run_rate training, inference = rung_of_rate(NOT_MEASURED);
    struct farm_recipe recipe = fps->options->recipe;
    log_part(fps, "with training: farm train's own job");
    const enum farm_status trains = farm_run_measure(&recipe, true, seconds, &training, err);
    if (trains && trains != FARM_E_UNSUPPORTED) return trains;
    const bool same = trains || (training.lanes == fps->result.lanes && training.width == fps->result.width &&
                                 training.actors == fps->result.actors);
    enum farm_status status, infers = trains;
    recipe.actors = training.actors;
    recipe.lanes = training.lanes;
    recipe.envs_per_actor = (int64_t)training.lanes * training.width;
    if (!trains && !training.interrupted) {
        log_part(fps, "with inference alone");
        infers = farm_run_measure(&recipe, false, seconds, &inference, err);
    }
    if (!same && !training.interrupted && !inference.interrupted) {
        const struct farm_fps_turns turns = {.rounds = 1, .farm_s = 0.5 * seconds, .warm_s = 0.1 * seconds};
        struct farm_fps_result again;
        log_part(fps, "the farm with training's lanes");
        if ((status = farm_fps_measure(&recipe, fps->numa, &turns, true, &again, err))) return status;
        fps->interrupted |= again.interrupted;
        add_rung(fps, "farm_train_lanes", "the farm, lanes as farm train has them", rung_of_farm(&again));
    }
    status = add_learning(fps, "inference", "with inference", &inference, infers, err);
    return status ? status : add_learning(fps, "training", "with training", &training, trains, err);
}

static enum farm_status make_ladder(struct fps *fps, struct farm_error *err) {
    struct farm_fps_result *result = &fps->result;
    add_rung(fps, "bare_times_cores", "the bare loop on one core, times cores", rung_of_rate(fps->one * result->cores));
    add_rung(fps, "bare_all_cores", "bare loops on all cores at once", rung_of_rate(fps->all));
    add_rung(fps, "farm", "the farm, random actions", rung_of_farm(result));
    return fps->ladder && !fps->interrupted ? measure_learning(fps, err) : FARM_OK;
}

// NAN: not measured.
static double find_rate(const struct fps *fps, const char *name) {
    for (size_t i = 0; i < fps->rung_count; i++)
        if (strcmp(fps->rungs[i].name, name) == 0) return fps->rungs[i].measured.agent_steps_per_s;
    return NOT_MEASURED;
}

// The part that loses most of the rate between the bare simulator and the last rung; "emulator" if no part loses much.
static const char *bottleneck(const struct fps *fps) {
    const double all = find_rate(fps, "bare_all_cores"), farm = find_rate(fps, "farm"),
                 lanes = find_rate(fps, "farm_train_lanes"), inference = find_rate(fps, "inference"),
                 training = find_rate(fps, "training"), base = isfinite(lanes) ? lanes : farm;
    const struct {
        const char *name;
        double kept;
    } losses[] = {{"hand-off", base / all}, {"inference", inference / base}, {"training", training / inference}};
    if (!isfinite(all) || !isfinite(farm)) return NULL;
    size_t worst = 0;
    for (size_t i = 1; i < sizeof losses / sizeof *losses; i++)
        if (losses[i].kept < losses[worst].kept) worst = i;
    return losses[worst].kept < GOOD_SHARE ? losses[worst].name : "emulator";
}

// ---- the result ----

static json_t *rungs_json(const struct fps *fps) {
    json_t *list = json_array();
    for (size_t i = 0; i < fps->rung_count; i++) {
        const struct rung *rung = &fps->rungs[i];
        const struct farm_run_rate *measured = &rung->measured;
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "rung", rung->name);
        farm_json_set_real(object, "agent_steps_per_s", measured->agent_steps_per_s);
        farm_json_set_real(object, "of_before", rung->of_before);
        if (measured->actors) {
            farm_json_set_int(object, "actors", measured->actors);
            farm_json_set_int(object, "envs_per_actor", (uint64_t)measured->lanes * measured->width);
            farm_json_set_int(object, "lanes", measured->lanes);
        }
        if (isfinite(measured->actor_wait_share)) {
            farm_json_set_real(object, "actor_wait_share", measured->actor_wait_share);
            farm_json_set_real(object, "learner_wait_share", measured->learner_wait_share);
        }
        if (measured->wire_up_bytes > 0) {
            farm_json_set_real(object, "actor_cpus", measured->actor_cpus);
            farm_json_set_real(object, "learner_cpus", measured->learner_cpus);
            farm_json_set_real(object, "step_latency_us", measured->step_latency_us);
            farm_json_set_real(object, "wire_up_bytes", measured->wire_up_bytes);
            farm_json_set_real(object, "wire_down_bytes", measured->wire_down_bytes);
            farm_json_set_real(object, "wire_version_bytes", measured->wire_version_bytes);
        }
        if (rung->why[0]) farm_json_set_text(object, "not_measured", rung->why);
        farm_json_append(list, object);
    }
    return list;
}

static double efficiency(const struct fps *fps) {
    return fps->farm / (fps->one * fps->result.cores);
}

static void set_rates(json_t *document, const struct fps *fps) {
    const struct farm_fps_result *result = &fps->result;
    const struct farm_fps_samples *samples = &result->samples;
    const struct {
        const char *key;
        double value;
    } figures[] = {
        {"farm_s", samples->farm_s},
        {"frames_per_s", fps->farm * result->frames_per_step},
        {"agent_steps_per_s", fps->farm},
        {"agent_steps_per_s_spread", fps->farm_spread},
        {"bare_agent_steps_per_s", fps->one},
        {"bare_agent_steps_per_s_spread", fps->one_spread},
        {"bare_all_cores_agent_steps_per_s", fps->all},
        {"bare_all_cores_agent_steps_per_s_spread", fps->all_spread},
        {"efficiency", efficiency(fps)},
        {"efficiency_all_cores", fps->farm / fps->all},
        {"cpu_ns_per_agent_step", fps->farm_cpu_ns},
        {"bare_cpu_ns_per_agent_step", fps->one_cpu_ns},
        {"cpu_efficiency", fps->one_cpu_ns / fps->farm_cpu_ns},
    };
    farm_json_set_int(document, "frames", samples->agent_steps * result->frames_per_step);
    farm_json_set_int(document, "agent_steps", samples->agent_steps);
    farm_json_set_int(document, "checked_steps", result->checked_steps);
    farm_json_set_int(document, "rejected_steps", result->rejected_steps);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        farm_json_set_real(document, figures[i].key, figures[i].value);
    farm_json_set_int(document, "bare_loops", samples->bare_loops);
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
    farm_json_set_text(document, "numa", farm_fps_numa_names[fps->numa]);
    farm_json_set_int(document, "numa_nodes", result->nodes);
    farm_json_set_text(document, "numa_note", numa_note(fps));
    farm_json_set_text(document, "ring", result->ring_note);
}

static json_t *make_document(const struct fps *fps, const char *failure) {
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "env", fps->recipe.env);
    farm_json_set_int(document, "seed", (uint64_t)fps->recipe.seed);
    farm_json_set_real(document, "wall_s", (double)(farm_now_ns() - fps->start_ns) * 1e-9);
    if (fps->options->numa_ab) {
        farm_json_set(document, "numa_ab", placements_json(fps));
    } else {
        if (!fps->options->inference) set_rates(document, fps);
        farm_json_set(document, "ladder", rungs_json(fps));
        if (!fps->options->inference) farm_json_set_text(document, "bottleneck", bottleneck(fps));
    }
    if (!fps->options->inference) set_shapes(document, fps);
    farm_json_set_bool(document, "interrupted", fps->interrupted);
    farm_json_set_text(document, "error", failure);
    return document;
}

static void print_ladder(const struct fps *fps) {
    printf("\nagent steps/s, and what each keeps of the one before:\n");
    for (size_t i = 0; i < fps->rung_count; i++) {
        const struct rung *rung = &fps->rungs[i];
        const struct farm_run_rate *measured = &rung->measured;
        printf("  %-44s %8s", rung->what, farm_format_count(measured->agent_steps_per_s).text);
        if (isfinite(rung->of_before))
            printf("  x %.3f", rung->of_before);
        else
            printf("%9s", "");
        if (measured->actors) printf("  (%u x %u environments)", measured->actors, measured->lanes * measured->width);
        if (isfinite(measured->actor_wait_share)) printf("  lanes wait %.0f %%", 100 * measured->actor_wait_share);
        printf("%s%s\n", rung->why[0] ? "  " : "", rung->why);
        if (measured->wire_up_bytes > 0)
            printf("    CPUs: actors %.2f, learner %.2f; a step takes %s us, by the bridge %.0f + %.0f bytes, a "
                   "version %s\n",
                   measured->actor_cpus, measured->learner_cpus, farm_format_figure(measured->step_latency_us).text,
                   measured->wire_up_bytes, measured->wire_down_bytes,
                   farm_format_bytes(measured->wire_version_bytes).text);
    }
    if (bottleneck(fps)) printf("Most is lost to: %s.\n", bottleneck(fps));
}

static void print_summary(const struct fps *fps) {
    const struct farm_fps_result *result = &fps->result;
    printf("\n%s: %u actor%s x %u lanes x %u environments x %u steps, %.1f MB of rings%s\n", fps->recipe.env,
           result->actors, result->actors == 1 ? "" : "s", result->lanes, result->width, result->steps,
           (double)result->ring_bytes / 1e6, fps->interrupted ? "; stopped by a signal" : "");
    farm_progress_print_rejected(result->rejected_steps, result->checked_steps, "checked steps");
    print_ladder(fps);
    if (isfinite(efficiency(fps)))
        printf("Efficiency: %s of the bare loop x %.3g cores; %s of bare loops on all cores at once.\n"
               "CPU time of a step: %s ns in the farm, %s ns in the bare loop: %s.\n",
               farm_format_figure(efficiency(fps)).text, result->cores, farm_format_figure(fps->farm / fps->all).text,
               farm_format_figure(fps->farm_cpu_ns).text, farm_format_figure(fps->one_cpu_ns).text,
               farm_format_figure(fps->one_cpu_ns / fps->farm_cpu_ns).text);
}

static enum farm_status print_result(const struct fps *fps, const char *failure, struct farm_error *err) {
    if (!fps->options->json) {
        if (failure) return FARM_OK;
        (fps->options->numa_ab ? print_placements : fps->options->inference ? print_ladder : print_summary)(fps);
        if (numa_note(fps)) printf("(%s.)\n", numa_note(fps));
        return FARM_OK;
    }
    json_t *document = make_document(fps, failure);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

// ---- the command ----

static enum farm_status check_options(struct fps *fps, struct farm_error *err) {
    const struct options *options = fps->options;
    if (strcmp(options->ladder, "on") != 0 && strcmp(options->ladder, "off") != 0)
        return farm_fail(err, FARM_E_USAGE, "--ladder must be one of on, off (got '%.40s')", options->ladder);
    if (!(options->seconds >= SECONDS_MIN && options->seconds <= SECONDS_MAX))
        return farm_fail(err, FARM_E_USAGE, "--seconds must be %g to %g (got %g)", SECONDS_MIN, SECONDS_MAX,
                         options->seconds);
    if (!farm_fps_numa_find(options->numa, &fps->numa))
        return farm_fail(err, FARM_E_USAGE, "--numa must be one of bind, interleave, remote, off (got '%.40s')",
                         options->numa);
    if (options->tune + options->numa_ab + (options->inference != NULL) > 1)
        return farm_fail(err, FARM_E_USAGE, "--tune, --numa-ab and --inference exclude one another");
    int way = 0;
    while (options->inference && way < 3 && strcmp(options->inference, ways[way]) != 0) way++;
    if (way == 3)
        return farm_fail(err, FARM_E_USAGE, "--inference must be one of central, local, both (got '%.40s')",
                         options->inference);
    fps->ladder = strcmp(options->ladder, "on") == 0 && !options->numa_ab;
    if (options->tune && farm_file_try_replace(options->out, err)) return farm_fail_in(err, err->status, "--out");
    return FARM_OK;
}

static enum farm_status run_ladder(struct fps *fps, struct farm_error *err) {
    struct farm_error print_error;
    fps->recipe = fps->options->recipe;
    enum farm_status status = fps->options->inference ? FARM_OK : choose_recipe(fps, err);
    if (status) return status;
    if (fps->options->inference) {
        status = compare_inference(fps, err);
    } else if (fps->options->numa_ab) {
        status = compare_placements(fps, err);
    } else {
        status = measure(fps, err);
        if (!status) status = make_ladder(fps, err);
    }
    const enum farm_status printed = print_result(fps, status ? err->message : NULL, &print_error);
    if (!status && printed) *err = print_error;
    return status ? status : printed;
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

static int fps_main(struct options *options) {
    struct farm_error err = {0};
    const sigset_t signals = farm_ending_signals();
    sigset_t before;
    struct fps *fps = calloc(1, sizeof *fps);
    if (!fps) return farm_fail_errno(&err, FARM_E_LIMIT, "farm fps"), farm_report_error("farm fps", &err);
    fps->options = options;
    fps->start_ns = farm_now_ns();
    fps->farm = fps->one = fps->all = NOT_MEASURED;
    if (options->quiet) farm_log_set_level(FARM_LOG_WARN);
    sigprocmask(SIG_BLOCK, &signals, &before); // farm_supervisor_run handles those between measurements
    enum farm_status status = check_options(fps, &err);
    if (!status) status = options->tune ? run_tuning(fps, &err) : run_ladder(fps, &err);
    while (sigtimedwait(&signals, NULL, &(struct timespec){0}) > 0) continue; // obeyed
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(fps);
    return status ? farm_report_error("farm fps", &err) : 0;
}

int farm_cmd_fps(int argc, char **argv) {
    static struct options options = {.seconds = 20,
                                     .ladder = "on",
                                     .numa = "bind",
                                     .out = "tuned.yaml"}; // has a recipe: too large for a small stack
    const struct farm_cli_flag flags[] = {
        {"seconds", FARM_CLI_DOUBLE, &options.seconds, "S", "duration of the measurement without start-up (20)"},
        {"ladder", FARM_CLI_STRING, &options.ladder, "on|off", "measure inference and training too (on)"},
        {"numa", FARM_CLI_STRING, &options.numa, "WHERE", "rings: bind, interleave, remote or off (bind)"},
        {"numa-ab", FARM_CLI_BOOL, &options.numa_ab, NULL, "compares all four placements in turn"},
        {"tune", FARM_CLI_BOOL, &options.tune, NULL,
         "searches actors, environments an actor, lanes and pinning, and writes a recipe"},
        {"inference", FARM_CLI_STRING, &options.inference, "central|local|both",
         "sampling with the untrained network if the learner answers, if the actors do, or one after the other"},
        {"out", FARM_CLI_STRING, &options.out, "FILE", "of --tune (tuned.yaml)"},
        {"recipe", FARM_CLI_STRING, &options.recipe_file, "FILE",
         "recipe (YAML) over the one shipped for the environment"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress and no plan on stderr"},
    };
    const struct farm_cli cli = {
        .program = "farm fps",
        .synopsis = "[--env E] [--seconds S] [--ladder on|off] [--numa WHERE | --numa-ab | --tune | --inference WHO] "
                    "[--json] [--KEY VALUE ...]",
        .about =
            "Measures how fast environments step in the farm: the same actors, lanes and rings as in training, with\n"
            "random actions from a responder in the learner's place. Turns of the farm alternate with turns of the "
            "bare\n"
            "simulator, the best loop that can be written for it: fixed buffers, the same kind of actions, resets\n"
            "included, on one core and on all cores at once. Rates are medians of the turns, in agent steps\n"
            "(transitions). efficiency is the farm's rate / (bare loop on one core x cores). The ladder adds "
            "inference,\n"
            "then training. Without --envs-per-actor, a short measurement of the environment chooses it.",
        .examples = "  farm fps --env ale/Pong\n"
                    "  farm fps --env native/cartpole --seconds 5 --ladder off --json\n"
                    "  farm fps --env ale/Pong --numa-ab --seconds 60\n"
                    "  farm fps --env ale/Pong --tune && farm train --env ale/Pong --recipe tuned.yaml\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    int exit_status;
    if (!farm_read_recipe_flags(&cli, FARM_USE_FPS, argc, argv, NULL, &options.recipe, &exit_status))
        return exit_status;
    return load_recipe(&options, &err) ? farm_report_error(cli.program, &err) : fps_main(&options);
}
