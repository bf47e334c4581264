// The first convolution's shapes, packing and portable path, and the path chosen at run time (SIMD: cpu/conv_u8_*).
#include "kernels/conv_u8.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/conv_u8_packed.h"

enum {
    BLOCK = 8,      // output channels computed together: they are adjacent in every layout
    TAPS_MAX = 4096 // weights of one output channel
};

enum farm_status farm_conv_u8_check(const struct farm_conv_u8_shape *shape, struct farm_error *err) {
    const struct farm_conv_u8_shape *s = shape;
    if (s->stack < 1 || s->channels < 1 || s->stack > FARM_CONV_U8_PLANES_MAX ||
        s->channels > FARM_CONV_U8_PLANES_MAX || s->stack * s->channels > FARM_CONV_U8_PLANES_MAX || s->kernel < 1 ||
        s->kernel > 64 || s->stride < 1 || s->stride > 64 || s->stack * s->channels * s->kernel * s->kernel > TAPS_MAX)
        return farm_fail(err, FARM_E_INVALID,
                         "first convolution: stack %d of %d channels and kernel %d must be 1 to 64, with "
                         "stack·channels at most 64 and stack·channels·kernel² at most %d, and stride %d 1 to 64",
                         s->stack, s->channels, s->kernel, TAPS_MAX, s->stride);
    for (int i = 0; i < 2; i++)
        if (s->pad_before[i] < 0 || s->pad_after[i] < 0 || s->pad_before[i] >= s->kernel ||
            s->pad_after[i] >= s->kernel)
            return farm_fail(err, FARM_E_INVALID, "first convolution: padding must be 0 to kernel - 1 on each side");
    if (s->height < 1 || s->width < 1 || s->height > 1024 || s->width > 1024 ||
        s->pad_before[0] + s->height + s->pad_after[0] < s->kernel ||
        s->pad_before[1] + s->width + s->pad_after[1] < s->kernel)
        return farm_fail(err, FARM_E_INVALID, "first convolution: a frame of %dx%d must be between %dx%d and 1024x1024",
                         s->height, s->width, s->kernel, s->kernel);
    if (s->outputs < 1 || s->outputs > 1024)
        return farm_fail(err, FARM_E_INVALID, "first convolution: %d output channels: 1 to 1024", s->outputs);
    if (s->block != s->outputs && (s->block < BLOCK || s->block % BLOCK != 0 || s->outputs % s->block != 0))
        return farm_fail(
            err, FARM_E_INVALID,
            "first convolution: blocks of %d channels: all %d outputs, or a multiple of 8 that divides them", s->block,
            s->outputs);
    return FARM_OK;
}

static size_t round_up_64(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static int taps_of(const struct farm_conv_u8_shape *shape) {
    return farm_conv_u8_rows(shape) * shape->kernel;
}

// Elements of packed->plain: planes two by two.
static size_t plain_count(const struct farm_conv_u8_shape *shape) {
    return (size_t)((farm_conv_u8_planes(shape) + 1) / 2 * 2 * shape->kernel * shape->kernel) * (size_t)shape->outputs;
}

static size_t f32_count(const struct farm_conv_u8_shape *shape) {
    return (size_t)taps_of(shape) * (size_t)shape->outputs;
}

static size_t winograd_count(const struct farm_conv_u8_shape *shape) {
    return (size_t)FARM_CONV_U8_PARTS * 16 * (size_t)farm_conv_u8_planes(shape) * (size_t)shape->outputs;
}

size_t farm_conv_u8_packed_bytes(const struct farm_conv_u8_shape *shape) {
    if (shape->precision == FARM_CONV_U8_F32) return round_up_64(f32_count(shape) * sizeof(float));
    return round_up_64((size_t)shape->outputs * sizeof(float)) + round_up_64(plain_count(shape) * sizeof(int16_t)) +
           (farm_conv_u8_is_winograd(shape) ? round_up_64(winograd_count(shape) * sizeof(int16_t)) : 0);
}

struct farm_conv_u8_packed farm_conv_u8_view(const struct farm_conv_u8_shape *shape, const void *packed) {
    struct farm_conv_u8_packed view = {0};
    char *at = (char *)(uintptr_t)packed;
    assert((uintptr_t)at % 64 == 0);
    if (shape->precision == FARM_CONV_U8_F32) {
        view.plain_f32 = (float *)(void *)at;
        return view;
    }
    view.scale = (float *)(void *)at;
    at += round_up_64((size_t)shape->outputs * sizeof(float));
    view.plain = (int16_t *)(void *)at;
    at += round_up_64(plain_count(shape) * sizeof(int16_t));
    if (farm_conv_u8_is_winograd(shape)) view.winograd = (int16_t *)(void *)at;
    return view;
}

static uint32_t magnitude_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu; // ordered as floats are, NaN above all
}

