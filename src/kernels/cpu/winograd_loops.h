// The passes of kernels/winograd.h over vectors of channels: each file that includes this compiles them for other
// instructions, with sums of products fused where the CPU can (the Makefile). A pass takes some tiles at a time: it
// transforms their inputs, [point][tile][depth], then for each panel of outputs multiplies each point's tiles with that
// point's weights, and transforms the products, [point][tile][PANEL], back. Depth and width are channels; those of a
// strided picture are its `step` x `step` phases, one after another.
#ifndef FARM_KERNELS_CPU_WINOGRAD_LOOPS_H
#define FARM_KERNELS_CPU_WINOGRAD_LOOPS_H

#include <stdint.h>
#include <string.h>

#include "kernels/winograd.h"

#ifdef __AVX2__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t wholes __attribute__((vector_size(4 * LANES)));

enum {
    SIDE = 6,
    POINTS = SIDE * SIDE,
    PANEL = 2 * LANES, // columns of a product that stay in registers, with ROWS rows
    ROWS = 6,
    TILES = 2 * ROWS,            // transformed at a time, so that they stay in the cache
    TILES_OF_WEIGHTS = 4 * ROWS, // likewise, where products are added to sums that do not
    SKEW = 16,                   // floats between points, so that they fall into different sets of the cache
};

// The points are 0, 1, -1, B, -B and infinity.
#define B  0.5f
#define B2 (B * B)

