// Atari preprocessing with AVX2, exact in whole numbers. atari.c calls it if the CPU has AVX2.
//
// 160/84 = 40/21 and height/84 are small fractions, so a result pixel is a whole number N (columns' weights sum to 40,
// rows' to row_units) over D = 40·row_units. OpenCV computes the same in floats with an error below 1e-4, which can
// change the rounded byte only where N/D is within that of a half. Those few are computed again in OpenCV's order.
#include <immintrin.h>
#include <string.h>

#include "kernels/atari.h"

enum {
    RING = 8,       // source rows kept: a power of two above FARM_ATARI_TAPS_MAX
    PADDED = 96,    // result columns in whole vectors
    GROUPS = 6,     // of 16 result columns
    ROW_BYTES = 192 // a source row and what a shuffle may read after it
};

// The last RING source rows: row r is in slot of[r % RING]. A row equal to the one before (an Atari pixel is often two
// lines high) shares its slot. What shuffles read beyond 160 pixels is zero and has weight 0.
struct rows {
    int newest, of[RING];
    _Alignas(32) uint8_t grey[RING][ROW_BYTES];
    _Alignas(32) int16_t narrow[RING][PADDED]; // 84 columns, times 40
};

// Looks up 32 bytes y in a table of `chain` rows of 16. Row k holds table[k] xor table[k-1]: a byte whose entry is in
// row k collects rows 0..k, whose xor is table[k]; once y - 16·k is negative its top bit makes the shuffle give zero.
// Subtraction saturates, so a byte with its top bit set keeps it and gets zero.
static inline __m256i look_up(const uint8_t chain[][16], __m256i y) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        const __m256i row = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)chain[k]));
        sum = _mm256_xor_si256(sum, _mm256_shuffle_epi8(row, y));
        y = _mm256_subs_epi8(y, _mm256_set1_epi8(16));
    }
    return sum;
}

static inline __m256i grey_of_even(const struct farm_atari_plan *plan, __m256i index) {
    return look_up(plan->grey_even, _mm256_and_si256(_mm256_srli_epi16(index, 1), _mm256_set1_epi8(0x7f)));
}

static inline __m256i grey_of_any(const struct farm_atari_plan *plan, __m256i index) {
    const __m256i low = look_up(plan->grey_all, index);
    const __m256i high = look_up(plan->grey_all + 8, _mm256_xor_si256(index, _mm256_set1_epi8(-128)));
    return _mm256_or_si256(low, high);
}

static inline __m256i load32(const uint8_t *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

static inline void store32(uint8_t *at, __m256i value) {
    _mm256_store_si256((__m256i *)at, value);
}

static int equal_rows(const uint8_t *a, const uint8_t *b) {
    __m256i change = _mm256_setzero_si256();
    for (int x = 0; x < FARM_ATARI_WIDTH; x += 32)
        change = _mm256_or_si256(change, _mm256_xor_si256(load32(a + x), load32(b + x)));
    return _mm256_testz_si256(change, change);
}

static int has_odd(const uint8_t *a, const uint8_t *b) {
    __m256i seen = _mm256_setzero_si256();
    for (int x = 0; x < FARM_ATARI_WIDTH; x += 32)
        seen = _mm256_or_si256(seen, _mm256_or_si256(load32(a + x), load32(b + x)));
    return !_mm256_testz_si256(seen, _mm256_set1_epi8(1));
}

// One source row: look-up and maximum. Rows that are the same in both frames (most are) are looked up once.
static void make_grey(const struct farm_atari_plan *plan, const uint8_t *a, const uint8_t *b, uint8_t *grey) {
    if (has_odd(a, b)) {
        for (int x = 0; x < FARM_ATARI_WIDTH; x += 32)
            store32(grey + x, _mm256_max_epu8(grey_of_any(plan, load32(a + x)), grey_of_any(plan, load32(b + x))));
    } else if (!equal_rows(a, b)) {
        for (int x = 0; x < FARM_ATARI_WIDTH; x += 32)
            store32(grey + x, _mm256_max_epu8(grey_of_even(plan, load32(a + x)), grey_of_even(plan, load32(b + x))));
    } else {
        for (int x = 0; x < FARM_ATARI_WIDTH; x += 32) store32(grey + x, grey_of_even(plan, load32(a + x)));
    }
}

static inline __m256i load_two(const uint8_t *low, const uint8_t *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

// One grey row from 160 to 84 columns, times 40 (at most 255·40, fits int16).
static void make_narrow(const struct farm_atari_plan *plan, const uint8_t *grey, int16_t *narrow) {
    for (int g = 0; g < GROUPS; g++) {
        const uint8_t *low = grey + plan->column_base[2 * g], *high = grey + plan->column_base[2 * g + 1];
        __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {
            const __m256i pick = _mm256_loadu_si256((const __m256i *)plan->column_pick[k][2 * g]);
            const __m256i weight = _mm256_loadu_si256((const __m256i *)plan->column_weight[k][2 * g]);
            const __m256i pixels = _mm256_shuffle_epi8(load_two(low + k, high + k), pick);
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(pixels, weight));
        }
        _mm256_store_si256((__m256i *)(narrow + 16 * g), sum);
    }
}

// The input of one result row: its source rows, their weights in pairs, and 1/D.
struct blend {
    const int16_t *narrow[FARM_ATARI_TAPS_MAX + 1];
    __m256i weight[(FARM_ATARI_TAPS_MAX + 1) / 2];
    __m256 reciprocal;
};

// Rounds N/D; *unsure gets all ones where N/D is within 5e-4 of a half.
static inline __m256i divide(__m256i numerator, __m256 reciprocal, __m256i *unsure) {
    const __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(numerator), reciprocal);
    const __m256i nearest = _mm256_cvtps_epi32(value);
    const __m256 off = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_sub_ps(value, _mm256_cvtepi32_ps(nearest)));
    *unsure = _mm256_castps_si256(_mm256_cmp_ps(off, _mm256_set1_ps(0.4995f), _CMP_GT_OQ));
    return nearest;
}

