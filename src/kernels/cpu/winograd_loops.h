// The passes of kernels/winograd.h over vectors of channels: each file that includes this compiles them for other
// instructions, with sums of products fused where the CPU can (the Makefile). A pass takes some tiles at a time: it
// transforms their inputs, [point][tile][depth], then for each panel of outputs multiplies each point's tiles with that
// point's weights, and transforms the products, [point][tile][PANEL], back. Depth and width are channels; those of a
// strided picture are its `step` x `step` phases, one after another.
#ifndef FARM_KERNELS_CPU_WINOGRAD_LOOPS_H
#define FARM_KERNELS_CPU_WINOGRAD_LOOPS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/vectors.h"
#include "kernels/cpu/winograd_points.h"
#include "kernels/winograd.h"

enum { ROWS = 6, PANEL = 2 * LANES }; // the most rows and columns of a product's tile
enum {
    VALUES = 12 * 36,            // tiles times points, transformed at a time so that they stay in the cache
    VALUES_OF_WEIGHTS = 24 * 36, // the same for products that are added to sums
    SKEW = 16,                   // floats between points, so that they fall into different sets of the cache
};

// ---- pictures ----

// A picture: positions of a phase are `step` apart.
struct view {
    int channels, height, width, block;
    int step, pad[2];
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

// A convolution of stride 1 with a kernel of `taps` x `taps`.
struct plan {
    struct view in, out;
    int taps, side, tile, points;                               // rows of a tile's inputs, of its outputs; its points
    int across, count;                                          // tiles of a row, of an observation
    int depth, width;                                           // channels of all phases of the input; of the output
    int tiles;                                                  // at a time
    size_t depth_point, width_point, panel_point, weight_point; // floats between two points
};

static struct plan plan_of(const struct farm_winograd_shape *s, int values) {
    struct plan p = {
        .in = {.channels = s->channels,
               .height = s->height,
               .width = s->width,
               .block = s->block ? s->block : s->channels,
               .step = s->stride,
               .pad = {s->pad[0], s->pad[1]}},
        .out = {.channels = s->outputs,
                .height = s->out_height,
                .width = s->out_width,
                .block = s->block ? s->block : s->outputs,
                .step = 1},
        .taps = s->kernel / s->stride,
        .depth = s->channels * s->stride * s->stride,
        .width = s->outputs,
    };
    p.side = 2 * p.taps;
    p.tile = p.taps + 1;
    p.points = p.side * p.side;
    p.tiles = values / p.points / ROWS * ROWS;
    p.across = (s->out_width + p.tile - 1) / p.tile;
    p.count = (s->out_height + p.tile - 1) / p.tile * p.across;
    p.depth_point = (size_t)(p.tiles * p.depth + SKEW);
    p.width_point = (size_t)(p.tiles * p.width + SKEW);
    p.panel_point = (size_t)(p.tiles * PANEL + SKEW);
    p.weight_point = (size_t)(p.depth * p.width + SKEW);
    return p;
}

// LANES channels of a tile of `side` x `side` positions from (y, x) on; rows and columns `row`, `column` floats apart.
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
            floats_store(copy + (i * SIDE + j) * LANES,
                         inside ? floats_load(picture + at(view, channel, row, column)) : (floats){0});
        }
    return (struct patch){copy, SIDE * LANES, LANES};
}

static inline __attribute__((always_inline)) void transform_input(int taps, struct patch patch, float *to,
                                                                  size_t point) {
    const int side = 2 * taps;
    floats half[SIDE][SIDE];
    const float *from = patch.first;
    for (int j = 0; j < side; j++, from += patch.column) {
        floats d[SIDE], p[SIDE];
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) d[i] = floats_load(from + (size_t)i * patch.row);
        points_of_input(taps, d, p);
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) half[i][j] = p[i];
    }
    for (int i = 0; i < side; i++, to += (size_t)side * point) {
        floats p[SIDE];
        points_of_input(taps, half[i], p);
#pragma GCC unroll 6
        for (int j = 0; j < side; j++) floats_store(to + (size_t)j * point, p[j]);
    }
}

