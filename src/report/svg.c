// See svg.h.
#include "report/svg.h"

#include <math.h>
#include <string.h>

#include "base/format.h"

enum { COLOURS = 8, TICKS_MOST = 10, LETTER = 7 }; // LETTER: width of one at 12 px, roughly

// Plain attributes cannot follow the reader's scheme, classes can. Curves: the colours of Okabe and Ito, told apart by
// the colour-blind too; the dark scheme's are lighter ones of the same hues.
static const char style[] =
    "<style>\n"
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}"
    ".back{fill:#ffffff}.grid{stroke:#d0d7de;stroke-width:1;fill:none}.axis{stroke:#57606a;stroke-width:1;fill:none}\n"
    ".light{fill:#ffffff}.dark{fill:#000000}.none{fill:#8c959f}\n"
    ".c0{stroke:#0072b2}.c1{stroke:#d55e00}.c2{stroke:#009e73}.c3{stroke:#cc79a7}"
    ".c4{stroke:#8a6d00}.c5{stroke:#56b4e9}.c6{stroke:#6e40c9}.c7{stroke:#57606a}\n"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.dot{fill:none;stroke-width:2}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.grid{stroke:#30363d}"
    ".axis{stroke:#8b949e}.light{fill:#ffffff}.dark{fill:#000000}"
    ".c0{stroke:#58a6ff}.c1{stroke:#ff9a4d}.c2{stroke:#3fd6a4}.c3{stroke:#f0a0cd}.c4{stroke:#f0d000}"
    ".c5{stroke:#8fd3ff}.c6{stroke:#b08cff}.c7{stroke:#b1bac4}}\n"
    "</style>\n";

static void put_text(FILE *out, const char *text) {
    for (; *text; text++) {
        const char *name = *text == '&' ? "&amp;" : *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : NULL;
        if (name)
            fputs(name, out);
        else if ((unsigned char)*text >= 0x20)
            fputc(*text, out);
    }
}

// anchor: "start", "middle", "end".
static void put_label(FILE *out, double x, double y, const char *anchor, const char *class, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    put_text(out, text);
    fprintf(out, "</text>\n");
}

static void put_upright(FILE *out, double x, double y, const char *text) {
    fprintf(out, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\">", x, y);
    put_text(out, text);
    fprintf(out, "</text>\n");
}

static void begin(FILE *out, double width, double height, const char *title) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
            "role=\"img\">\n<title>",
            width, height, width, height);
    put_text(out, title);
    fprintf(out, "</title>\n%s<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n", style);
    put_label(out, 16, 26, "start", "title", title);
}

// ---- heat map ----

struct grid {
    double left, top, width, height; // of a cell: width, height
    bool numbers;                    // cells are large enough for them
};

static size_t longest(const char *const *names, size_t count) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) most = strlen(names[i]) > most ? strlen(names[i]) : most;
    return most;
}

static struct grid plan_grid(const struct farm_heatmap *map) {
    const bool numbers = map->columns <= 24;
    struct grid grid = {.numbers = numbers, .top = 72, .height = numbers ? 30 : 10};
    const double widest = (double)longest(map->column_names, map->columns) * LETTER + 10;
    grid.left = 44 + (double)longest(map->row_names, map->rows) * LETTER;
    grid.width = numbers ? fmax(52, widest) : 10;
    return grid;
}

static void put_cell(FILE *out, const struct farm_heatmap *map, const struct grid *grid, size_t row, size_t column) {
    const double value = map->values[row * map->columns + column], share = farm_heatmap_share(map, value);
    const double x = grid->left + (double)column * grid->width, y = grid->top + (double)row * grid->height;
    uint8_t rgb[3];
    bool dark_ink = false;
    if (isnan(share)) {
        if (grid->numbers) put_label(out, x + grid->width / 2, y + 19, "middle", "none", "–");
        return;
    }
    farm_heatmap_colour(share, rgb, &dark_ink);
    const struct farm_number_text number = farm_format_digits(value);
    fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#%02x%02x%02x\"><title>", x, y,
            grid->width - 1, grid->height - 1, rgb[0], rgb[1], rgb[2]);
    put_text(out, map->row_names[row]);
    fprintf(out, " → ");
    put_text(out, map->column_names[column]);
    fprintf(out, ": %s ", number.text);
    put_text(out, map->unit);
    fprintf(out, "</title></rect>\n");
    if (grid->numbers) put_label(out, x + grid->width / 2, y + 19, "middle", dark_ink ? "dark" : "light", number.text);
}

