// The direct convolution of any shape: rows of pixels become lines of 32-bit elements (I16: pairs of 16-bit numbers of
// two rows, F32: floats), which stay in the cache during all products with them. 3x3 kernels of stride 1, those of
// IMPALA's deep network, are compiled separately. Reads frames in place, no byte outside them.
#ifndef FARM_KERNELS_CPU_CONV_U8_DIRECT_H
#define FARM_KERNELS_CPU_CONV_U8_DIRECT_H

#include "kernels/cpu/conv_u8_vector.h"

static struct farm_conv_u8_work direct_place(const struct farm_conv_u8_shape *shape, void *scratch, size_t *bytes) {
    const size_t outputs = (size_t)shape->outputs, rows = (size_t)farm_conv_u8_rows(shape);
    const size_t weights = rows * (size_t)shape->kernel * outputs;
    const int pixels = shape->pad_before[1] + shape->width + shape->pad_after[1];
    const size_t width = (size_t)(pixels + POSITIONS * shape->stride + 15) / 8 * 8;
    const size_t sizes[] = {rows * width, (size_t)farm_conv_u8_out_width(shape) * outputs,
                            shape->precision == FARM_CONV_U8_I16 ? weights : 0, weights};
    struct farm_conv_u8_work work = farm_conv_u8_place(shape, scratch, sizes, bytes);
    work.width = width;
    return work;
}

// Up to 8 bytes; `zero` beyond `count`, or if `from` is NULL.
static inline __m128i load_pixels(const uint8_t *from, int count, int zero) {
    uint64_t eight = (uint64_t)zero * 0x0101010101010101u;
    if (from != NULL) memcpy(&eight, from, count < 8 ? (size_t)count : 8);
    return _mm_cvtsi64_si128((long long)eight);
}

// One line: I16 of two rows, F32 of the first.
static inline void direct_line(const struct farm_conv_u8_shape *shape, const uint8_t *first, const uint8_t *second,
                               int32_t *line) {
    const int zero = farm_conv_u8_zero(shape);
    line += shape->pad_before[1];
    for (int x = 0; x < shape->width; x += 8) {
        const int left = shape->width - x;
        const __m128i a = load_pixels(first == NULL ? NULL : first + x, left, zero);
        if (shape->precision == FARM_CONV_U8_F32) {
            const __m256i whole = _mm256_sub_epi32(_mm256_cvtepu8_epi32(a), _mm256_set1_epi32(zero));
            _mm256_storeu_ps((float *)line + x, _mm256_cvtepi32_ps(whole));
            continue;
        }
        const __m128i b = load_pixels(second == NULL ? NULL : second + x, left, zero);
        const __m256i both = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
        _mm256_storeu_si256((__m256i *)(line + x), _mm256_sub_epi16(both, _mm256_set1_epi16((short)zero)));
    }
}

// Padded row `row` of a plane; NULL: zeros.
static inline const uint8_t *direct_row(const struct farm_conv_u8_shape *shape, const uint8_t *plane, int row) {
    const int at = row - shape->pad_before[0];
    return plane == NULL || at < 0 || at >= shape->height ? NULL : plane + at * shape->width;
}

// The constants that a pass is compiled for.
struct direct_kind {
    bool whole;         // I16
    int kernel, stride; // 0: any
    int vectors;        // vectors of channels: 1 or 2
};

// Lines of a forward pass: of two planes in I16; their row r is in slot r mod K.
static inline int direct_plane_lines(const struct farm_conv_u8_shape *shape) {
    const int planes = farm_conv_u8_planes(shape);
    return shape->precision == FARM_CONV_U8_I16 ? (planes + 1) / 2 : planes;
}

