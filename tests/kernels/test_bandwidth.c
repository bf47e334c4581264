// Every bandwidth kernel, variant, pattern and kind of store against plain loops over doubles, on sizes that leave
// rests and at different places within a page; verification against changed memory.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bandwidth.h"

TestSuite(kernels, .timeout = 60);

enum { LINES_MAX = 4160, WORDS = FARM_BANDWIDTH_LINE / 8, MARGIN = 64 }; // lines before and behind an array

struct arrays {
    double *block[3];
    uint32_t *order;
    struct farm_bandwidth_work work;
};

// Arrays of `lines` lines that start `shift` lines into a page.
static struct arrays make_arrays(enum farm_bandwidth_op op, size_t lines, size_t shift) {
    struct arrays arrays = {.work = {.op = op, .lines = lines}};
    double *start[3];
    for (int i = 0; i < 3; i++) {
        arrays.block[i] = aligned_alloc(4096, (LINES_MAX + 3 * MARGIN) * (size_t)FARM_BANDWIDTH_LINE);
        cr_assert_not_null(arrays.block[i]);
        memset(arrays.block[i], 0x5a, (LINES_MAX + 3 * MARGIN) * (size_t)FARM_BANDWIDTH_LINE);
        start[i] = arrays.block[i] + (MARGIN + shift + (size_t)i) * WORDS;
    }
    arrays.order = malloc(LINES_MAX * sizeof *arrays.order);
    cr_assert_not_null(arrays.order);
    farm_bandwidth_shuffle(arrays.order, lines, 7);
    if (farm_bandwidth_uses_d(op)) arrays.work.d = start[0];
    if (farm_bandwidth_uses_a(op)) arrays.work.a = start[1];
    if (farm_bandwidth_uses_b(op)) arrays.work.b = start[2];
    arrays.work.order = arrays.order;
    return arrays;
}

static void free_arrays(struct arrays *arrays) {
    for (int i = 0; i < 3; i++) free(arrays->block[i]);
    free(arrays->order);
}

// One pass in plain C; returns READ's sum.
static uint64_t plain_pass(enum farm_bandwidth_op op, size_t count, double *d, const double *a, const double *b,
                           double s) {
    uint64_t sum = 0, bits;
    for (size_t i = 0; i < count; i++) {
        const double old = d ? d[i] : 0, x = a ? a[i] : 0, y = b ? b[i] : 0;
        const double results[FARM_BANDWIDTH_OPS] = {
            [FARM_BANDWIDTH_WRITE] = s,       [FARM_BANDWIDTH_COPY] = x,           [FARM_BANDWIDTH_SCALE] = s * x,
            [FARM_BANDWIDTH_ADD] = x + y,     [FARM_BANDWIDTH_TRIAD] = x + s * y,  [FARM_BANDWIDTH_MIX11] = old + s,
            [FARM_BANDWIDTH_MIX21] = old + x, [FARM_BANDWIDTH_MIX31] = old + x + y};
        if (d) d[i] = results[op];
        memcpy(&bits, &x, sizeof bits);
        if (op == FARM_BANDWIDTH_READ) sum += bits;
    }
    return sum;
}

static void check_kernel(enum farm_bandwidth_variant variant, enum farm_bandwidth_op op,
                         enum farm_bandwidth_stores stores, enum farm_bandwidth_pattern pattern, size_t lines,
                         size_t shift, size_t stride) {
    char what[160];
    snprintf(what, sizeof what, "%s %s stores %d %s, %zu lines, shift %zu, stride %zu",
             farm_bandwidth_variant_name(variant), farm_bandwidth_op_name(op), (int)stores,
             farm_bandwidth_pattern_name(pattern), lines, shift, stride);
    struct arrays arrays = make_arrays(op, lines, shift), plain = make_arrays(op, lines, shift);
    arrays.work.stores = stores, arrays.work.pattern = pattern, arrays.work.stride_lines = stride;
    farm_bandwidth_fill(&arrays.work, true);
    farm_bandwidth_fill(&plain.work, true);
    const uint64_t passes = 3;
    uint64_t sum = farm_bandwidth_run(&arrays.work, variant, 0, 1);
    sum += farm_bandwidth_run(&arrays.work, variant, 1, passes - 1);
    uint64_t plain_sum = 0;
    for (uint64_t pass = 0; pass < passes; pass++)
        plain_sum += plain_pass(op, lines * WORDS, plain.work.d, plain.work.a, plain.work.b, (double)(pass + 1));
    cr_assert_eq(sum, plain_sum, "%s: sum", what);
    if (op == FARM_BANDWIDTH_READ) cr_assert_eq(sum, farm_bandwidth_expected_sum(&arrays.work, passes), "%s", what);
    for (int i = 0; i < 3; i++) // what lies before and behind the arrays too
        cr_assert_arr_eq(arrays.block[i], plain.block[i], (LINES_MAX + 3 * MARGIN) * (size_t)FARM_BANDWIDTH_LINE,
                         "%s: array %d", what, i);
    cr_assert(farm_bandwidth_verify(&arrays.work, passes, NULL), "%s: verification", what);
    free_arrays(&arrays), free_arrays(&plain);
}