static inline __attribute__((always_inline)) void transform_gradient(int taps, struct patch patch, float *to,
                                                                     size_t point) {
    const int side = 2 * taps, tile = taps + 1;
    floats half[SIDE][TILE];
    const float *from = patch.first;
    for (int j = 0; j < tile; j++, from += patch.column) {
        floats d[TILE] = {0}, p[SIDE]; // zeros: for cppcheck, which takes `tile` for 0
#pragma GCC unroll 4
        for (int i = 0; i < tile; i++) d[i] = floats_load(from + (size_t)i * patch.row);
        points_of_gradient(taps, d, p);
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) half[i][j] = p[i];
    }
    for (int i = 0; i < side; i++, to += (size_t)side * point) {
        floats p[SIDE];
        points_of_gradient(taps, half[i], p);
#pragma GCC unroll 6
        for (int j = 0; j < side; j++) floats_store(to + (size_t)j * point, p[j]);
    }
}

// What is added to the sums, and done with them.
struct finish {
    const float *bias;
    bool add, relu;
};

// LANES channels of one tile, of which rows x columns outputs are in the picture.
static inline __attribute__((always_inline)) void transform_products(int taps, const float *from, size_t point,
                                                                     floats bias, struct finish finish, int rows,
                                                                     int columns, float *to, size_t row,
                                                                     size_t column) {
    const int side = 2 * taps, tile = taps + 1;
    floats half[TILE][SIDE];
    for (int j = 0; j < side; j++, from += point) {
        floats p[SIDE] = {0}, y[TILE]; // as above, for `side`
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) p[i] = floats_load(from + (size_t)(side * i) * point);
        outputs_of_points(taps, p, y);
#pragma GCC unroll 4
        for (int i = 0; i < tile; i++) half[i][j] = y[i];
    }
    for (int i = 0; i < rows; i++, to += row) {
        floats y[TILE];
        outputs_of_points(taps, half[i], y);
#pragma GCC unroll 4
        for (int j = 0; j < tile; j++) {
            float *out = to + (size_t)j * column;
            floats value = y[j] + bias;
            if (j >= columns) break;
            if (finish.add) value += floats_load(out);
            if (finish.relu) value = (floats)((wholes)value & ~(value < 0)); // keeps NaN
            floats_store(out, value);
        }
    }
}

// Adds LANES channels of the gradient by one tile's inputs, from (y, x) on, from that by its points.
static inline __attribute__((always_inline)) void transform_input_gradient(int taps, const struct view *view,
                                                                           const float *from, size_t point, int channel,
                                                                           int y, int x, float *picture) {
    const int side = 2 * taps;
    floats half[SIDE][SIDE];
    for (int j = 0; j < side; j++, from += point) {
        floats p[SIDE], d[SIDE];
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) p[i] = floats_load(from + (size_t)(side * i) * point);
        inputs_of_points(taps, p, d);
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) half[i][j] = d[i];
    }
    for (int i = 0; i < side; i++) {
        const int row = y + i * view->step;
        floats d[SIDE];
        if (row < 0 || row >= view->height) continue;
        inputs_of_points(taps, half[i], d);
        float *to = picture + at(view, channel, row, 0);
#pragma GCC unroll 6
        for (int j = 0; j < side; j++) {
            const int column = x + j * view->step;
            float *here = to + column * view->block;
            if (column >= 0 && column < view->width) floats_store(here, floats_load(here) + d[j]);
        }
    }
}

// ---- some tiles at a time ----

// Tile `index` of all observations' tiles: its observation, and its first output.
struct place {
    int observation, y, x;
};
static inline struct place place_of(const struct plan *plan, int index) {
    const int within = index % plan->count;
    return (struct place){index / plan->count, within / plan->across * plan->tile, within % plan->across * plan->tile};
}

static void read_inputs(const struct plan *plan, const float *in, int first, int count, float *to) {
    const struct view *view = &plan->in;
    _Alignas(32) float copy[SIDE * SIDE * LANES];
    for (int t = 0; t < count; t++) {
        const struct place place = place_of(plan, first + t);
        const float *picture = in + (size_t)place.observation * floats_of(view);
        float *row = to + (size_t)(t * plan->depth);
        for (int phase = 0; phase < phases(view); phase++, row += view->channels) {
            const int y = place.y * view->step + phase / view->step - view->pad[0];
            const int x = place.x * view->step + phase % view->step - view->pad[1];
            for (int c = 0; c < view->channels; c += LANES) {
                const struct patch patch = patch_of(view, picture, c, y, x, plan->side, copy);
                if (plan->taps == 3)
                    transform_input(3, patch, row + c, plan->depth_point);
                else
                    transform_input(2, patch, row + c, plan->depth_point);
            }
        }
    }
}