static inline floats load(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void store(float *to, floats x) {
    memcpy(to, &x, sizeof x);
}

// ---- one dimension ----

// The polynomial of six inputs at the points 0, 1, -1, B, -B, infinity (times what points_of_kernel divides by).
static inline void points_of_input(const floats d[SIDE], floats p[SIDE]) {
    const floats even = d[4] - B2 * d[2], odd = d[3] - B2 * d[1];
    const floats even_b = d[4] - d[2], odd_b = d[3] - d[1];
    p[0] = even_b + B2 * (d[0] - d[2]);
    p[1] = even + odd;
    p[2] = even - odd;
    p[3] = even_b + B * odd_b;
    p[4] = even_b - B * odd_b;
    p[5] = d[5] - d[3] - B2 * odd_b;
}

// `count` outputs (4 or 5) from the products at the points.
static inline void outputs_of_points(int count, const floats p[SIDE], floats y[5]) {
    const floats even = p[1] + p[2], odd = p[1] - p[2], even_b = p[3] + p[4], odd_b = p[3] - p[4];
    y[0] = p[0] + (even + even_b);
    y[1] = odd + B * odd_b;
    y[2] = even + B2 * even_b;
    y[3] = odd + B2 * B * odd_b;
    if (count == 4)
        y[3] += p[5];
    else
        y[4] = even + p[5] + B2 * B2 * even_b;
}

// The transpose of it: what `count` gradients of outputs mean at the points.
static inline void points_of_gradient(int count, const floats y[5], floats p[SIDE]) {
    floats even = y[2], even_b = y[2];
    if (count == 5) {
        even += y[4];
        even_b += B2 * y[4];
    }
    even += y[0];
    even_b = y[0] + B2 * even_b;
    const floats odd = y[1] + y[3], odd_b = y[1] + B2 * y[3];
    p[0] = y[0];
    p[1] = even + odd;
    p[2] = even - odd;
    p[3] = even_b + B * odd_b;
    p[4] = even_b - B * odd_b;
    p[5] = y[count - 1];
}

// Lagrange's interpolation divides by AT_0 at 0, by AT_1 at 1 and -1, by AT_B at B and -B.
#define AT_0 B2
#define AT_1 (2 * (1 - B2))
#define AT_B (2 * B2 * (B2 - 1))

// The points of a kernel of `count` numbers (3 or 2).
static inline void points_of_kernel(int count, const floats g[3], floats p[SIDE]) {
    floats even = g[0], even_b = g[0];
    if (count == 3) {
        even += g[2];
        even_b += B2 * g[2];
    }
    p[0] = g[0] * (1 / AT_0);
    p[1] = (even + g[1]) * (1 / AT_1);
    p[2] = (even - g[1]) * (1 / AT_1);
    p[3] = (even_b + B * g[1]) * (1 / AT_B);
    p[4] = (even_b - B * g[1]) * (1 / AT_B);
    p[5] = g[count - 1];
}

// The transpose of it.
static inline void kernel_of_points(int count, const floats p[SIDE], floats g[3]) {
    const floats even = (p[1] + p[2]) * (1 / AT_1), odd = (p[1] - p[2]) * (1 / AT_1);
    const floats even_b = (p[3] + p[4]) * (1 / AT_B), odd_b = (p[3] - p[4]) * (1 / AT_B);
    g[0] = p[0] * (1 / AT_0) + (even + even_b);
    g[1] = odd + B * odd_b;
    if (count == 2)
        g[1] += p[5];
    else
        g[2] = even + p[5] + B2 * even_b;
}

// ---- pictures ----

// A picture as tiles see it: positions of a phase are `step` apart.
struct view {
    int channels, height, width, block;
    int step;
    int pad[2];
};

static int phases(const struct view *view) {
    return view->step * view->step;
}
static size_t floats_of(const struct view *view) {
    return (size_t)view->channels * (size_t)view->height * (size_t)view->width;
}
// Where a vector of channels of a position lies.
static inline size_t at(const struct view *view, int channel, int y, int x) {
    const int block = channel / view->block;
    return (((size_t)block * (size_t)view->height + (size_t)y) * (size_t)view->width + (size_t)x) *
               (size_t)view->block +
           (size_t)(channel - block * view->block);
}

// One pass: a convolution of stride 1 with a kernel of `taps` x `taps`.
struct pass {
    struct view in, out;
    int taps, tile;                           // outputs of a tile: SIDE + 1 - taps
    int across, count;                        // tiles of a row, of an observation
    int depth, width;                         // of the products
    int tiles;                                // at a time
    size_t in_point, out_point, weight_point; // floats between two points
};

// weights: of the weight gradient, which needs whole rows of [width] in place of panels.
static struct pass make_pass(const struct farm_winograd_shape *s, enum farm_winograd_pass direction, bool weights) {
    const struct view in = {.channels = s->channels,
                            .height = s->height,
                            .width = s->width,
                            .block = s->block ? s->block : s->channels,
                            .step = s->stride,
                            .pad = {s->pad[0], s->pad[1]}};
    const struct view out = {.channels = s->outputs,
                             .height = s->out_height,
                             .width = s->out_width,
                             .block = s->block ? s->block : s->outputs,
                             .step = 1};
    struct pass p = {.in = in, .out = out, .taps = s->kernel / s->stride};
    if (direction == FARM_WINOGRAD_DATA) {
        p.in = out;
        p.out = in;
        for (int i = 0; i < 2; i++) {
            p.in.pad[i] = p.taps - 1 - in.pad[i];
            p.out.pad[i] = 0;
        }
    }
    p.tile = SIDE + 1 - p.taps;
    const int rows = (p.out.height + p.out.step - 1) / p.out.step,
              columns = (p.out.width + p.out.step - 1) / p.out.step;
    p.across = (columns + p.tile - 1) / p.tile;
    p.count = (rows + p.tile - 1) / p.tile * p.across;
    p.depth = p.in.channels * phases(&p.in);
    p.width = p.out.channels * phases(&p.out);
    p.tiles = weights ? TILES_OF_WEIGHTS : TILES;
    p.in_point = (size_t)(p.tiles * p.depth + SKEW);
    p.out_point = (size_t)(p.tiles * (weights ? p.width : PANEL) + SKEW);
    p.weight_point = (size_t)(p.depth * p.width + SKEW);
    return p;
}

// LANES channels of a tile of `side` x `side` positions from (y, x) on, where rows and columns are so many floats
// apart.
struct patch {
    const float *first;
    size_t row, column;
};

// Positions outside the picture are zeros: a tile with such positions is copied.
static inline struct patch patch_of(const struct view *view, const float *picture, int channel, int y, int x, int side,
                                    float *copy) {
    const int step = view->step, last = (side - 1) * step;
    if (y >= 0 && x >= 0 && y + last < view->height && x + last < view->width)
        return (struct patch){picture + at(view, channel, y, x), (size_t)(step * view->width * view->block),
                              (size_t)(step * view->block)};
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            const int row = y + i * step, column = x + j * step;
            const bool inside = row >= 0 && column >= 0 && row < view->height && column < view->width;
            store(copy + (i * SIDE + j) * LANES, inside ? load(picture + at(view, channel, row, column)) : (floats){0});
        }
    return (struct patch){copy, SIDE * LANES, LANES};
}

