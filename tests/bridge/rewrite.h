// Reads each message of the wire format and writes it again, for test_wire.c and the fuzzer of messages.
#ifndef TESTS_BRIDGE_REWRITE_H
#define TESTS_BRIDGE_REWRITE_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/wire.h"

static inline struct farm_wire_counters *rewrite_counters(const uint8_t *in, size_t lanes) {
    struct farm_wire_counters *counters = calloc(lanes + 1, sizeof *counters);
    assert(counters);
    for (size_t i = 0; i < lanes; i++) farm_wire_get_counters(in, i, &counters[i]);
    return counters;
}

// Returns the number of bytes written, 0: the message is refused (*err).
static inline size_t rewrite_message(enum farm_wire_type type, const uint8_t *in, size_t bytes, uint8_t *out,
                                     size_t room, struct farm_error *err) {
    static struct farm_wire_offer offer;
    static uint32_t actors[FARM_WIRE_RINGS_MAX];
    struct farm_wire_hello hello;
    struct farm_wire_welcome welcome;
    struct farm_wire_counters *counters = NULL;
    enum farm_wire_reason reason;
    char text[FARM_WIRE_TEXT_BYTES];
    uint32_t rings;
    size_t written = 0;
    if (type == FARM_WIRE_HELLO && !farm_wire_get_hello(in, bytes, &hello, err)) {
        counters = rewrite_counters(hello.counters, (size_t)hello.rings * hello.lanes);
        written = farm_wire_put_hello(&hello, counters, out, room);
    } else if (type == FARM_WIRE_OFFER && !farm_wire_get_offer(in, bytes, &offer, err)) {
        written = farm_wire_put_offer(&offer, out, room);
    } else if (type == FARM_WIRE_JOIN && !farm_wire_get_join(in, bytes, &rings, err)) {
        written = farm_wire_put_join(rings, out, room);
    } else if (type == FARM_WIRE_WELCOME && !farm_wire_get_welcome(in, bytes, &welcome, err)) {
        counters = rewrite_counters(welcome.counters, (size_t)welcome.rings * welcome.lanes);
        memcpy(actors, welcome.actors, welcome.rings * sizeof *actors);
        written = farm_wire_put_welcome(welcome.rings, welcome.lanes, welcome.steps, welcome.note, actors, counters,
                                        out, room);
    } else if (type == FARM_WIRE_REFUSE && !farm_wire_get_reason(in, bytes, &reason, text, err)) {
        written = farm_wire_put_reason(reason, text, out, room);
    }
    free(counters);
    return written;
}

#endif