// Output channels from n on of some tiles, from products [point][tile][PANEL].
static void write_outputs(const struct plan *plan, const float *from, int first, int count, int n, struct finish finish,
                          float *out) {
    const struct view *view = &plan->out;
    const size_t row = (size_t)(view->width * view->block), column = (size_t)view->block;
    for (int l = 0; l < least(PANEL, plan->width - n); l += LANES) {
        const floats bias = floats_load(finish.bias + n + l);
        for (int t = 0; t < count; t++) {
            const struct place place = place_of(plan, first + t);
            const int rows = least(plan->tile, view->height - place.y);
            const int columns = least(plan->tile, view->width - place.x);
            const float *products = from + t * PANEL + l;
            float *to = out + (size_t)place.observation * floats_of(view) + at(view, n + l, place.y, place.x);
            if (plan->taps == 3)
                transform_products(3, products, plan->panel_point, bias, finish, rows, columns, to, row, column);
            else
                transform_products(2, products, plan->panel_point, bias, finish, rows, columns, to, row, column);
        }
    }
}

// Adds the gradient by input channels from n on of some tiles, from products [point][tile][PANEL].
static void add_input_gradients(const struct plan *plan, const float *from, int first, int count, int n, float *din) {
    const struct view *view = &plan->in;
    for (int l = 0; l < least(PANEL, plan->depth - n); l += LANES) {
        const int phase = (n + l) / view->channels, c = (n + l) % view->channels;
        for (int t = 0; t < count; t++) {
            const struct place place = place_of(plan, first + t);
            const int y = place.y * view->step + phase / view->step - view->pad[0];
            const int x = place.x * view->step + phase % view->step - view->pad[1];
            const float *products = from + t * PANEL + l;
            float *picture = din + (size_t)place.observation * floats_of(view);
            if (plan->taps == 3)
                transform_input_gradient(3, view, products, plan->panel_point, c, y, x, picture);
            else
                transform_input_gradient(2, view, products, plan->panel_point, c, y, x, picture);
        }
    }
}