// Outputs of row y at POSITIONS positions from x on, of vectors · LANES channels. at: of the row's first output.
static inline __attribute__((always_inline)) void
direct_outputs(struct direct_kind kind, const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
               const float *bias, const struct farm_conv_u8_work *d, int y, int x, int channel, void *out,
               const struct place at[2]) {
    const int k = kind.kernel ? kind.kernel : shape->kernel, stride = kind.stride ? kind.stride : shape->stride;
    const int32_t *weights =
        (kind.whole ? (const int32_t *)(const void *)view->plain : (const int32_t *)(const void *)view->plain_f32) +
        channel;
    const size_t outputs = (size_t)shape->outputs;
    vector sum[POSITIONS][2];
#pragma GCC unroll 12
    for (int p = 0; p < POSITIONS; p++) sum[p][0] = sum[p][1] = vector_all(0);
    for (int l = 0; l < direct_plane_lines(shape); l++)
        for (int ky = 0; ky < k; ky++) {
            const int32_t *line = d->pixels + (size_t)(l * k + (y * stride + ky) % k) * d->width + x * stride;
#pragma GCC unroll 3
            for (int kx = 0; kx < k; kx++, weights += outputs) {
                const vector low = vector_load(weights), high = kind.vectors == 2 ? vector_load(weights + LANES) : low;
#pragma GCC unroll 12
                for (int p = 0; p < POSITIONS; p++) {
                    const vector pixel = vector_broadcast(line + p * stride + kx);
                    sum[p][0] = add_product(kind.whole, sum[p][0], pixel, low);
                    if (kind.vectors == 2) sum[p][1] = add_product(kind.whole, sum[p][1], pixel, high);
                }
            }
        }
    const int left = farm_conv_u8_out_width(shape) - x;
    for (int i = 0; i < kind.vectors; i++) {
        const floats b = floats_load(bias + channel + i * LANES);
        const floats scale = kind.whole ? floats_load(view->scale + channel + i * LANES) : b;
#pragma GCC unroll 12
        for (int p = 0; p < POSITIONS; p++) {
            if (p >= left) break;
            floats value = (floats)sum[p][i];
            if (kind.whole) value = floats_of(sum[p][i]) * scale;
            value += b;
            store_out(out, moved(shape, at[i], (size_t)(x + p)), shape->bf16, shape->relu ? floats_relu(value) : value);
        }
    }
}

static inline __attribute__((always_inline)) void
direct_forward_row(struct direct_kind kind, const struct farm_conv_u8_shape *shape,
                   const struct farm_conv_u8_packed *view, const float *bias, const struct farm_conv_u8_work *d, int y,
                   int channel, void *out, size_t first) {
    const size_t before = (size_t)(y * farm_conv_u8_out_width(shape));
    const struct place low = place_of(shape, first, channel);
    const struct place high = kind.vectors == 2 ? place_of(shape, first, channel + LANES) : low;
    const struct place at[2] = {moved(shape, low, before), moved(shape, high, before)};
    for (int x = 0; x < farm_conv_u8_out_width(shape); x += POSITIONS)
        direct_outputs(kind, shape, view, bias, d, y, x, channel, out, at);
}

// Calls the function compiled for this kind: 3x3 of stride 1 or any, one vector or two, whole or float.
#define DIRECT_DISPATCH(function, shape, channel, ...)                                                                 \
    do {                                                                                                               \
        const bool whole_ = (shape)->precision == FARM_CONV_U8_I16, two_ = (shape)->outputs - (channel) >= 2 * LANES;  \
        const bool deep_ = (shape)->kernel == 3 && (shape)->stride == 1;                                               \
        if (whole_ && deep_ && two_) function((struct direct_kind){true, 3, 1, 2}, __VA_ARGS__);                       \
        if (whole_ && deep_ && !two_) function((struct direct_kind){true, 3, 1, 1}, __VA_ARGS__);                      \
        if (whole_ && !deep_ && two_) function((struct direct_kind){true, 0, 0, 2}, __VA_ARGS__);                      \
        if (whole_ && !deep_ && !two_) function((struct direct_kind){true, 0, 0, 1}, __VA_ARGS__);                     \
        if (!whole_ && deep_ && two_) function((struct direct_kind){false, 3, 1, 2}, __VA_ARGS__);                     \
        if (!whole_ && deep_ && !two_) function((struct direct_kind){false, 3, 1, 1}, __VA_ARGS__);                    \
        if (!whole_ && !deep_ && two_) function((struct direct_kind){false, 0, 0, 2}, __VA_ARGS__);                    \
        if (!whole_ && !deep_ && !two_) function((struct direct_kind){false, 0, 0, 1}, __VA_ARGS__);                   \
        (channel) += two_ ? 2 * LANES : LANES;                                                                         \
    } while (0)