static void check_variant(enum farm_bandwidth_variant variant) {
    if (!farm_bandwidth_has(variant)) cr_skip_test("this CPU has no %s", farm_bandwidth_variant_name(variant));
    static const struct {
        size_t lines, shift, stride;
    } shapes[] = {{1, 0, 1}, {3, 1, 2}, {7, 63, 7}, {129, 5, 65}, {4099, 2, 1000}};
    for (int op = 0; op < FARM_BANDWIDTH_OPS; op++)
        for (int stores = 0; stores < 2; stores++)
            for (int pattern = 0; pattern < 3; pattern++)
                for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                    check_kernel(variant, (enum farm_bandwidth_op)op, (enum farm_bandwidth_stores)stores,
                                 (enum farm_bandwidth_pattern)pattern, shapes[i].lines, shapes[i].shift,
                                 shapes[i].stride);
}

#define VARIANT(name, variant)                                                                                         \
    Test(kernels, name##_bandwidth_loops_match_plain_loops) {                                                          \
        check_variant(variant);                                                                                        \
    }
VARIANT(portable, FARM_BANDWIDTH_PORTABLE)
VARIANT(avx2, FARM_BANDWIDTH_AVX2)
VARIANT(avx512, FARM_BANDWIDTH_AVX512)

Test(kernels, bandwidth_contents_stay_exact_over_many_passes) {
    for (int op = 0; op < FARM_BANDWIDTH_OPS; op++) {
        struct arrays arrays = make_arrays((enum farm_bandwidth_op)op, 5, 0);
        farm_bandwidth_fill(&arrays.work, true);
        const uint64_t passes = 20000;
        uint64_t sum = farm_bandwidth_run(&arrays.work, FARM_BANDWIDTH_BEST, 0, passes);
        if (op == FARM_BANDWIDTH_READ) cr_assert_eq(sum, farm_bandwidth_expected_sum(&arrays.work, passes));
        cr_assert(farm_bandwidth_verify(&arrays.work, passes, NULL), "%s",
                  farm_bandwidth_op_name((enum farm_bandwidth_op)op));
        // A pass more or less shows wherever a pass changes anything.
        const bool repeats = op == FARM_BANDWIDTH_READ || op == FARM_BANDWIDTH_COPY || op == FARM_BANDWIDTH_ADD;
        cr_assert_eq(farm_bandwidth_verify(&arrays.work, passes - 1, NULL), repeats);
        free_arrays(&arrays);
    }
}

Test(kernels, bandwidth_verification_finds_a_flipped_byte_and_a_missing_run) {
    for (int op = 0; op < FARM_BANDWIDTH_OPS; op++) {
        struct arrays arrays = make_arrays((enum farm_bandwidth_op)op, 100, 3);
        farm_bandwidth_fill(&arrays.work, true);
        cr_assert(farm_bandwidth_verify(&arrays.work, 0, NULL));
        if (farm_bandwidth_uses_d((enum farm_bandwidth_op)op))
            cr_assert_not(farm_bandwidth_verify(&arrays.work, 1, NULL), "contents before the run pass for those after");
        farm_bandwidth_run(&arrays.work, FARM_BANDWIDTH_BEST, 0, 2);
        unsigned char *const starts[] = {(unsigned char *)arrays.work.d, (unsigned char *)(uintptr_t)arrays.work.a,
                                         (unsigned char *)(uintptr_t)arrays.work.b};
        for (int i = 0; i < 3; i++)
            for (size_t at = 0; starts[i] && at < 6400; at += 799) {
                size_t line = 0;
                starts[i][at] ^= 1;
                cr_assert_not(farm_bandwidth_verify(&arrays.work, 2, &line), "array %d, byte %zu", i, at);
                cr_assert_eq(line, at / FARM_BANDWIDTH_LINE);
                starts[i][at] ^= 1;
            }
        cr_assert(farm_bandwidth_verify(&arrays.work, 2, NULL));
        free_arrays(&arrays);
    }
}

Test(kernels, bandwidth_counts_bytes_as_stream_does_and_adds_the_lines_fetched_for_stores) {
    static const struct {
        enum farm_bandwidth_op op;
        int program, ordinary_bus, nontemporal_bus;
    } cases[] = {{FARM_BANDWIDTH_READ, 64, 64, 64},     {FARM_BANDWIDTH_WRITE, 64, 128, 64},
                 {FARM_BANDWIDTH_COPY, 128, 192, 128},  {FARM_BANDWIDTH_TRIAD, 192, 256, 192},
                 {FARM_BANDWIDTH_MIX11, 128, 128, 128}, {FARM_BANDWIDTH_MIX31, 256, 256, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(farm_bandwidth_program_bytes(cases[i].op), cases[i].program);
        cr_assert_eq(farm_bandwidth_bus_bytes(cases[i].op, FARM_BANDWIDTH_TEMPORAL), cases[i].ordinary_bus);
        cr_assert_eq(farm_bandwidth_bus_bytes(cases[i].op, FARM_BANDWIDTH_NONTEMPORAL), cases[i].nontemporal_bus);
    }
}

Test(kernels, bandwidth_shuffles_to_a_permutation_without_runs) {
    enum { N = 5000 };
    static uint32_t order[N], again[N];
    static bool seen[N];
    int runs = 0;
    farm_bandwidth_shuffle(order, N, 1);
    for (int i = 0; i < N; i++) {
        cr_assert_lt(order[i], N);
        cr_assert_not(seen[order[i]]);
        seen[order[i]] = true;
        runs += i > 0 && order[i] == order[i - 1] + 1;
    }
    cr_assert_lt(runs, 10); // one is expected
    farm_bandwidth_shuffle(again, N, 2);
    cr_assert_neq(memcmp(order, again, sizeof order), 0);
}
