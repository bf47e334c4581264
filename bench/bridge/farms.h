// Whole farms, as processes: actors of this machine under what answers them, against the same actors behind a real
// `farm bridge`, by TLS. Under random answers both farms are there at once and play by turns, on two
// CPUs: the learner's side, and the actors with the node's bridge. In training two runs of `farm train` take turns too,
// on all CPUs.
#ifndef BENCH_BRIDGE_FARMS_H
#define BENCH_BRIDGE_FARMS_H

#include "net.h"

struct bench_rates {
    double remote, local;         // environment steps/s
    double remote_cpu, local_cpu; // random answers: CPU ns of the answering process for a lane step
};

// The program `farm` beside the benchmark's folder; false: it is not built.
bool bench_farm_program(char *path, size_t bytes);

// rates[rounds] of ale/Pong, 16 wide; false, with a note on stderr: it cannot be played here.
bool bench_random_rates(const struct bench_net *net, const char *engine, int rounds, double seconds,
                        struct bench_rates *rates);

// rates[rounds] of native/breakout with V-trace.
bool bench_training_rates(const struct bench_net *net, const char *engine, int rounds, double seconds,
                          struct bench_rates *rates);

#endif