static inline __attribute__((always_inline)) void transform_input(struct patch patch, float *to, size_t point) {
    floats half[SIDE][SIDE];
    const float *from = patch.first;
    for (int j = 0; j < SIDE; j++, from += patch.column) {
        floats d[SIDE], p[SIDE];
#pragma GCC unroll 6
        for (size_t i = 0; i < SIDE; i++) d[i] = load(from + i * patch.row);
        points_of_input(d, p);
#pragma GCC unroll 6
        for (int i = 0; i < SIDE; i++) half[i][j] = p[i];
    }
    for (int i = 0; i < SIDE; i++, to += SIDE * point) {
        floats p[SIDE];
        points_of_input(half[i], p);
#pragma GCC unroll 6
        for (size_t j = 0; j < SIDE; j++) store(to + j * point, p[j]);
    }
}

static inline __attribute__((always_inline)) void transform_gradient(int tile, struct patch patch, float *to,
                                                                     size_t point) {
    floats half[SIDE][5];
    const float *from = patch.first;
    for (int j = 0; j < tile; j++, from += patch.column) {
        floats d[5], p[SIDE];
#pragma GCC unroll 5
        for (int i = 0; i < tile; i++) d[i] = load(from + (size_t)i * patch.row);
        points_of_gradient(tile, d, p);
#pragma GCC unroll 6
        for (int i = 0; i < SIDE; i++) half[i][j] = p[i];
    }
    for (int i = 0; i < SIDE; i++, to += SIDE * point) {
        floats p[SIDE];
        points_of_gradient(tile, half[i], p);
#pragma GCC unroll 6
        for (size_t j = 0; j < SIDE; j++) store(to + j * point, p[j]);
    }
}

// What is added to the sums, and done with them.
struct finish {
    const float *bias; // NULL: none
    bool add, relu;
};

// LANES channels of one tile, of which rows x columns outputs are in the picture.
static inline __attribute__((always_inline)) void transform_products(int tile, const float *from, size_t point,
                                                                     floats bias, struct finish finish, int rows,
                                                                     int columns, float *to, size_t row,
                                                                     size_t column) {
    floats half[5][SIDE];
    for (int j = 0; j < SIDE; j++, from += point) {
        floats p[SIDE], y[5];
#pragma GCC unroll 6
        for (size_t i = 0; i < SIDE; i++) p[i] = load(from + SIDE * i * point);
        outputs_of_points(tile, p, y);
#pragma GCC unroll 5
        for (int i = 0; i < tile; i++) half[i][j] = y[i];
    }
    for (int i = 0; i < rows; i++, to += row) {
        floats y[5];
        outputs_of_points(tile, half[i], y);
#pragma GCC unroll 5
        for (int j = 0; j < tile; j++) {
            float *out = to + (size_t)j * column;
            floats value = y[j] + bias;
            if (j >= columns) break;
            if (finish.add) value += load(out);
            if (finish.relu) value = (floats)((wholes)value & (value > 0));
            store(out, value);
        }
    }
}

// ---- a pass, some tiles at a time ----

// Tile `index` of all observations' tiles: its observation, and its first output.
struct place {
    int observation, y, x;
};
static inline struct place place_of(const struct pass *pass, int index) {
    const int within = index % pass->count;
    return (struct place){index / pass->count, within / pass->across * pass->tile, within % pass->across * pass->tile};
}

static void read_inputs(const struct pass *pass, const float *in, int first, int count, float *to) {
    const struct view *view = &pass->in;
    _Alignas(32) float copy[POINTS * LANES];
    for (int t = 0; t < count; t++) {
        const struct place place = place_of(pass, first + t);
        const float *picture = in + (size_t)place.observation * floats_of(view);
        float *row = to + (size_t)(t * pass->depth);
        for (int phase = 0; phase < phases(view); phase++) {
            const int y = place.y * view->step + phase / view->step - view->pad[0];
            const int x = place.x * view->step + phase % view->step - view->pad[1];
            for (int c = 0; c < view->channels; c += LANES)
                transform_input(patch_of(view, picture, c, y, x, SIDE, copy), row + phase * view->channels + c,
                                pass->in_point);
        }
    }
}