// 16 result columns from column x on, as int16.
static inline __m256i blend16(const struct blend *b, int pairs, int x, __m256i *unsure) {
    __m256i low = _mm256_setzero_si256(), high = low, unsure_low, unsure_high;
#pragma GCC unroll 3
    for (int p = 0; p < pairs; p++) {
        const __m256i first = _mm256_load_si256((const __m256i *)(b->narrow[2 * p] + x));
        const __m256i second = _mm256_load_si256((const __m256i *)(b->narrow[2 * p + 1] + x));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), b->weight[p]));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), b->weight[p]));
    }
    low = divide(low, b->reciprocal, &unsure_low);
    high = divide(high, b->reciprocal, &unsure_high);
    *unsure = _mm256_packs_epi32(unsure_low, unsure_high);
    return _mm256_packs_epi32(low, high);
}

static void redo_unsure(const struct farm_atari_plan *plan, const struct rows *rows, int y, int x, uint32_t unsure,
                        uint8_t *out) {
    const uint8_t *source[FARM_ATARI_TAPS_MAX];
    for (int k = 0; k < plan->row[y].count; k++) source[k] = rows->grey[rows->of[(plan->row[y].first + k) % RING]];
    for (; unsure != 0; unsure &= unsure - 1) {
        const int at = x + __builtin_ctz(unsure);
        if (at < FARM_ATARI_SIDE) out[at] = farm_atari_resize_pixel(plan, y, at, source);
    }
}

// Result row y from the ring's rows. `pairs` is half of its source rows, rounded up: a constant at each call.
static inline __attribute__((always_inline)) void make_row(const struct farm_atari_plan *plan, const struct rows *rows,
                                                           int pairs, int y, uint8_t *out) {
    const struct farm_atari_taps *taps = &plan->row[y];
    struct blend b = {.reciprocal = _mm256_set1_ps(1.0f / (40.0f * (float)plan->row_units))};
    for (int p = 0; p < pairs; p++) {
        int weights;
        memcpy(&weights, &plan->row_weight[y][2 * p], sizeof weights);
        b.weight[p] = _mm256_set1_epi32(weights);
        const int first = taps->first + 2 * p, second = 2 * p + 1 < taps->count ? first + 1 : first; // or weight 0
        b.narrow[2 * p] = rows->narrow[rows->of[first % RING]];
        b.narrow[2 * p + 1] = rows->narrow[rows->of[second % RING]];
    }
    _Alignas(32) uint8_t line[PADDED];
    for (int x = 0; x < PADDED; x += 32) {
        __m256i unsure_low, unsure_high;
        const __m256i low = blend16(&b, pairs, x, &unsure_low), high = blend16(&b, pairs, x + 16, &unsure_high);
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
        const __m256i unsure = _mm256_permute4x64_epi64(_mm256_packs_epi16(unsure_low, unsure_high), 0xd8);
        store32(line + x, bytes);
        const uint32_t mask = (uint32_t)_mm256_movemask_epi8(unsure);
        if (mask != 0) redo_unsure(plan, rows, y, x, mask, line);
    }
    memcpy(out, line, FARM_ATARI_SIDE);
}

static void add_row(const struct farm_atari_plan *plan, struct rows *rows, int row, const uint8_t *a,
                    const uint8_t *b) {
    const int again = row > 0 && equal_rows(a, a - FARM_ATARI_WIDTH) && equal_rows(b, b - FARM_ATARI_WIDTH);
    if (!again) {
        rows->newest = (rows->newest + 1) % RING;
        make_grey(plan, a, b, rows->grey[rows->newest]);
        make_narrow(plan, rows->grey[rows->newest], rows->narrow[rows->newest]);
    }
    rows->of[row % RING] = rows->newest;
}

void farm_atari_preprocess_avx2(const struct farm_atari_plan *plan, const uint8_t *frame_a, const uint8_t *frame_b,
                                uint8_t *out) {
    if (frame_b == NULL) frame_b = frame_a;
    struct rows rows;
    rows.newest = 0;
    for (int k = 0; k < RING; k++) store32(rows.grey[k] + FARM_ATARI_WIDTH, _mm256_setzero_si256());
    for (int y = 0, row = 0; y < FARM_ATARI_SIDE; y++) {
        for (; row < plan->row[y].first + plan->row[y].count; row++)
            add_row(plan, &rows, row, frame_a + row * FARM_ATARI_WIDTH, frame_b + row * FARM_ATARI_WIDTH);
        uint8_t *line = out + y * FARM_ATARI_SIDE;
        switch ((plan->row[y].count + 1) / 2) {
        case 1:
            make_row(plan, &rows, 1, y, line);
            break;
        case 2:
            make_row(plan, &rows, 2, y, line);
            break;
        default:
            make_row(plan, &rows, 3, y, line);
            break;
        }
    }
}
