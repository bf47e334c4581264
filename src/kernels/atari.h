// Atari preprocessing in one pass: palette frames → grey → maximum of two frames → 84x84 by area averaging, byte for
// byte as ALE's vector environment (OpenCV's INTER_AREA on 8-bit pixels, without fused multiply-add). Runs in the
// actor; the result goes straight into the lane. Does not stack frames (the learner does) nor know the emulator.
#ifndef FARM_KERNELS_ATARI_H
#define FARM_KERNELS_ATARI_H

#include <stdint.h>

#include "base/status.h"

enum {
    FARM_ATARI_SIDE = 84,        // rows and columns of the result
    FARM_ATARI_WIDTH = 160,      // columns of the emulator's frame
    FARM_ATARI_HEIGHT_MAX = 256, // rows of the emulator's frame; ALE has 210, 214, 220, 230 and, for PAL, 250
    FARM_ATARI_TAPS_MAX = 5,     // source rows (or columns) under one result row (or column): 250/84 → 3 or 4
};

// Grey values of all palette indices, as ALE 0.12 shows them (tests/python/test_ale_vector_env.py). Games whose
// screen has 250 rows are PAL, all others NTSC. An odd index marks a PAL frame with an odd number of scan lines; ALE
// shows it as the blue value of the next colour, which is kept because agents are trained on that.
extern const uint8_t farm_atari_grey_ntsc[256];
extern const uint8_t farm_atari_grey_pal[256];

// The source pixels under one result row or column, and their weights as OpenCV computes them.
struct farm_atari_taps {
    int first, count;
    float weight[FARM_ATARI_TAPS_MAX];
};

// Everything that depends on the game only. Read-only once made, without pointers: it may be shared and copied.
struct farm_atari_plan {
    int height;
    uint8_t grey[256];
    struct farm_atari_taps row[FARM_ATARI_SIDE], column[FARM_ATARI_SIDE];
    // For the SIMD path. Weights in whole numbers: a column's sum to 40, a row's to row_units.
    int row_units;
    int16_t row_weight[FARM_ATARI_SIDE][FARM_ATARI_TAPS_MAX + 1];
    uint8_t column_pick[2][12][16];  // byte shuffles: taps 0 and 1, then tap 2, of 8 result columns
    int8_t column_weight[2][12][16]; // their weights
    uint8_t column_base[12];         // source column where those 8 begin
    uint8_t grey_even[8][16];        // table of index/2: row k holds entries xor those of row k-1
    uint8_t grey_all[16][16];        // table of the whole index, rows 0-7 and rows 8-15 each as above
};

// Fills *plan for frames of height x 160 and a table from palette index to grey (one of the two above; it is
// copied). FARM_E_INVALID for a height outside 84..256.
enum farm_status farm_atari_plan_init(struct farm_atari_plan *plan, int height, const uint8_t grey[256],
                                      struct farm_error *err);

// frame_a, frame_b: height x 160 palette indices, row by row; frame_b may be NULL (one frame only) or equal frame_a.
// out: 84 x 84 grey pixels. No alignment needed; nothing outside these arrays is read or written.
void farm_atari_preprocess(const struct farm_atari_plan *plan, const uint8_t *frame_a, const uint8_t *frame_b,
                           uint8_t *out);

// The same in plain C, in OpenCV's order of float operations: the fast path's reference, and other machines' path.
void farm_atari_preprocess_portable(const struct farm_atari_plan *plan, const uint8_t *frame_a, const uint8_t *frame_b,
                                    uint8_t *out);

// One result pixel in OpenCV's order of operations. source_row[k] is row plan->row[y].first + k, grey, 160 wide.
uint8_t farm_atari_resize_pixel(const struct farm_atari_plan *plan, int y, int x, const uint8_t *const *source_row);

#if defined(__x86_64__)
void farm_atari_preprocess_avx2(const struct farm_atari_plan *plan, const uint8_t *frame_a, const uint8_t *frame_b,
                                uint8_t *out);
#endif

#endif
