// The loops of bandwidth.c over vectors of BANDWIDTH_VECTOR bytes. The including file chooses that size together with
// its instructions, the name BANDWIDTH_RUN of the one function defined here, and how a non-temporal store is made:
//
//     #define BANDWIDTH_VECTOR 32
//     #define BANDWIDTH_RUN farm_bandwidth_run_avx2
//     static inline void bandwidth_stream(double *to, bandwidth_vector x);     (after the include: it is declared here)
//
// For bandwidth.c, bandwidth_avx2.c and bandwidth_avx512.c only. Needs the vector extensions of gcc and clang.
//
// In order, a thread works at several places at once, BLOCK lines apart: with one stream memory is idle while the
// prefetcher starts anew at each page. Measured on Zen 3: reads a fifth faster with four streams; non-temporal
// copies a seventh with two, but a third as fast with four, which need more write-combining buffers than there are;
// non-temporal triads, which have two sources already, fastest with one. Eight lines of a stream at a time,
// non-temporal: copies an eighth faster than with four, triads as fast. Prefetch instructions made all of them slower.
#ifndef FARM_KERNELS_BANDWIDTH_LOOPS_H
#define FARM_KERNELS_BANDWIDTH_LOOPS_H

#include "kernels/bandwidth.h"

#define BANDWIDTH_INLINE static inline __attribute__((always_inline))

typedef double bandwidth_vector __attribute__((vector_size(BANDWIDTH_VECTOR)));
typedef uint64_t bandwidth_words __attribute__((vector_size(BANDWIDTH_VECTOR)));

enum {
    BANDWIDTH_DOUBLES = BANDWIDTH_VECTOR / 8,                   // in a vector
    BANDWIDTH_VECTORS = FARM_BANDWIDTH_LINE / BANDWIDTH_VECTOR, // in a line
    BANDWIDTH_LINE_DOUBLES = FARM_BANDWIDTH_LINE / 8,
    BANDWIDTH_BLOCK = 1024, // lines: 64 KiB
    BANDWIDTH_STREAMS_MAX = 4,
    BANDWIDTH_SUMS = 4, // running sums, so that no addition waits for the one before
};

BANDWIDTH_INLINE void bandwidth_stream(double *to, bandwidth_vector x);
// Orders what bandwidth_stream has stored before everything that follows.
BANDWIDTH_INLINE void bandwidth_stream_end(void);

// What stays in registers. op and stores are constants wherever this is inlined.
struct bandwidth_state {
    double *d;
    const double *a, *b;
    bandwidth_vector s;
    bandwidth_words sum[BANDWIDTH_SUMS];
};

BANDWIDTH_INLINE bandwidth_vector bandwidth_load(const double *from) {
    return *(const bandwidth_vector *)(const void *)from;
}

// The op on one vector at the index `at` of the arrays.
BANDWIDTH_INLINE void bandwidth_step(struct bandwidth_state *state, enum farm_bandwidth_op op,
                                     enum farm_bandwidth_stores stores, size_t at, int sum) {
    bandwidth_vector x;
    switch (op) {
    case FARM_BANDWIDTH_READ:
        state->sum[sum] += *(const bandwidth_words *)(const void *)(state->a + at);
        return;
    case FARM_BANDWIDTH_WRITE:
        x = state->s;
        break;
    case FARM_BANDWIDTH_COPY:
        x = bandwidth_load(state->a + at);
        break;
    case FARM_BANDWIDTH_SCALE:
        x = state->s * bandwidth_load(state->a + at);
        break;
    case FARM_BANDWIDTH_ADD:
        x = bandwidth_load(state->a + at) + bandwidth_load(state->b + at);
        break;
    case FARM_BANDWIDTH_TRIAD:
        x = bandwidth_load(state->a + at) + state->s * bandwidth_load(state->b + at);
        break;
    case FARM_BANDWIDTH_MIX11:
        x = bandwidth_load(state->d + at) + state->s;
        break;
    case FARM_BANDWIDTH_MIX21:
        x = bandwidth_load(state->d + at) + bandwidth_load(state->a + at);
        break;
    default:
        x = bandwidth_load(state->d + at) + bandwidth_load(state->a + at) + bandwidth_load(state->b + at);
        break;
    }
    if (stores == FARM_BANDWIDTH_NONTEMPORAL)
        bandwidth_stream(state->d + at, x);
    else
        *(bandwidth_vector *)(void *)(state->d + at) = x;
}

// `count` neighbouring lines from line `line` on; count is a constant.
BANDWIDTH_INLINE void bandwidth_lines(struct bandwidth_state *state, enum farm_bandwidth_op op,
                                      enum farm_bandwidth_stores stores, size_t line, int count) {
#pragma GCC unroll 16
    for (int v = 0; v < count * BANDWIDTH_VECTORS; v++)
        bandwidth_step(state, op, stores, line * BANDWIDTH_LINE_DOUBLES + (size_t)(v * BANDWIDTH_DOUBLES),
                       v % BANDWIDTH_SUMS);
}