static void direct_forward(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                           const float *bias, const uint8_t *const *planes, const struct farm_conv_u8_work *d,
                           void *out, size_t first) {
    const int k = shape->kernel, per_line = shape->precision == FARM_CONV_U8_I16 ? 2 : 1;
    memset(d->pixels, 0, (size_t)farm_conv_u8_rows(shape) * d->width * sizeof *d->pixels); // the padding
    for (int y = 0, filled = 0; y < farm_conv_u8_out_height(shape); y++) {
        if (filled < y * shape->stride) filled = y * shape->stride;
        for (; filled < y * shape->stride + k; filled++)
            for (int l = 0; l < direct_plane_lines(shape); l++) {
                const uint8_t *one = planes[l * per_line];
                const uint8_t *other = l * per_line + 1 < farm_conv_u8_planes(shape) ? planes[l * per_line + 1] : NULL;
                direct_line(shape, direct_row(shape, one, filled), direct_row(shape, other, filled),
                            d->pixels + (size_t)(l * k + filled % k) * d->width);
            }
        for (int channel = 0; channel < shape->outputs;)
            DIRECT_DISPATCH(direct_forward_row, shape, channel, shape, view, bias, d, y, channel, out, first);
    }
}

// Converts the output gradients of row y (I16: paired with those of the row below) to elements.
static void direct_load_gradients(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *d, int y,
                                  const void *dout, size_t first) {
    const size_t width = (size_t)farm_conv_u8_out_width(shape);
    const bool below = y + 1 < farm_conv_u8_out_height(shape);
    for (int channel = 0; channel < shape->outputs; channel += LANES) {
        const floats inverse = floats_load(d->inverse + channel);
        struct place at = moved(shape, place_of(shape, first, channel), (size_t)y * width);
        int32_t *to = d->gradients + channel;
        for (size_t x = 0; x < width; x++, at = moved(shape, at, 1), to += shape->outputs) {
            const floats upper = load_out(dout, at, shape->bf16);
            if (shape->precision == FARM_CONV_U8_F32) {
                floats_store((float *)to, upper);
                continue;
            }
            const floats lower = below ? load_out(dout, moved(shape, at, width), shape->bf16) : (floats)vector_all(0);
            vector_store(to, vector_pair(vector_round(upper * inverse), vector_round(lower * inverse)));
        }
    }
}

