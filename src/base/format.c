// See format.h.
#include "base/format.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct farm_number_text farm_format_count(double value) {
    static const char suffixes[] = {0, 'k', 'M', 'G', 'T'};
    struct farm_number_text out = {"-"};
    double size = fabs(value);
    size_t i = 0;
    if (!isfinite(value)) return out;
    while (size >= 999.5 && i + 1 < sizeof suffixes) size /= 1000, value /= 1000, i++;
    const int digits = i == 0 || size >= 99.95 ? 0 : 1;
    snprintf(out.text, sizeof out.text, "%.*f%c", digits, value, suffixes[i]); // i = 0: the suffix is the final zero
    return out;
}

struct farm_number_text farm_format_digits(double value) {
    struct farm_number_text out = {"-"};
    const double size = fabs(value);
    if (!isfinite(value)) return out;
    if (size >= 1e9)
        snprintf(out.text, sizeof out.text, "%.3g", value);
    else
        snprintf(out.text, sizeof out.text, "%.*f", size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2, value);
    return out;
}

struct farm_number_text farm_format_figure(double value) {
    struct farm_number_text out = {"-"};
    const double size = fabs(value);
    if (isfinite(value)) snprintf(out.text, sizeof out.text, size >= 999.5 && size < 1e9 ? "%.0f" : "%.3g", value);
    return out;
}

struct farm_number_text farm_format_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct farm_number_text out;
    size_t unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    snprintf(out.text, sizeof out.text, "%.4g %s", bytes, units[unit]);
    return out;
}

struct farm_number_text farm_format_duration(double seconds) {
    struct farm_number_text out;
    const unsigned long s = (unsigned long)seconds;
    if (s >= 3600)
        snprintf(out.text, sizeof out.text, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out.text, sizeof out.text, "%lu:%02lu", s / 60, s % 60);
    return out;
}

struct farm_word_text farm_format_word(const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+=,-";
    enum { LONGEST = 5 }; // a quote inside of quotes, and the last quote
    struct farm_word_text out = {""};
    const bool quoted = !word[0] || word[strspn(word, plain)];
    char *at = out.text, *const end = out.text + sizeof out.text - LONGEST;
    if (quoted) *at++ = '\'';
    for (; *word && at < end; word++) {
        if (*word == '\'') at = stpcpy(at, "'\\'");
        *at++ = *word;
    }
    if (quoted) *at = '\'';
    return out;
}
