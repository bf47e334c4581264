// Statistics of repeated measurements, and how they were made. See figure.h.
#include "bw/figure.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/statistics.h"

struct farm_bw_figure farm_bw_figure_of(const double *samples, int count) {
    assert(count >= 0 && count <= FARM_BW_SAMPLES_MAX);
    struct farm_bw_figure figure = {
        .samples = count, .median = NAN, .spread = NAN, .cv = NAN, .least = NAN, .most = NAN};
    if (count == 0) return figure;
    double sorted[FARM_BW_SAMPLES_MAX], sum = 0, squares = 0;
    memcpy(sorted, samples, (size_t)count * sizeof *samples);
    figure.median = farm_median(sorted, (size_t)count, &figure.spread);
    for (int i = 0; i < count; i++) sum += sorted[i];
    const double mean = sum / count;
    for (int i = 0; i < count; i++) squares += (sorted[i] - mean) * (sorted[i] - mean);
    figure.cv = count > 1 ? sqrt(squares / (count - 1)) / mean : 0;
    figure.least = sorted[0], figure.most = sorted[count - 1];
    return figure;
}

const char *farm_bw_pages_name(enum farm_bw_pages pages) {
    static const char *const names[FARM_BW_PAGES_KINDS] = {"auto", "4 KiB", "transparent 2 MiB", "2 MiB", "1 GiB"};
    return names[pages];
}

struct farm_bw_conditions farm_bw_conditions_start(void) {
    return (struct farm_bw_conditions){
        .pinned = true, .bound = true, .placed = true, .verified = true, .pages = FARM_BW_PAGES_AUTO};
}

// At the start, or after a blank: "7 pages" is not in "17 pages".
static bool has_sentence(const char *note, const char *sentence) {
    for (const char *at = strstr(note, sentence); at; at = strstr(at + 1, sentence))
        if (at == note || at[-1] == ' ') return true;
    return false;
}

void farm_bw_conditions_note(struct farm_bw_conditions *conditions, const char *format, ...) {
    char sentence[FARM_BW_NOTE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    size_t length = strlen(sentence), used = strlen(conditions->note);
    while (length && sentence[length - 1] == ' ') sentence[--length] = 0;
    if (length == 0 || has_sentence(conditions->note, sentence)) return;
    snprintf(conditions->note + used, sizeof conditions->note - used, "%s%s", used ? " " : "", sentence);
}
