// JSON documents as the project prints them, over jansson: keys keep their order, numbers that are not finite become
// null, and a document is printed whole or as one line. Runs in the supervisor and in tools. Lack of memory aborts.
#ifndef FARM_BASE_JSON_H
#define FARM_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum { FARM_JSON_SCHEMA_VERSION = 1 };

// A new object; the caller owns it (json_decref). versioned: its first key is "schema_version".
json_t *farm_json_object(bool versioned);

void farm_json_set_text(json_t *object, const char *key, const char *value); // NULL and invalid UTF-8: null
void farm_json_set_int(json_t *object, const char *key, uint64_t value);
void farm_json_set_real(json_t *object, const char *key, double value); // not finite: null
void farm_json_set_bool(json_t *object, const char *key, bool value);
void farm_json_set(json_t *object, const char *key, json_t *value); // takes the reference
void farm_json_append(json_t *list, json_t *value);                 // takes the reference; NULL (no memory) aborts
// Copies the values of these keys (up to NULL), in this order.
void farm_json_copy(json_t *to, const json_t *from, const char *const *keys);

// The document on one line with its newline (malloc'd, the caller frees); *bytes receives its length.
char *farm_json_line(const json_t *document, size_t *bytes);

// The document on several lines, flushed. FARM_E_IO: the stream refuses it (full disk, closed pipe).
enum farm_status farm_json_print(const json_t *document, FILE *stream, struct farm_error *err);

// Whether text[0..bytes) has at most `most` values (in fact commas and opening brackets outside strings): a value takes
// up to 300 bytes when it is parsed, and 2 in the text.
bool farm_json_has_at_most(const char *text, size_t bytes, size_t most);

// Parses text[0..bytes). NULL: not a JSON document, or one of more than a million values; *err names `where`, line and
// column.
json_t *farm_json_parse(const char *text, size_t bytes, const char *where, struct farm_error *err);

#endif
