// The portable half of the first convolution: shapes, packing, the references, and the choice of the path at run time.
// Runs in the learner and in actors with local inference; no memory order; no SIMD here (cpu/conv_u8_avx2.c has it).
#include "kernels/conv_u8.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/conv_u8_packed.h"

enum {
    BLOCK = 8,      // output channels worked on together: a block of either layout
    TAPS_MAX = 4096 // weights of one output channel
};

enum farm_status farm_conv_u8_check(const struct farm_conv_u8_shape *shape, struct farm_error *err) {
    const struct farm_conv_u8_shape *s = shape;
    if (s->stack < 1 || s->stack > 64 || s->kernel < 1 || s->kernel > 64 || s->stride < 1 ||
        s->stack * s->kernel * s->kernel > TAPS_MAX)
        return farm_fail(
            err, FARM_E_INVALID,
            "first convolution: stack %d and kernel %d must be 1 to 64, with stack·kernel² at most %d, and "
            "stride %d at least 1",
            s->stack, s->kernel, TAPS_MAX, s->stride);
    if (s->height < s->kernel || s->width < s->kernel || s->height > 1024 || s->width > 1024)
        return farm_fail(err, FARM_E_INVALID, "first convolution: a frame of %dx%d must be between %dx%d and 1024x1024",
                         s->height, s->width, s->kernel, s->kernel);
    if (s->outputs < BLOCK || s->outputs % BLOCK != 0 || s->outputs > 1024)
        return farm_fail(err, FARM_E_INVALID, "first convolution: %d output channels: a multiple of 8 up to 1024",
                         s->outputs);
    return FARM_OK;
}

static size_t round_up_64(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static int taps_of(const struct farm_conv_u8_shape *shape) {
    return shape->stack * shape->kernel * shape->kernel;
}

static size_t plain_count(const struct farm_conv_u8_shape *shape) {
    return (size_t)taps_of(shape) * (size_t)shape->outputs;
}

static size_t winograd_count(const struct farm_conv_u8_shape *shape) {
    return (size_t)FARM_CONV_U8_PARTS * 16 * (size_t)shape->stack * (size_t)shape->outputs;
}

size_t farm_conv_u8_packed_bytes(const struct farm_conv_u8_shape *shape) {
    const size_t plain = plain_count(shape);
    if (shape->precision == FARM_CONV_U8_F32) return round_up_64(plain * sizeof(float));
    return round_up_64((size_t)shape->outputs * sizeof(float)) + round_up_64(plain * sizeof(int16_t)) +
           (farm_conv_u8_is_fast(shape) ? round_up_64(winograd_count(shape) * sizeof(int16_t)) : 0);
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
    if (farm_conv_u8_is_fast(shape)) view.winograd = (int16_t *)(void *)at;
    return view;
}

static uint32_t magnitude_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu; // order as floats have, and NaN above everything
}

void farm_conv_u8_quantise_channel(uint32_t largest_bits, int whole_max, float *step, float *inverse) {
    float largest;
    memcpy(&largest, &largest_bits, sizeof largest);
    *step = *inverse = 0;
    if (!isfinite(largest)) {
        *step = NAN;
    } else if (largest > 1e-30f) { // below, the reciprocal would overflow, and nothing is lost
        *step = largest / (float)whole_max;
        *inverse = (float)whole_max / largest;
    }
}

// Rounds one output channel's weights to whole numbers, [taps][O].
static void pack_plain(const struct farm_conv_u8_shape *shape, const float *weights, int o,
                       const struct farm_conv_u8_packed *view) {
    const int taps = taps_of(shape);
    uint32_t largest = 0;
    for (int t = 0; t < taps; t++) {
        const uint32_t bits = magnitude_bits(weights[o * taps + t]);
        if (bits > largest) largest = bits;
    }
    float step, inverse;
    farm_conv_u8_quantise_channel(largest, farm_conv_u8_whole_max(taps), &step, &inverse);
    view->scale[o] = step / 255.0f;
    for (int t = 0; t < taps; t++) {
        const float scaled = inverse == 0 ? 0 : weights[o * taps + t] * inverse;
        view->plain[t * shape->outputs + o] = (int16_t)lrintf(scaled);
    }
}

// G g Gᵀ with G = [1 0; 1 1; 0 1] of each pixel of a 4x4 block: g(i, j) is the weight at (4i + r, 4j + c).
static void pack_winograd(const struct farm_conv_u8_shape *shape, int o, const struct farm_conv_u8_packed *view) {
    enum { K = FARM_CONV_U8_KERNEL };
    const int rows = 4 * shape->stack;
    for (int row = 0; row < rows; row++) // frame row / 4, pixel row r = row % 4
        for (int c = 0; c < 4; c++) {
            const int16_t *at = view->plain + ((row / 4 * K + row % 4) * K + c) * shape->outputs + o;
            const int below = 4 * K * shape->outputs, right = 4 * shape->outputs;
            const int g[3][2] = {
                {at[0], at[right]}, {at[0] + at[below], at[right] + at[below + right]}, {at[below], at[below + right]}};
            for (int v = 0; v < 3; v++) {
                const int part[3] = {g[v][0], g[v][0] + g[v][1], g[v][1]};
                for (int h = 0; h < 3; h++) {
                    const int pair = ((o / 16 * FARM_CONV_U8_PARTS + 3 * v + h) * rows + row) * 2 + c / 2;
                    view->winograd[(pair * 16 + o % 16) * 2 + c % 2] = (int16_t)part[h];
                }
            }
        }
}