void farm_conv_u8_quantise_channel(uint32_t largest_bits, int whole_max, float *step, float *inverse) {
    float largest;
    memcpy(&largest, &largest_bits, sizeof largest);
    *step = *inverse = 0;
    if (!isfinite(largest)) {
        *step = NAN;
    } else if (largest > 1e-30f) { // below, the reciprocal would overflow
        *step = largest / (float)whole_max;
        *inverse = (float)whole_max / largest;
    }
}

// Where the first weight of row `row`, output o lies in packed->plain; the next columns' are 2 * outputs apart.
static size_t plain_at(const struct farm_conv_u8_shape *shape, int row, int o) {
    const int plane = row / shape->kernel, ky = row % shape->kernel;
    const int pair = (plane / 2 * shape->kernel + ky) * shape->kernel;
    return (size_t)(pair * shape->outputs + o) * 2 + (size_t)(plane % 2);
}

// Rounds one output channel's weights to whole numbers.
static void pack_plain(const struct farm_conv_u8_shape *shape, const float *weights, int o,
                       const struct farm_conv_u8_packed *view) {
    const int taps = taps_of(shape), k = shape->kernel;
    uint32_t largest = 0;
    for (int t = 0; t < taps; t++) {
        const uint32_t bits = magnitude_bits(weights[o * taps + t]);
        if (bits > largest) largest = bits;
    }
    float step, inverse;
    farm_conv_u8_quantise_channel(largest, farm_conv_u8_whole_max(taps), &step, &inverse);
    view->scale[o] = step / farm_conv_u8_one(shape);
    weights += o * taps;
    for (int row = 0; row < farm_conv_u8_rows(shape); row++, weights += k) {
        int16_t *to = view->plain + plain_at(shape, row, o);
        for (int kx = 0; kx < k; kx++)
            to[2 * shape->outputs * kx] = inverse == 0 ? 0 : (int16_t)lrintf(weights[kx] * inverse);
    }
}

// G g Gᵀ with G = [1 0; 1 1; 0 1] of each pixel of a 4x4 block: g(i, j) is the weight at (4i + r, 4j + c).
static void pack_winograd(const struct farm_conv_u8_shape *shape, int o, const struct farm_conv_u8_packed *view) {
    enum { K = FARM_CONV_U8_KERNEL };
    const int rows = 4 * farm_conv_u8_planes(shape), step = 2 * shape->outputs;
    for (int row = 0; row < rows; row++) { // plane row / 4, pixel row r = row % 4
        const int16_t *above = view->plain + plain_at(shape, row / 4 * K + row % 4, o);
        const int16_t *below = view->plain + plain_at(shape, row / 4 * K + row % 4 + 4, o);
        for (int c = 0; c < 4; c++) {
            const int g00 = above[step * c], g01 = above[step * (c + 4)];
            const int g10 = below[step * c], g11 = below[step * (c + 4)];
            const int g[3][2] = {{g00, g01}, {g00 + g10, g01 + g11}, {g10, g11}};
            for (int v = 0; v < 3; v++) {
                const int part[3] = {g[v][0], g[v][0] + g[v][1], g[v][1]};
                for (int h = 0; h < 3; h++) {
                    const int pair = ((o / 16 * FARM_CONV_U8_PARTS + 3 * v + h) * rows + row) * 2 + c / 2;
                    view->winograd[(pair * 16 + o % 16) * 2 + c % 2] = (int16_t)part[h];
                }
            }
        }
    }
}

void farm_conv_u8_pack(const struct farm_conv_u8_shape *shape, const float *weights, void *packed) {
    assert(farm_conv_u8_check(shape, NULL) == FARM_OK);
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    const int taps = taps_of(shape), outputs = shape->outputs;
    if (view.plain_f32 != NULL) {
        for (int o = 0; o < outputs; o++)
            for (int t = 0; t < taps; t++)
                view.plain_f32[t * outputs + o] = weights[o * taps + t] / farm_conv_u8_one(shape);
        return;
    }
    memset(view.plain, 0, plain_count(shape) * sizeof *view.plain);
    for (int o = 0; o < outputs; o++) {
        pack_plain(shape, weights, o, &view);
        if (view.winograd != NULL) pack_winograd(shape, o, &view);
    }
}

// The pixels under output (y, x), in the weights' order.
static void gather_pixels(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, int y, int x,
                          int16_t pixels[TAPS_MAX]) {
    const int zero = farm_conv_u8_zero(shape);
    for (int row = 0; row < farm_conv_u8_rows(shape); row++) {
        const uint8_t *from = farm_conv_u8_row(shape, planes, row, y);
        for (int kx = 0; kx < shape->kernel; kx++, pixels++) {
            const int at = x * shape->stride + kx - shape->pad_before[1];
            *pixels = (int16_t)(from == NULL || at < 0 || at >= shape->width ? 0 : from[at] - zero);
        }
    }
}

