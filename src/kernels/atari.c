// Atari preprocessing's plan, its reference in OpenCV's order of operations, and the path's choice at run time.
#include "kernels/atari.h"

#include <assert.h>
#include <math.h>
#include <string.h>

// clang-format off
const uint8_t farm_atari_grey_ntsc[256] = {
    0, 74, 74, 111, 111, 142, 142, 170, 170, 192, 192, 214, 214, 236, 236, 0, 64, 15, 95, 29,
    122, 42, 148, 53, 172, 64, 193, 74, 214, 84, 233, 0, 63, 17, 87, 33, 110, 48, 131, 61,
    150, 74, 167, 85, 184, 96, 199, 0, 59, 21, 85, 40, 107, 58, 129, 74, 148, 89, 167, 103,
    183, 116, 199, 0, 44, 26, 68, 50, 90, 72, 110, 92, 128, 111, 146, 128, 161, 144, 176, 100,
    51, 122, 74, 143, 95, 162, 115, 179, 132, 195, 149, 210, 164, 224, 178, 132, 39, 154, 63, 173,
    85, 192, 107, 208, 125, 224, 143, 238, 159, 252, 174, 144, 22, 163, 49, 181, 73, 198, 96, 213,
    116, 227, 136, 240, 153, 252, 169, 148, 17, 167, 41, 184, 64, 200, 85, 214, 104, 228, 121, 240,
    137, 252, 153, 136, 32, 157, 60, 176, 85, 194, 109, 210, 130, 225, 150, 239, 168, 252, 186, 100,
    40, 128, 69, 152, 95, 176, 120, 197, 141, 217, 162, 235, 182, 252, 200, 48, 43, 78, 74, 105,
    101, 130, 127, 153, 151, 174, 173, 194, 193, 212, 212, 0, 40, 26, 71, 50, 98, 72, 124, 92,
    147, 111, 169, 128, 189, 144, 207, 0, 41, 24, 74, 45, 104, 66, 132, 84, 157, 101, 181, 117,
    203, 132, 223, 0, 47, 22, 79, 43, 107, 62, 133, 79, 157, 95, 179, 110, 200, 124, 220, 0,
    47, 20, 79, 38, 107, 56, 133, 71, 157, 86, 179, 99, 200, 112, 220, 0,
};
const uint8_t farm_atari_grey_pal[256] = {
    0, 43, 43, 82, 82, 118, 118, 151, 151, 182, 182, 210, 210, 236, 236, 0, 0, 43, 43, 82,
    82, 118, 118, 151, 151, 182, 182, 210, 210, 236, 236, 0, 90, 26, 114, 50, 136, 72, 157, 92,
    175, 111, 192, 128, 208, 144, 223, 0, 74, 26, 102, 50, 127, 72, 151, 92, 172, 111, 192, 128,
    211, 144, 228, 0, 64, 26, 91, 50, 116, 72, 140, 92, 161, 111, 181, 128, 199, 144, 216, 20,
    61, 53, 89, 82, 114, 110, 137, 135, 159, 158, 179, 180, 197, 200, 214, 20, 36, 53, 62, 82,
    87, 110, 109, 135, 129, 158, 149, 180, 166, 200, 183, 92, 64, 118, 90, 142, 114, 164, 136, 184,
    156, 203, 175, 220, 192, 236, 208, 92, 44, 116, 68, 137, 90, 158, 110, 176, 129, 193, 146, 209,
    162, 224, 177, 112, 48, 137, 76, 160, 101, 182, 124, 201, 146, 220, 165, 236, 184, 252, 201, 112,
    39, 137, 64, 160, 87, 182, 108, 201, 127, 220, 145, 236, 161, 252, 177, 112, 32, 137, 60, 160,
    85, 182, 109, 201, 131, 220, 151, 236, 169, 252, 187, 128, 30, 150, 54, 171, 77, 190, 98, 207,
    117, 223, 135, 238, 151, 252, 166, 136, 16, 157, 41, 176, 64, 194, 86, 210, 105, 225, 124, 239,
    141, 252, 156, 0, 0, 43, 43, 82, 82, 118, 118, 151, 151, 182, 182, 210, 210, 236, 236, 0,
    0, 43, 43, 82, 82, 118, 118, 151, 151, 182, 182, 210, 210, 236, 236, 0,
};
// clang-format on