void farm_conv_u8_pack(const struct farm_conv_u8_shape *shape, const float *weights, void *packed) {
    assert(farm_conv_u8_check(shape, NULL) == FARM_OK);
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    const int taps = taps_of(shape);
    for (int o = 0; o < shape->outputs; o++) {
        if (view.plain_f32 != NULL) {
            for (int t = 0; t < taps; t++) view.plain_f32[t * shape->outputs + o] = weights[o * taps + t] / 255.0f;
        } else {
            pack_plain(shape, weights, o, &view);
            if (view.winograd != NULL) pack_winograd(shape, o, &view);
        }
    }
}

// Where the 8 channels from `channel` on of output (y, x) lie in one observation's output.
static size_t out_at(const struct farm_conv_u8_shape *shape, int y, int x, int channel) {
    const size_t position = (size_t)y * (size_t)farm_conv_u8_out_width(shape) + (size_t)x;
    if (shape->layout == FARM_CONV_U8_NHWC) return position * (size_t)shape->outputs + (size_t)channel;
    const size_t positions = (size_t)farm_conv_u8_out_height(shape) * (size_t)farm_conv_u8_out_width(shape);
    return (size_t)channel * positions + position * BLOCK;
}

static size_t out_count(const struct farm_conv_u8_shape *shape) {
    return (size_t)farm_conv_u8_out_height(shape) * (size_t)farm_conv_u8_out_width(shape) * (size_t)shape->outputs;
}

// The pixels under output (y, x), in the weights' order.
static void gather_window(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int y, int x,
                          uint8_t window[TAPS_MAX]) {
    const int k = shape->kernel;
    for (int s = 0; s < shape->stack; s++)
        for (int ky = 0; ky < k; ky++) {
            uint8_t *to = window + (s * k + ky) * k;
            if (frames[s] == NULL)
                memset(to, 0, (size_t)k);
            else
                memcpy(to, frames[s] + (y * shape->stride + ky) * shape->width + x * shape->stride, (size_t)k);
        }
}

static float relu(float value) {
    return value < 0 ? 0 : value; // NaN stays
}

// Eight outputs of one window.
static void forward_block(const struct farm_conv_u8_shape *shape, const struct farm_conv_u8_packed *view,
                          const float *bias, const uint8_t *window, int channel, float *out) {
    const int taps = taps_of(shape);
    float sum[BLOCK] = {0};
    if (view->plain_f32 != NULL) {
        for (int t = 0; t < taps; t++)
            for (int o = 0; o < BLOCK; o++) sum[o] += window[t] * view->plain_f32[t * shape->outputs + channel + o];
    } else {
        int32_t whole[BLOCK] = {0};
        for (int t = 0; t < taps; t++)
            for (int o = 0; o < BLOCK; o++) whole[o] += window[t] * view->plain[t * shape->outputs + channel + o];
        for (int o = 0; o < BLOCK; o++) sum[o] = (float)whole[o] * view->scale[channel + o];
    }
    for (int o = 0; o < BLOCK; o++) out[o] = relu(sum[o] + bias[channel + o]);
}

void farm_conv_u8_forward_portable(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                                   const uint8_t *const *frames, int batch, float *out) {
    assert(farm_conv_u8_check(shape, NULL) == FARM_OK);
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    for (int n = 0; n < batch; n++)
        for (int y = 0; y < farm_conv_u8_out_height(shape); y++)
            for (int x = 0; x < farm_conv_u8_out_width(shape); x++) {
                uint8_t window[TAPS_MAX];
                gather_window(shape, frames + n * shape->stack, y, x, window);
                for (int channel = 0; channel < shape->outputs; channel += BLOCK)
                    forward_block(shape, &view, bias, window, channel,
                                  out + (size_t)n * out_count(shape) + out_at(shape, y, x, channel));
            }
}

// The portable gradient's scratch.
struct sums {
    float *total;                  // [taps][O], over the batch, for pixels of 0 to 255
    int32_t *whole;                // [taps][O], of one observation, in steps
    float *step, *inverse, *dbias; // [O]
};

static struct sums sums_at(const struct farm_conv_u8_shape *shape, void *scratch) {
    const size_t plain = plain_count(shape), outputs = (size_t)shape->outputs;
    struct sums sums;
    sums.total = scratch;
    sums.whole = (int32_t *)(void *)(sums.total + plain);
    sums.step = (float *)(void *)(sums.whole + plain);
    sums.inverse = sums.step + outputs;
    sums.dbias = sums.inverse + outputs;
    return sums;
}

