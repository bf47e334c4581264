// A matrix of figures as text: numbers, or one digit each if numbers do not fit, with colours on request. Pure drawing.
#ifndef FARM_BW_HEATMAP_H
#define FARM_BW_HEATMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct farm_heatmap {
    const char *title, *unit;
    const char *row_axis, *column_axis; // "CPUs of node", "memory of node"
    int rows, columns;
    const int *row_numbers, *column_numbers; // [rows], [columns]; NULL: 0, 1, ...
    const double *values;                    // [rows][columns]; NAN: not measured
    bool higher_is_better;                   // the better end is the brighter one
};

// Draws it in lines of at most `line_columns` characters: numbers if they fit, else digits, 0 the worst and 9 the
// best. Columns that do not fit even so are left out, and a line states that.
void farm_heatmap_draw(FILE *out, const struct farm_heatmap *map, bool colour, size_t line_columns);

#endif
