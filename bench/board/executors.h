// Rows of `bench/board` about executors that read one board: reading in place against private copies, binding a version
// against loading it, an announcement against the smallest forward pass. One thread; figures are CPU time.
#ifndef BENCH_BOARD_EXECUTORS_H
#define BENCH_BOARD_EXECUTORS_H

#include "../common.h"

// Adds read_in_place, switch_version and pin.
void bench_executors(struct farm_bench *bench);

#endif
