// What all measurements of src/bw share: the setup, a figure, and the conditions it was measured in. A measurement
// returns FARM_OK even if it was stopped early or could not pin, bind or use huge pages: its conditions then state
// that. Only what cannot be measured at all (too large, no memory, wrong data) is an error. No state.
#ifndef FARM_BW_FIGURE_H
#define FARM_BW_FIGURE_H

#include <stdbool.h>

#include "kernels/bandwidth.h"
#include "topo/machine.h"

enum { FARM_BW_SAMPLES_MAX = 32, FARM_BW_NOTE_BYTES = 512 };

// Repeated measurements of one quantity. Nothing measured: samples 0, all values NaN.
struct farm_bw_figure {
    int samples;
    double median;
    double spread; // (75th - 25th percentile) / median
    double cv;     // standard deviation / mean
    double least, most;
    bool in_cache; // the memory it was measured on fits into the last-level caches: not a figure of memory
};

// From samples (0 to FARM_BW_SAMPLES_MAX of them).
struct farm_bw_figure farm_bw_figure_of(const double *samples, int count);
static inline bool farm_bw_figure_is(const struct farm_bw_figure *figure) {
    return figure->samples > 0;
}

// Called between samples, from the measurement's thread or from one of its team. Any function may be NULL.
struct farm_bw_control {
    bool (*stop)(void *context); // true: end now, with the figures so far
    // `what` is being measured ("latency, node 0 to 1"); done: share of this measurement, 0 to 1.
    void (*progress)(void *context, const char *what, double done);
    void *context;
};

// Common to all measurements.
struct farm_bw_setup {
    const struct farm_machine *machine;
    const struct farm_bw_control *control; // NULL: none
    double seconds;                        // the aim, for one call of a measurement; 0: its default
    int samples;                           // for each figure, 1 to FARM_BW_SAMPLES_MAX; 0: 5. Time short: fewer
    double sample_s;                       // least time of a sample; 0: the measurement's default (10 to 50 ms)
    enum farm_bandwidth_variant variant;   // which kernels
    const char *root;                      // holds /proc and /sys; NULL: the running system
};

enum farm_bw_pages {
    FARM_BW_PAGES_AUTO,        // 2 MiB pages of the pool, else transparent ones, else small ones
    FARM_BW_PAGES_SMALL,       // the base page, 4 KiB on x86-64, transparent huge pages turned off for the memory
    FARM_BW_PAGES_TRANSPARENT, // 2 MiB, put together by the kernel
    FARM_BW_PAGES_2M,          // from the pool (vm.nr_hugepages)
    FARM_BW_PAGES_1G,
    FARM_BW_PAGES_KINDS
};
const char *farm_bw_pages_name(enum farm_bw_pages pages); // "auto", "4 KiB", "transparent 2 MiB", "2 MiB", "1 GiB"

// How a measurement was made. A flag is false if it does not hold for any one of its threads or buffers.
struct farm_bw_conditions {
    bool pinned;                   // every thread to its CPU
    bool bound;                    // memory bound to its node by mbind
    bool placed;                   // every page found on its node by move_pages
    bool verified;                 // data were checked after the runs (wrong data is an error)
    bool stopped;                  // control->stop ended it early: figures may be missing
    bool out_of_time;              // `seconds` ended: figures may be missing or have fewer samples
    enum farm_bw_pages pages;      // what the memory has (mixed: the smallest)
    char note[FARM_BW_NOTE_BYTES]; // sentences: what differs from the request, and why; "" if nothing does
};

// Everything as requested and verified.
struct farm_bw_conditions farm_bw_conditions_start(void);
// Adds one sentence or more, unless the note already has them.
void farm_bw_conditions_note(struct farm_bw_conditions *conditions, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
