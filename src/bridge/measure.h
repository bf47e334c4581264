// What the bridge makes of a path between two machines, beside plain blocking sockets on the same path: the round trip
// of one small lane step, and the rate of large ones. Both sides: a far one, which is a hub with a learner that answers
// at once, and a near one, which is a node whose actors step at once. No environment, no model: the path alone.
#ifndef FARM_BRIDGE_MEASURE_H
#define FARM_BRIDGE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "bridge/key.h"

enum { FARM_MEASURE_ROUNDS_MAX = 32, FARM_MEASURE_SECONDS_MAX = 100 };
enum farm_measure { FARM_MEASURE_ROUND_TRIP_US, FARM_MEASURE_BYTES_PER_S, FARM_MEASURE_CPU_S_PER_GB, FARM_MEASURES };
enum farm_measure_way { FARM_MEASURE_BRIDGE, FARM_MEASURE_PLAIN, FARM_MEASURE_WAYS };
// Listening sockets of the far side: round trips (the one that people name), rates, plain sockets.
enum farm_measure_port { FARM_MEASURE_MAIN, FARM_MEASURE_STREAM, FARM_MEASURE_SOCKETS, FARM_MEASURE_PORTS };

struct farm_measure_config {
    const char *address;        // of the far side's FARM_MEASURE_MAIN, as farm_address_read takes it
    const struct farm_key *key; // NULL: in the clear, to loopback and private addresses
    const char *engine;         // uring, poll, auto
    double seconds, retry_s;    // seconds: about, for all of it; retry_s: for the far side to be there
    bool (*stop)(void *context);
    void *context;
};

// Rounds are interleaved: each has a value of every kind. Payloads alone are counted. CPU: of this side's thread.
struct farm_measure_result {
    uint32_t rounds;
    double value[FARM_MEASURES][FARM_MEASURE_WAYS][FARM_MEASURE_ROUNDS_MAX];
    uint32_t round_trip_bytes, stream_bytes; // of a step, headers not counted
    bool uring, encrypted, interrupted;      // interrupted: `stop` said so, and there are fewer rounds, perhaps none
};

// FARM_E_DEAD: there is nobody, the keys differ, or the
// connection broke; FARM_E_UNSUPPORTED: it is no far side of this; FARM_E_FORMAT: data arrived wrong.
enum farm_status farm_measure_run(const struct farm_measure_config *config, struct farm_measure_result *result,
                                  struct farm_error *err);

// The far side, for one near side at a time, in three threads, until the process ends; returns only if it cannot begin.
// The listening sockets are non-blocking.
enum farm_status farm_measure_serve(const int listeners[FARM_MEASURE_PORTS], const struct farm_key *key,
                                    const char *engine, struct farm_error *err);

#endif
