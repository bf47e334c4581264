// metrics.csv by RFC 4180: a line of keys, then a line a sample. The columns are the numbers of metrics.jsonl, those
// that only a resumed run has too, so that a run's sessions share one header. An unknown number is an empty cell.
#include <math.h>

#include "report/sink.h"

// No key or number needs quotes.
static void print_row(FILE *out, const struct farm_sample *sample, bool keys) {
    struct farm_figure figures[FARM_FIGURES_MAX];
    const size_t count = farm_sample_figures(sample, figures);
    for (size_t i = 0; i < count; i++) {
        if (i) fputc(',', out);
        if (keys)
            fputs(figures[i].key, out);
        else if (isfinite(figures[i].value))
            fprintf(out, figures[i].whole ? "%.0f" : "%.9g", figures[i].value);
    }
    fputs("\r\n", out);
}

static void print_head(FILE *out, const struct farm_sample *first) {
    print_row(out, first, true);
}

static void print_record(FILE *out, const struct farm_sample *sample) {
    print_row(out, sample, false);
}

const struct farm_sink_format farm_sink_csv = {.name = "metrics.csv", .head = print_head, .record = print_record};
