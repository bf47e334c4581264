// See progress.h.
#include "report/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/format.h"

enum { WIDE_COLUMNS = 128, LINE_BYTES = 512, NODES_SHOWN = 3, NODE_NAME_CHARS = 12 };

static const uint64_t terminal_every_ns = 250000000u, plain_every_ns = 5000000000u;

void farm_progress_start(struct farm_progress *progress, int fd, uint64_t now_ns) {
    memset(progress, 0, sizeof *progress);
    progress->last_ns = now_ns;
    progress->fd = fd;
    progress->terminal = isatty(fd);
    progress->every_ns = progress->terminal ? terminal_every_ns : plain_every_ns;
}

bool farm_progress_due(const struct farm_progress *progress, uint64_t now_ns) {
    return now_ns - progress->last_ns >= progress->every_ns;
}

static void write_text(const struct farm_progress *progress, const char *text, size_t bytes) {
    ssize_t ignored = write(progress->fd, text, bytes); // a closed stderr does not end a run
    (void)ignored;
}

static size_t columns_of(int fd) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
}

void farm_progress_show(struct farm_progress *progress, const char *line, uint64_t now_ns) {
    char text[LINE_BYTES + 16];
    const int most = progress->terminal ? (int)columns_of(progress->fd) : LINE_BYTES;
    const int n = snprintf(text, sizeof text, progress->terminal ? "\r%.*s\033[K" : "%.*s\n",
                           most < LINE_BYTES ? most : LINE_BYTES, line);
    write_text(progress, text, (size_t)n);
    progress->drawn = progress->terminal;
    progress->last_ns = now_ns;
}

void farm_progress_draw(struct farm_progress *progress, const struct farm_sample *sample, uint64_t now_ns) {
    char line[LINE_BYTES];
    farm_progress_format(sample, progress->terminal ? columns_of(progress->fd) : 0, line, sizeof line);
    farm_progress_show(progress, line, now_ns);
}

void farm_progress_clear(struct farm_progress *progress) {
    if (progress->drawn) write_text(progress, "\r\033[K", 4);
    progress->drawn = false;
}

void farm_progress_end(struct farm_progress *progress) {
    if (progress->drawn) write_text(progress, "\n", 1);
    progress->drawn = false;
}

void farm_progress_print_rejected(uint64_t rejected, uint64_t all, const char *what) {
    if (rejected)
        printf("Rejected because of invalid values (the first is named above): %s of %s %s (%s %%).\n",
               farm_format_count((double)rejected).text, farm_format_count((double)all).text, what,
               farm_format_figure(100 * (double)rejected / (double)all).text);
}

double farm_progress_eta_s(const struct farm_sample *sample) {
    double eta = NAN;
    const struct farm_totals session = farm_sample_session(sample);
    const uint64_t frames = sample->total.frames, target = sample->frames_target;
    if (sample->seconds_target > 0) eta = fmax(0, sample->seconds_target - sample->total.wall_s);
    if (target > 0 && session.frames > 0) {
        const double left = target > frames ? (double)(target - frames) : 0;
        eta = fmin(isnan(eta) ? INFINITY : eta, left * session.wall_s / (double)session.frames);
    }
    return eta;
}

// A text that is appended to within its buffer.
struct line {
    char *text;
    size_t bytes, length;
};

static void __attribute__((format(printf, 2, 3))) append(struct line *line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->text + line->length, line->bytes - line->length, format, args);
    va_end(args);
    if (n > 0) line->length += (size_t)n;
    if (line->length >= line->bytes) line->length = line->bytes - 1;
}

// A part that would be cut is left out whole.
static void append_whole(struct line *line, size_t columns, const char *text) {
    if (!columns || line->length + strlen(text) <= columns) append(line, "%s", text);
}

static void append_figure(struct line *line, size_t columns, const char *word, double value) {
    char text[64];
    snprintf(text, sizeof text, "  %s %s", word, farm_format_figure(value).text);
    if (!isnan(value)) append_whole(line, columns, text);
}

