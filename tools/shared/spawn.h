// A subcommand of this program as a program of its own (its command line and its signals are its own too), for the
// commands that put together what others measure. Runs in tools.
#ifndef FARM_TOOLS_SHARED_SPAWN_H
#define FARM_TOOLS_SHARED_SPAWN_H

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

// Runs `farm` with these words ({"fps", "--json", ..., NULL}) and gives the document that it prints, which belongs to
// the caller. stop (may be NULL) is asked ten times a second: true ends the command by SIGTERM, and what it prints then
// is the answer. Errors: FARM_E_DEAD no answer within limit_s, or it died; FARM_E_NOT_FOUND it failed, with its own
// sentence; FARM_E_FORMAT its answer is no JSON document, or too long; FARM_E_LIMIT it could not be started.
enum farm_status farm_spawn_document(const char *const *words, double limit_s, bool (*stop)(void *context),
                                     void *context, json_t **document, struct farm_error *err);

#endif
