// See heatmap.h.
#include "report/heatmap.h"

#include <math.h>
#include <string.h>

#include "base/format.h"

enum { SHADES = 10, NAME_COLUMNS_MAX = 24, CELL_COLUMNS_MIN = 6 };

// ---- values ----

bool farm_heatmap_range(const struct farm_heatmap *map, double *least, double *greatest) {
    bool found = false;
    for (size_t i = 0; i < map->rows * map->columns; i++) {
        const double value = map->values[i];
        if (!isfinite(value)) continue;
        if (!found || value < *least) *least = value;
        if (!found || value > *greatest) *greatest = value;
        found = true;
    }
    return found;
}

double farm_heatmap_share(const struct farm_heatmap *map, double value) {
    double least, greatest;
    if (!isfinite(value) || !farm_heatmap_range(map, &least, &greatest)) return (double)NAN;
    if (!(greatest > least)) return 0.5;
    const double share = (value - least) / (greatest - least);
    return map->higher_is_better ? share : 1 - share;
}

void farm_heatmap_colour(double share, uint8_t rgb[3], bool *dark_ink) {
    static const uint8_t anchors[][3] = {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    enum { LAST = sizeof anchors / sizeof *anchors - 1 };
    const double at = fmin(fmax(share, 0), 1) * LAST;
    const int from = at >= LAST ? LAST - 1 : (int)at;
    for (int i = 0; i < 3; i++)
        rgb[i] = (uint8_t)(anchors[from][i] + (at - from) * (anchors[from + 1][i] - anchors[from][i]) + 0.5);
    *dark_ink = share > 0.45; // where its contrast becomes the better one
}

// ---- drawing ----

// The nearest colour of the 6 x 6 x 6 cube that terminals have had for decades.
static int cube_colour(const uint8_t rgb[3]) {
    int index = 0;
    for (int i = 0; i < 3; i++) {
        const int level = rgb[i] < 48 ? 0 : rgb[i] < 115 ? 1 : (rgb[i] - 35) / 40;
        index = 6 * index + level;
    }
    return 16 + index;
}

static void draw_cell(FILE *out, const struct farm_heatmap *map, double value, const char *text, int columns,
                      bool colour) {
    const double share = farm_heatmap_share(map, value);
    uint8_t rgb[3];
    bool dark_ink;
    if (!colour || isnan(share)) {
        fprintf(out, "%*s", columns, text);
        return;
    }
    farm_heatmap_colour(share, rgb, &dark_ink);
    fprintf(out, "\x1b[48;5;%dm\x1b[38;5;%dm%*s\x1b[0m", cube_colour(rgb), dark_ink ? 16 : 231, columns, text);
}

static int longest(const char *const *names, size_t count) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) most = strlen(names[i]) > most ? strlen(names[i]) : most;
    return most > NAME_COLUMNS_MAX ? NAME_COLUMNS_MAX : (int)most;
}

static void draw_numbers(FILE *out, const struct farm_heatmap *map, bool colour, int name, int cell) {
    fprintf(out, "  %*s", name, "");
    for (size_t c = 0; c < map->columns; c++) fprintf(out, "%*.*s", cell, cell - 1, map->column_names[c]);
    fprintf(out, "\n");
    for (size_t r = 0; r < map->rows; r++) {
        fprintf(out, "  %*.*s", name, name, map->row_names[r]);
        for (size_t c = 0; c < map->columns; c++) {
            const double value = map->values[r * map->columns + c];
            draw_cell(out, map, value, farm_format_digits(value).text, cell, colour);
        }
        fprintf(out, "\n");
    }
}

static void draw_shades(FILE *out, const struct farm_heatmap *map, bool colour, int name, size_t line_columns) {
    const size_t left = line_columns > (size_t)name + 4 ? line_columns - (size_t)name - 3 : 1;
    const size_t columns = map->columns < left ? map->columns : left;
    char digit[2] = "";
    for (size_t r = 0; r < map->rows; r++) {
        fprintf(out, "  %*.*s ", name, name, map->row_names[r]);
        for (size_t c = 0; c < columns; c++) {
            const double value = map->values[r * map->columns + c], share = farm_heatmap_share(map, value);
            digit[0] = isnan(share) ? '.' : (char)('0' + (int)fmin(share * SHADES, SHADES - 1));
            draw_cell(out, map, value, digit, 1, colour);
        }
        fprintf(out, "\n");
    }
    if (columns < map->columns)
        fprintf(out, "  (%zu of %zu columns fit; the JSON and the SVG have all)\n", columns, map->columns);
}

void farm_heatmap_draw(FILE *out, const struct farm_heatmap *map, bool colour, size_t line_columns) {
    double least, greatest;
    fprintf(out, "%s, %s (rows: %s, columns: %s)\n", map->title, map->unit, map->row_axis, map->column_axis);
    if (!farm_heatmap_range(map, &least, &greatest)) {
        fprintf(out, "  nothing measured\n");
        return;
    }
    const int name = longest(map->row_names, map->rows), widest = longest(map->column_names, map->columns);
    const int cell = widest + 2 > CELL_COLUMNS_MIN + 1 ? widest + 2 : CELL_COLUMNS_MIN + 1;
    if ((size_t)name + 2 + map->columns * (size_t)cell <= line_columns) {
        draw_numbers(out, map, colour, name, cell);
        return;
    }
    draw_shades(out, map, colour, name, line_columns);
    fprintf(out, "  0: %s %s, 9: %s %s\n", farm_format_digits(map->higher_is_better ? least : greatest).text, map->unit,
            farm_format_digits(map->higher_is_better ? greatest : least).text, map->unit);
}
