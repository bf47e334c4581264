// How the figures of a measurement share its time, when it ends early, and what it leaves out. Private to src/bw and to
// benchmarks; used by the thread that called the measurement, and between samples by a thread of its team.
#ifndef FARM_BW_CLOCK_H
#define FARM_BW_CLOCK_H

#include "bw/figure.h"

// The time left until end_ns is shared evenly by the figures still to be taken.
struct farm_bw_clock {
    const struct farm_bw_setup *setup;
    uint64_t start_ns, end_ns, until_ns; // until_ns: end of the current figure
    int figures, taken;
    int due;                               // figures to take even when the time is over: 1
    struct farm_bw_conditions *conditions; // stopped and out_of_time are set here
};

struct farm_bw_clock farm_bw_clock_start(const struct farm_bw_setup *setup, double default_seconds, int figures,
                                         struct farm_bw_conditions *conditions);

// Before a figure, whose name goes to the progress line: false if stopped, or if the time is over and no figure is due.
bool farm_bw_clock_next(struct farm_bw_clock *clock, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Between samples of a figure: whether to take another after `done`. The first is always taken.
bool farm_bw_clock_more(struct farm_bw_clock *clock, int done);
// Before work that only later figures need: whether there will be none.
bool farm_bw_clock_over(struct farm_bw_clock *clock);
// After a figure.
void farm_bw_clock_took(struct farm_bw_clock *clock);
// Seconds of the time left that belong to the next `figures` figures.
double farm_bw_clock_share(const struct farm_bw_clock *clock, int figures);

// Whether the caller ended the measurement.
bool farm_bw_is_stopped(const struct farm_bw_setup *setup);

// How many of `bytes`, in whole lines, can be worked on `times` times within `seconds` if `piece` bytes take `took_s`.
uint64_t farm_bw_bytes_in_time(uint64_t bytes, uint64_t piece, double took_s, double times, double seconds);

// After one figure of many: FARM_E_LIMIT (too little memory) becomes a note and FARM_OK, so that the others are
// measured; `measured` counts the figures with FARM_OK. Any other status is returned, with *err set from `why`.
enum farm_status farm_bw_leave_out(enum farm_status status, const struct farm_error *why, int *measured,
                                   struct farm_bw_conditions *conditions, struct farm_error *err);
// After the last figure: if all were left out, the last one's reason.
enum farm_status farm_bw_all_left_out(int measured, const struct farm_error *why, struct farm_error *err);

// Marks a figure, and notes it, if the `bytes` it was taken on fit into the caches.
void farm_bw_mark_in_cache(struct farm_bw_figure *figure, uint64_t bytes, uint64_t cache_bytes,
                           struct farm_bw_conditions *conditions);

#endif