static inline int least(int a, int b) {
    return a < b ? a : b;
}

// Outputs of channels [panel, panel + channels) of one phase, from products [point][tile][PANEL].
static inline __attribute__((always_inline)) void write_outputs(int tile, const struct pass *pass, const float *from,
                                                                int first, int count, int n, int across,
                                                                struct finish finish, float *out) {
    const struct view *view = &pass->out;
    const size_t row = (size_t)(view->step * view->width * view->block), column = (size_t)(view->step * view->block);
    for (int l = 0; l < across; l += LANES) {
        const int phase = (n + l) / view->channels, c = (n + l) % view->channels;
        const floats bias = finish.bias ? load(finish.bias + c) : (floats){0};
        for (int t = 0; t < count; t++) {
            const struct place place = place_of(pass, first + t);
            const int y = place.y * view->step + phase / view->step, x = place.x * view->step + phase % view->step;
            const int rows = least(tile, (view->height - y + view->step - 1) / view->step);
            const int columns = least(tile, (view->width - x + view->step - 1) / view->step);
            if (rows > 0 && columns > 0)
                transform_products(tile, from + t * PANEL + l, pass->out_point, bias, finish, rows, columns,
                                   out + (size_t)place.observation * floats_of(view) + at(view, c, y, x), row, column);
        }
    }
}

