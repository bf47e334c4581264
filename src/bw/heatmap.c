// See heatmap.h.
#include "bw/heatmap.h"

#include <math.h>

#include "base/format.h"

enum { SHADES = 10, NUMBER_COLUMNS = 7 };

// The worst (0) and the best (1) measured value.
struct range {
    double worst, best;
};

static bool find_range(const struct farm_heatmap *map, struct range *range) {
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < map->rows * map->columns; i++) {
        if (!isfinite(map->values[i])) continue;
        least = fmin(least, map->values[i]);
        most = fmax(most, map->values[i]);
    }
    *range = map->higher_is_better ? (struct range){least, most} : (struct range){most, least};
    return least <= most;
}

// 0, the worst, to 9; 5 if all values are the same; -1: not measured.
static int shade_of(const struct range *range, double value) {
    if (!isfinite(value)) return -1;
    if (range->best == range->worst) return SHADES / 2;
    return (int)fmin(SHADES * (value - range->worst) / (range->best - range->worst), SHADES - 1);
}

// Dark violet over green to yellow in even steps of lightness (matplotlib's viridis in the terminal's 256 colours).
static const int shades[SHADES] = {53, 54, 60, 61, 67, 73, 72, 78, 149, 226};

static void draw_value(FILE *out, int shade, const char *text, int columns, bool colour) {
    if (colour && shade >= 0)
        fprintf(out, "\x1b[48;5;%dm\x1b[38;5;%dm%*s\x1b[0m", shades[shade], shade > 4 ? 16 : 231, columns, text);
    else
        fprintf(out, "%*s", columns, text);
}

static int width_of(const int *numbers, int count) {
    int most = 0;
    for (int i = 0; i < count; i++) {
        const int width = snprintf(NULL, 0, "%d", numbers ? numbers[i] : i);
        if (width > most) most = width;
    }
    return most;
}

void farm_heatmap_draw(FILE *out, const struct farm_heatmap *map, bool colour, size_t line_columns) {
    struct range range;
    fprintf(out, "%s, %s (rows: %s, columns: %s)\n", map->title, map->unit, map->row_axis, map->column_axis);
    if (!find_range(map, &range)) {
        fprintf(out, "  nothing measured\n");
        return;
    }
    const int name = width_of(map->row_numbers, map->rows), widest = width_of(map->column_numbers, map->columns) + 2;
    const int wide = widest > NUMBER_COLUMNS ? widest : NUMBER_COLUMNS, room = (int)line_columns - name - 3;
    const bool numbers = name + 2 + map->columns * wide <= (int)line_columns;
    const int columns = numbers || map->columns <= room ? map->columns : room > 1 ? room : 1;
    if (numbers) fprintf(out, "  %*s", name, "");
    for (int c = 0; c < columns && numbers; c++)
        fprintf(out, "%*d%s", wide, map->column_numbers ? map->column_numbers[c] : c, c + 1 < columns ? "" : "\n");
    for (int r = 0; r < map->rows; r++) {
        fprintf(out, "  %*d%s", name, map->row_numbers ? map->row_numbers[r] : r, numbers ? "" : " ");
        for (int c = 0; c < columns; c++) {
            const double value = map->values[r * map->columns + c];
            const int shade = shade_of(&range, value);
            const char digit[] = {shade < 0 ? '.' : (char)('0' + shade), 0};
            draw_value(out, shade, numbers ? farm_format_digits(value).text : digit, numbers ? wide : 1, colour);
        }
        fprintf(out, "\n");
    }
    if (columns < map->columns) fprintf(out, "  (%d of %d columns fit; --json has all)\n", columns, map->columns);
    if (!numbers)
        fprintf(out, "  0: %s %s, 9: %s %s\n", farm_format_digits(range.worst).text, map->unit,
                farm_format_digits(range.best).text, map->unit);
}