static void append_node(struct line *line, const struct farm_sample_node *node, size_t columns, const char *gap) {
    char text[96];
    struct line own = {.text = text, .bytes = sizeof text};
    append(&own, "%s%.*s ", gap, NODE_NAME_CHARS, node->name);
    if (node->away)
        append(&own, "away %.0f s", node->away_s);
    else
        append(&own, "%s/s", farm_format_count(node->env_steps_per_s).text);
    if (!node->away && !isnan(node->round_trip_ms))
        append(&own, " %.*fms", node->round_trip_ms < 1 ? 2 : node->round_trip_ms < 10, node->round_trip_ms);
    append_whole(line, columns, text);
}

// A part of the line around its value, for WIDE_COLUMNS or more and for fewer (79 hold all short ones); NULL: hidden.
struct part {
    const char *wide, *narrow;
    struct farm_number_text value;
    bool shown;
};

void farm_progress_format(const struct farm_sample *sample, size_t columns, char *text, size_t text_bytes) {
    const bool narrow = columns && columns < WIDE_COLUMNS;
    const double stuck = (double)sample->actors_stuck, eta_s = farm_progress_eta_s(sample),
                 restarts = (double)(sample->actor_restarts + sample->learner_restarts);
    const bool played = sample->eval_frames && !isnan(sample->eval_return_mean);
    const struct part parts[] = {
        {"%s", "%s", farm_format_duration(sample->total.wall_s), true},
        {" (resumed %s)", NULL, farm_format_duration(farm_sample_session(sample).wall_s), sample->before.frames},
        {"  stuck %s", " stuck %s", farm_format_figure(stuck), stuck > 0},
        {"  learner stopped", " learner stopped", {""}, sample->learner_stopped},
        {"  rejected %s", " rejected %s", farm_format_count((double)sample->rejected_steps), sample->rejected_steps},
        {"  nodes %s", " nodes %s", farm_format_figure(sample->node_count), sample->listens},
        {" (%s away)", " (%s away)", farm_format_figure(sample->nodes_away), sample->nodes_away},
        {"  %s frames", " %s fr", farm_format_count((double)sample->total.frames), true},
        {"  %s/s", " %s/s", farm_format_count(sample->frames_per_s), true},
        {"  return %s", " ret %s", farm_format_figure(sample->return_mean), true},
        {"  eval %s", NULL, farm_format_figure(sample->eval_return_mean), played},
        {"  games %s", NULL, farm_format_count((double)sample->total.episodes), true},
        {"  updates %s", " upd %s", farm_format_count((double)sample->total.updates), true},
        {"  lag %s", " lag %s", farm_format_figure(sample->policy_lag_updates),
         !isnan(sample->policy_lag_updates) && !sample->replay[0].key},
        {"  infer %s", " infer %s", farm_format_figure(sample->infer_batch_mean), !isnan(sample->infer_batch_mean)},
        {"  waiting: actors %s%%", " wait a%s%%", farm_format_figure(rint(100 * sample->actor_wait_share)), true},
        {" learner %s%%", " l%s%%", farm_format_figure(rint(100 * sample->learner_wait_share)), true},
        {"  left %s", " left %s", farm_format_duration(isnan(eta_s) ? 0 : eta_s), !isnan(eta_s)},
        {"  restarts %s", " restarts %s", farm_format_figure(restarts), restarts > 0},
    };
    struct line line = {.text = text, .bytes = text_bytes};
    text[0] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *format = narrow ? parts[i].narrow : parts[i].wide;
        if (parts[i].shown && format) append(&line, format, parts[i].value.text);
    }
    if (narrow && played) append_figure(&line, columns, "eval", sample->eval_return_mean);
    if (!narrow) append_figure(&line, columns, "length", sample->length_mean);
    for (int k = 0; k < FARM_SAMPLE_ALGO_MAX && sample->algo[k].key && !narrow; k++)
        if (sample->algo[k].word) append_figure(&line, columns, sample->algo[k].word, sample->algo[k].value);
    for (int k = 0; k < FARM_SAMPLE_REPLAY_MAX && sample->replay[k].key && !narrow; k++)
        if (sample->replay[k].word) append_figure(&line, columns, sample->replay[k].word, sample->replay[k].value);
    for (uint32_t i = 0; i < sample->node_count && sample->node_count <= NODES_SHOWN; i++)
        append_node(&line, &sample->nodes[i], columns, narrow ? " " : "  ");
    if (columns && line.length > columns && columns < text_bytes) text[columns] = 0;
}
