// Numbers as short texts, and order statistics against R's.
#include "base/format.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/statistics.h"

struct text_case {
    double value;
    const char *text;
};

static void check_texts(struct farm_number_text (*format)(double), const struct text_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) cr_assert_str_eq(format(cases[i].value).text, cases[i].text);
}

Test(format, numbers_are_short_texts) {
    static const struct text_case counts[] = {{0, "0"},         {999, "999"},     {999.6, "1.0k"},   {12345, "12.3k"},
                                              {99949, "99.9k"}, {99960, "100k"},  {1234567, "1.2M"}, {999.6e6, "1.0G"},
                                              {2.5e12, "2.5T"}, {-1500, "-1.5k"}, {(double)NAN, "-"}};
    static const struct text_case digits[] = {{0.123, "0.12"}, {9.99, "9.99"},         {9.996, "10.0"},
                                              {27.94, "27.9"}, {99.96, "100"},         {1234.4, "1234"},
                                              {2e12, "2e+12"}, {(double)INFINITY, "-"}};
    static const struct text_case figures[] = {{0.00123, "0.00123"}, {5.89, "5.89"},     {8, "8"},
                                               {27.94, "27.9"},      {12345.6, "12346"}, {-20.87, "-20.9"},
                                               {2e12, "2e+12"},      {(double)NAN, "-"}};
    static const struct text_case bytes[] = {{48, "48 B"}, {49152, "48 KiB"}, {1.5 * (1 << 30), "1.5 GiB"}};
    static const struct text_case durations[] = {{12.9, "0:12"}, {3599, "59:59"}, {3723, "1:02:03"}};
    check_texts(farm_format_count, counts, sizeof counts / sizeof *counts);
    check_texts(farm_format_digits, digits, sizeof digits / sizeof *digits);
    check_texts(farm_format_figure, figures, sizeof figures / sizeof *figures);
    check_texts(farm_format_bytes, bytes, sizeof bytes / sizeof *bytes);
    check_texts(farm_format_duration, durations, sizeof durations / sizeof *durations);
}

Test(format, words_are_quoted_if_a_shell_needs_it) {
    static const char *const words[][2] = {
        {"runs/ale_Pong-1", "runs/ale_Pong-1"}, {"a b", "'a b'"}, {"", "''"},        {"it's", "'it'\\''s'"},
        {"a;rm -r $HOME", "'a;rm -r $HOME'"},   {"~", "'~'"},     {"--x=1", "--x=1"}};
    char longest[3001];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_assert_str_eq(farm_format_word(words[i][0]).text, words[i][1]);
    memset(longest, '\'', sizeof longest);
    longest[sizeof longest - 1] = 0;
    const struct farm_word_text cut = farm_format_word(longest);
    cr_assert(strlen(cut.text) < sizeof cut.text && cut.text[strlen(cut.text) - 1] == '\'');
}

Test(statistics, quantiles_and_spread_are_those_of_r) {
    // R: quantile(c(5, 1, 4, 2, 3), c(.25, .5, .75)) = 2, 3, 4; median(c(4, 1, 3, 2)) = 2.5
    double odd[] = {5, 1, 4, 2, 3}, even[] = {4, 1, 3, 2}, spread;
    cr_assert_float_eq(farm_median(odd, 5, &spread), 3, 1e-12);
    cr_assert_float_eq(spread, 2.0 / 3, 1e-12);
    cr_assert_float_eq(farm_quantile(odd, 5, 0.9), 4.6, 1e-12);
    cr_assert_eq(farm_quantile(odd, 5, 1), 5);
    cr_assert_float_eq(farm_median(even, 4, NULL), 2.5, 1e-12);
    cr_assert(isnan(farm_median(even, 0, &spread)) && isnan(spread));
}
