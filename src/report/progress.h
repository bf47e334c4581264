// The progress display on stderr: one line that is redrawn on a terminal, elsewhere a plain line every few seconds.
// Runs in the supervisor. Call farm_progress_clear before any other output.
#ifndef FARM_REPORT_PROGRESS_H
#define FARM_REPORT_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report/metrics.h"

struct farm_progress {
    int fd;
    bool terminal; // draw over the same line
    bool drawn;    // the line is on the screen now
    uint64_t every_ns, last_ns;
};

// Tests whether fd is a terminal. The first line is due one interval after now_ns.
void farm_progress_start(struct farm_progress *progress, int fd, uint64_t now_ns);

// Whether the next line is due: every quarter of a second on a terminal, else every five seconds.
bool farm_progress_due(const struct farm_progress *progress, uint64_t now_ns);
void farm_progress_draw(struct farm_progress *progress, const struct farm_sample *sample, uint64_t now_ns);
// Any other line, cut to the terminal's width.
void farm_progress_show(struct farm_progress *progress, const char *line, uint64_t now_ns);
void farm_progress_clear(struct farm_progress *progress);
// Keeps the last line and moves to a new one.
void farm_progress_end(struct farm_progress *progress);

// The line itself, cut to `columns` characters (0: not cut), without a newline: time, actors that hang or are stopped,
// rejected steps, remote nodes, frames and rate, return, that of the newest evaluation, episodes, updates, policy lag,
// observations of an inference pass, share of time that actors wait and the learner waits, time left, restarts. Then,
// as far as they fit: length of games and the algorithm's figures (128 columns or more); up to three nodes: "a 12.3k/s
// 0.3ms", "b away 4 s". ASCII.
void farm_progress_format(const struct farm_sample *sample, size_t columns, char *text, size_t text_bytes);

// A line on stdout for the summary, if steps were rejected: their number and their share of `all`, which are `what`.
void farm_progress_print_rejected(uint64_t rejected, uint64_t all, const char *what);

// Seconds left until frames_target or seconds_target, the nearer one, at the mean rate so far; NAN: no target or frame.
double farm_progress_eta_s(const struct farm_sample *sample);

#endif