BANDWIDTH_INLINE void bandwidth_sequential(struct bandwidth_state *state, enum farm_bandwidth_op op,
                                           enum farm_bandwidth_stores stores, size_t lines) {
    const int past_caches = farm_bandwidth_uses_b(op) ? 1 : 2;
    const int streams = stores == FARM_BANDWIDTH_NONTEMPORAL ? past_caches : BANDWIDTH_STREAMS_MAX;
    const int together = stores == FARM_BANDWIDTH_NONTEMPORAL ? 8 : 2; // lines of one stream at a time
    const size_t group = (size_t)streams * BANDWIDTH_BLOCK;
    size_t line = 0;
    for (; line + group <= lines; line += group)
        for (size_t i = 0; i < BANDWIDTH_BLOCK; i += (size_t)together)
#pragma GCC unroll 4
            for (int k = 0; k < streams; k++)
                bandwidth_lines(state, op, stores, line + (size_t)k * BANDWIDTH_BLOCK + i, together);
    for (; line + 4 <= lines; line += 4) bandwidth_lines(state, op, stores, line, 4);
    for (; line < lines; line++) bandwidth_lines(state, op, stores, line, 1);
}

BANDWIDTH_INLINE void bandwidth_strided(struct bandwidth_state *state, enum farm_bandwidth_op op,
                                        enum farm_bandwidth_stores stores, size_t lines, size_t stride) {
    for (size_t first = 0; first < stride; first++) {
        size_t line = first;
        for (; line + 3 * stride < lines; line += 4 * stride)
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) bandwidth_lines(state, op, stores, line + (size_t)k * stride, 1);
        for (; line < lines; line += stride) bandwidth_lines(state, op, stores, line, 1);
    }
}

BANDWIDTH_INLINE void bandwidth_listed(struct bandwidth_state *state, enum farm_bandwidth_op op,
                                       enum farm_bandwidth_stores stores, size_t lines, const uint32_t *order) {
    size_t i = 0;
    for (; i + 4 <= lines; i += 4)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) bandwidth_lines(state, op, stores, order[i + (size_t)k], 1);
    for (; i < lines; i++) bandwidth_lines(state, op, stores, order[i], 1);
}

BANDWIDTH_INLINE uint64_t bandwidth_passes(const struct farm_bandwidth_work *work, enum farm_bandwidth_op op,
                                           enum farm_bandwidth_stores stores, uint64_t first_pass, uint64_t passes) {
    struct bandwidth_state state = {.d = work->d, .a = work->a, .b = work->b};
    for (uint64_t pass = first_pass; pass < first_pass + passes; pass++) {
        state.s = farm_bandwidth_scalar(pass) - (bandwidth_vector){0};
        if (work->pattern == FARM_BANDWIDTH_SEQUENTIAL)
            bandwidth_sequential(&state, op, stores, work->lines);
        else if (work->pattern == FARM_BANDWIDTH_STRIDED)
            bandwidth_strided(&state, op, stores, work->lines, work->stride_lines);
        else
            bandwidth_listed(&state, op, stores, work->lines, work->order);
        __asm__ volatile("" ::: "memory"); // passes are neither merged nor left out
    }
    if (stores == FARM_BANDWIDTH_NONTEMPORAL) bandwidth_stream_end();
    bandwidth_words sum = {0};
    for (int i = 0; i < BANDWIDTH_SUMS; i++) sum += state.sum[i];
    uint64_t total = 0;
    for (int i = 0; i < BANDWIDTH_DOUBLES; i++) total += sum[i];
    return total;
}

BANDWIDTH_INLINE uint64_t bandwidth_of_op(const struct farm_bandwidth_work *work, enum farm_bandwidth_op op,
                                          uint64_t first_pass, uint64_t passes) {
    if (op == FARM_BANDWIDTH_READ || work->stores == FARM_BANDWIDTH_TEMPORAL)
        return bandwidth_passes(work, op, FARM_BANDWIDTH_TEMPORAL, first_pass, passes);
    return bandwidth_passes(work, op, FARM_BANDWIDTH_NONTEMPORAL, first_pass, passes);
}

// So that the op is a constant in what is expanded.
#define BANDWIDTH_FOR_EACH_OP(DO)                                                                                      \
    DO(FARM_BANDWIDTH_READ)                                                                                            \
    DO(FARM_BANDWIDTH_WRITE)                                                                                           \
    DO(FARM_BANDWIDTH_COPY)                                                                                            \
    DO(FARM_BANDWIDTH_SCALE)                                                                                           \
    DO(FARM_BANDWIDTH_ADD)                                                                                             \
    DO(FARM_BANDWIDTH_TRIAD)                                                                                           \
    DO(FARM_BANDWIDTH_MIX11)                                                                                           \
    DO(FARM_BANDWIDTH_MIX21)                                                                                           \
    DO(FARM_BANDWIDTH_MIX31)

uint64_t BANDWIDTH_RUN(const struct farm_bandwidth_work *work, uint64_t first_pass, uint64_t passes);
uint64_t BANDWIDTH_RUN(const struct farm_bandwidth_work *work, uint64_t first_pass, uint64_t passes) {
#define BANDWIDTH_RUN_OP(op)                                                                                           \
    case op:                                                                                                           \
        return bandwidth_of_op(work, op, first_pass, passes);
    switch (work->op) {
        BANDWIDTH_FOR_EACH_OP(BANDWIDTH_RUN_OP)
    default:
        return 0;
    }
#undef BANDWIDTH_RUN_OP
}

#endif
