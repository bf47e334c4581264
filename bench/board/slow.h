// An engine whose process sends no faster than a given rate, as if it had one network card: a queue in front of the
// engine with poll(2). A send begins when its last byte would have left the card.
#ifndef BENCH_BOARD_SLOW_H
#define BENCH_BOARD_SLOW_H

#include "bridge/engine.h"

extern const struct farm_engine_ops bench_slow_engine;

// In shared memory: read at each send, so that the rate changes for all processes at once.
struct bench_slow {
    double bytes_per_s; // 0: no limit
    bool in_turn;       // to the lowest socket first, so that one node's version is whole before the next one's begins
};

void bench_slow_share(const struct bench_slow *slow); // for the engines of this process and its children

#endif
