// The first convolution with AVX2: 84x84 frames, 8x8 kernels, stride 4, 16 or more channels, as an integer Winograd
// convolution (conv_u8_packed.h has the algebra). Runs in the learner and in actors with local inference; no memory
// order; called only where the CPU has AVX2 (conv_u8.c asks). Reads frames in place, no byte outside them.
#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "kernels/conv_u8_packed.h"

enum {
    SIDE = FARM_CONV_U8_SIDE,
    TILES = FARM_CONV_U8_TILES, // 10 x 10 tiles of 2x2 outputs; a tile sees 3x3 blocks of 4x4 pixels
    PARTS = FARM_CONV_U8_PARTS,
    PAIRS = TILES * TILES / 2, // of tiles side by side
    OUT = 2 * TILES,
    ROWS_MAX = 4 * FARM_CONV_U8_STACK_MAX, // rows of 4 pixels (channels) in a block, all frames together
    WIDE = 80,                             // pixels of a transformed row: 20 blocks
    HALF = TILES / 2                       // tiles multiplied at once in the forward pass
};

// Rows of one tile row, transformed vertically (plain) and also horizontally (difference to the pixel 4 to the right).
// Tile t's pixel c of part m1 is plain[8t+4+c]; of m0 and m2, difference[8t+c] and difference[8t+4+c].
struct strip {
    _Alignas(32) int16_t plain[ROWS_MAX][WIDE];
    _Alignas(32) int16_t difference[ROWS_MAX][WIDE];
};

static inline __m256i load16(const uint8_t *at) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}

// One row of 80: vertical part v of blocks d0 d1 d2, whose rows are 4 apart: d0 - d1, d1, d1 - d2.
static inline void transform_row(const uint8_t *first, int v, int16_t *plain, int16_t *difference) {
    const uint8_t *middle = first + 4 * SIDE, *last = first + 8 * SIDE;
    const uint8_t *plus = v == 0 ? first : middle, *minus = v == 0 ? middle : last;
    for (int x = 0; x < WIDE; x += 16) {
        __m256i here = load16(plus + x), right = load16(plus + x + 4);
        if (v != 1) {
            here = _mm256_sub_epi16(here, load16(minus + x));
            right = _mm256_sub_epi16(right, load16(minus + x + 4));
        }
        _mm256_store_si256((__m256i *)(plain + x), here);
        _mm256_store_si256((__m256i *)(difference + x), _mm256_sub_epi16(here, right));
    }
}

static void transform(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int tile_row, int v,
                      struct strip *strip) {
    for (int s = 0; s < shape->stack; s++)
        for (int r = 0; r < 4; r++) {
            const int row = 4 * s + r;
            if (frames[s] == NULL) {
                memset(strip->plain[row], 0, sizeof strip->plain[row]);
                memset(strip->difference[row], 0, sizeof strip->difference[row]);
            } else {
                transform_row(frames[s] + (8 * tile_row + r) * SIDE, v, strip->plain[row], strip->difference[row]);
            }
        }
}

static inline __m256i broadcast_pair(const int16_t *at) {
    int pair;
    memcpy(&pair, at, sizeof pair);
    return _mm256_set1_epi32(pair);
}

// sum + product pairs. The empty statement pins the sum to its register: GCC would add the products of two steps first,
// and run out of registers.
static inline __m256i multiply_add(__m256i sum, __m256i a, __m256i b) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(sum));
    return sum;
}

// Five tiles' product of one part for 16 channels: products[tile][16] = sum over pixels. pixels: the first tile's first
// pixel in the first of `rows` rows. weights: [row][2 pairs][16][2].
static inline void multiply_tiles(const int16_t *pixels, const int16_t *weights, int rows, int32_t *products) {
    __m256i sum[HALF][2];
#pragma GCC unroll 5
    for (int t = 0; t < HALF; t++) sum[t][0] = sum[t][1] = _mm256_setzero_si256();
    for (int row = 0; row < rows; row++, pixels += WIDE) {
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; pair++, weights += 32) {
            const __m256i low = _mm256_load_si256((const __m256i *)weights);
            const __m256i high = _mm256_load_si256((const __m256i *)(weights + 16));
#pragma GCC unroll 5
            for (int t = 0; t < HALF; t++) {
                const __m256i both = broadcast_pair(pixels + 8 * t + 2 * pair);
                sum[t][0] = multiply_add(sum[t][0], both, low);
                sum[t][1] = multiply_add(sum[t][1], both, high);
            }
        }
    }
