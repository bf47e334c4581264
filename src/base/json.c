// See json.h.
#include "base/json.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REAL_DIGITS = 9, VALUES_MAX = 1 << 20 };

json_t *farm_json_object(bool versioned) {
    json_t *object = json_object();
    assert(object);
    if (versioned) farm_json_set_int(object, "schema_version", FARM_JSON_SCHEMA_VERSION);
    return object;
}

void farm_json_set(json_t *object, const char *key, json_t *value) {
    int failed = json_object_set_new(object, key, value ? value : json_null());
    assert(!failed);
}

void farm_json_append(json_t *list, json_t *value) {
    int failed = json_array_append_new(list, value);
    assert(!failed);
}

void farm_json_set_text(json_t *object, const char *key, const char *value) {
    farm_json_set(object, key, value ? json_string(value) : NULL);
}

void farm_json_set_int(json_t *object, const char *key, uint64_t value) {
    farm_json_set(object, key, json_integer((json_int_t)value));
}

void farm_json_set_real(json_t *object, const char *key, double value) {
    farm_json_set(object, key, isfinite(value) ? json_real(value) : NULL);
}

void farm_json_set_bool(json_t *object, const char *key, bool value) {
    farm_json_set(object, key, json_boolean(value));
}

void farm_json_copy(json_t *to, const json_t *from, const char *const *keys) {
    for (; *keys; keys++) farm_json_set(to, *keys, json_incref(json_object_get(from, *keys)));
}

char *farm_json_line(const json_t *document, size_t *bytes) {
    char *text = json_dumps(document, JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS));
    assert(text);
    size_t length = strlen(text);
    char *line = realloc(text, length + 2);
    assert(line);
    line[length] = '\n';
    line[length + 1] = 0;
    *bytes = length + 1;
    return line;
}

enum farm_status farm_json_print(const json_t *document, FILE *stream, struct farm_error *err) {
    int failed = json_dumpf(document, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(REAL_DIGITS));
    failed |= fputc('\n', stream) == EOF;
    failed |= fflush(stream) != 0;
    return failed ? farm_fail_errno(err, FARM_E_IO, "cannot write the JSON document") : FARM_OK;
}

bool farm_json_has_at_most(const char *text, size_t bytes, size_t most) {
    bool quoted = false;
    size_t values = 0;
    for (size_t i = 0; i < bytes && values <= most; i++) {
        if (text[i] == '"') quoted = !quoted;
        if (text[i] == '\\' && quoted) i++;
        values += !quoted && (text[i] == ',' || text[i] == '{' || text[i] == '[');
    }
    return values <= most;
}

json_t *farm_json_parse(const char *text, size_t bytes, const char *where, struct farm_error *err) {
    json_error_t problem;
    if (!farm_json_has_at_most(text, bytes, VALUES_MAX)) {
        farm_fail(err, FARM_E_FORMAT, "%s: a JSON document of more than %d values", where, VALUES_MAX);
        return NULL;
    }
    json_t *document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
    if (!document)
        farm_fail(err, FARM_E_FORMAT, "%s:%d:%d: not a JSON document: %s", where, problem.line, problem.column,
                  problem.text);
    return document;
}
