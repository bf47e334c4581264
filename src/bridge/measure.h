// Measures the bridge on a path between two machines beside plain blocking sockets on the same path: the round trip of
// one small lane step, and the rate of large ones. The far side is a hub with a responder that answers at once, the
// near side a node whose actors step at once. Runs no environment and no model.
#ifndef FARM_BRIDGE_MEASURE_H
#define FARM_BRIDGE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "bridge/key.h"

enum { FARM_MEASURE_ROUNDS_MAX = 32, FARM_MEASURE_SECONDS_MAX = 100 };
enum farm_measure { FARM_MEASURE_ROUND_TRIP_US, FARM_MEASURE_BYTES_PER_S, FARM_MEASURE_CPU_S_PER_GB, FARM_MEASURES };
enum farm_measure_way { FARM_MEASURE_BRIDGE, FARM_MEASURE_PLAIN, FARM_MEASURE_WAYS };
// Listening sockets of the far side: round trips (its address is given to the near side), rates, plain sockets.
enum farm_measure_port { FARM_MEASURE_MAIN, FARM_MEASURE_STREAM, FARM_MEASURE_SOCKETS, FARM_MEASURE_PORTS };

struct farm_measure_config {
    const char *address;        // the far side's FARM_MEASURE_MAIN, as farm_address_read takes it
    const struct farm_key *key; // NULL: in the clear, to loopback and private addresses
    const char *engine;         // uring, poll, auto
    double seconds, retry_s;    // seconds: for all rounds, about; retry_s: to wait for the far side
    bool (*stop)(void *context);
    void *context;
};

// Each round has a value of every kind. Bytes count payloads, CPU this side's thread.
struct farm_measure_result {
    uint32_t rounds;
    double value[FARM_MEASURES][FARM_MEASURE_WAYS][FARM_MEASURE_ROUNDS_MAX];
    uint32_t round_trip_bytes, stream_bytes; // per step, without headers
    bool uring, encrypted, interrupted;      // interrupted: by `stop`; there are fewer rounds, or none
};

// FARM_E_DEAD: no far side, other keys, a broken connection, wrong data; FARM_E_UNSUPPORTED: the peer does not measure.
enum farm_status farm_measure_run(const struct farm_measure_config *config, struct farm_measure_result *result,
                                  struct farm_error *err);

// The far side, in three threads, for one near side at a time, over non-blocking listeners. how: key, withdrawn names
// and engine. Returns only on failure.
struct farm_hub_config;
enum farm_status farm_measure_serve(const int listeners[FARM_MEASURE_PORTS], const struct farm_hub_config *how,
                                    struct farm_error *err);

#endif