// Source pixels of each of the 84 results: result i covers [i·scale, (i+1)·scale). A pixel covered by less than 1e-3
// is ignored. Arithmetic and roundings are OpenCV's: scale is the reciprocal of the reciprocal.
static void make_taps(struct farm_atari_taps taps[FARM_ATARI_SIDE], int source) {
    const double scale = 1.0 / ((double)FARM_ATARI_SIDE / source);
    for (int i = 0; i < FARM_ATARI_SIDE; i++) {
        const double begin = i * scale, end = begin + scale, covered = fmin(scale, source - begin);
        const int whole_end = (int)fmin(floor(end), source - 1), whole_begin = (int)fmin(ceil(begin), whole_end);
        struct farm_atari_taps *t = &taps[i];
        t->first = whole_begin;
        t->count = 0;
        if (whole_begin - begin > 1e-3) {
            t->first = whole_begin - 1;
            t->weight[t->count++] = (float)((whole_begin - begin) / covered);
        }
        for (int k = whole_begin; k < whole_end; k++) t->weight[t->count++] = (float)(1.0 / covered);
        if (end - whole_end > 1e-3)
            t->weight[t->count++] = (float)(fmin(fmin(end - whole_end, 1.0), covered) / covered);
        assert(t->count <= FARM_ATARI_TAPS_MAX);
    }
}

static int greatest_common_divisor(int a, int b) {
    while (b != 0) {
        const int remainder = a % b;
        a = b;
        b = remainder;
    }
    return a;
}

// The share of source pixel `first + k` in result i, in units of which a result has `units` and a source pixel `pixel`.
static int whole_weight(int i, int k, int units, int pixel) {
    const int begin = i * units, end = begin + units;
    const int source_begin = (begin / pixel + k) * pixel, source_end = source_begin + pixel;
    const int from = source_begin > begin ? source_begin : begin, to = source_end < end ? source_end : end;
    return to > from ? to - from : 0;
}

// Columns: 160/84 = 40/21, so a result has 40 units and a source column 21, and at most 3 columns lie under a result.
// Columns 84..95 of the padded result get weight 0 and any source.
static void make_column_shuffles(struct farm_atari_plan *plan) {
    enum { UNITS = 40, PIXEL = 21 };
    for (int group = 0; group < 12; group++) {
        int base = group * 8 * UNITS / PIXEL;
        if (base > FARM_ATARI_WIDTH - 16) base = FARM_ATARI_WIDTH - 16;
        plan->column_base[group] = (uint8_t)base;
        for (int j = 0; j < 8; j++) {
            const int i = group * 8 + j, inside = i < FARM_ATARI_SIDE;
            for (int k = 0; k < 4; k++) { // taps 0, 1, then 2 and a fourth of weight 0
                const int column = inside ? i * UNITS / PIXEL + k : base;
                const int weight = inside && k < 3 ? whole_weight(i, k, UNITS, PIXEL) : 0;
                const int offset = column - base - (k < 2 ? 0 : 1); // taps 2 are read one column further on
                assert(weight == 0 || (offset >= 0 && offset < 16));
                plan->column_pick[k / 2][group][2 * j + k % 2] = (uint8_t)(weight == 0 ? 0 : offset);
                plan->column_weight[k / 2][group][2 * j + k % 2] = (int8_t)weight;
            }
        }
    }
}

