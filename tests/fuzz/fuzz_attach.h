// An input of fuzz_attach.c, which make_seeds.c writes too: this struct, `fill_bytes` bytes that fill the segments
// behind their headers, and a struct farm_ring_spec. With all seals and all else zero, the hand-over is honest.
#ifndef FARM_TESTS_FUZZ_ATTACH_H
#define FARM_TESTS_FUZZ_ATTACH_H

#include <stdint.h>

enum { // fuzz_segment.seals: three seals, then
    FUZZ_ALL_SEALS = 7,
    FUZZ_READ_ONLY = 8, // only a read-only descriptor
};
enum { // fuzz_segment.spoil: this word of the header is `word`
    FUZZ_SPOIL_MAGIC = 1,
    FUZZ_SPOIL_VERSION = 2,
    FUZZ_SPOIL_KIND = 4,
    FUZZ_SPOIL_BYTES = 8,
    FUZZ_SPOIL_HASH = 16,
    FUZZ_SPOIL_SPEC = 32, // the low half of `word` selects a byte of the spec to change
};
enum { // fuzz_attach.descriptors
    FUZZ_SWAPPED = 2,
    FUZZ_SAME = 4,
    FUZZ_CLOSED = 8, // the first (with bit 0 the second) is not a descriptor
};

struct fuzz_segment {
    uint64_t word;
    int16_t size_delta; // x 16 bytes from the layout's size
    uint8_t seals, spoil, owner, node, pages, placement;
};

struct fuzz_attach {
    struct fuzz_segment up, down;
    uint64_t hash;       // given to farm_segment_open; 0: any
    uint8_t side;        // bits 0-1: enum farm_ring_side; bit 2: writable, bits 4-7: kind, for farm_segment_open
    uint8_t descriptors; // FUZZ_SWAPPED ...
    uint8_t fill_bytes;
    uint8_t unused;      // inputs of earlier versions have a byte here
    uint8_t turn;        // byte of the fill that `down` begins with; `up` begins with the first
    uint8_t counters[3]; // with bit 3 of `side`: produced, acted, consumed of every lane, instead of the fill
};

#endif
