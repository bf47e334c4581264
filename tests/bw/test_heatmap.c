// Heat maps on terminals: what is drawn for which numbers.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bw/heatmap.h"

static const double values[] = {10, 20, 30, 40, (double)NAN, 60, 70, 80, 110};

static const struct farm_heatmap example = {"Reads", "GB/s", "CPUs", "memory", 3, 3, NULL, NULL, values, true};

// What `draw` writes; the caller frees it.
static char *drawn(struct farm_heatmap map, bool colour, size_t columns) {
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
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

Test(heatmap, prints_numbers_where_they_fit) {
    char *text = drawn(example, false, 80);
    cr_assert_str_eq(text, "Reads, GB/s (rows: CPUs, columns: memory)\n"
                           "         0      1      2\n"
                           "  0   10.0   20.0   30.0\n"
                           "  1   40.0      -   60.0\n"
                           "  2   70.0   80.0    110\n");
    free(text);
}

Test(heatmap, prints_digits_where_numbers_do_not_fit) {
    struct farm_heatmap reversed = example;
    reversed.higher_is_better = false;
    char *higher = drawn(example, false, 20), *lower = drawn(reversed, false, 20);
    cr_assert_str_eq(strchr(higher, '\n'), "\n  0 012\n  1 3.5\n  2 679\n  0: 10.0 GB/s, 9: 110 GB/s\n");
    cr_assert_str_eq(strchr(lower, '\n'), "\n  0 998\n  1 7.5\n  2 430\n  0: 110 GB/s, 9: 10.0 GB/s\n");
    free(higher);
    free(lower);
}

Test(heatmap, colours_what_is_measured_and_takes_the_colour_back) {
    char *text = drawn(example, true, 80);
    cr_assert_eq(count_of(text, "\x1b[48;5;"), 8);
    cr_assert_eq(count_of(text, "\x1b[0m"), 8);
    cr_assert(strstr(text, "   40.0\x1b[0m      -\x1b["), "%s", text);
    free(text);
}

Test(heatmap, leaves_out_columns_that_do_not_fit_the_line_and_states_it) {
    double wide[200];
    for (int i = 0; i < 200; i++) wide[i] = i + 1;
    struct farm_heatmap map = example;
    map.rows = 1, map.columns = 200, map.values = wide;
    char *text = drawn(map, false, 80);
    cr_assert(strstr(text, "(76 of 200 columns fit"), "%s", text);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) cr_assert_leq(strlen(line), 80, "%s", line);
    free(text);
}
