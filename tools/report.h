// The parts of `farm report`: the documents that the subcommands print with --json. The caller owns them.
#ifndef FARM_TOOLS_REPORT_H
#define FARM_TOOLS_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

// `farm topo` of this machine without flags; also draws it on `drawing`.
enum farm_status farm_topo_document(json_t **document, FILE *drawing, struct farm_error *err);

// `farm doctor` of this machine.
enum farm_status farm_doctor_document(json_t **document, struct farm_error *err);

#endif
