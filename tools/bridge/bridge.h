// The parts of `farm bridge`, one file each; argv[0] is the part's word. Exit status: command.h.
#ifndef FARM_TOOLS_BRIDGE_H
#define FARM_TOOLS_BRIDGE_H

#include <jansson.h>
#include <stdio.h>

#include "bridge/measure.h"
#include "bw/figure.h"

int farm_bridge_bench(int argc, char **argv);
int farm_bridge_connect(int argc, char **argv);
int farm_bridge_status(int argc, char **argv);

// Of a measurement, also for `farm bw`: one figure; prints the table on `out` and adds its keys to `object`.
struct farm_bw_figure farm_bridge_bench_figure(const struct farm_measure_result *result, enum farm_measure measure,
                                               enum farm_measure_way way);
void farm_bridge_bench_tell(const struct farm_measure_result *result, FILE *out, json_t *object);

#endif