#pragma GCC unroll 5
    for (int t = 0; t < HALF; t++) {
        _mm256_store_si256((__m256i *)(products + 16 * t), sum[t][0]);
        _mm256_store_si256((__m256i *)(products + 16 * t + 8), sum[t][1]);
    }
}

// Where the outputs lie, in floats.
struct strides {
    size_t position, block, observation; // block: the next 8 channels
};

static struct strides strides_of(const struct farm_conv_u8_shape *shape) {
    const size_t outputs = (size_t)shape->outputs, positions = OUT * OUT;
    if (shape->layout == FARM_CONV_U8_NHWC) return (struct strides){outputs, 8, positions * outputs};
    return (struct strides){8, positions * 8, positions * outputs};
}

// A with y0 = m0 + m1, y1 = m1 - m2, in both directions: 9 products → 2x2 sums.
static inline void sums_of_products(const int32_t *product, size_t part_stride, __m256i sum[2][2]) {
    __m256i half[3][2];
#pragma GCC unroll 3
    for (int v = 0; v < 3; v++) {
        const int32_t *at = product + 3 * (size_t)v * part_stride;
        const __m256i m0 = _mm256_load_si256((const __m256i *)at);
        const __m256i m1 = _mm256_load_si256((const __m256i *)(at + part_stride));
        const __m256i m2 = _mm256_load_si256((const __m256i *)(at + 2 * part_stride));
        half[v][0] = _mm256_add_epi32(m0, m1);
        half[v][1] = _mm256_sub_epi32(m1, m2);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        sum[0][h] = _mm256_add_epi32(half[0][h], half[1][h]);
        sum[1][h] = _mm256_sub_epi32(half[1][h], half[2][h]);
    }
}

// Eight channels of one tile: 9 products → 2x2 outputs.
static inline void finish_tile(const int32_t *product, __m256 scale, __m256 bias, float *out, size_t position) {
    __m256i sum[2][2];
    sums_of_products(product, TILES * 16, sum);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m256 value = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum[i][j]), scale), bias);
            _mm256_store_ps(out + (size_t)(i * OUT + j) * position,
                            _mm256_max_ps(_mm256_setzero_ps(), value)); // NaN stays
        }
}

// One tile row of 16 channels, from its products [9 parts][10 tiles][16].
static void finish_tile_row(const int32_t products[PARTS][TILES][16], const float *scale, const float *bias, float *out,
                            const struct strides *at) {
    for (int half = 0; half < 2; half++) {
        const __m256 s = _mm256_loadu_ps(scale + 8 * half), b = _mm256_loadu_ps(bias + 8 * half);
        for (int t = 0; t < TILES; t++)
            finish_tile(&products[0][t][8 * half], s, b,
                        out + (size_t)half * at->block + (size_t)(2 * t) * at->position, at->position);
    }
}

// One tile row of one observation.
static void forward_tile_row(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                             const float *bias, const uint8_t *const *frames, int tile_row, float *out) {
    enum { BLOCKS_AT_ONCE = 2 };
    const struct strides at = strides_of(shape);
    const int rows = 4 * shape->stack, part_weights = rows * 64;
    for (int first = 0; first < shape->outputs / 16; first += BLOCKS_AT_ONCE) {
        const int end = first + BLOCKS_AT_ONCE < shape->outputs / 16 ? first + BLOCKS_AT_ONCE : shape->outputs / 16;
        _Alignas(32) int32_t products[BLOCKS_AT_ONCE][PARTS][TILES][16];
        for (int v = 0; v < 3; v++) {
            struct strip strip;
            transform(shape, frames, tile_row, v, &strip);
            const int16_t *pixels[3] = {strip.difference[0], strip.plain[0] + 4, strip.difference[0] + 4};
            for (int block = first; block < end; block++)
                for (int h = 0; h < 3; h++) {
                    const int part = 3 * v + h;
                    const int16_t *weights = view->winograd + (block * PARTS + part) * part_weights;
                    multiply_tiles(pixels[h], weights, rows, products[block - first][part][0]);
                    multiply_tiles(pixels[h] + 8 * HALF, weights, rows, products[block - first][part][HALF]);
                }
        }
        for (int block = first; block < end; block++)
            finish_tile_row(products[block - first], view->scale + 16 * block, bias + 16 * block,
                            out + 2 * (size_t)block * at.block + (size_t)(2 * tile_row * OUT) * at.position, &at);
    }
}

