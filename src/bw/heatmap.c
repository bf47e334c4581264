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

// 0 to 1; 0.5 if all values are the same; NAN: not measured.
static double share_of(const struct range *range, double value) {
    if (!isfinite(value)) return (double)NAN;
    return range->best == range->worst ? 0.5 : (value - range->worst) / (range->best - range->worst);
}

// From dark violet over green to yellow in even steps of lightness (matplotlib's viridis), as the nearest colour of the
// 6 x 6 x 6 cube that terminals have. *dark_ink: whether dark letters have the better contrast.
static int colour_of(double share, bool *dark_ink) {
    static const double anchors[][3] = {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    enum { LAST = sizeof anchors / sizeof *anchors - 1 };
    const double at = share * LAST;
    const int from = at >= LAST ? LAST - 1 : (int)at;
    int index = 0;
    for (int i = 0; i < 3; i++) {
        const double level = anchors[from][i] + (at - from) * (anchors[from + 1][i] - anchors[from][i]);
        index = 6 * index + (level < 48 ? 0 : level < 115 ? 1 : (int)(level - 35) / 40);
    }
    *dark_ink = share > 0.45;
    return 16 + index;
}

static void draw_value(FILE *out, double share, const char *text, int columns, bool colour) {
    if (!colour || isnan(share)) {
        fprintf(out, "%*s", columns, text);
        return;
    }
    bool dark_ink;
    const int back = colour_of(share, &dark_ink);
    fprintf(out, "\x1b[48;5;%dm\x1b[38;5;%dm%*s\x1b[0m", back, dark_ink ? 16 : 231, columns, text);
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
            const double value = map->values[r * map->columns + c], share = share_of(&range, value);
            const char digit[] = {isnan(share) ? '.' : (char)('0' + (int)fmin(share * SHADES, 9)), 0};
            draw_value(out, share, numbers ? farm_format_digits(value).text : digit, numbers ? wide : 1, colour);
        }
        fprintf(out, "\n");
    }
    if (columns < map->columns) fprintf(out, "  (%d of %d columns fit; --json has all)\n", columns, map->columns);
    if (!numbers)
        fprintf(out, "  0: %s %s, 9: %s %s\n", farm_format_digits(range.worst).text, map->unit,
                farm_format_digits(range.best).text, map->unit);
}
