// See tune.h.
#include "tools/fps/tune.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"

enum { POINTS_MAX = 32, POINTS_EXPECTED = 14, FINALISTS = 2, FINAL_ROUNDS = 2, LANES_MAX = 4, RECIPE_BYTES = 8192 };
static const double POINT_MIN_S = 0.5, WARM_SHARE = 0.2;
static const double BETTER = 1.01; // less is noise: the earlier setting stays

struct point {
    int64_t actors, envs_per_actor, lanes;
    bool pin;
    double rate; // agent steps/s; finalists: mean of their measurements
    uint32_t measured;
};

struct search {
    const struct farm_fps_tuning *tuning;
    struct farm_fps_turns turns;
    struct point points[POINTS_MAX];
    size_t count, best;
    uint32_t cores, frames_per_step;
    bool interrupted;
    struct farm_fps_result result; // the last measurement's
};

// ---- one point ----

static bool equals(const struct point *a, const struct point *b) {
    return a->actors == b->actors && a->envs_per_actor == b->envs_per_actor && a->lanes == b->lanes && a->pin == b->pin;
}

static void log_point(const struct search *search, const struct point *point) {
    if (!search->tuning->quiet)
        farm_log_info("actors %lld, envs_per_actor %lld, lanes %lld, pin %s: %s steps/s", (long long)point->actors,
                      (long long)point->envs_per_actor, (long long)point->lanes, point->pin ? "true" : "false",
                      farm_format_count(point->rate).text);
}

// FARM_E_USAGE: outside what a recipe may hold.
static enum farm_status fill_recipe(struct farm_recipe *recipe, const struct point *point, struct farm_error *err) {
    const struct {
        const char *name;
        int64_t value;
    } keys[] = {{"actors", point->actors}, {"envs_per_actor", point->envs_per_actor}, {"lanes", point->lanes}};
    recipe->pin = point->pin;
    enum farm_status status = FARM_OK;
    for (size_t k = 0; k < sizeof keys / sizeof *keys && !status; k++) {
        char value[24];
        snprintf(value, sizeof value, "%lld", (long long)keys[k].value);
        status = farm_recipe_set(recipe, FARM_LAYER_FLAG, keys[k].name, value, err);
    }
    return status;
}

static enum farm_status measure_point(struct search *search, struct point *point, struct farm_error *err) {
    struct farm_recipe recipe = *search->tuning->start;
    enum farm_status status = fill_recipe(&recipe, point, err);
    if (status) return status;
    status = farm_fps_measure(&recipe, search->tuning->numa, &search->turns, true, &search->result, err);
    search->interrupted |= search->result.interrupted;
    if (status || !search->result.samples.farm_count) return status;
    point->actors = search->result.actors; // 0: as many as the plan has
    point->rate = (point->rate * point->measured + search->result.samples.farm[0]) / (point->measured + 1);
    point->measured++;
    log_point(search, point);
    return FARM_OK;
}

// Tries one more setting; *better: it became the best. An impossible one (memory, limits) is skipped.
static enum farm_status try_point(struct search *search, struct point point, bool *better, struct farm_error *err) {
    *better = false;
    if (search->count == POINTS_MAX || search->interrupted) return FARM_OK;
    for (size_t i = 0; i < search->count; i++)
        if (equals(&search->points[i], &point)) return FARM_OK;
    enum farm_status status = measure_point(search, &point, err);
    if (status == FARM_E_LIMIT || status == FARM_E_USAGE) {
        if (!search->tuning->quiet) farm_log_info("skipped: %s", err->message);
        return FARM_OK;
    }
    if (status || !point.measured) return status;
    search->points[search->count] = point;
    *better = point.rate > BETTER * search->points[search->best].rate;
    if (*better) search->best = search->count;
    search->count++;
    return FARM_OK;
}

static struct point copy_best(const struct search *search) {
    struct point point = search->points[search->best];
    point.rate = 0;
    point.measured = 0;
    return point;
}

// ---- along the keys ----

static enum farm_status search_width(struct search *search, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    bool wider = true, narrower = true, widened = false;
    while (wider && !status) {
        struct point point = copy_best(search);
        point.envs_per_actor *= 2;
        status = try_point(search, point, &wider, err);
        widened |= wider;
    }
    while (narrower && !widened && !status) {
        struct point point = copy_best(search);
        point.envs_per_actor /= 2;
        if (point.envs_per_actor < point.lanes * search->result.agents) break;
        status = try_point(search, point, &narrower, err);
    }
    return status;
}

static enum farm_status search_lanes(struct search *search, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (int64_t lanes = 1; lanes <= LANES_MAX && !status; lanes *= 2) {
        struct point point = copy_best(search);
        bool better;
        point.lanes = lanes;
        if (point.envs_per_actor % (lanes * search->result.agents) == 0)
            status = try_point(search, point, &better, err);
    }
    return status;
}

// Starts with one per CPU; tries one per core, then twice as many.
static enum farm_status search_actors(struct search *search, struct farm_error *err) {
    const int64_t planned = search->points[0].actors, counts[] = {search->cores, planned, 2 * planned};
    enum farm_status status = FARM_OK;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && !status; i++) {
        struct point point = copy_best(search);
        bool better;
        point.actors = counts[i];
        status = try_point(search, point, &better, err);
    }
    return status;
}

static enum farm_status search_pinning(struct search *search, struct farm_error *err) {
    struct point point = copy_best(search);
    bool better;
    point.pin = !point.pin;
    return try_point(search, point, &better, err);
}

