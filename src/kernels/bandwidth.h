// Kernels that only move memory, to measure its speed: read, write, copy, scale, add, triad, and
// three that update what they read, for exact ratios of reads to writes on the bus. Ordinary and non-temporal stores,
// whole lines one after another, at a stride, or in a given order; in plain C, AVX2 and AVX-512, chosen at run time.
// The contents after a run are an exact function of the line and of the number of passes, so that every run can be
// checked (farm_bandwidth_verify). Run by the threads of src/bw, on memory that no other thread uses; no memory order,
// but non-temporal stores are fenced before a pass returns. Does not measure time.
#ifndef FARM_KERNELS_BANDWIDTH_H
#define FARM_KERNELS_BANDWIDTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FARM_BANDWIDTH_LINE = 64 }; // bytes; the unit of everything here, even if a cache's line is longer

// d: destination, a and b: sources, all arrays of double. s: the pass's scalar, farm_bandwidth_scalar(pass).
enum farm_bandwidth_op {
    FARM_BANDWIDTH_READ,  // sum of a as 64-bit whole numbers modulo 2^64
    FARM_BANDWIDTH_WRITE, // d = s
    FARM_BANDWIDTH_COPY,  // d = a
    FARM_BANDWIDTH_SCALE, // d = s·a
    FARM_BANDWIDTH_ADD,   // d = a + b
    FARM_BANDWIDTH_TRIAD, // d = a + s·b            STREAM's
    FARM_BANDWIDTH_MIX11, // d = d + s              one line read for one written
    FARM_BANDWIDTH_MIX21, // d = d + a              two
    FARM_BANDWIDTH_MIX31, // d = d + a + b          three
    FARM_BANDWIDTH_OPS
};

// Non-temporal stores bypass the caches. Kernels in plain C make ordinary ones instead
// (farm_bandwidth_has_nontemporal). READ has no stores.
enum farm_bandwidth_stores { FARM_BANDWIDTH_TEMPORAL, FARM_BANDWIDTH_NONTEMPORAL };

enum farm_bandwidth_pattern {
    FARM_BANDWIDTH_SEQUENTIAL, // line 0, 1, 2, ...
    FARM_BANDWIDTH_STRIDED,    // 0, S, 2S, ... then 1, 1+S, ... : every line once a pass
    FARM_BANDWIDTH_LISTED,     // order[0], order[1], ...
};

enum farm_bandwidth_variant {
    FARM_BANDWIDTH_BEST, // the widest of this CPU
    FARM_BANDWIDTH_PORTABLE,
    FARM_BANDWIDTH_AVX2,
    FARM_BANDWIDTH_AVX512,
    FARM_BANDWIDTH_VARIANTS
};

// One thread's share. Arrays start at multiples of 64 bytes and do not overlap; NULL if the op does not use them.
struct farm_bandwidth_work {
    enum farm_bandwidth_op op;
    enum farm_bandwidth_stores stores;
    enum farm_bandwidth_pattern pattern;
    size_t lines;          // in each array
    size_t stride_lines;   // STRIDED: 1 to lines
    const uint32_t *order; // LISTED: a permutation of 0 .. lines - 1
    double *d;
    const double *a, *b;
};

// "read", "triad", "mix 3:1", ...; "avx2", ...; "sequential", ...
const char *farm_bandwidth_op_name(enum farm_bandwidth_op op);
const char *farm_bandwidth_variant_name(enum farm_bandwidth_variant variant);
const char *farm_bandwidth_pattern_name(enum farm_bandwidth_pattern pattern);

// What the op uses.
static inline bool farm_bandwidth_uses_d(enum farm_bandwidth_op op) {
    return op != FARM_BANDWIDTH_READ;
}
static inline bool farm_bandwidth_uses_a(enum farm_bandwidth_op op) {
    return op != FARM_BANDWIDTH_WRITE && op != FARM_BANDWIDTH_MIX11;
}
static inline bool farm_bandwidth_uses_b(enum farm_bandwidth_op op) {
    return op == FARM_BANDWIDTH_ADD || op == FARM_BANDWIDTH_TRIAD || op == FARM_BANDWIDTH_MIX31;
}

// How many arrays the op uses: 1 to 3.
int farm_bandwidth_arrays(enum farm_bandwidth_op op);

// Bytes that a pass moves for one line of each array. program: loads and stores, STREAM's count. bus: also the line
// that an ordinary store fetches first unless the op has read it (write-allocate); non-temporal stores fetch nothing.
// Processors that store full lines without a fetch (Intel's since Ice Lake, under load) move less than this.
int farm_bandwidth_program_bytes(enum farm_bandwidth_op op);
int farm_bandwidth_bus_bytes(enum farm_bandwidth_op op, enum farm_bandwidth_stores stores);

// What BEST is on this CPU; the others are themselves.
enum farm_bandwidth_variant farm_bandwidth_resolve(enum farm_bandwidth_variant variant);
bool farm_bandwidth_has(enum farm_bandwidth_variant variant);
bool farm_bandwidth_has_nontemporal(enum farm_bandwidth_variant variant);

// Passes first_pass .. first_pass + passes - 1 over the arrays. READ returns the sum of all passes' sums modulo 2^64,
// the others 0. Asserts what struct farm_bandwidth_work requires, except that `order` is a permutation.
uint64_t farm_bandwidth_run(const struct farm_bandwidth_work *work, enum farm_bandwidth_variant variant,
                            uint64_t first_pass, uint64_t passes);

// Fills d with its contents before the first pass and, with `sources`, a and b with their values, which are the same
// for all ops and never change. Whole numbers, so small that doubles are exact for fewer than 2^31 passes.
void farm_bandwidth_fill(const struct farm_bandwidth_work *work, bool sources);

// The scalar of a pass: a whole number from 1 to 1024.
double farm_bandwidth_scalar(uint64_t pass);

// What farm_bandwidth_run must return for READ after this number of passes.
uint64_t farm_bandwidth_expected_sum(const struct farm_bandwidth_work *work, uint64_t passes);

// Whether all arrays are right, bit for bit, after `passes` passes. *wrong_line (may be NULL): the first that is wrong.
bool farm_bandwidth_verify(const struct farm_bandwidth_work *work, uint64_t passes, size_t *wrong_line);

// Writes a random permutation of 0 .. lines - 1 (Philox of `seed`); lines <= 2^32.
void farm_bandwidth_shuffle(uint32_t *order, size_t lines, uint64_t seed);

#endif