// Adds one row's products of some weights (of LINES lines, COLUMNS of each) to sums[tap][O], tap = line · K + kx. Lines
// and columns beyond the last repeat the last ones, and are not kept.
static inline __attribute__((always_inline)) void
direct_weights(struct direct_kind kind, const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *d,
               int channel, int lines, int columns, int from_line, int from_column) {
    enum { AT_ONCE = 12 };
    const int k = kind.kernel ? kind.kernel : shape->kernel, stride = kind.stride ? kind.stride : shape->stride;
    const int rows = farm_conv_u8_rows(shape), width = farm_conv_u8_out_width(shape);
    const size_t outputs = (size_t)shape->outputs;
    int32_t *sums = (kind.whole ? d->sums : (int32_t *)(void *)d->total) + channel;
    const int32_t *line[4] = {d->pixels};
    vector sum[AT_ONCE][2];
#pragma GCC unroll 4
    for (int l = 0; l < lines; l++)
        line[l] = d->pixels + (size_t)(from_line + l < rows ? from_line + l : rows - 1) * d->width + from_column;
#pragma GCC unroll 12
    for (int t = 0; t < lines * columns; t++) sum[t][0] = sum[t][1] = vector_all(0);
    const int32_t *gradient = d->gradients + channel;
    for (int x = 0; x < width; x++, gradient += outputs) {
        const vector low = vector_load(gradient), high = kind.vectors == 2 ? vector_load(gradient + LANES) : low;
#pragma GCC unroll 12
        for (int t = 0; t < lines * columns; t++) {
            const vector pixel = vector_broadcast(line[t / columns] + x * stride + t % columns);
            sum[t][0] = add_product(kind.whole, sum[t][0], pixel, low);
            if (kind.vectors == 2) sum[t][1] = add_product(kind.whole, sum[t][1], pixel, high);
        }
    }
#pragma GCC unroll 12
    for (int t = 0; t < lines * columns; t++) {
        if (from_line + t / columns >= rows || from_column + t % columns >= k) continue;
        int32_t *to = sums + (size_t)((from_line + t / columns) * k + from_column + t % columns) * outputs;
        for (int i = 0; i < kind.vectors; i++) {
            const vector before = vector_load(to + i * LANES), share = sum[t][i];
            vector_store(to + i * LANES,
                         kind.whole ? vector_add(before, share) : (vector)((floats)before + (floats)share));
        }
    }
}

static inline __attribute__((always_inline)) void direct_backward_row(struct direct_kind kind,
                                                                      const struct farm_conv_u8_shape *shape,
                                                                      const struct farm_conv_u8_work *d, int channel) {
    enum { DEEP_LINES = LANES == 16 ? 4 : 2, COLUMNS = LANES == 16 ? 8 : 6 }; // as many sums as there are registers
    for (int line = 0; line < farm_conv_u8_rows(shape);) {
        if (kind.kernel == 3) {
            direct_weights(kind, shape, d, channel, DEEP_LINES, 3, line, 0);
            line += DEEP_LINES;
            continue;
        }
        for (int column = 0; column < shape->kernel; column += COLUMNS)
            direct_weights(kind, shape, d, channel, 1, COLUMNS, line, column);
        line++;
    }
}

// Adds some rows' whole numbers to the total, and zeroes them.
static void direct_add_whole(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *d, int taps) {
    for (int t = 0; t < taps; t++)
        for (int o = 0; o < shape->outputs; o += LANES) {
            const size_t at = (size_t)t * (size_t)shape->outputs + (size_t)o;
            const floats share = floats_of(vector_load(d->sums + at)) * floats_load(d->step + o);
            floats_store(d->total + at, floats_load(d->total + at) + share);
            vector_store(d->sums + at, vector_all(0));
        }
}

// Adds one observation's share of the gradient.
static void direct_backward(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, const void *dout,
                            size_t first, const struct farm_conv_u8_work *d) {
    const bool whole = shape->precision == FARM_CONV_U8_I16;
    const int rows = farm_conv_u8_rows(shape), taps = rows * shape->kernel, step = whole ? 2 : 1;
    const int height = farm_conv_u8_out_height(shape);
    for (int o = 0; o < shape->outputs; o += LANES) measure_gradients(shape, dout, first, o, d);
    for (int y = 0; y < height; y += step) {
        direct_load_gradients(shape, d, y, dout, first);
        for (int row = 0; row < rows; row++) {
            const uint8_t *below = y + 1 < height ? farm_conv_u8_row(shape, planes, row, y + 1) : NULL;
            direct_line(shape, farm_conv_u8_row(shape, planes, row, y), below, d->pixels + (size_t)row * d->width);
        }
        for (int channel = 0; channel < shape->outputs;)
            DIRECT_DISPATCH(direct_backward_row, shape, channel, shape, d, channel);
        const bool full = (y + step) % farm_conv_u8_rows_at_once(shape) == 0 || y + step >= height;
        if (whole && full) direct_add_whole(shape, d, taps);
    }
}

#endif