void farm_conv_u8_forward_avx2(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                               const uint8_t *const *frames, int batch, float *out) {
    assert(farm_conv_u8_is_fast(shape));
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    for (int n = 0; n < batch; n++)
        for (int tile_row = 0; tile_row < TILES; tile_row++)
            forward_tile_row(shape, &view, bias, frames + n * shape->stack, tile_row,
                             out + (size_t)n * strides_of(shape).observation);
}

// The gradient's scratch. Sums run over tiles, so both factors hold two tiles side by side in each 32-bit lane.
struct work {
    int16_t *pixels;       // [3 horizontal parts][rows][50 tile pairs][4][2], of one vertical part
    int16_t *gradients;    // [O/16][9 parts][50 tile pairs][16][2]
    int32_t *products;     // [O/16][9 parts][rows·4][16]
    float *total;          // [O/16][2x2 blocks][rows·4][16], over the batch, for pixels of 0 to 255
    float *step, *inverse; // [O]
    float *dbias;          // [O]
};

enum { WORK_ARRAYS = 7 };

// The bytes of the members of struct work, in their order; each a multiple of 64 where the next is read by vectors.
static void measure_work(const struct farm_conv_u8_shape *shape, size_t bytes[WORK_ARRAYS]) {
    const size_t rows = 4 * (size_t)shape->stack, outputs = (size_t)shape->outputs;
    bytes[0] = 3 * rows * PAIRS * 8 * sizeof(int16_t);
    bytes[1] = outputs * PARTS * PAIRS * 2 * sizeof(int16_t);
    bytes[2] = outputs * PARTS * rows * 4 * sizeof(int32_t);
    bytes[3] = outputs * 4 * rows * 4 * sizeof(float);
    bytes[4] = bytes[5] = bytes[6] = outputs * sizeof(float);
}

static struct work place_work(const struct farm_conv_u8_shape *shape, void *scratch) {
    size_t bytes[WORK_ARRAYS];
    char *at[WORK_ARRAYS] = {scratch};
    measure_work(shape, bytes);
    for (int i = 1; i < WORK_ARRAYS; i++) at[i] = at[i - 1] + bytes[i - 1];
    return (struct work){.pixels = (int16_t *)(void *)at[0],
                         .gradients = (int16_t *)(void *)at[1],
                         .products = (int32_t *)(void *)at[2],
                         .total = (float *)(void *)at[3],
                         .step = (float *)(void *)at[4],
                         .inverse = (float *)(void *)at[5],
                         .dbias = (float *)(void *)at[6]};
}

size_t farm_conv_u8_scratch_bytes_avx2(const struct farm_conv_u8_shape *shape) {
    size_t bytes[WORK_ARRAYS], sum = 0;
    measure_work(shape, bytes);
    for (int i = 0; i < WORK_ARRAYS; i++) sum += bytes[i];
    return (sum + 63) & ~(size_t)63;
}

