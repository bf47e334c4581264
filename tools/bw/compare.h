// `farm bw --compare`: the figures of two documents side by side. A document comes from a file and is validated: one of
// another kind, too large a one, and one with wrong types are refused.
#ifndef FARM_TOOLS_BW_COMPARE_H
#define FARM_TOOLS_BW_COMPARE_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

// The document in the file; the caller owns it. Errors: FARM_E_NOT_FOUND, FARM_E_PERMISSION, FARM_E_LIMIT, longer than
// 16 MiB; FARM_E_FORMAT, another kind of document, with what is wrong and where.
enum farm_status farm_bw_document_read(const char *path, json_t **document, struct farm_error *err);

// Prints a line for every figure that both have (now divided by then, and whether they differ by more than their
// spreads together) and returns the same as JSON, which the caller owns: {"file", "commit", "cpu", "figures": [{"name",
// "then", "now", "unit", "ratio", "change"}], "only_then", "only_now"}. change: "same", "better", "worse". Both
// documents have passed farm_bw_document_read or were made here.
json_t *farm_bw_compare(FILE *out, const char *path, const json_t *then, const json_t *now);

#endif