// to[r][n] = sum over k < depth of a[r a_row + k a_step] b[k b_step + n]; r < rows, n < vectors * LANES. add: +=
// instead.
static inline __attribute__((always_inline)) void multiply(int rows, int vectors, const float *a, size_t a_row,
                                                           size_t a_step, const float *b, size_t b_step, int depth,
                                                           float *to, size_t to_row, bool add_to) {
    floats sum[ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[r][v] = add_to ? load(to + (size_t)r * to_row + v * LANES) : (floats){0};
    for (int k = 0; k < depth; k++, a += a_step, b += b_step) {
        floats right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = load(b + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const float left = a[(size_t)r * a_row];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) store(to + (size_t)r * to_row + v * LANES, sum[r][v]);
}

// One point's products of `tiles` tiles with a panel of weights, [depth][across].
static void multiply_tiles(const struct pass *pass, const float *in, const float *panel, int across, int tiles,
                           float *out) {
    const size_t depth = (size_t)pass->depth;
    for (int t = 0; t < tiles; t += ROWS) {
        if (across > LANES)
            multiply(ROWS, 2, in + (size_t)t * depth, depth, 1, panel, PANEL, pass->depth, out + t * PANEL, PANEL,
                     false);
        else
            multiply(ROWS, 1, in + (size_t)t * depth, depth, 1, panel, LANES, pass->depth, out + t * PANEL, PANEL,
                     false);
    }
}

// Adds one point's products of inputs [tile][depth] and gradients [tile][width] to sums [depth][width].
static void multiply_gradients(const struct pass *pass, const float *in, const float *gradients, int tiles,
                               float *sums) {
    const size_t depth = (size_t)pass->depth, width = (size_t)pass->width;
    for (int n = 0; n < pass->width; n += PANEL) {
        const bool both = pass->width - n > LANES;
        for (int k = 0; k < pass->depth;) {
            const int left = pass->depth - k, rows = left % 6 == 0 ? 6 : 4; // a multiple of 8 is a sum of these
            float *to = sums + (size_t)k * width + n;
            if (rows == 6 && both)
                multiply(6, 2, in + k, 1, depth, gradients + n, width, tiles, to, width, true);
            else if (rows == 6)
                multiply(6, 1, in + k, 1, depth, gradients + n, width, tiles, to, width, true);
            else if (both)
                multiply(4, 2, in + k, 1, depth, gradients + n, width, tiles, to, width, true);
            else
                multiply(4, 1, in + k, 1, depth, gradients + n, width, tiles, to, width, true);
            k += rows;
        }
    }
}

static size_t scratch_floats(const struct pass *pass) {
    return POINTS * (pass->in_point + pass->out_point);
}

static void run(const struct pass *pass, const float *weights, const float *in, int batch, struct finish finish,
                float *out, float *scratch) {
    const int tiles = batch * pass->count;
    float *inputs = scratch, *products = scratch + POINTS * pass->in_point;
    for (int first = 0; first < tiles; first += pass->tiles) {
        const int count = least(pass->tiles, tiles - first);
        read_inputs(pass, in, first, count, inputs);
        for (int n = 0; n < pass->width; n += PANEL) {
            const int across = least(PANEL, pass->width - n);
            for (int p = 0; p < POINTS; p++)
                multiply_tiles(pass, inputs + (size_t)p * pass->in_point,
                               weights + (size_t)p * pass->weight_point + (size_t)(n * pass->depth), across, count,
                               products + (size_t)p * pass->out_point);
            if (pass->tile == 4)
                write_outputs(4, pass, products, first, count, n, across, finish, out);
            else
                write_outputs(5, pass, products, first, count, n, across, finish, out);
        }
    }
}

// ---- weights ----

// Where LANES kernels lie among the flat weights: tap (i, j) of a phase is at first + i row + j column, and at `lane`
// more for each next kernel.
struct kernels {
    size_t first, row, column, lane;
};

// Of adjacent outputs from (o, c) on, or of adjacent inputs.
static struct kernels kernels_of(const struct farm_winograd_shape *s, bool inputs, int o, int c, int phase) {
    const size_t side = (size_t)s->kernel, stride = (size_t)s->stride, channels = (size_t)s->channels;
    const size_t y = (size_t)phase / stride, x = (size_t)phase % stride;
    return (struct kernels){.first = (((size_t)o * channels + (size_t)c) * side + y) * side + x,
                            .row = stride * side,
                            .column = stride,
                            .lane = (inputs ? 1 : channels) * side * side};
}

// reversed: last tap first.
static inline __attribute__((always_inline)) void pack_kernels(int taps, bool reversed, struct kernels k,
                                                               const float *weights, float *to, size_t point) {
    floats half[SIDE][3];
    for (int j = 0; j < taps; j++) {
        floats column[3], p[SIDE];
        for (int i = 0; i < taps; i++) {
            const size_t y = (size_t)(reversed ? taps - 1 - i : i), x = (size_t)(reversed ? taps - 1 - j : j);
            const float *from = weights + k.first + y * k.row + x * k.column;
            for (size_t l = 0; l < LANES; l++) column[i][l] = from[l * k.lane];
        }
        points_of_kernel(taps, column, p);
        for (int i = 0; i < SIDE; i++) half[i][j] = p[i];
    }
    for (int i = 0; i < SIDE; i++) {
        floats p[SIDE];
        points_of_kernel(taps, half[i], p);
        for (int j = 0; j < SIDE; j++) store(to + (size_t)(SIDE * i + j) * point, p[j]);
    }
}

// Adds the kernels of sums at the points.
static inline __attribute__((always_inline)) void unpack_kernels(int taps, struct kernels k, const float *from,
                                                                 size_t point, float *weights) {
    floats half[3][SIDE];
    for (int j = 0; j < SIDE; j++) {
        floats p[SIDE], g[3];
        for (int i = 0; i < SIDE; i++) p[i] = load(from + (size_t)(SIDE * i + j) * point);
        kernel_of_points(taps, p, g);
        for (int i = 0; i < taps; i++) half[i][j] = g[i];
    }
    for (int i = 0; i < taps; i++) {
        floats g[3];
        kernel_of_points(taps, half[i], g);
        for (int j = 0; j < taps; j++) {
            float *to = weights + k.first + (size_t)i * k.row + (size_t)j * k.column;
            for (size_t l = 0; l < LANES; l++) to[l * k.lane] += g[j][l];
        }
    }
}

// ---- the passes ----

static void pack(const struct farm_winograd_shape *s, enum farm_winograd_pass direction, const float *weights,
                 void *packed) {
    const bool data = direction == FARM_WINOGRAD_DATA;
    const struct pass pass = make_pass(s, direction, false);
    for (int phase = 0; phase < s->stride * s->stride; phase++)
        for (int o = 0; o < s->outputs; o += data ? 1 : LANES)
            for (int c = 0; c < s->channels; c += data ? LANES : 1) {
                const int k = data ? o : phase * s->channels + c, n = data ? phase * s->channels + c : o;
                const int panel = n / PANEL * PANEL, across = least(PANEL, pass.width - panel);
                const struct kernels kernels = kernels_of(s, data, o, c, phase);
                float *to = (float *)packed + panel * pass.depth + k * across + n - panel;
                if (pass.taps == 3)
                    pack_kernels(3, data, kernels, weights, to, pass.weight_point);
                else
                    pack_kernels(2, data, kernels, weights, to, pass.weight_point);
            }
}

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t scratch_bytes(const struct farm_winograd_shape *s) {
    const struct pass ahead = make_pass(s, FARM_WINOGRAD_FORWARD, false);
    const struct pass back = make_pass(s, FARM_WINOGRAD_DATA, false);
    const struct pass weights = make_pass(s, FARM_WINOGRAD_FORWARD, true);
    const size_t passes = most(scratch_floats(&ahead), scratch_floats(&back));
    return most(passes, scratch_floats(&weights) + POINTS * weights.weight_point) * sizeof(float);
}

static void forward(const struct farm_winograd_shape *s, const void *packed, const float *bias, const float *in,
                    int batch, bool add_to, bool relu, float *out, void *scratch) {
    const struct pass pass = make_pass(s, FARM_WINOGRAD_FORWARD, false);
    run(&pass, packed, in, batch, (struct finish){bias, add_to, relu}, out, scratch);
}

static void backward_data(const struct farm_winograd_shape *s, const void *packed, const float *dout, int batch,
                          float *din, void *scratch) {
    const struct pass pass = make_pass(s, FARM_WINOGRAD_DATA, false);
    run(&pass, packed, dout, batch, (struct finish){0}, din, scratch);
}

static void read_gradients(const struct pass *pass, const float *dout, int first, int count, float *to) {
    const struct view *view = &pass->out;
    _Alignas(32) float copy[POINTS * LANES];
    for (int t = 0; t < count; t++) {
        const struct place place = place_of(pass, first + t);
        const float *picture = dout + (size_t)place.observation * floats_of(view);
        float *row = to + (size_t)(t * pass->width);
        for (int c = 0; c < view->channels; c += LANES) {
            const struct patch patch = patch_of(view, picture, c, place.y, place.x, pass->tile, copy);
            if (pass->tile == 4)
                transform_gradient(4, patch, row + c, pass->out_point);
            else
                transform_gradient(5, patch, row + c, pass->out_point);
        }
    }
}

static void add_bias_gradient(const struct view *view, const float *dout, int batch, float *dbias) {
    const size_t positions = (size_t)view->height * (size_t)view->width;
    for (int c = 0; c < view->channels; c += LANES) {
        floats sum = load(dbias + c);
        for (int b = 0; b < batch; b++) {
            const float *from = dout + (size_t)b * floats_of(view) + at(view, c, 0, 0);
            floats of_one = {0};
            for (size_t i = 0; i < positions; i++) of_one += load(from + i * (size_t)view->block);
            sum += of_one;
        }
        store(dbias + c, sum);
    }
}

static void backward_weights(const struct farm_winograd_shape *s, const float *in, const float *dout, int batch,
                             float *dweights, float *dbias, void *scratch) {
    const struct pass pass = make_pass(s, FARM_WINOGRAD_FORWARD, true);
    const int tiles = batch * pass.count;
    float *inputs = scratch, *gradients = inputs + POINTS * pass.in_point, *sums = gradients + POINTS * pass.out_point;
    memset(sums, 0, POINTS * pass.weight_point * sizeof *sums);
    for (int first = 0; first < tiles; first += pass.tiles) {
        const int count = least(pass.tiles, tiles - first);
        read_inputs(&pass, in, first, count, inputs);
        read_gradients(&pass, dout, first, count, gradients);
        for (int p = 0; p < POINTS; p++)
            multiply_gradients(&pass, inputs + (size_t)p * pass.in_point, gradients + (size_t)p * pass.out_point, count,
                               sums + (size_t)p * pass.weight_point);
    }
    for (int phase = 0; phase < s->stride * s->stride; phase++)
        for (int o = 0; o < s->outputs; o += LANES)
            for (int c = 0; c < s->channels; c++) {
                const struct kernels kernels = kernels_of(s, false, o, c, phase);
                const float *from = sums + (size_t)((phase * s->channels + c) * pass.width + o);
                if (pass.taps == 3)
                    unpack_kernels(3, kernels, from, pass.weight_point, dweights);
                else
                    unpack_kernels(2, kernels, from, pass.weight_point, dweights);
            }
    add_bias_gradient(&pass.out, dout, batch, dbias);
}

#endif