// Eight channels: sums dbias, and finds how to quantise. dout: their first position.
static void measure(const float *dout, size_t position, float *step, float *inverse, float *dbias) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t p = 0; p < OUT * OUT; p += 2) {
#pragma GCC unroll 2
        for (size_t k = 0; k < 2; k++) {
            const __m256 d = _mm256_load_ps(dout + (p + k) * position);
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(d), magnitude));
            sum[k] = _mm256_add_ps(sum[k], d);
        }
    }
    _mm256_storeu_ps(dbias, _mm256_add_ps(_mm256_loadu_ps(dbias), _mm256_add_ps(sum[0], sum[1])));
    uint32_t bits[8];
    _mm256_storeu_si256((__m256i *)bits, largest);
    for (int o = 0; o < 8; o++)
        farm_conv_u8_quantise_channel(bits[o], farm_conv_u8_whole_max(OUT * OUT), &step[o], &inverse[o]);
}

// Eight channels of one tile: 2x2 output gradients → 9 parts: e0, e0 + e1, e1 in both directions.
static inline void gradient_parts(const float *dout, size_t position, __m256 inverse, __m256i part[PARTS]) {
    __m256i e[2][2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m256 d = _mm256_load_ps(dout + (size_t)(i * OUT + j) * position);
            e[i][j] = _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse));
        }
    const __m256i column[3][2] = {{e[0][0], e[0][1]},
                                  {_mm256_add_epi32(e[0][0], e[1][0]), _mm256_add_epi32(e[0][1], e[1][1])},
                                  {e[1][0], e[1][1]}};
#pragma GCC unroll 3
    for (int v = 0; v < 3; v++) {
        part[3 * v] = column[v][0];
        part[3 * v + 1] = _mm256_add_epi32(column[v][0], column[v][1]);
        part[3 * v + 2] = column[v][1];
    }
}

// Eight channels: quantises and transforms all tiles. gradients: [9][50][16][2] from those channels on.
static void transform_gradients(const float *dout, size_t position, const float *inverse, int16_t *gradients) {
    const __m256 inv = _mm256_loadu_ps(inverse);
    for (int pair = 0; pair < PAIRS; pair++) {
        const int tile_row = pair / HALF, tile = pair % HALF * 2;
        const float *at = dout + (size_t)(2 * tile_row * OUT + 2 * tile) * position;
        __m256i left[PARTS], right[PARTS];
        gradient_parts(at, position, inv, left);
        gradient_parts(at + 2 * position, position, inv, right);
#pragma GCC unroll 9
        for (int part = 0; part < PARTS; part++) {
            const __m256i both = _mm256_blend_epi16(left[part], _mm256_slli_epi32(right[part], 16), 0xaa);
            _mm256_store_si256((__m256i *)(gradients + (part * PAIRS + pair) * 32), both);
        }
    }
}

// Puts two tiles (the halves of 16 pixels) side by side: pixels 0-3 and 4-7 of each.
static inline void interleave(const int16_t *pixels, int16_t *first, int16_t *last) {
    const __m128i left = _mm_load_si128((const __m128i *)pixels), right = _mm_load_si128((const __m128i *)(pixels + 8));
    if (first != NULL) _mm_store_si128((__m128i *)first, _mm_unpacklo_epi16(left, right));
    _mm_store_si128((__m128i *)last, _mm_unpackhi_epi16(left, right));
}

// Vertical part v of one observation's pixels.
static void transform_pixels(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int v,
                             int16_t *pixels) {
    enum { ROW = PAIRS * 8 };
    const int rows = 4 * shape->stack;
    for (int tile_row = 0; tile_row < TILES; tile_row++) {
        struct strip strip;
        transform(shape, frames, tile_row, v, &strip);
        for (int row = 0; row < rows; row++)
            for (int pair = 0; pair < HALF; pair++) {
                int16_t *to = pixels + row * ROW + (tile_row * HALF + pair) * 8;
                interleave(strip.difference[row] + 16 * pair, to, to + 2 * rows * ROW);
                interleave(strip.plain[row] + 16 * pair, NULL, to + rows * ROW);
            }
    }
}

