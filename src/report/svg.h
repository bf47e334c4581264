// Pictures for documents and web pages: a heat map, and curves over one axis. Each is one SVG file without scripts,
// fonts or references, whose letters and lines follow the reader's light or dark scheme. Pure drawing; runs in tools.
#ifndef FARM_REPORT_SVG_H
#define FARM_REPORT_SVG_H

#include <stddef.h>
#include <stdio.h>

#include "report/heatmap.h"

enum farm_chart_scale {
    FARM_CHART_LINEAR, // from 0
    FARM_CHART_LOG10,  // ticks at 1, 2, 5 of each decade
    FARM_CHART_BYTES,  // logarithmic, ticks at powers of two, named in KiB, MiB, GiB
};

struct farm_chart_series {
    const char *name;
    const double *x, *y; // [count]; points that are not finite (or, on a logarithmic axis, not positive) are left out
    size_t count;
};

struct farm_chart {
    const char *title;
    const char *x_axis, *y_axis; // with units: "latency, ns"
    enum farm_chart_scale x_scale, y_scale;
    const struct farm_chart_series *series;
    size_t series_count;
};

// Writes the whole file; the caller looks at ferror(out).
void farm_svg_heatmap(FILE *out, const struct farm_heatmap *map);
void farm_svg_chart(FILE *out, const struct farm_chart *chart);

#endif
