// An input of fuzz_attach.c as make_seeds.c writes it: this struct, `fill_bytes` bytes that the segments are filled
// with behind their headers, a struct farm_ring_spec. All bits zero and all seals set is an honest hand-over.
#ifndef FARM_TESTS_FUZZ_ATTACH_H
#define FARM_TESTS_FUZZ_ATTACH_H

#include <stdint.h>

enum { // fuzz_segment.seals: three seals, then
    FUZZ_ALL_SEALS = 7,
    FUZZ_READ_ONLY = 8, // only a read-only descriptor
};
enum { // fuzz_segment.spoil: this word of the header is `word` instead of what it should be
    FUZZ_SPOIL_MAGIC = 1,
    FUZZ_SPOIL_VERSION = 2,
    FUZZ_SPOIL_KIND = 4,
    FUZZ_SPOIL_BYTES = 8,
    FUZZ_SPOIL_HASH = 16,
    FUZZ_SPOIL_SPEC = 32, // a byte of the spec, by the low half of `word`, is other bits
};
enum { // fuzz_attach.descriptors
    FUZZ_SWAPPED = 2,
    FUZZ_SAME = 4,
    FUZZ_CLOSED = 8, // the first, with bit 0 the second, is no descriptor
};

struct fuzz_segment {
    uint64_t word;
    int16_t size_delta; // x 16 bytes off the size that the layout asks for
    uint8_t seals, spoil, owner, node, pages, placement;
};

struct fuzz_attach {
    struct fuzz_segment up, down;
    uint64_t hash;       // that farm_segment_open is asked to find; 0: any
    uint8_t side;        // bits 0-1: enum farm_ring_side; bit 2: writable, bits 4-7: kind, for farm_segment_open
    uint8_t descriptors; // FUZZ_SWAPPED ...
    uint8_t fill_bytes;
    uint8_t text_bytes;  // that farm_ring_verify may write
    uint8_t turn;        // byte of the fill that `down` begins with; `up` begins with the first
    uint8_t counters[3]; // with bit 3 of `side`: produced, acted, consumed of every lane, instead of what the fill says
};

#endif