// Four pixels' product with 16 channels, over all tiles.
static inline void multiply_pixels(const int16_t *pixels, const int16_t *gradients, int32_t *products) {
    __m256i sum[4][2];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sum[c][0] = sum[c][1] = _mm256_setzero_si256();
    for (int pair = 0; pair < PAIRS; pair++, pixels += 8, gradients += 32) {
        const __m256i low = _mm256_load_si256((const __m256i *)gradients);
        const __m256i high = _mm256_load_si256((const __m256i *)(gradients + 16));
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const __m256i both = broadcast_pair(pixels + 2 * c);
            sum[c][0] = multiply_add(sum[c][0], both, low);
            sum[c][1] = multiply_add(sum[c][1], both, high);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        _mm256_store_si256((__m256i *)(products + 16 * c), sum[c][0]);
        _mm256_store_si256((__m256i *)(products + 16 * c + 8), sum[c][1]);
    }
}

// Adds one observation's gradient of 16 channels to the total.
static void add_products(const int32_t *products, int pixels, const float *step, float *total) {
    for (int half = 0; half < 2; half++) {
        const __m256 scale = _mm256_loadu_ps(step + 8 * half);
        for (int pixel = 0; pixel < pixels; pixel++) {
            __m256i sum[2][2];
            sums_of_products(products + 16 * pixel + 8 * half, 16 * (size_t)pixels, sum);
#pragma GCC unroll 4
            for (int block = 0; block < 4; block++) {
                float *at = total + (block * pixels + pixel) * 16 + 8 * half;
                const __m256 share = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[block / 2][block % 2]), scale);
                _mm256_store_ps(at, _mm256_add_ps(_mm256_load_ps(at), share));
            }
        }
    }
}

static void backward_observation(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames,
                                 const float *dout, const struct work *work) {
    const struct strides at = strides_of(shape);
    const int rows = 4 * shape->stack, blocks = shape->outputs / 16;
    for (int o = 0; o < shape->outputs; o += 8) {
        const float *eight = dout + (size_t)(o / 8) * at.block;
        measure(eight, at.position, work->step + o, work->inverse + o, work->dbias + o);
        transform_gradients(eight, at.position, work->inverse + o,
                            work->gradients + o / 16 * PARTS * PAIRS * 32 + o % 16 * 2);
    }
    for (int v = 0; v < 3; v++) {
        transform_pixels(shape, frames, v, work->pixels);
        for (int block = 0; block < blocks; block++)
            for (int h = 0; h < 3; h++) {
                const int part = block * PARTS + 3 * v + h;
                for (int row = 0; row < rows; row++)
                    multiply_pixels(work->pixels + (h * rows + row) * PAIRS * 8, work->gradients + part * PAIRS * 32,
                                    work->products + (part * rows + row) * 64);
            }
    }
    for (int block = 0; block < blocks; block++)
        add_products(work->products + block * PARTS * rows * 64, 4 * rows, work->step + 16 * block,
                     work->total + block * 4 * rows * 64);
}

// The total's value for frame s, kernel row ky, kernel column kx, output channel o.
static float total_at(const struct work *work, int rows, int o, int s, int ky, int kx) {
    const int block = o / 16 * 4 + ky / 4 * 2 + kx / 4, pixel = (4 * s + ky % 4) * 4 + kx % 4;
    return work->total[(block * rows * 4 + pixel) * 16 + o % 16];
}

void farm_conv_u8_backward_weights_avx2(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                                        const float *dout, float *dweights, float *dbias, void *scratch) {
    assert(farm_conv_u8_is_fast(shape));
    enum { K = FARM_CONV_U8_KERNEL };
    const int rows = 4 * shape->stack;
    struct work work = place_work(shape, scratch);
    memset(work.total, 0, (size_t)(shape->outputs * 16 * rows) * sizeof(float));
    memset(work.dbias, 0, (size_t)shape->outputs * sizeof(float));
    for (int n = 0; n < batch; n++)
        backward_observation(shape, frames + n * shape->stack, dout + (size_t)n * strides_of(shape).observation, &work);
    for (int o = 0; o < shape->outputs; o++) {
        dbias[o] += work.dbias[o];
        for (int tap = 0; tap < shape->stack * K * K; tap++)
            dweights[o * shape->stack * K * K + tap] +=
                total_at(&work, rows, o, tap / (K * K), tap / K % K, tap % K) / 255.0f;
    }
}