size_t farm_conv_u8_scratch_bytes(const struct farm_conv_u8_shape *shape) {
    size_t bytes = round_up_64(2 * 4 * plain_count(shape) + 3 * 4 * (size_t)shape->outputs);
#if defined(__x86_64__)
    const size_t fast = farm_conv_u8_is_fast(shape) ? farm_conv_u8_scratch_bytes_avx2(shape) : 0;
    if (fast > bytes) bytes = fast;
#endif
    return bytes;
}

// Sums dbias and finds how to quantise one observation's dout.
static void measure_dout(const struct farm_conv_u8_shape *shape, const float *dout, const struct sums *sums) {
    const int height = farm_conv_u8_out_height(shape), width = farm_conv_u8_out_width(shape);
    for (int o = 0; o < shape->outputs; o++) {
        uint32_t largest = 0;
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) {
                const float d = dout[out_at(shape, y, x, o / BLOCK * BLOCK) + (size_t)(o % BLOCK)];
                const uint32_t bits = magnitude_bits(d);
                if (bits > largest) largest = bits;
                sums->dbias[o] += d;
            }
        farm_conv_u8_quantise_channel(largest, farm_conv_u8_whole_max(height * width), &sums->step[o],
                                      &sums->inverse[o]);
    }
}

// Adds one window's share of the gradient of eight outputs.
static void backward_block(const struct farm_conv_u8_shape *shape, const uint8_t *window, const float *dout,
                           int channel, const struct sums *sums) {
    const int taps = taps_of(shape);
    if (shape->precision == FARM_CONV_U8_F32) {
        for (int t = 0; t < taps; t++)
            for (int o = 0; o < BLOCK; o++) sums->total[t * shape->outputs + channel + o] += window[t] * dout[o];
        return;
    }
    int32_t quantised[BLOCK];
    for (int o = 0; o < BLOCK; o++) {
        const float inverse = sums->inverse[channel + o];
        quantised[o] = inverse == 0 ? 0 : (int32_t)lrintf(dout[o] * inverse);
    }
    for (int t = 0; t < taps; t++)
        for (int o = 0; o < BLOCK; o++) sums->whole[t * shape->outputs + channel + o] += window[t] * quantised[o];
}

void farm_conv_u8_backward_weights_portable(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames,
                                            int batch, const float *dout, float *dweights, float *dbias,
                                            void *scratch) {
    assert(farm_conv_u8_check(shape, NULL) == FARM_OK);
    const struct sums sums = sums_at(shape, scratch);
    const int taps = taps_of(shape), outputs = shape->outputs;
    memset(sums.total, 0, plain_count(shape) * sizeof(float));
    memset(sums.dbias, 0, (size_t)outputs * sizeof(float));
    for (int n = 0; n < batch; n++, dout += out_count(shape)) {
        measure_dout(shape, dout, &sums);
        memset(sums.whole, 0, plain_count(shape) * sizeof(int32_t));
        for (int y = 0; y < farm_conv_u8_out_height(shape); y++)
            for (int x = 0; x < farm_conv_u8_out_width(shape); x++) {
                uint8_t window[TAPS_MAX];
                gather_window(shape, frames + n * shape->stack, y, x, window);
                for (int channel = 0; channel < outputs; channel += BLOCK)
                    backward_block(shape, window, dout + out_at(shape, y, x, channel), channel, &sums);
            }
        if (shape->precision == FARM_CONV_U8_I16)
            for (int i = 0; i < taps * outputs; i++) {
                const float share = (float)sums.whole[i] * sums.step[i % outputs];
                sums.total[i] += share;
            }
    }
    for (int o = 0; o < outputs; o++) {
        for (int t = 0; t < taps; t++) dweights[o * taps + t] += sums.total[t * outputs + o] / 255.0f;
        dbias[o] += sums.dbias[o];
    }
}

#if defined(__x86_64__)
static int use_avx2(const struct farm_conv_u8_shape *shape) {
    return farm_conv_u8_is_fast(shape) && __builtin_cpu_supports("avx2");
}
#endif

void farm_conv_u8_forward(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                          const uint8_t *const *frames, int batch, float *out) {
#if defined(__x86_64__)
    if (use_avx2(shape)) {
        farm_conv_u8_forward_avx2(shape, packed, bias, frames, batch, out);
        return;
    }
#endif
    farm_conv_u8_forward_portable(shape, packed, bias, frames, batch, out);
}

void farm_conv_u8_backward_weights(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                                   const float *dout, float *dweights, float *dbias, void *scratch) {
#if defined(__x86_64__)
    if (use_avx2(shape)) {
        farm_conv_u8_backward_weights_avx2(shape, frames, batch, dout, dweights, dbias, scratch);
        return;
    }
#endif
    farm_conv_u8_backward_weights_portable(shape, frames, batch, dout, dweights, dbias, scratch);
}
