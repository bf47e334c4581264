// Rows of `bench/board` about the executors of actors that read one board: in place against private copies, the change
// of a version against a load, the announcement against the smallest forward pass. One thread, in CPU time.
#ifndef BENCH_BOARD_EXECUTORS_H
#define BENCH_BOARD_EXECUTORS_H

#include "../common.h"

// Adds read_in_place, switch_version and pin.
void bench_executors(struct farm_bench *bench);

#endif
