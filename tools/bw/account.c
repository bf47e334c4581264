// The account of `farm bw`: progress, figures, pictures. See farm_bw.h.
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "tools/bw/bw.h"

// ---- signals and progress ----

bool farm_bw_stop(void *context) {
    struct farm_bw_job *job = context;
    sigset_t signals;
    const struct timespec at_once = {0};
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    if (sigtimedwait(&signals, NULL, &at_once) > 0) job->interrupted = true;
    return job->interrupted;
}

void farm_bw_show_progress(void *context, const char *what, double done) {
    struct farm_bw_job *job = context;
    char line[160];
    if (job->quiet || !job->terminal) return;
    const int n = snprintf(line, sizeof line, "\r%d of %d: %s: %.80s, %.0f %%\033[K", job->part, job->parts,
                           job->part_name, what, 100 * done);
    const ssize_t ignored = write(STDERR_FILENO, line, (size_t)n); // a closed stderr must not end a run
    (void)ignored;
    job->drawn = true;
}

void farm_bw_clear_progress(struct farm_bw_job *job) {
    if (!job->drawn) return;
    const ssize_t ignored = write(STDERR_FILENO, "\r\033[K", 4);
    (void)ignored;
    job->drawn = false;
}

struct farm_bw_setup farm_bw_setup_for(const struct farm_bw_job *job, double share) {
    struct farm_bw_setup setup = job->setup;
    setup.seconds *= share;
    return setup;
}

// ---- figures ----

const struct farm_bw_unit farm_bw_gb_per_s = {1e-9, "GB/s", true}, farm_bw_ns = {1, "ns", false};

static void add(struct farm_bw_job *job, const struct farm_bw_figure *figure, const struct farm_bw_unit *unit,
                const char *name, va_list arguments) {
    char text[128];
    if (!farm_bw_figure_is(figure) || !(figure->median > 0)) return; // 0: too slow to be seen, and no ratio to anything
    vsnprintf(text, sizeof text, name, arguments);
    json_t *result = farm_json_object(false);
    farm_json_set_text(result, "name", text);
    farm_json_set_real(result, "value", figure->median * unit->scale);
    farm_json_set_text(result, "unit", unit->name);
    farm_json_set_text(result, "better", unit->higher_is_better ? "higher" : "lower");
    farm_json_set_real(result, "spread", figure->spread);
    farm_json_set_real(result, "cv", figure->cv);
    farm_json_set_int(result, "samples", (uint64_t)figure->samples);
    farm_json_set_text(result, "reference", NULL);
    farm_json_set_real(result, "reference_value", (double)NAN);
    farm_json_set_real(result, "ratio", (double)NAN);
    farm_json_set_real(result, "target", (double)NAN);
    json_array_append_new(job->results, result);
}

void farm_bw_add(struct farm_bw_job *job, const struct farm_bw_figure *figure, const struct farm_bw_unit *unit,
                 const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    add(job, figure, unit, name, arguments);
    va_end(arguments);
}

void farm_bw_tell(struct farm_bw_job *job, int columns, json_t *object, const char *key,
                  const struct farm_bw_figure *figure, const struct farm_bw_unit *unit, const char *name, ...) {
    char text[32];
    va_list arguments;
    va_start(arguments, name);
    add(job, figure, unit, name, arguments);
    va_end(arguments);
    fprintf(job->out, " %*s", columns, farm_bw_cell(figure, unit->scale, text, sizeof text));
    farm_json_set(object, key, farm_bw_figure_json(figure));
}

char *farm_bw_key(const char *name, char *text, size_t bytes) {
    snprintf(text, bytes, "%s", name);
    for (char *c = text; *c; c++)
        if (*c == ' ') *c = '_';
    return text;
}

json_t *farm_bw_figure_json(const struct farm_bw_figure *figure) {
    if (!farm_bw_figure_is(figure)) return json_null();
    json_t *object = farm_json_object(false);
    farm_json_set_real(object, "median", figure->median);
    farm_json_set_real(object, "spread", figure->spread);
    farm_json_set_real(object, "cv", figure->cv);
    farm_json_set_int(object, "samples", (uint64_t)figure->samples);
    farm_json_set_real(object, "least", figure->least);
    farm_json_set_real(object, "most", figure->most);
    farm_json_set_bool(object, "in_cache", figure->in_cache);
    return object;
}

const char *farm_bw_cell(const struct farm_bw_figure *figure, double scale, char *text, size_t bytes) {
    const double value = farm_bw_figure_is(figure) ? figure->median * scale : (double)NAN;
    snprintf(text, bytes, "%s%s", farm_format_digits(value).text, figure->in_cache ? "*" : "");
    return text;
}

void farm_bw_tell_conditions(struct farm_bw_job *job, json_t *section, const struct farm_bw_conditions *conditions) {
    json_t *object = farm_json_object(false);
    farm_json_set_bool(object, "pinned", conditions->pinned);
    farm_json_set_bool(object, "bound", conditions->bound);
    farm_json_set_bool(object, "placed", conditions->placed);
    farm_json_set_bool(object, "verified", conditions->verified);
    farm_json_set_bool(object, "stopped", conditions->stopped);
    farm_json_set_bool(object, "out_of_time", conditions->out_of_time);
    farm_json_set_text(object, "pages", farm_bw_pages_name(conditions->pages));
    farm_json_set_text(object, "note", conditions->note[0] ? conditions->note : NULL);
    farm_json_set(section, "conditions", object);
    if (conditions->note[0]) fprintf(job->out, "  (%s)\n", conditions->note);
    if (conditions->stopped)
        fprintf(job->out, "  (stopped by a signal: what is missing was not measured)\n");
    else if (conditions->out_of_time)
        fprintf(job->out, "  (its time was over: some figures have fewer samples, or none; --seconds gives more)\n");
}

// ---- pictures ----

static enum farm_status open_svg(const struct farm_bw_job *job, const char *name, FILE **file, struct farm_error *err) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.svg", job->svg, name);
    *file = fopen(path, "we");
    return *file ? FARM_OK : farm_fail_errno(err, FARM_E_IO, "--svg: %s", path);
}

static enum farm_status close_svg(FILE *file, const char *name, struct farm_error *err) {
    const bool failed = ferror(file);
    if (fclose(file) || failed) return farm_fail_errno(err, FARM_E_IO, "--svg: writing %s.svg", name);
    return FARM_OK;
}

void farm_bw_label(struct farm_bw_labels *labels, const int *numbers, int count) {
    for (int i = 0; i < count; i++) {
        snprintf(labels->text[i], sizeof labels->text[i], "%d", numbers ? numbers[i] : i);
        labels->names[i] = labels->text[i];
    }
}

enum farm_status farm_bw_give_map(struct farm_bw_job *job, const char *name, const struct farm_heatmap *map,
                                  struct farm_error *err) {
    FILE *file;
    farm_heatmap_draw(job->out, map, job->colour, job->columns);
    if (!job->svg) return FARM_OK;
    enum farm_status status = open_svg(job, name, &file, err);
    if (status) return status;
    farm_svg_heatmap(file, map);
    return close_svg(file, name, err);
}

enum farm_status farm_bw_give_chart(struct farm_bw_job *job, const char *name, const struct farm_chart *chart,
                                    struct farm_error *err) {
    FILE *file;
    if (!job->svg) return FARM_OK;
    enum farm_status status = open_svg(job, name, &file, err);
    if (status) return status;
    farm_svg_chart(file, chart);
    return close_svg(file, name, err);
}
