// Whole farms as processes: the actors of this machine with their own learner, against the same actors behind a real
// `farm bridge` by TLS. With random answers both farms exist at once and play in turn on two CPUs: one for the
// learner's side, one for the actors and the node's bridge. In training two runs of `farm train` take turns on all
// CPUs.
#ifndef BENCH_BRIDGE_FARMS_H
#define BENCH_BRIDGE_FARMS_H

#include "net.h"

enum bench_place { BENCH_LOCAL, BENCH_REMOTE, BENCH_PLACES };
enum { BENCH_ROUNDS_MAX = 16 };

struct bench_rates {
    int rounds;                                         // that count
    double steps_per_s[BENCH_PLACES][BENCH_ROUNDS_MAX]; // the environments' rate
    double cpu_us[BENCH_PLACES][BENCH_ROUNDS_MAX]; // random answers: CPU time of the answering process, a lane step
};

// The program `farm` beside the benchmark's folder. False: it is not built.
bool bench_farm_program(char *path, size_t bytes);

// ale/Pong, 16 wide. False: it cannot be played here.
bool bench_random_rates(const struct bench_net *net, const char *engine, int rounds, double seconds,
                        struct bench_rates *rates);

// native/breakout with V-trace. A round in which a run writes no metrics does not count.
bool bench_training_rates(const struct bench_net *net, const char *engine, int rounds, double seconds,
                          struct bench_rates *rates);

#endif
