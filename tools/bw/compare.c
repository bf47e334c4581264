// See compare.h.
#include "tools/bw/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"

enum { FILE_BYTES_MAX = 16 << 20, RESULTS_MAX = 50000, NAME_BYTES_MAX = 128, TEXT_BYTES_MAX = 256 };
static const double LEAST_CHANGE = 0.01; // below it two runs are the same, whatever their spreads

// ---- reading ----

// At most `most` printable characters: it goes to a terminal.
static bool is_plain(const json_t *value, size_t most) {
    const char *text = json_string_value(value);
    const size_t length = text ? json_string_length(value) : 0;
    if (length == 0 || length > most || strlen(text) != length) return false;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return false;
    return true;
}

static bool is_positive(const json_t *value) {
    return json_is_number(value) && json_number_value(value) > 0 && isfinite(json_number_value(value));
}

static const char *wrong_result(const json_t *result) {
    const json_t *spread = json_object_get(result, "spread");
    if (!json_is_object(result)) return "is not an object";
    if (!is_plain(json_object_get(result, "name"), NAME_BYTES_MAX)) return "has no name";
    if (!is_plain(json_object_get(result, "unit"), NAME_BYTES_MAX)) return "has no unit";
    if (!is_positive(json_object_get(result, "value"))) return "has no value above 0";
    if (!json_is_null(spread) && !(json_is_number(spread) && json_number_value(spread) >= 0))
        return "has no spread of 0 or more";
    const char *better = json_string_value(json_object_get(result, "better"));
    if (!better || (strcmp(better, "higher") != 0 && strcmp(better, "lower") != 0))
        return "does not state whether higher or lower is better";
    return NULL;
}

static enum farm_status check_document(const char *path, const json_t *document, struct farm_error *err) {
    const json_t *results = json_object_get(document, "results"),
                 *version = json_object_get(document, "schema_version");
    const char *benchmark = json_string_value(json_object_get(document, "benchmark"));
    if (!benchmark || strcmp(benchmark, "bw") != 0)
        return farm_fail(err, FARM_E_FORMAT, "%s: not a document of farm bw --json (its \"benchmark\" is not \"bw\")",
                         path);
    if (!json_is_integer(version) || json_integer_value(version) != FARM_JSON_SCHEMA_VERSION)
        return farm_fail(err, FARM_E_FORMAT, "%s: schema_version is not %d: run farm bw --json of this version", path,
                         FARM_JSON_SCHEMA_VERSION);
    if (!json_is_array(results) || json_array_size(results) > RESULTS_MAX)
        return farm_fail(err, FARM_E_FORMAT, "%s: \"results\" is not a list of at most %d", path, RESULTS_MAX);
    if (json_array_size(results) == 0) return farm_fail(err, FARM_E_FORMAT, "%s: it has no results", path);
    size_t index;
    const json_t *result;
    json_array_foreach(results, index, result) {
        const char *wrong = wrong_result(result);
        if (wrong) return farm_fail(err, FARM_E_FORMAT, "%s: result %zu %s", path, index, wrong);
    }
    return FARM_OK;
}

enum farm_status farm_bw_document_read(const char *path, json_t **document, struct farm_error *err) {
    char *text;
    size_t bytes;
    enum farm_status status = farm_file_read(path, FILE_BYTES_MAX, &text, &bytes, err);
    if (status) return status;
    *document = farm_json_parse(text, bytes, path, err);
    free(text);
    if (!*document) return err->status;
    status = check_document(path, *document, err);
    if (!status) return FARM_OK;
    json_decref(*document);
    *document = NULL;
    return status;
}

// ---- comparing ----

static const char *text_in(const json_t *document, const char *object, const char *key) {
    const json_t *value = json_object_get(object ? json_object_get(document, object) : document, key);
    return is_plain(value, TEXT_BYTES_MAX) ? json_string_value(value) : "unknown";
}

