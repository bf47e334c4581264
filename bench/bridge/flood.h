// Strangers that disturb a bridge: connections without the key, from the node's namespace.
#ifndef BENCH_BRIDGE_FLOOD_H
#define BENCH_BRIDGE_FLOOD_H

#include <stdint.h>

enum bench_flood_shape {
    BENCH_FLOOD_CLOSE,   // connects and closes its side
    BENCH_FLOOD_RESET,   // connects and resets
    BENCH_FLOOD_SILENT,  // connects and sends nothing
    BENCH_FLOOD_GARBAGE, // sends bytes that are not TLS
    BENCH_FLOOD_HEAD,    // sends the head of a hello, and no body
    BENCH_FLOOD_SLOW,    // sends a byte of it
    BENCH_FLOOD_KEY,     // sends a whole hello made with another key
    BENCH_FLOOD_SHAPES,
};

enum { BENCH_FLOOD_FULL = 1000000 }; // a rate that no CPU reaches

// Opens hz connections a second, of one shape after another, until *end is not 0. Returns their number a second. Up to
// 256 of those that do not close by themselves are open at a time.
double bench_flood(const char *host, uint16_t port, uint32_t hz, const uint64_t *end);

#endif