static float relu(float value) {
    return value < 0 ? 0 : value; // NaN stays
}

// Channels from `channel` on that are computed together.
static int channels_at(const struct farm_conv_u8_shape *shape, int channel) {
    return shape->outputs - channel < BLOCK ? shape->outputs - channel : BLOCK;
}

// Some channels over one position's pixels, before the activation.
static void forward_block(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                          const float *bias, const int16_t *pixels, int channel, float sum[BLOCK]) {
    const int taps = taps_of(shape), k = shape->kernel, count = channels_at(shape, channel);
    memset(sum, 0, BLOCK * sizeof *sum);
    if (view->plain_f32 != NULL) {
        for (int t = 0; t < taps; t++)
            for (int o = 0; o < count; o++) sum[o] += pixels[t] * view->plain_f32[t * shape->outputs + channel + o];
    } else {
        int32_t whole[BLOCK] = {0};
        for (int t = 0; t < taps; t++) {
            const int16_t *weights = view->plain + plain_at(shape, t / k, channel) + 2 * shape->outputs * (t % k);
            for (int o = 0; o < count; o++) whole[o] += pixels[t] * weights[2 * o];
        }
        for (int o = 0; o < count; o++) sum[o] = (float)whole[o] * view->scale[channel + o];
    }
    for (int o = 0; o < count; o++) sum[o] += bias[channel + o];
}

static void portable_forward(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                             const float *bias, const uint8_t *const *planes, const struct farm_conv_u8_work *work,
                             void *out, size_t first) {
    const int width = farm_conv_u8_out_width(shape), positions = (int)farm_conv_u8_positions(shape);
    (void)work;
    for (int p = 0; p < positions; p++) {
        int16_t pixels[TAPS_MAX];
        gather_pixels(shape, planes, p / width, p % width, pixels);
        for (int channel = 0; channel < shape->outputs; channel += BLOCK) {
            float sum[BLOCK];
            forward_block(shape, view, bias, pixels, channel, sum);
            const size_t at = first + farm_conv_u8_out_at(shape, (size_t)p, channel);
            for (int o = 0; o < channels_at(shape, channel); o++)
                farm_number_put(out, shape->bf16, at + (size_t)o, shape->relu ? relu(sum[o]) : sum[o]);
        }
    }
}

static struct farm_conv_u8_work portable_place(const struct farm_conv_u8_shape *shape, void *scratch, size_t *bytes) {
    const size_t sizes[4] = {0, 0, f32_count(shape), f32_count(shape)};
    return farm_conv_u8_place(shape, scratch, sizes, bytes);
}

// Sums dbias and finds the quantisation of one observation's dout, whose first element is `first`.
static void measure_gradients(const struct farm_conv_u8_shape *shape, const void *dout, size_t first,
                              const struct farm_conv_u8_work *work) {
    const int terms = farm_conv_u8_rows_at_once(shape) * farm_conv_u8_out_width(shape);
    const size_t positions = farm_conv_u8_positions(shape);
    for (int o = 0; o < shape->outputs; o++) {
        uint32_t largest = 0;
        for (size_t p = 0; p < positions; p++) {
            const size_t at = first + farm_conv_u8_out_at(shape, p, o / BLOCK * BLOCK) + (size_t)(o % BLOCK);
            const float d = farm_number_at(dout, shape->bf16, at);
            const uint32_t bits = magnitude_bits(d);
            if (bits > largest) largest = bits;
            work->dbias[o] += d;
        }
        farm_conv_u8_quantise_channel(largest, farm_conv_u8_whole_max(terms), &work->step[o], &work->inverse[o]);
    }
}

// Adds one position's share of the gradient of some channels.
static void backward_block(const struct farm_conv_u8_shape *shape, const int16_t *pixels, const float d[BLOCK],
                           int channel, const struct farm_conv_u8_work *work) {
    const int taps = taps_of(shape), count = channels_at(shape, channel);
    if (shape->precision == FARM_CONV_U8_F32) {
        for (int t = 0; t < taps; t++)
            for (int o = 0; o < count; o++) work->total[t * shape->outputs + channel + o] += pixels[t] * d[o];
        return;
    }
    int32_t quantised[BLOCK];
    for (int o = 0; o < count; o++) {
        const float inverse = work->inverse[channel + o];
        quantised[o] = inverse == 0 ? 0 : (int32_t)lrintf(d[o] * inverse);
    }
    for (int t = 0; t < taps; t++)
        for (int o = 0; o < count; o++) work->sums[t * shape->outputs + channel + o] += pixels[t] * quantised[o];
}

