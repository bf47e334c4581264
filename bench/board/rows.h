// The parts of bench/board.c. Each adds its rows to the document and takes its share of bench->seconds, or a few
// samples if they take longer.
#ifndef BENCH_BOARD_ROWS_H
#define BENCH_BOARD_ROWS_H

#include "../common.h"
#include "base/time.h"

// Whether sample s of at most `most` belongs to a series that began at start_ns: at least 5 do.
static inline bool board_goes_on(int s, int most, uint64_t start_ns, double seconds) {
    return s < most && (s < 5 || (double)(farm_now_ns() - start_ns) * 1e-9 < seconds);
}

void board_row_see(struct farm_bench *bench);     // see_version
void board_row_publish(struct farm_bench *bench); // publish_16mb
void board_row_learner(struct farm_bench *bench); // learner_step_with_512_readers

#endif