// A tile of a product of matrices, whose sums stay in registers:
// to[r][n] = sum over k < depth of a[r a_row + k a_step] b[k b_step + n]; r < rows <= ROWS, n < vectors * LANES.
// add_to: += instead.
static inline __attribute__((always_inline)) void multiply(int rows, int vectors, const float *a, size_t a_row,
                                                           size_t a_step, const float *b, size_t b_step, int depth,
                                                           float *to, size_t to_row, bool add_to) {
    floats sum[ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add_to ? floats_load(to + (size_t)r * to_row + v * LANES) : (floats){0};
    for (int k = 0; k < depth; k++, a += a_step, b += b_step) {
        floats right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = floats_load(b + v * LANES);
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
        for (int v = 0; v < vectors; v++) floats_store(to + (size_t)r * to_row + v * LANES, sum[r][v]);
}

// Products [point][tile][PANEL] of tiles [point][tile][depth], `stride` floats a point, with panel n of weights
// [point][panel][depth][PANEL] (the last panel may be half as wide).
static void multiply_tiles(const struct plan *plan, int depth, const float *in, size_t stride, const float *weights,
                           int n, int width, int tiles, float *out) {
    for (int p = 0; p < plan->points; p++, in += stride, weights += plan->weight_point, out += plan->panel_point)
        for (int t = 0; t < tiles; t += ROWS) {
            const float *rows = in + (size_t)(t * depth), *panel = weights + (size_t)(n * depth);
            if (width - n > LANES)
                multiply(ROWS, 2, rows, (size_t)depth, 1, panel, PANEL, depth, out + t * PANEL, PANEL, false);
            else
                multiply(ROWS, 1, rows, (size_t)depth, 1, panel, LANES, depth, out + t * PANEL, PANEL, false);
        }
}

// Adds one point's products of inputs [tile][depth] and gradients [tile][width] to sums [depth][width].
static void multiply_gradients(const struct plan *plan, const float *in, const float *gradients, int tiles,
                               float *sums) {
    const size_t depth = (size_t)plan->depth, width = (size_t)plan->width;
    for (int n = 0; n < plan->width; n += PANEL) {
        const bool both = plan->width - n > LANES;
        for (int k = 0; k < plan->depth;) {
            const int left = plan->depth - k, rows = left % 6 == 0 ? 6 : 4; // a multiple of 8 is a sum of these
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

// ---- weights ----

// Where LANES kernels lie in the flat weights: a phase's tap (i, j) at first + i row + j column, `lane` more for each.
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

static inline __attribute__((always_inline)) void pack_kernels(int taps, struct kernels k, const float *weights,
                                                               float *to, size_t point) {
    const int side = 2 * taps;
    floats half[SIDE][TAPS];
    for (int j = 0; j < taps; j++) {
        floats column[TAPS], p[SIDE];
        for (int i = 0; i < taps; i++) {
            const float *from = weights + k.first + (size_t)i * k.row + (size_t)j * k.column;
            for (size_t l = 0; l < LANES; l++) column[i][l] = from[l * k.lane];
        }
        points_of_kernel(taps, column, p);
        for (int i = 0; i < side; i++) half[i][j] = p[i];
    }
    for (int i = 0; i < side; i++) {
        floats p[SIDE];
        points_of_kernel(taps, half[i], p);
        for (int j = 0; j < side; j++) floats_store(to + (size_t)(side * i + j) * point, p[j]);
    }
}

// Adds the kernels of sums at the points.
static inline __attribute__((always_inline)) void unpack_kernels(int taps, struct kernels k, const float *from,
                                                                 size_t point, float *weights) {
    const int side = 2 * taps;
    floats half[TAPS][SIDE];
    for (int j = 0; j < side; j++) {
        floats p[SIDE], g[TAPS];
        for (int i = 0; i < side; i++) p[i] = floats_load(from + (size_t)(side * i + j) * point);
        kernel_of_points(taps, p, g);
        for (int i = 0; i < taps; i++) half[i][j] = g[i];
    }
    for (int i = 0; i < taps; i++) {
        floats g[TAPS];
        kernel_of_points(taps, half[i], g);
        for (int j = 0; j < taps; j++) {
            float *to = weights + k.first + (size_t)i * k.row + (size_t)j * k.column;
            for (size_t l = 0; l < LANES; l++) to[l * k.lane] += g[j][l];
        }
    }
}

// ---- the passes ----

// FORWARD: panels of outputs; DATA: panels of inputs.
static void pack(const struct farm_winograd_shape *s, enum farm_winograd_pass pass, const float *weights,
                 void *packed) {
    const bool data = pass == FARM_WINOGRAD_DATA;
    const struct plan plan = plan_of(s, VALUES);
    const int depth = data ? plan.width : plan.depth, width = data ? plan.depth : plan.width;
    for (int phase = 0; phase < s->stride * s->stride; phase++)
        for (int o = 0; o < s->outputs; o += data ? 1 : LANES)
            for (int c = 0; c < s->channels; c += data ? LANES : 1) {
                const int in = phase * s->channels + c, k = data ? o : in, n = data ? in : o;
                const int panel = n / PANEL * PANEL, across = least(PANEL, width - panel);
                const struct kernels kernels = kernels_of(s, data, o, c, phase);
                float *to = (float *)packed + panel * depth + k * across + n - panel;
                if (plan.taps == 3)
                    pack_kernels(3, kernels, weights, to, plan.weight_point);
                else
                    pack_kernels(2, kernels, weights, to, plan.weight_point);
            }
}

// As much as forward or backward needs.
static size_t scratch_bytes(const struct farm_winograd_shape *s) {
    const struct plan ahead = plan_of(s, VALUES), back = plan_of(s, VALUES_OF_WEIGHTS);
    const size_t forward_floats = ahead.depth_point + ahead.panel_point;
    const size_t backward_floats = back.depth_point + back.width_point + back.panel_point + back.weight_point;
    return (size_t)ahead.points * sizeof(float) * (forward_floats > backward_floats ? forward_floats : backward_floats);
}

static void forward(const struct farm_winograd_shape *s, const void *packed, const float *bias, const float *in,
                    int batch, bool add_to, bool relu, float *out, void *scratch) {
    const struct plan plan = plan_of(s, VALUES);
    const struct finish finish = {bias, add_to, relu};
    float *inputs = scratch, *products = inputs + (size_t)plan.points * plan.depth_point;
    for (int first = 0, all = batch * plan.count; first < all; first += plan.tiles) {
        const int count = least(plan.tiles, all - first);
        read_inputs(&plan, in, first, count, inputs);
        for (int n = 0; n < plan.width; n += PANEL) {
            multiply_tiles(&plan, plan.depth, inputs, plan.depth_point, packed, n, plan.width, count, products);
            write_outputs(&plan, products, first, count, n, finish, out);
        }
    }
}

static void read_gradients(const struct plan *plan, const float *dout, int first, int count, float *to) {
    const struct view *view = &plan->out;
    _Alignas(32) float copy[SIDE * SIDE * LANES];
    for (int t = 0; t < count; t++) {
        const struct place place = place_of(plan, first + t);
        const float *picture = dout + (size_t)place.observation * floats_of(view);
        float *row = to + (size_t)(t * plan->width);
        for (int c = 0; c < view->channels; c += LANES) {
            const struct patch patch = patch_of(view, picture, c, place.y, place.x, plan->tile, copy);
            if (plan->taps == 3)
                transform_gradient(3, patch, row + c, plan->width_point);
            else
                transform_gradient(2, patch, row + c, plan->width_point);
        }
    }
}

static void add_bias_gradient(const struct view *view, const float *dout, int batch, float *dbias) {
    const size_t positions = (size_t)view->height * (size_t)view->width;
    for (int c = 0; c < view->channels; c += LANES) {
        floats sum = floats_load(dbias + c);
        for (int b = 0; b < batch; b++) {
            const float *from = dout + (size_t)b * floats_of(view) + at(view, c, 0, 0);
            floats of_one = {0};
            for (size_t i = 0; i < positions; i++) of_one += floats_load(from + i * (size_t)view->block);
            sum += of_one;
        }
        floats_store(dbias + c, sum);
    }
}

static void add_weight_gradient(const struct farm_winograd_shape *s, const struct plan *plan, const float *sums,
                                float *dweights) {
    for (int phase = 0; phase < s->stride * s->stride; phase++)
        for (int o = 0; o < s->outputs; o += LANES)
            for (int c = 0; c < s->channels; c++) {
                const struct kernels kernels = kernels_of(s, false, o, c, phase);
                const float *from = sums + (size_t)((phase * s->channels + c) * plan->width + o);
                if (plan->taps == 3)
                    unpack_kernels(3, kernels, from, plan->weight_point, dweights);
                else
                    unpack_kernels(2, kernels, from, plan->weight_point, dweights);
            }
}

// Both gradients are forward's steps transposed, and share the transformed gradients.
static void backward(const struct farm_winograd_shape *s, const void *packed, const float *in, const float *dout,
                     int batch, float *din, float *dweights, float *dbias, void *scratch) {
    const struct plan plan = plan_of(s, VALUES_OF_WEIGHTS);
    const size_t points = (size_t)plan.points;
    float *inputs = scratch, *gradients = inputs + points * plan.depth_point;
    float *products = gradients + points * plan.width_point, *sums = products + points * plan.panel_point;
    memset(sums, 0, points * plan.weight_point * sizeof *sums);
    size_t cleared = 0; // observations of din
    for (int first = 0, all = batch * plan.count; first < all; first += plan.tiles) {
        const int count = least(plan.tiles, all - first);
        read_inputs(&plan, in, first, count, inputs);
        read_gradients(&plan, dout, first, count, gradients);
        for (; cleared * (size_t)plan.count < (size_t)(first + count); cleared++)
            memset(din + cleared * floats_of(&plan.in), 0, floats_of(&plan.in) * sizeof *din);
        for (size_t p = 0; p < points; p++)
            multiply_gradients(&plan, inputs + p * plan.depth_point, gradients + p * plan.width_point, count,
                               sums + p * plan.weight_point);
        for (int n = 0; n < plan.depth; n += PANEL) {
            multiply_tiles(&plan, plan.width, gradients, plan.width_point, packed, n, plan.depth, count, products);
            add_input_gradients(&plan, products, first, count, n, din);
        }
    }
    add_weight_gradient(s, &plan, sums, dweights);
    add_bias_gradient(&plan.out, dout, batch, dbias);
}

#endif
