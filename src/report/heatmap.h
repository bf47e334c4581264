// A matrix of figures as a picture: on a terminal with colours, elsewhere as numbers or, where they do not fit, as one
// digit a cell. Pure drawing: knows neither what the figures mean nor where they come from. As SVG: svg.h. Runs in
// tools.
#ifndef FARM_REPORT_HEATMAP_H
#define FARM_REPORT_HEATMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct farm_heatmap {
    const char *title, *unit;
    const char *row_axis, *column_axis; // "CPUs of node", "memory of node"
    size_t rows, columns;
    const char *const *row_names, *const *column_names; // [rows], [columns]
    const double *values;                               // [rows][columns]; NAN: not measured
    bool higher_is_better;                              // the better end is the brighter one
};

// Where a value stands between the worst (0) and the best (1) of the map, linearly; 0.5 where all are the same; NAN for
// what is not measured.
double farm_heatmap_share(const struct farm_heatmap *map, double value);

// The least and the greatest value that was measured; false: none was.
bool farm_heatmap_range(const struct farm_heatmap *map, double *least, double *greatest);

// The colour of a share: from dark violet over green to yellow, of even steps in lightness (the anchors are those of
// matplotlib's viridis). *ink: whether dark letters are read best on it.
void farm_heatmap_colour(double share, uint8_t rgb[3], bool *dark_ink);

// Draws it in lines of at most `line_columns` characters: numbers where they fit, else a cell of one digit, 0 the worst
// and 9 the best (with `colour` a coloured one). A map that does not fit even so is cut, which is said.
void farm_heatmap_draw(FILE *out, const struct farm_heatmap *map, bool colour, size_t line_columns);

#endif