// Which colour is which value: a bar with its ends named.
static void put_scale(FILE *out, const struct farm_heatmap *map, double x, double y) {
    double least, greatest;
    char worst[48], best[48];
    uint8_t rgb[3];
    bool dark_ink;
    if (!farm_heatmap_range(map, &least, &greatest) || least == greatest) return;
    const double low = map->higher_is_better ? least : greatest, high = map->higher_is_better ? greatest : least;
    snprintf(worst, sizeof worst, "%s %.12s", farm_format_digits(low).text, map->unit);
    snprintf(best, sizeof best, "%s %.12s", farm_format_digits(high).text, map->unit);
    const double start = x + (double)strlen(worst) * LETTER + 8;
    put_label(out, x, y + 11, "start", "", worst);
    for (int i = 0; i < 16; i++) {
        farm_heatmap_colour(i / 15.0, rgb, &dark_ink);
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"8.5\" height=\"14\" fill=\"#%02x%02x%02x\"/>\n",
                start + 8 * i, y, rgb[0], rgb[1], rgb[2]);
    }
    put_label(out, start + 16 * 8 + 8, y + 11, "start", "", best);
}

void farm_svg_heatmap(FILE *out, const struct farm_heatmap *map) {
    const struct grid grid = plan_grid(map);
    const double right = grid.left + (double)map->columns * grid.width;
    const double bottom =
        grid.top + fmax((double)map->rows * grid.height, (double)strlen(map->row_axis) * LETTER); // both fit
    char title[256];
    snprintf(title, sizeof title, "%s, %s", map->title, map->unit);
    begin(out, fmax(fmax(right + 20, (double)strlen(title) * 8.5 + 32), grid.left + 380), bottom + 44, title);
    put_label(out, grid.left + (right - grid.left) / 2, 48, "middle", "", map->column_axis);
    put_upright(out, 22, (grid.top + bottom) / 2, map->row_axis);
    for (size_t c = 0; c < map->columns && grid.numbers; c++)
        put_label(out, grid.left + ((double)c + 0.5) * grid.width, grid.top - 6, "middle", "", map->column_names[c]);
    for (size_t r = 0; r < map->rows; r++) {
        if (grid.numbers || r % 4 == 0)
            put_label(out, grid.left - 6, grid.top + (double)r * grid.height + (grid.numbers ? 19 : 9), "end", "",
                      map->row_names[r]);
        for (size_t c = 0; c < map->columns; c++) put_cell(out, map, &grid, r, c);
    }
    put_scale(out, map, grid.left, bottom + 16);
    fprintf(out, "</svg>\n");
}

// ---- curves ----

// One axis: from the numbers to the picture, and where its ticks stand.
struct axis {
    enum farm_chart_scale scale;
    double low, high;  // of the numbers; of their logarithms where the scale is one
    double start, end; // in the picture
    double ticks[TICKS_MOST + 2];
    size_t tick_count;
};

static bool drawable(enum farm_chart_scale scale, double value) {
    return isfinite(value) && (scale == FARM_CHART_LINEAR ? value >= 0 : value > 0);
}

static double place(const struct axis *axis, double value) {
    const double at = axis->scale == FARM_CHART_LINEAR ? value : log(value);
    return axis->start + (at - axis->low) / (axis->high - axis->low) * (axis->end - axis->start);
}

static void add_tick(struct axis *axis, double value) {
    const double at = axis->scale == FARM_CHART_LINEAR ? value : log(value), slack = 1e-9 * (axis->high - axis->low);
    if (axis->tick_count < TICKS_MOST + 2 && at >= axis->low - slack && at <= axis->high + slack)
        axis->ticks[axis->tick_count++] = value;
}

static void set_linear(struct axis *axis, double greatest) {
    const double most = greatest > 0 ? greatest : 1, rough = most / 6, decade = pow(10, floor(log10(rough)));
    const double step = decade * (rough > 5 * decade ? 10 : rough > 2 * decade ? 5 : rough > decade ? 2 : 1);
    axis->low = 0;
    axis->high = step * ceil(most / step - 1e-9);
    for (int i = 0; i <= TICKS_MOST; i++) add_tick(axis, i * step);
}

static void set_log10(struct axis *axis, double least, double greatest) {
    static const double parts[] = {1, 2, 5};
    const double first = floor(log10(least)), last = ceil(log10(greatest) + 1e-9);
    const bool crowded = last - first > 3;
    axis->low = log(least) - 0.05, axis->high = log(greatest) + 0.05;
    for (double d = first; d <= last; d++)
        for (int i = 0; i < (crowded ? 1 : 3); i++) add_tick(axis, parts[i] * pow(10, d));
}

