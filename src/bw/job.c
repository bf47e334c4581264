// See job.h.
#include "bw/job.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/json.h"

struct farm_bw_setup farm_bw_setup_for(const struct farm_bw_job *job, double share) {
    struct farm_bw_setup setup = job->setup;
    setup.seconds *= share;
    return setup;
}

const struct farm_bw_unit farm_bw_gb_per_s = {1e-9, "GB/s", true}, farm_bw_ns = {1, "ns", false};

double farm_bw_median(const struct farm_bw_figure *figure, const struct farm_bw_unit *unit) {
    return farm_bw_figure_is(figure) ? figure->median * unit->scale : (double)NAN;
}

static void add_result(struct farm_bw_job *job, const struct farm_bw_figure *figure, const struct farm_bw_unit *unit,
                       const char *format, va_list arguments) {
    char name[128];
    if (!farm_bw_figure_is(figure) || !(figure->median > 0)) return; // 0: too short to measure; it has no ratio
    vsnprintf(name, sizeof name, format, arguments);
    json_t *result = farm_json_object(false);
    farm_json_set_text(result, "name", name);
    farm_json_set_real(result, "value", figure->median * unit->scale);
    farm_json_set_text(result, "unit", unit->name);
    farm_json_set_text(result, "better", unit->higher_is_better ? "higher" : "lower");
    farm_json_set_real(result, "spread", figure->spread);
    farm_json_set_real(result, "cv", figure->cv);
    farm_json_set_int(result, "samples", (uint64_t)figure->samples);
    static const char *const of_benchmarks[] = {"reference", "reference_value", "ratio", "target"};
    for (int i = 0; i < 4; i++) farm_json_set(result, of_benchmarks[i], json_null());
    farm_json_append(job->results, result);
}

void farm_bw_add_result(struct farm_bw_job *job, const struct farm_bw_figure *figure, const struct farm_bw_unit *unit,
                        const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    add_result(job, figure, unit, name, arguments);
    va_end(arguments);
}

void farm_bw_report(struct farm_bw_job *job, int columns, json_t *object, const char *key,
                    const struct farm_bw_figure *figure, const struct farm_bw_unit *unit, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    add_result(job, figure, unit, name, arguments);
    va_end(arguments);
    fprintf(job->out, " %*s", columns, farm_bw_figure_text(figure, unit->scale).text);
    farm_json_set(object, key, farm_bw_figure_json(figure));
}

char *farm_bw_key(const char *name, char *text, size_t bytes) {
    snprintf(text, bytes, "%s", name);
    for (char *c = text; *c; c++)
        if (*c == ' ') *c = '_';
    return text;
}

struct farm_number_text farm_bw_figure_text(const struct farm_bw_figure *figure, double scale) {
    struct farm_number_text text = farm_format_digits(farm_bw_figure_is(figure) ? figure->median * scale : (double)NAN);
    if (figure->in_cache) strcat(text.text, "*");
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

void farm_bw_report_conditions(struct farm_bw_job *job, json_t *section, const struct farm_bw_conditions *conditions) {
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
        fprintf(job->out, "  (stopped by a signal: missing figures were not measured)\n");
    else if (conditions->out_of_time)
        fprintf(job->out, "  (out of time: some figures have fewer samples, or none; --seconds gives more)\n");
}