enum farm_status farm_atari_plan_init(struct farm_atari_plan *plan, int height, const uint8_t grey[256],
                                      struct farm_error *err) {
    if (height < FARM_ATARI_SIDE || height > FARM_ATARI_HEIGHT_MAX)
        return farm_fail(err, FARM_E_INVALID, "invalid Atari frame of %d rows: must be %d to %d", height,
                         FARM_ATARI_SIDE, FARM_ATARI_HEIGHT_MAX);
    memset(plan, 0, sizeof *plan);
    plan->height = height;
    memcpy(plan->grey, grey, 256);
    make_taps(plan->row, height);
    make_taps(plan->column, FARM_ATARI_WIDTH);
    make_column_shuffles(plan);

    const int divisor = greatest_common_divisor(height, FARM_ATARI_SIDE);
    plan->row_units = height / divisor;
    for (int y = 0; y < FARM_ATARI_SIDE; y++)
        for (int k = 0; k < FARM_ATARI_TAPS_MAX; k++)
            plan->row_weight[y][k] = (int16_t)whole_weight(y, k, plan->row_units, FARM_ATARI_SIDE / divisor);

    for (int entry = 0; entry < 128; entry++) {
        const uint8_t before = entry < 16 ? 0 : grey[2 * (entry - 16)];
        plan->grey_even[entry / 16][entry % 16] = grey[2 * entry] ^ before;
    }
    for (int entry = 0; entry < 256; entry++) {
        const uint8_t before = entry % 128 < 16 ? 0 : grey[entry - 16];
        plan->grey_all[entry / 16][entry % 16] = grey[entry] ^ before;
    }
    return FARM_OK;
}

// Sum of one source row's pixels under a result column; product and sum apart, so that no compiler fuses them.
static float row_sum(const struct farm_atari_taps *taps, const uint8_t *row) {
    float sum = 0;
    for (int k = 0; k < taps->count; k++) {
        const float product = (float)row[taps->first + k] * taps->weight[k];
        sum += product;
    }
    return sum;
}

static uint8_t round_half_to_even(float value) {
    return (uint8_t)lrintf(value);
}

uint8_t farm_atari_resize_pixel(const struct farm_atari_plan *plan, int y, int x, const uint8_t *const *source_row) {
    const struct farm_atari_taps *rows = &plan->row[y];
    float sum = 0;
    for (int k = 0; k < rows->count; k++) {
        const float product = row_sum(&plan->column[x], source_row[k]) * rows->weight[k];
        sum += product;
    }
    return round_half_to_even(sum);
}

void farm_atari_preprocess_portable(const struct farm_atari_plan *plan, const uint8_t *frame_a, const uint8_t *frame_b,
                                    uint8_t *out) {
    if (frame_b == NULL) frame_b = frame_a;
    float narrow[FARM_ATARI_HEIGHT_MAX][FARM_ATARI_SIDE]; // rows resized to 84 columns
    for (int y = 0; y < plan->height; y++) {
        uint8_t grey[FARM_ATARI_WIDTH];
        for (int x = 0; x < FARM_ATARI_WIDTH; x++) {
            const uint8_t a = plan->grey[frame_a[y * FARM_ATARI_WIDTH + x]];
            const uint8_t b = plan->grey[frame_b[y * FARM_ATARI_WIDTH + x]];
            grey[x] = a > b ? a : b;
        }
        for (int x = 0; x < FARM_ATARI_SIDE; x++) narrow[y][x] = row_sum(&plan->column[x], grey);
    }
    for (int y = 0; y < FARM_ATARI_SIDE; y++) {
        const struct farm_atari_taps *rows = &plan->row[y];
        float sum[FARM_ATARI_SIDE] = {0};
        for (int k = 0; k < rows->count; k++)
            for (int x = 0; x < FARM_ATARI_SIDE; x++) {
                const float product = narrow[rows->first + k][x] * rows->weight[k];
                sum[x] += product;
            }
        for (int x = 0; x < FARM_ATARI_SIDE; x++) out[y * FARM_ATARI_SIDE + x] = round_half_to_even(sum[x]);
    }
}

void farm_atari_preprocess(const struct farm_atari_plan *plan, const uint8_t *frame_a, const uint8_t *frame_b,
                           uint8_t *out) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        farm_atari_preprocess_avx2(plan, frame_a, frame_b, out);
        return;
    }
#endif
    farm_atari_preprocess_portable(plan, frame_a, frame_b, out);
}