static void set_bytes(struct axis *axis, double least, double greatest) {
    const int first = (int)floor(log2(least)), last = (int)ceil(log2(greatest));
    const int step = 1 + (last - first) / TICKS_MOST;
    axis->low = log(least), axis->high = greatest > least ? log(greatest) : log(2 * least);
    for (int p = first; p <= last; p += step) add_tick(axis, ldexp(1, p));
}

static void set_axis(struct axis *axis, const struct farm_chart *chart, bool is_x) {
    double least = 0, greatest = 0;
    bool found = false;
    for (size_t s = 0; s < chart->series_count; s++)
        for (size_t i = 0; i < chart->series[s].count; i++) {
            const double value = is_x ? chart->series[s].x[i] : chart->series[s].y[i];
            if (!drawable(axis->scale, value)) continue;
            if (!found || value < least) least = value;
            if (!found || value > greatest) greatest = value;
            found = true;
        }
    if (!found) least = greatest = 1;
    if (axis->scale == FARM_CHART_LINEAR)
        set_linear(axis, greatest);
    else if (axis->scale == FARM_CHART_LOG10)
        set_log10(axis, least, greatest);
    else
        set_bytes(axis, least, greatest);
}

static const char *tick_name(enum farm_chart_scale scale, double value, char *text, size_t bytes) {
    if (scale == FARM_CHART_BYTES)
        snprintf(text, bytes, "%s", farm_format_bytes(value).text);
    else
        snprintf(text, bytes, "%.6g", value);
    return text;
}

static void put_axes(FILE *out, const struct farm_chart *chart, const struct axis *x, const struct axis *y) {
    char text[32];
    for (size_t i = 0; i < x->tick_count; i++) {
        const double at = place(x, x->ticks[i]);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", at, y->start, y->end);
        put_label(out, at, y->start + 18, "middle", "", tick_name(x->scale, x->ticks[i], text, sizeof text));
    }
    for (size_t i = 0; i < y->tick_count; i++) {
        const double at = place(y, y->ticks[i]);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", x->start, at, x->end);
        put_label(out, x->start - 8, at + 4, "end", "", tick_name(y->scale, y->ticks[i], text, sizeof text));
    }
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", x->start, y->end, y->start, x->end);
    put_label(out, (x->start + x->end) / 2, y->start + 40, "middle", "", chart->x_axis);
    put_upright(out, 20, (y->start + y->end) / 2, chart->y_axis);
}

static void put_series(FILE *out, const struct farm_chart_series *series, const struct axis *x, const struct axis *y,
                       size_t number) {
    const size_t colour = number % COLOURS;
    char command = 'M';
    fprintf(out, "<path class=\"line c%zu\" d=\"", colour);
    for (size_t i = 0; i < series->count; i++) {
        if (!drawable(x->scale, series->x[i]) || !drawable(y->scale, series->y[i])) continue;
        fprintf(out, "%c%.1f %.1f", command, place(x, series->x[i]), place(y, series->y[i]));
        command = 'L';
    }
    fprintf(out, "%s\"/>\n", command == 'M' ? "M0 0" : "");
    for (size_t i = 0; i < series->count && series->count <= 64; i++)
        if (drawable(x->scale, series->x[i]) && drawable(y->scale, series->y[i]))
            fprintf(out, "<circle class=\"dot c%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", colour,
                    place(x, series->x[i]), place(y, series->y[i]));
    const double line = y->end + 12 + 18 * (double)number;
    fprintf(out, "<path class=\"line c%zu\" d=\"M%.1f %.1fh18\"/>\n", colour, x->end + 14, line);
    put_label(out, x->end + 38, line + 4, "start", "", series->name);
}

void farm_svg_chart(FILE *out, const struct farm_chart *chart) {
    size_t name = 0;
    for (size_t s = 0; s < chart->series_count; s++)
        name = strlen(chart->series[s].name) > name ? strlen(chart->series[s].name) : name;
    struct axis x = {.scale = chart->x_scale, .start = 72, .end = 652};
    struct axis y = {.scale = chart->y_scale, .start = 370, .end = 50};
    set_axis(&x, chart, true);
    set_axis(&y, chart, false);
    const double lines = y.end + 18 * (double)chart->series_count + 30;
    begin(out, x.end + 54 + (double)name * LETTER, fmax(424, lines), chart->title);
    put_axes(out, chart, &x, &y);
    for (size_t s = 0; s < chart->series_count; s++) put_series(out, &chart->series[s], &x, &y, s);
    fprintf(out, "</svg>\n");
}
