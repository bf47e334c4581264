// Parts that `farm report` puts together, each filled by the file that also prints it for its own subcommand. Documents
// are those subcommands' --json; the caller owns them (json_decref). Runs in tools.
#ifndef FARM_TOOLS_REPORT_H
#define FARM_TOOLS_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

// `farm topo` of this machine with its standard flags; the picture goes to `drawing`.
enum farm_status farm_topo_document(json_t **document, FILE *drawing, struct farm_error *err);

// `farm doctor`, about the machine.
enum farm_status farm_doctor_document(json_t **document, struct farm_error *err);

#endif
