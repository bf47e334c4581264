// Flags (--json, --seconds, --help) and the document of every benchmark. A benchmark measures its reference in the same
// run, interleaved, and verifies the data that it moved: must_hold ends it with exit status 1 if they are wrong.
#ifndef FARM_BENCH_COMMON_H
#define FARM_BENCH_COMMON_H

#include <stdbool.h>
#include <stddef.h>

#include "../tests/support/must.h"
#include "base/cli.h"

enum { FARM_BENCH_RESULTS_MAX = 64, FARM_BENCH_FLAGS_MAX = 8 };

struct farm_bench_result {
    const char *name, *unit, *better; // better: "higher" or "lower"
    double value, spread;             // median, and (75th - 25th percentile) / median: not finite if that is 0
    const char *reference;            // what the reference is; NULL: none
    double reference_value, ratio;    // ratio: value / reference_value
    double target;                    // target of the ratio; NAN: none
};

struct farm_bench {
    const char *name, *about;
    bool json;
    double seconds;                    // most time to spend
    const struct farm_cli_flag *flags; // besides the common ones
    size_t flag_count;
    struct farm_bench_result results[FARM_BENCH_RESULTS_MAX];
    size_t count;
};

// Parses the flags; prints help and exits if requested.
void farm_bench_start(struct farm_bench *bench, int argc, char **argv, double default_seconds);

// Adds a result from interleaved samples of ours and of the reference (NULL: none, and `target` is for the value
// itself). Does nothing if `bench` is NULL.
void farm_bench_add(struct farm_bench *bench, const char *name, const char *unit, const char *better, double *ours,
                    size_t count, const char *reference, double *theirs, size_t their_count, double target);

// Prints the document or the table; returns the exit status.
int farm_bench_finish(struct farm_bench *bench);

// Binds the calling thread to the index-th CPU that it may use; false if there is none.
bool farm_bench_pin(int index);
int farm_bench_cpus(void);

#endif
