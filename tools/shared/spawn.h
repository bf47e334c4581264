// Runs a subcommand as a separate process, with its own command line and signals, for commands that combine results.
#ifndef FARM_TOOLS_SHARED_SPAWN_H
#define FARM_TOOLS_SHARED_SPAWN_H

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

// Runs `farm` with these words ({"fps", "--json", ..., NULL}) and returns the document that it prints; the caller
// owns it. stop (may be NULL) is called ten times a second: true ends the command by SIGTERM, and the document that it
// then prints is the result. Errors: FARM_E_DEAD no answer within limit_s, or it died or failed, with
// its message; FARM_E_FORMAT its answer is no JSON document, or too long; FARM_E_LIMIT it could not be started.
enum farm_status farm_spawn_document(const char *const *words, double limit_s, bool (*stop)(void *context),
                                     void *context, json_t **document, struct farm_error *err);

#endif
