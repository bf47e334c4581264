// Heat maps on terminals and as SVG, and curves: what is drawn for which numbers.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/heatmap.h"
#include "report/svg.h"

static const char *const names[] = {"0", "1", "2"};
static const double values[] = {10, 20, 30, 40, (double)NAN, 60, 70, 80, 110};

static struct farm_heatmap example(bool higher_is_better) {
    return (struct farm_heatmap){.title = "Reads <& more>",
                                 .unit = "GB/s",
                                 .row_axis = "CPUs",
                                 .column_axis = "memory",
                                 .rows = 3,
                                 .columns = 3,
                                 .row_names = names,
                                 .column_names = names,
                                 .values = values,
                                 .higher_is_better = higher_is_better};
}

// What `draw` writes; the caller frees it.
static char *drawn(bool colour, size_t columns, bool higher_is_better) {
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    const struct farm_heatmap map = example(higher_is_better);
    cr_assert(out);
    farm_heatmap_draw(out, &map, colour, columns);
    fclose(out);
    return text;
}

static size_t count_of(const char *text, const char *word) {
    size_t count = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) count++;
    return count;
}

Test(heatmap, shares_run_from_the_worst_to_the_best) {
    const struct farm_heatmap higher = example(true), lower = example(false);
    cr_assert_eq(farm_heatmap_share(&higher, 10), 0);
    cr_assert_eq(farm_heatmap_share(&higher, 110), 1);
    cr_assert_eq(farm_heatmap_share(&higher, 60), 0.5);
    cr_assert_eq(farm_heatmap_share(&lower, 10), 1);
    cr_assert_eq(farm_heatmap_share(&lower, 110), 0);
    cr_assert(isnan(farm_heatmap_share(&higher, (double)NAN)));
    struct farm_heatmap one = higher;
    one.rows = one.columns = 1;
    cr_assert_eq(farm_heatmap_share(&one, 10), 0.5);
}

Test(heatmap, prints_numbers_where_they_fit) {
    char *text = drawn(false, 80, true);
    cr_assert_str_eq(text, "Reads <& more>, GB/s (rows: CPUs, columns: memory)\n"
                           "         0      1      2\n"
                           "  0   10.0   20.0   30.0\n"
                           "  1   40.0      -   60.0\n"
                           "  2   70.0   80.0    110\n");
    free(text);
}

Test(heatmap, prints_digits_where_numbers_do_not_fit) {
    char *higher = drawn(false, 20, true), *lower = drawn(false, 20, false);
    cr_assert_str_eq(strchr(higher, '\n'), "\n  0 012\n  1 3.5\n  2 679\n  0: 10.0 GB/s, 9: 110 GB/s\n");
    cr_assert_str_eq(strchr(lower, '\n'), "\n  0 998\n  1 7.5\n  2 430\n  0: 110 GB/s, 9: 10.0 GB/s\n");
    free(higher);
    free(lower);
}

Test(heatmap, colours_what_is_measured_and_takes_the_colour_back) {
    char *text = drawn(true, 80, true);
    cr_assert_eq(count_of(text, "\x1b[48;5;"), 8);
    cr_assert_eq(count_of(text, "\x1b[0m"), 8);
    cr_assert(strstr(text, "   40.0\x1b[0m      -\x1b["), "%s", text);
    free(text);
}

Test(heatmap, cuts_what_is_wider_than_the_line_and_says_so) {
    double wide[200];
    const char *many[200];
    char *text;
    size_t bytes;
    for (int i = 0; i < 200; i++) wide[i] = i + 1, many[i] = "1";
    struct farm_heatmap map = example(true);
    map.rows = 1, map.columns = 200, map.values = wide, map.column_names = many;
    FILE *out = open_memstream(&text, &bytes);
    farm_heatmap_draw(out, &map, false, 80);
    fclose(out);
    cr_assert(strstr(text, "(76 of 200 columns fit"), "%s", text);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) cr_assert_leq(strlen(line), 80, "%s", line);
    free(text);
}

Test(heatmap, colours_grow_lighter_evenly) {
    double before = -1;
    for (int i = 0; i <= 100; i++) {
        uint8_t rgb[3];
        bool dark_ink;
        farm_heatmap_colour(i / 100.0, rgb, &dark_ink);
        const double light = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
        cr_assert_gt(light, before, "at %d %%", i);
        before = light;
    }
}

Test(svg, draws_a_cell_for_each_figure_and_escapes_letters) {
    char *text;
    size_t bytes;
    const struct farm_heatmap map = example(true);
    FILE *out = open_memstream(&text, &bytes);
    farm_svg_heatmap(out, &map);
    fclose(out);
    cr_assert(strstr(text, "Reads &lt;&amp; more&gt;, GB/s"));
    cr_assert_eq(count_of(text, "GB/s</title></rect>"), 8);
    cr_assert(strstr(text, "0 → 2: 30.0 GB/s"));
    cr_assert(strstr(text, "prefers-color-scheme:dark"));
    cr_assert_str_eq(text + bytes - 7, "</svg>\n");
    free(text);
}

static char *chart_of(const struct farm_chart_series *series, size_t count, enum farm_chart_scale x,
                      enum farm_chart_scale y) {
    char *text;
    size_t bytes;
    const struct farm_chart chart = {.title = "t",
                                     .x_axis = "cores",
                                     .y_axis = "bandwidth, GB/s",
                                     .x_scale = x,
                                     .y_scale = y,
                                     .series = series,
                                     .series_count = count};
    FILE *out = open_memstream(&text, &bytes);
    farm_svg_chart(out, &chart);
    fclose(out);
    return text;
}

Test(svg, curves_start_at_the_axes_and_end_within_them) {
    const double x[] = {0, 4}, y[] = {0, 40};
    const struct farm_chart_series series = {"node 0", x, y, 2};
    char *text = chart_of(&series, 1, FARM_CHART_LINEAR, FARM_CHART_LINEAR);
    cr_assert(strstr(text, "d=\"M72.0 370.0L652.0 50.0\""), "%s", text);
    cr_assert(strstr(text, ">40</text>") && strstr(text, ">0</text>"));
    cr_assert(strstr(text, ">bandwidth, GB/s</text>") && strstr(text, ">node 0</text>"));
    free(text);
}

Test(svg, leaves_out_points_that_are_no_numbers) {
    const double x[] = {4096, 8192, 0, 65536, 1 << 20}, y[] = {1, (double)NAN, 3, (double)INFINITY, 100};
    const struct farm_chart_series series[] = {{"a", x, y, 5}, {"nothing", x, y, 0}};
    char *text = chart_of(series, 2, FARM_CHART_BYTES, FARM_CHART_LOG10);
    cr_assert_eq(count_of(text, "<circle"), 2);
    cr_assert_eq(count_of(text, "nan") + count_of(text, "inf"), 0);
    cr_assert(strstr(text, ">4 KiB</text>") && strstr(text, ">1 MiB</text>") && strstr(text, ">100</text>"));
    free(text);
}