static int by_rate(const void *left, const void *right) {
    const struct point *a = left, *b = right;
    return (a->rate < b->rate) - (a->rate > b->rate);
}

// Measures the best settings again, alternating.
static enum farm_status choose_best(struct search *search, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    qsort(search->points, search->count, sizeof *search->points, by_rate);
    search->best = 0;
    const size_t finalists = search->count < FINALISTS ? search->count : FINALISTS;
    for (int r = 0; r < FINAL_ROUNDS && !status; r++)
        for (size_t i = 0; i < finalists && !status && !search->interrupted; i++)
            status = measure_point(search, &search->points[i], err);
    for (size_t i = 1; i < finalists; i++)
        if (search->points[i].rate > search->points[search->best].rate) search->best = i;
    return status;
}

static enum farm_status run_search(struct search *search, struct farm_error *err) {
    const struct farm_recipe *start = search->tuning->start;
    bool better;
    enum farm_status status = try_point(
        search,
        (struct point){
            .actors = start->actors, .envs_per_actor = start->envs_per_actor, .lanes = start->lanes, .pin = start->pin},
        &better, err);
    if (!status && !search->count)
        status = farm_fail(err, FARM_E_DEAD, "no setting was measured%s",
                           search->interrupted ? " before the signal came" : "");
    if (status) return status;
    search->cores = (uint32_t)search->result.cores;
    search->frames_per_step = search->result.frames_per_step;
    status = search_width(search, err);
    if (!status) status = search_lanes(search, err);
    if (!status) status = search_actors(search, err);
    if (!status) status = search_pinning(search, err);
    return status ? status : choose_best(search, err);
}

// ---- the recipe and the result ----

static enum farm_status write_recipe(const struct search *search, struct farm_error *err) {
    const struct point *best = &search->points[search->best];
    char text[RECIPE_BYTES];
    const int bytes = snprintf(
        text, sizeof text,
        "# By farm fps --tune: %.0f agent steps/s under random actions, the best of %zu settings on this machine.\n"
        "# Tuned for simulation. A network that is slower, or learning that needs fewer games at once, may need a\n"
        "# smaller envs_per_actor. The default of `batch` is half the number of environments.\n"
        "env: '%s'\nactors: %lld\nenvs_per_actor: %lld\nlanes: %lld\npin: %s\n",
        best->rate, search->count, search->tuning->recipe->env, (long long)best->actors,
        (long long)best->envs_per_actor, (long long)best->lanes, best->pin ? "true" : "false");
    return farm_file_replace(search->tuning->path, text, (size_t)bytes, err);
}

static json_t *point_json(const struct point *point) {
    json_t *object = farm_json_object(false);
    farm_json_set_int(object, "actors", (uint64_t)point->actors);
    farm_json_set_int(object, "envs_per_actor", (uint64_t)point->envs_per_actor);
    farm_json_set_int(object, "lanes", (uint64_t)point->lanes);
    farm_json_set_bool(object, "pin", point->pin);
    farm_json_set_real(object, "agent_steps_per_s", point->rate);
    return object;
}

// written: the recipe is there.
static enum farm_status print_result(const struct search *search, bool written, struct farm_error *err) {
    const struct point *best = &search->points[search->best];
    const struct farm_fps_tuning *tuning = search->tuning;
    if (!tuning->json) {
        printf(
            "\n%s: %lld actors x %lld lanes x %lld environments, %s: %.4g agent steps/s, the best of %zu settings%s.\n",
            tuning->recipe->env, (long long)best->actors, (long long)best->lanes,
            (long long)(best->envs_per_actor / best->lanes), best->pin ? "pinned" : "not pinned", best->rate,
            search->count, search->interrupted ? "; stopped by a signal" : "");
        if (written)
            printf("Written to %s: farm train --env %s --recipe %s\n", tuning->path,
                   farm_format_word(tuning->recipe->env).text, farm_format_word(tuning->path).text);
        return FARM_OK;
    }
    json_t *document = farm_json_object(true), *tried = json_array();
    for (size_t i = 0; i < search->count; i++) farm_json_append(tried, point_json(&search->points[i]));
    farm_json_set_text(document, "env", tuning->recipe->env);
    farm_json_set_int(document, "seed", (uint64_t)tuning->recipe->seed);
    farm_json_set_real(document, "agent_steps_per_s", best->rate);
    farm_json_set_real(document, "frames_per_s", best->rate * search->frames_per_step);
    farm_json_set(document, "tuned", point_json(best));
    farm_json_set(document, "tried", tried);
    farm_json_set_text(document, "recipe", written ? tuning->path : NULL);
    farm_json_set_bool(document, "interrupted", search->interrupted);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

enum farm_status farm_fps_tune(const struct farm_fps_tuning *tuning, struct farm_error *err) {
    const double each = tuning->seconds / POINTS_EXPECTED, point_s = each > POINT_MIN_S ? each : POINT_MIN_S;
    struct search *search = calloc(1, sizeof *search);
    if (!search) return farm_fail_errno(err, FARM_E_LIMIT, "farm fps --tune");
    search->tuning = tuning;
    search->turns = (struct farm_fps_turns){.rounds = 1, .farm_s = point_s, .warm_s = WARM_SHARE * point_s};
    enum farm_status status = run_search(search, err);
    if (!status) {
        struct farm_error print_error;
        if (write_recipe(search, err)) status = farm_fail_in(err, FARM_E_IO, "no recipe is written");
        const enum farm_status printed = print_result(search, !status, &print_error);
        if (!status && (status = printed)) *err = print_error;
    }
    free(search);
    return status;
}