static double number_in(const json_t *result, const char *key) {
    const json_t *value = json_object_get(result, key);
    return json_is_number(value) ? json_number_value(value) : 0;
}

// They differ if the difference exceeds half of both interquartile ranges together.
static const char *change_of(const json_t *then, const json_t *now, double ratio) {
    const double spreads = (number_in(then, "spread") + number_in(now, "spread") * ratio) / 2;
    if (fabs(ratio - 1) <= fmax(spreads, LEAST_CHANGE)) return "same";
    const bool higher = strcmp(json_string_value(json_object_get(now, "better")), "higher") == 0;
    return (ratio > 1) == higher ? "better" : "worse";
}

// From name to result.
static json_t *index_of(const json_t *document) {
    json_t *index = farm_json_object(false);
    size_t i;
    json_t *result;
    json_array_foreach(json_object_get(document, "results"), i, result) {
        json_object_set(index, json_string_value(json_object_get(result, "name")), result);
    }
    return index;
}

static json_t *compare_one(FILE *out, const json_t *then, const json_t *now) {
    const char *name = json_string_value(json_object_get(now, "name"));
    const char *unit = json_string_value(json_object_get(now, "unit"));
    const double before = number_in(then, "value"), after = number_in(now, "value"), ratio = after / before;
    const char *change = change_of(then, now, ratio);
    fprintf(out, "  %-44s %10s %10s %-8s %7.3f  %s\n", name, farm_format_digits(before).text,
            farm_format_digits(after).text, unit, ratio, strcmp(change, "same") == 0 ? "" : change);
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "name", name);
    farm_json_set_real(object, "then", before);
    farm_json_set_real(object, "now", after);
    farm_json_set_text(object, "unit", unit);
    farm_json_set_real(object, "ratio", ratio);
    farm_json_set_text(object, "change", change);
    return object;
}

static json_t *missing_in(const json_t *index, const json_t *document) {
    json_t *names = json_array();
    size_t i;
    json_t *result;
    json_array_foreach(json_object_get(document, "results"), i, result) {
        json_t *name = json_object_get(result, "name");
        if (!json_object_get(index, json_string_value(name))) json_array_append(names, name);
    }
    return names;
}

json_t *farm_bw_compare(FILE *out, const char *path, const json_t *then, const json_t *now) {
    json_t *index_then = index_of(then), *index_now = index_of(now), *figures = json_array();
    json_t *compare = farm_json_object(false), *result;
    size_t i;
    fprintf(out, "\nAgainst %s (farm %s, %s), now divided by then; marked if they differ by more than both spreads:\n",
            path, text_in(then, NULL, "commit"), text_in(then, "machine", "cpu"));
    fprintf(out, "  %-44s %10s %10s %-8s %7s\n", "", "then", "now", "", "ratio");
    json_array_foreach(json_object_get(now, "results"), i, result) {
        const json_t *before = json_object_get(index_then, json_string_value(json_object_get(result, "name")));
        const char *unit = json_string_value(json_object_get(result, "unit"));
        if (before && strcmp(json_string_value(json_object_get(before, "unit")), unit) == 0)
            farm_json_append(figures, compare_one(out, before, result));
    }
    json_t *only_then = missing_in(index_now, then), *only_now = missing_in(index_then, now);
    if (json_array_size(figures) == 0) fprintf(out, "  the documents have no figure in common\n");
    if (json_array_size(only_then) || json_array_size(only_now))
        fprintf(out, "  (%zu figures are only in the earlier run, %zu only in this one)\n", json_array_size(only_then),
                json_array_size(only_now));
    farm_json_set_text(compare, "file", path);
    farm_json_set_text(compare, "commit", text_in(then, NULL, "commit"));
    farm_json_set_text(compare, "cpu", text_in(then, "machine", "cpu"));
    farm_json_set(compare, "figures", figures);
    farm_json_set(compare, "only_then", only_then);
    farm_json_set(compare, "only_now", only_now);
    json_decref(index_then);
    json_decref(index_now);
    return compare;
}