// Adds the whole numbers to the total, and zeroes them.
static void add_whole(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_work *work) {
    for (size_t i = 0; i < f32_count(shape); i++) {
        const float share = (float)work->sums[i] * work->step[i % (size_t)shape->outputs];
        work->total[i] += share;
        work->sums[i] = 0;
    }
}

static void portable_backward(const struct farm_conv_u8_shape *shape, const uint8_t *const *planes, const void *dout,
                              size_t first, const struct farm_conv_u8_work *work) {
    const int height = farm_conv_u8_out_height(shape), width = farm_conv_u8_out_width(shape);
    measure_gradients(shape, dout, first, work);
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            int16_t pixels[TAPS_MAX];
            gather_pixels(shape, planes, y, x, pixels);
            for (int channel = 0; channel < shape->outputs; channel += BLOCK) {
                const size_t at = first + farm_conv_u8_out_at(shape, (size_t)(y * width + x), channel);
                float d[BLOCK];
                for (int o = 0; o < channels_at(shape, channel); o++)
                    d[o] = farm_number_at(dout, shape->bf16, at + (size_t)o);
                backward_block(shape, pixels, d, channel, work);
            }
        }
        const bool full = (y + 1) % farm_conv_u8_rows_at_once(shape) == 0 || y == height - 1;
        if (shape->precision == FARM_CONV_U8_I16 && full) add_whole(shape, work);
    }
}

// ---- paths ----

const char *farm_conv_u8_path_name(enum farm_conv_u8_path path) {
    static const char *const names[] = {"portable", "avx2", "avx512"};
    return names[path];
}

static const struct farm_conv_u8_method *method_of(const struct farm_conv_u8_shape *shape) {
    static const struct farm_conv_u8_method portable = {portable_place, portable_forward, portable_backward,
                                                        farm_conv_u8_add_total};
#if defined(__x86_64__)
    const bool winograd = farm_conv_u8_is_winograd(shape);
    if (shape->path == FARM_CONV_U8_AVX2) return winograd ? &farm_conv_u8_avx2_winograd : &farm_conv_u8_avx2;
    if (shape->path == FARM_CONV_U8_AVX512) return winograd ? &farm_conv_u8_avx512_winograd : &farm_conv_u8_avx512;
#endif
    return &portable;
}

bool farm_conv_u8_runs(const struct farm_conv_u8_shape *shape) {
#if defined(__x86_64__)
    if (shape->path == FARM_CONV_U8_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && shape->outputs % 8 == 0;
    if (shape->path == FARM_CONV_U8_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") && shape->outputs % 16 == 0;
#endif
    return shape->path == FARM_CONV_U8_PORTABLE;
}

size_t farm_conv_u8_scratch_bytes(const struct farm_conv_u8_shape *shape) {
    size_t bytes;
    method_of(shape)->place(shape, NULL, &bytes);
    return round_up_64(bytes);
}

void farm_conv_u8_forward(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                          const uint8_t *const *frames, int batch, void *out, void *scratch) {
    assert(farm_conv_u8_check(shape, NULL) == FARM_OK && farm_conv_u8_runs(shape));
    const struct farm_conv_u8_method *method = method_of(shape);
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    size_t bytes;
    const struct farm_conv_u8_work work = method->place(shape, scratch, &bytes);
    for (int n = 0; n < batch; n++) {
        const uint8_t *planes[FARM_CONV_U8_PLANES_MAX];
        farm_conv_u8_find_planes(shape, frames + n * shape->stack, planes);
        method->forward(shape, &view, bias, planes, &work, out, (size_t)n * farm_conv_u8_out_count(shape));
    }
}

void farm_conv_u8_backward_weights(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                                   const void *dout, float *dweights, float *dbias, void *scratch) {
    assert(farm_conv_u8_check(shape, NULL) == FARM_OK && farm_conv_u8_runs(shape));
    const struct farm_conv_u8_method *method = method_of(shape);
    size_t bytes;
    const struct farm_conv_u8_work work = method->place(shape, scratch, &bytes);
    memset(scratch, 0, bytes);
    for (int n = 0; n < batch; n++) {
        const uint8_t *planes[FARM_CONV_U8_PLANES_MAX];
        farm_conv_u8_find_planes(shape, frames + n * shape->stack, planes);
        method->backward(shape, planes, dout, (size_t)n * farm_conv_u8_out_count(shape), &work);
    }
    method->add_total(shape, &work, dweights);
    for (int o = 0; o < shape->outputs; o++) dbias[o] += work.dbias[o];
}
