// Compares every kernel of src/kernels/cuda and src/algo/cuda with the CPU's function on fresh random inputs, with
// poisoned outputs and guards behind them. Exact if the arithmetic is the same (copies, pixels, choices, bf16), else
// within a stated bound for fused multiply-adds, other versions of expf and pow, and sums in another order.
//
// test_kernels [SEED] [--few]: prints a line per check and "N passed, N failed"; exit status 1 if one failed, 77
// without a GPU. test_kernels --device: prints the machine as JSON.
#include "support.cuh"

#include <time.h>

extern "C" {
#include "../support/optimiser_step.h"
#include "algo/cuda/algo.h"
#include "algo/vtrace.h"
#include "kernels/bf16.h"
#include "kernels/lstm.h"
#include "kernels/pixels.h"
#include "nn/join.h"
#include "nn/net.h"
}

static struct random rng;
static bool few;

// ||out - reference|| / ||reference||, whose square is at least `least`; INFINITY if only one is NaN. Equal infinities
// are equal.
static double error_of(const float *out, const float *reference, size_t count, double least = 0) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        if (isnan(out[i]) && isnan(reference[i])) continue;
        if (out[i] == reference[i]) {
            if (isfinite(reference[i])) norm += (double)reference[i] * reference[i];
            continue;
        }
        const double d = (double)out[i] - reference[i];
        if (!isfinite(d)) return INFINITY;
        difference += d * d;
        norm += (double)reference[i] * reference[i];
    }
    norm = fmax(norm, least);
    return difference == 0 ? 0 : sqrt(difference / (norm > 0 ? norm : 1));
}

// ---- pull ----

// `from_shift`, `to_shift`: where pieces start, modulo 16.
static bool pull_equals(enum farm_cuda_pull_way way, const struct segment *segment, size_t bytes, uint32_t count,
                        uint32_t blocks, unsigned from_shift, unsigned to_shift) {
    const struct memory_scope scope;
    const size_t pitch = (bytes + 15) / 16 * 16 + 32, all_bytes = pitch * count;
    const uint32_t places = (uint32_t)((segment->bytes - 16) / pitch);
    const void **from = host_array<const void *>(count);
    void **to = host_array<void *>(count);
    uint8_t *expected = host_array<uint8_t>(all_bytes), *target = device_poisoned(all_bytes);
    memset(expected, POISON, all_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const size_t place = random_below(&rng, places) * pitch + from_shift;
        from[i] = segment->device + place;
        to[i] = target + i * pitch + to_shift;
        memcpy(expected + i * pitch + to_shift, segment->host + place, bytes);
    }
    const struct farm_cuda_pull pull = {device_of(from, count), device_of(to, count), count, bytes, blocks};
    FARM(farm_cuda_pull(NULL, way, &pull, err));
    CUDA(cudaDeviceSynchronize());
    return memcmp(host_of(target, all_bytes), expected, all_bytes) == 0;
}

static void test_pull(enum farm_cuda_pull_way way, const char *name) {
    struct farm_error err;
    const enum farm_status status = farm_cuda_pull_supported(way, &err);
    if (status) {
        check(status == FARM_E_UNSUPPORTED, "pull %s: refused here: %s", name, err.message);
        return;
    }
    struct segment segment = segment_make(32 << 20, true);
    for (size_t i = 0; i < segment.bytes; i += 4) {
        const uint32_t bits = random_bits(&rng);
        memcpy(segment.host + i, &bits, 4);
    }
    if (!segment.read_only)
        printf("     this driver cannot register read-only memory: pulling from a writable mapping\n");
    const size_t sizes[] = {1,    15,   16,   17,   31,   4080,  4095,  4096, 4097,
                            4111, 4112, 7056, 7061, 8192, 12288, 28224, 28231};
    for (size_t bytes : sizes) {
        const bool aligned = pull_equals(way, &segment, bytes, 37, 0, 0, 0);
        const unsigned shift = 1 + random_below(&rng, 15);
        const bool alike = pull_equals(way, &segment, bytes, 13, 9, shift, shift);
        const bool unlike = pull_equals(way, &segment, bytes, 5, 2, shift, shift ^ (1 + random_below(&rng, 15)));
        const bool one = pull_equals(way, &segment, bytes, 1, 1, 0, 0);
        check(aligned && alike && unlike && one, "pull %s of %zu bytes: aligned %d, alike %d, unlike %d, one %d", name,
              bytes, aligned, alike, unlike, one);
    }
    check(pull_equals(way, &segment, 7056, 3000, 0, 0, 0), "pull %s of 3000 pieces", name);
    check(pull_equals(way, &segment, 64, 0, 0, 0, 0), "pull %s of nothing", name);
    segment_free(&segment);
}

// ---- stack ----

struct shape {
    uint32_t rows, stack, channels, height, width;
};

static bool stack_equals(const struct shape *s, enum farm_cuda_type type, bool interleaved, bool normalised) {
    const struct memory_scope scope;
    const size_t pixels = (size_t)s->height * s->width, frame = s->channels * pixels;
    const size_t frames = (size_t)s->rows * s->stack, count = frames * frame, each = type == FARM_CUDA_BF16 ? 2 : 4;
    const size_t mirror_bytes = frames * (frame + 1) + 1; // frames at odd addresses too
    uint8_t *mirror = host_array<uint8_t>(mirror_bytes), *expected = host_array<uint8_t>(count * each);
    const void **pointers = host_array<const void *>(frames);
    for (size_t i = 0; i < mirror_bytes; i++) mirror[i] = (uint8_t)random_bits(&rng);
    uint8_t *device_mirror = device_of(mirror, mirror_bytes);
    const uint32_t images = (s->stack | s->rows) % 2 ? 1 : 2;
    int16_t *scale = host_array<int16_t>(2 * images * frame);
    for (size_t i = 0; i < images * frame; i++) {
        const float mean = random_float(&rng, 0, 255), variance = random_float(&rng, 0, 3) * mean;
        const struct farm_pixel_scale pixel = farm_pixel_scale_of(mean, variance);
        scale[i] = pixel.mean, scale[images * frame + i] = pixel.gain;
    }
    for (size_t f = 0; f < frames; f++) {
        const bool zeros = random_below(&rng, 4) == 0;
        pointers[f] = zeros ? NULL : device_mirror + f * (frame + 1);
        for (size_t i = 0; i < frame; i++) {
            const size_t plane_at = interleaved ? i % s->channels * pixels + i / s->channels : i;
            const int16_t *mean = scale + f % s->stack / (s->stack / images) * frame + plane_at;
            const uint8_t byte = mirror[f * (frame + 1) + i];
            const float number = zeros ? 0
                                 : normalised
                                     ? farm_pixel_number(farm_pixel_normalised(byte, *mean, mean[images * frame]))
                                     : farm_pixel_unit(byte);
            const uint16_t number_bf16 = farm_bf16(number);
            const size_t row = f / s->stack, pixel = interleaved ? i / s->channels : i % pixels;
            const size_t channel = f % s->stack * s->channels + (interleaved ? i % s->channels : i / pixels);
            const size_t at = (row * pixels + pixel) * s->stack * s->channels + channel;
            memcpy(expected + at * each, each == 2 ? (const void *)&number_bf16 : (const void *)&number, each);
        }
    }
    uint8_t *out = device_poisoned(count * each);
    const int16_t *device_scale = normalised ? device_of(scale, 2 * images * frame) : NULL;
    const struct farm_cuda_stack stack = {device_of(pointers, frames),
                                          s->rows,
                                          s->stack,
                                          s->channels,
                                          s->height,
                                          s->width,
                                          interleaved,
                                          type,
                                          device_scale,
                                          images,
                                          out};
    FARM(farm_cuda_stack(NULL, &stack, err));
    CUDA(cudaDeviceSynchronize());
    return memcmp(host_of(out, count * each), expected, count * each) == 0;
}

static void test_stack(void) {
    const struct shape shapes[] = {{7, 4, 1, 84, 84}, {3, 1, 1, 84, 84}, {5, 1, 3, 64, 64},
                                   {4, 3, 3, 9, 7},   {33, 4, 1, 5, 3},  {2, 2, 2, 1, 1},
                                   {1, 1, 1, 1, 1},   {0, 4, 1, 84, 84}, {2, 4, 1, 6, 6}};
    for (const struct shape &s : shapes) {
        bool good = true;
        for (int way = 0; way < 8; way++) {
            const bool equal = stack_equals(&s, way & 1 ? FARM_CUDA_BF16 : FARM_CUDA_F32, way & 2, way & 4);
            if (!equal)
                printf("     %s%s%s\n", way & 1 ? "bf16" : "f32", way & 2 ? " interleaved" : "",
                       way & 4 ? " normalised" : "");
            good = good && equal;
        }
        check(good, "stack of %u rows of %u frames %ux%ux%u in 8 ways", s.rows, s.stack, s.channels, s.height, s.width);
    }
}

// ---- layers ----

// Numbers of either type: their values on the host, the numbers on the device.
struct numbers {
    enum farm_cuda_type type;
    size_t count;
    float *host; // rounded to the type
    void *device;
};

static size_t type_bytes(enum farm_cuda_type type) {
    return type == FARM_CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
}
static const char *type_name(enum farm_cuda_type type) {
    return type == FARM_CUDA_BF16 ? "bf16" : "f32";
}
static float as_type(enum farm_cuda_type type, float x) {
    return type == FARM_CUDA_BF16 ? farm_bf16_value(farm_bf16(x)) : x;
}

// Holds `from`, or poison if NULL.
static struct numbers numbers_make(enum farm_cuda_type type, size_t count, const float *from) {
    struct numbers n = {type, count, host_array<float>(count), device_poisoned(count * type_bytes(type))};
    uint8_t *bytes = host_array<uint8_t>(count * type_bytes(type));
    for (size_t i = 0; from && i < count; i++) {
        const uint16_t rounded = farm_bf16(from[i]);
        n.host[i] = as_type(type, from[i]);
        memcpy(bytes + i * type_bytes(type), type == FARM_CUDA_BF16 ? (const void *)&rounded : &from[i],
               type_bytes(type));
    }
    if (from && count) CUDA(cudaMemcpy(n.device, bytes, count * type_bytes(type), cudaMemcpyHostToDevice));
    return n;
}
static struct numbers numbers_random(enum farm_cuda_type type, size_t count) {
    return numbers_make(type, count, random_floats(&rng, count, -2, 2));
}
// The error of the device's numbers.
static double numbers_error(const struct numbers *n, const float *expected) {
    const uint8_t *bytes = host_of((const uint8_t *)n->device, n->count * type_bytes(n->type));
    float *got = host_array<float>(n->count);
    for (size_t i = 0; i < n->count; i++) got[i] = farm_number_at(bytes, n->type == FARM_CUDA_BF16, i);
    return error_of(got, expected, n->count);
}
// Products and sums are fused on the device: they may round differently in bf16.
static double slope_bound(enum farm_cuda_type type, enum farm_activation kind) {
    const bool exact = kind == FARM_ACTIVATION_NONE || kind == FARM_ACTIVATION_RELU;
    return exact ? 0 : type == FARM_CUDA_BF16 ? 1e-3 : 1e-6;
}

static void test_activate(enum farm_cuda_type type, enum farm_activation kind, size_t rows, int channels) {
    const struct memory_scope scope;
    const size_t count = rows * (size_t)channels;
    struct numbers in = numbers_random(type, count), out = numbers_make(type, count, NULL);
    struct numbers bias = numbers_random(type, (size_t)channels);
    float *plain = host_array<float>(count), *biased = host_array<float>(count);
    for (size_t i = 0; i < count; i++) {
        plain[i] = as_type(type, farm_slope_apply(kind, in.host[i]));
        biased[i] = as_type(type, farm_slope_apply(kind, in.host[i] + bias.host[i % (size_t)channels]));
    }
    FARM(farm_cuda_activate(NULL, kind, type, in.device, NULL, out.device, count, err));
    FARM(farm_cuda_bias_activate(NULL, kind, type, bias.device, in.device, rows, channels, err));
    CUDA(cudaDeviceSynchronize());
    const double error = numbers_error(&out, plain), biased_error = numbers_error(&in, biased);
    const double bound = slope_bound(type, kind);
    check(error <= bound && biased_error <= bound,
          "activation %d of %zu rows of %d channels, %s: off by %.1e, with bias by %.1e (bound %.0e)", (int)kind, rows,
          channels, type_name(type), error, biased_error, bound);
}

static void test_slope_gradient(enum farm_cuda_type type, enum farm_activation kind, size_t rows, int channels) {
    const struct memory_scope scope;
    const size_t count = rows * (size_t)channels;
    struct numbers y = numbers_random(type, count), dy = numbers_random(type, count);
    struct numbers again = numbers_make(type, count, dy.host);
    float *before = random_floats(&rng, (size_t)channels, -1, 1), *expected = host_array<float>(count);
    float *sums = host_array<float>((size_t)channels);
    for (int c = 0; c < channels; c++) {
        double sum = before[c];
        for (size_t i = (size_t)c; i < count; i += (size_t)channels) {
            const float d = farm_slope_gradient(kind, y.host[i], dy.host[i]);
            expected[i] = as_type(type, d);
            sum += d;
        }
        sums[c] = (float)sum;
    }
    float *bias = device_of(before, (size_t)channels), *bias_again = device_of(before, (size_t)channels);
    void *scratch = device_poisoned(farm_cuda_slope_gradient_scratch_bytes(rows, channels));
    struct farm_cuda_slope_gradient g = {kind, type, rows, channels, y.device, dy.device, bias, scratch};
    FARM(farm_cuda_slope_gradient(NULL, &g, err));
    g.dy = again.device;
    g.bias_gradient = bias_again;
    FARM(farm_cuda_slope_gradient(NULL, &g, err));
    CUDA(cudaDeviceSynchronize());
    float *got = host_of(bias, (size_t)channels), *got_again = host_of(bias_again, (size_t)channels);
    // Sums of `rows` numbers of about one: relative to their size if they cancel.
    const double error = numbers_error(&dy, expected), bound = slope_bound(type, kind);
    const double sum_error = error_of(got, sums, (size_t)channels, (double)count + 1);
    check(error <= bound && sum_error < 1e-5 && memcmp(got, got_again, (size_t)channels * sizeof *got) == 0,
          "gradient of activation %d and bias, %zu rows of %d channels, %s: off by %.1e (bound %.0e), sums by %.1e "
          "(bound 1e-5)",
          (int)kind, rows, channels, type_name(type), error, bound, sum_error);
}

// Beside sums in double, from and to numbers of the type.
static void test_norm(enum farm_cuda_type type, enum farm_activation kind, size_t rows, int channels) {
    const struct memory_scope scope;
    const size_t width = (size_t)channels, count = rows * width;
    const struct numbers x = numbers_random(type, count), dy = numbers_random(type, count),
                         weight = numbers_random(type, width), bias = numbers_random(type, width),
                         y = numbers_make(type, count, NULL), dx = numbers_make(type, count, NULL),
                         addend = numbers_make(type, count, dy.host);
    float *expected = host_array<float>(count), *dx_of = host_array<float>(count), *dz = host_array<float>(count),
          *dzn = host_array<float>(count);
    double *n = host_array<double>(width), *dn = host_array<double>(width);
    for (size_t at = 0; at < count; at += width) {
        double mean = 0, variance = 0, dn_mean = 0, products = 0;
        for (size_t c = 0; c < width; c++) mean += (double)x.host[at + c] / channels;
        for (size_t c = 0; c < width; c++) variance += pow((double)x.host[at + c] - mean, 2) / channels;
        const double inverse = 1 / sqrt(variance + 1e-5);
        for (size_t c = 0; c < width; c++) {
            n[c] = ((double)x.host[at + c] - mean) * inverse;
            const float z = (float)(weight.host[c] * n[c] + bias.host[c]), d = dy.host[at + c] * farm_slope_at(kind, z);
            expected[at + c] = as_type(type, farm_slope_apply(kind, z));
            dz[at + c] = as_type(type, d);
            dzn[at + c] = as_type(type, (float)(d * n[c]));
            dn[c] = (double)d * weight.host[c];
            dn_mean += dn[c] / channels;
            products += dn[c] * n[c] / channels;
        }
        for (size_t c = 0; c < width; c++)
            dx_of[at + c] = as_type(type, (float)(inverse * (dn[c] - dn_mean - n[c] * products)));
    }
    const struct farm_cuda_norm norm = {kind,          type,        rows,     channels,      x.device,
                                        weight.device, bias.device, y.device, addend.device, dx.device};
    struct farm_cuda_norm once = norm;
    once.dy = once.dx = NULL;
    FARM(farm_cuda_norm(NULL, &once, err));
    CUDA(cudaDeviceSynchronize());
    const double error = numbers_error(&y, expected);
    FARM(farm_cuda_norm(NULL, &norm, err));
    CUDA(cudaDeviceSynchronize());
    const double bound = type == FARM_CUDA_BF16 ? 1e-2 : 1e-5, dx_error = channels == 1 ? 0 : numbers_error(&dx, dx_of),
                 weights_error = numbers_error(&y, dzn), biases_error = numbers_error(&addend, dz);
    check(error < bound && dx_error < bound && weights_error < bound && biases_error < bound,
          "normalisation of %zu rows of %d channels, activation %d, %s: off by %.1e, the gradients by %.1e, %.1e, %.1e "
          "(bound %.0e)",
          rows, channels, (int)kind, type_name(type), error, dx_error, weights_error, biases_error, bound);
}

// Few different values, so maxima occur more than once.
static void test_pool(enum farm_cuda_type type, size_t rows, const struct farm_pool *p) {
    const struct memory_scope scope;
    const size_t in_row = (size_t)p->height * (size_t)p->width * (size_t)p->channels, ins = rows * in_row;
    const size_t out_row = (size_t)p->out_height * (size_t)p->out_width * (size_t)p->channels, outs = rows * out_row;
    float *values = random_floats(&rng, ins, 0, 1), *maxima = host_array<float>(outs);
    for (size_t i = 0; i < ins; i++) values[i] = (float)random_below(&rng, 5) - 3;
    struct numbers in = numbers_make(type, ins, values), out = numbers_make(type, outs, NULL);
    struct numbers out_alone = numbers_make(type, outs, NULL); // as in inference: without places
    struct numbers dy = numbers_random(type, outs), dx = numbers_make(type, ins, NULL);
    uint8_t *where = host_array<uint8_t>(outs), *device_where = device_poisoned(outs);
    const size_t channels = (size_t)p->channels;
    for (size_t i = 0; i < outs; i++) {
        const size_t pixel = i % out_row / channels;
        maxima[i] = farm_pool_maximum(p, in.host + i / out_row * in_row, false, (int)(pixel / (size_t)p->out_width),
                                      (int)(pixel % (size_t)p->out_width), (int)(i % channels), &where[i]);
    }
    for (size_t i = 0; i < ins; i++) {
        const size_t pixel = i % in_row / channels, first = i / in_row * out_row;
        values[i] =
            as_type(type, farm_pool_gradient(p, dy.host + first, where + first, false, (int)(pixel / (size_t)p->width),
                                             (int)(pixel % (size_t)p->width), (int)(i % channels)));
    }
    FARM(farm_cuda_pool(NULL, p, type, rows, in.device, out.device, device_where, err));
    FARM(farm_cuda_pool(NULL, p, type, rows, in.device, out_alone.device, NULL, err));
    FARM(farm_cuda_pool_gradient(NULL, p, type, rows, dy.device, device_where, dx.device, err));
    CUDA(cudaDeviceSynchronize());
    const bool same = memcmp(host_of(device_where, outs), where, outs) == 0;
    const double error = fmax(numbers_error(&out, maxima), numbers_error(&out_alone, maxima));
    const double gradient_error = numbers_error(&dx, values);
    check(same && error == 0 && gradient_error == 0,
          "maxima of %zu pictures %dx%dx%d, kernel %d, stride %d, %s: off by %.1e, places %d, gradient off by %.1e",
          rows, p->height, p->width, p->channels, p->kernel, p->stride, type_name(type), error, same, gradient_error);
}

// A convolution of pictures, and its gradients, beside sums in double.
static void test_conv(struct farm_cuda_conv c, bool add, bool relu) {
    const struct memory_scope scope;
    const int row = c.kernel * c.channels;
    const size_t in = (size_t)c.rows * c.height * c.width * c.channels, out_channels = (size_t)c.out_channels,
                 out = (size_t)c.rows * c.out_height * c.out_width * out_channels,
                 weights = out_channels * c.kernel * row;
    const struct numbers x = numbers_random(FARM_CUDA_BF16, in), weight = numbers_random(FARM_CUDA_BF16, weights),
                         bias = numbers_random(FARM_CUDA_BF16, out_channels), dy = numbers_random(FARM_CUDA_BF16, out),
                         y = numbers_make(FARM_CUDA_BF16, out, add ? dy.host : NULL),
                         dx = numbers_make(FARM_CUDA_BF16, in, NULL);
    double *sum_x = host_array<double>(in), *sum_w = host_array<double>(weights);
    float *expected_y = host_array<float>(out), *expected_x = host_array<float>(in);
    for (size_t at = 0; at < out; at++) {
        const int n = (int)(at % out_channels), ox = (int)(at / out_channels % c.out_width),
                  oy = (int)(at / out_channels / c.out_width % c.out_height),
                  picture = (int)(at / out_channels / c.out_width / c.out_height);
        double sum = bias.host[n] + (add ? dy.host[at] : 0);
        for (int kh = 0; kh < c.kernel; kh++)
            for (int e = 0; e < row; e++) {
                const int iy = oy * c.stride - c.top + kh, ix = ox * c.stride - c.left + e / c.channels;
                if (iy < 0 || iy >= c.height || ix < 0 || ix >= c.width) continue;
                const size_t i = (((size_t)picture * c.height + iy) * c.width + ix) * c.channels + e % c.channels,
                             w = ((size_t)n * c.kernel + kh) * row + e;
                sum += (double)x.host[i] * weight.host[w];
                sum_x[i] += (double)dy.host[at] * weight.host[w];
                sum_w[w] += (double)dy.host[at] * x.host[i];
            }
        expected_y[at] = as_type(FARM_CUDA_BF16, relu && sum < 0 ? 0 : (float)sum);
    }
    float *before = random_floats(&rng, weights, -1, 1), *expected_w = host_array<float>(weights);
    for (size_t i = 0; i < in; i++) expected_x[i] = as_type(FARM_CUDA_BF16, (float)sum_x[i]);
    for (size_t i = 0; i < weights; i++) expected_w[i] = (float)(sum_w[i] + before[i]);
    float *gradient = device_of(before, weights), *again = device_of(before, weights);
    void *scratch = device_poisoned(farm_cuda_conv_scratch_bytes(&c));
    FARM(farm_cuda_conv_forward(NULL, &c, x.device, weight.device, bias.device, add, relu, y.device, err));
    FARM(farm_cuda_conv_weight_gradient(NULL, &c, x.device, dy.device, gradient, scratch, err));
    FARM(farm_cuda_conv_weight_gradient(NULL, &c, x.device, dy.device, again, scratch, err));
    const bool data = farm_cuda_conv_has(&c, FARM_CUDA_CONV_DATA);
    if (data) FARM(farm_cuda_conv_data_gradient(NULL, &c, weight.device, dy.device, dx.device, err));
    CUDA(cudaDeviceSynchronize());
    const float *got = host_of(gradient, weights), *got_again = host_of(again, weights);
    // Sums in f32 that lie beside the middle of two bf16 numbers round otherwise: one of few numbers shows.
    const double error = numbers_error(&y, expected_y), error_w = error_of(got, expected_w, weights),
                 error_x = data ? numbers_error(&dx, expected_x) : 0, bound = fmax(2e-4, 0.016 / sqrt((double)out)),
                 bound_x = fmax(2e-4, 0.016 / sqrt((double)in));
    check(error < bound && error_w < 1e-5 && error_x < bound_x && memcmp(got, got_again, weights * sizeof *got) == 0,
          "convolution of %d rows of %dx%dx%d, %d of %d at stride %d%s%s: off by %.1e (bound %.1e), the "
          "gradient by the weight by %.1e (1e-5), by the input by %.1e (%.1e)",
          c.rows, c.height, c.width, c.channels, c.out_channels, c.kernel, c.stride, add ? ", added" : "",
          relu ? ", ReLU" : "", error, bound, error_w, error_x, bound_x);
}

// Several bands a picture, a short last one, more bands than blocks, a band of one row that needs much shared memory.
static void test_convs(void) {
    const struct {
        int channels, kernel, out_channels, stride;
    } sizes[] = {{4, 3, 16, 1}, {16, 3, 16, 1}, {16, 3, 32, 1}, {32, 3, 32, 1}, {4, 8, 16, 4}, {4, 8, 32, 4}};
    const struct {
        int rows, height, width, pad;
    } pictures[] = {{1, 9, 11, 1},  {2, 26, 17, 1}, {2, 12, 13, 0},  {265, 1, 4, 1},
                    {1, 4, 230, 1}, {3, 42, 35, 1}, {300, 12, 9, 0}, {2, 84, 84, 1}};
    for (const auto &s : sizes)
        for (const auto &p : pictures) {
            const int pad = s.stride == 1 ? p.pad : 0, height = p.height + 2 * pad - s.kernel,
                      width = p.width + 2 * pad - s.kernel;
            if (height < 0 || width < 0 ||
                (few && p.rows * p.height * p.width * (p.rows > 100 ? s.channels : 4) > 5000))
                continue;
            const struct farm_cuda_conv c = {
                p.rows,   p.height, p.width, s.channels, height / s.stride + 1, width / s.stride + 1, s.out_channels,
                s.kernel, s.stride, pad,     pad};
            test_conv(c, p.rows == 2 || p.height == 4, p.rows == 1);
        }
    struct farm_cuda_conv wide = {1, 4, 4096, 32, 4, 4096, 32, 3, 1, 1, 1};
    struct farm_error err;
    check(!farm_cuda_conv_has(&wide, FARM_CUDA_CONV_FORWARD) &&
              farm_cuda_conv_forward(NULL, &wide, NULL, NULL, NULL, false, false, NULL, &err) == FARM_E_UNSUPPORTED,
          "a picture that is too wide: %s", err.message);
}

// Kernels over single numbers: activations' gradients, ReLU's added, and bf16 rounded and added, or f32 scaled and
// masked.
static void test_elements(enum farm_cuda_type type, size_t count) {
    const struct memory_scope scope;
    struct numbers y = numbers_random(type, count), dy = numbers_random(type, count), sum = numbers_random(type, count);
    struct numbers x = numbers_random(FARM_CUDA_F32, count), total = numbers_random(FARM_CUDA_F32, count);
    struct numbers rounded = numbers_make(FARM_CUDA_BF16, count, NULL);
    float *expected = host_array<float>(count), *mask = host_array<float>(count);
    for (size_t i = 0; i < count; i++) {
        mask[i] = i % 3 > 0;
        expected[i] = as_type(type, sum.host[i] + farm_slope_gradient(FARM_ACTIVATION_RELU, y.host[i], dy.host[i]));
        rounded.host[i] = as_type(FARM_CUDA_BF16, x.host[i]);
        total.host[i] += rounded.host[i];
        x.host[i] *= 0.37f * mask[i];
    }
    FARM(farm_cuda_activate(NULL, FARM_ACTIVATION_RELU, type, y.device, dy.device, sum.device, count, err));
    for (int k = FARM_ACTIVATION_TANH; k <= FARM_ACTIVATION_SILU; k++) {
        const enum farm_activation kind = (enum farm_activation)k;
        const struct numbers dx = numbers_make(type, count, NULL);
        float *slopes = host_array<float>(count);
        for (size_t i = 0; i < count; i++) slopes[i] = as_type(type, farm_slope_at(kind, y.host[i]) * dy.host[i]);
        FARM(farm_cuda_activate(NULL, kind, type, y.device, dy.device, dx.device, count, err));
        CUDA(cudaDeviceSynchronize());
        const double error = numbers_error(&dx, slopes), bound = slope_bound(type, kind);
        check(error <= bound, "gradient of activation %d, %zu numbers, %s: off by %.1e (bound %.0e)", k, count,
              type_name(type), error, bound);
    }
    if (type == FARM_CUDA_BF16) {
        FARM(farm_cuda_round(NULL, (const float *)x.device, (uint16_t *)rounded.device, count, err));
        FARM(farm_cuda_add_bf16(NULL, (const uint16_t *)rounded.device, (float *)total.device, count, err));
    } else {
        FARM(farm_cuda_scale(NULL, (float *)x.device, count, 0.37f, device_of(mask, count), err));
    }
    CUDA(cudaDeviceSynchronize());
    check(numbers_error(&sum, expected) == 0, "ReLU's gradient added, %zu numbers, %s", count, type_name(type));
    if (type == FARM_CUDA_BF16)
        check(numbers_error(&rounded, rounded.host) == 0 && numbers_error(&total, total.host) == 0,
              "%zu numbers rounded and added", count);
    else
        check(numbers_error(&x, x.host) == 0, "%zu numbers scaled", count);
}

// Copies a value in device memory into a word of the host.
static void test_signal(void) {
    const struct memory_scope scope;
    struct segment segment = segment_make(4096, false);
    const uint64_t value = 0x0123456789abcdefull;
    uint64_t *device_value = device_of(&value, 1);
    memset(segment.host, POISON, 24);
    FARM(farm_cuda_signal(NULL, (uint64_t *)segment.device + 1, device_value, err));
    CUDA(cudaDeviceSynchronize());
    uint64_t words[3], poison;
    memcpy(words, segment.host, sizeof words);
    memset(&poison, POISON, sizeof poison);
    check(words[0] == poison && words[1] == value && words[2] == poison, "a word of the host is signalled");
    segment_free(&segment);
}

static void test_heads(enum farm_cuda_type type, uint32_t rows, int actions, int pitch) {
    const struct memory_scope scope;
    const size_t logit_count = (size_t)rows * (size_t)actions, count = (size_t)rows * (size_t)pitch;
    struct numbers product = numbers_random(FARM_CUDA_F32, count), bias = numbers_random(type, (size_t)actions + 1);
    struct numbers logits = numbers_make(FARM_CUDA_F32, logit_count, NULL);
    struct numbers value = numbers_make(FARM_CUDA_F32, rows, NULL), joined = numbers_make(type, count, NULL);
    struct numbers dlogits = numbers_random(FARM_CUDA_F32, logit_count), dvalue = numbers_random(FARM_CUDA_F32, rows);
    float *expected_logits = host_array<float>(logit_count), *expected_value = host_array<float>(rows);
    float *expected = host_array<float>(count);
    for (size_t i = 0; i < count; i++) {
        const size_t row = i / (size_t)pitch, a = i % (size_t)pitch, at = row * (size_t)actions + a;
        const bool logit = a < (size_t)actions, is_value = a == (size_t)actions;
        expected[i] = as_type(type, logit ? dlogits.host[at] : is_value ? dvalue.host[row] : 0);
        if (logit) expected_logits[at] = product.host[i] + bias.host[a];
        if (is_value) expected_value[row] = product.host[i] + bias.host[a];
    }
    const struct farm_cuda_heads heads = {type, rows, actions, pitch};
    FARM(farm_cuda_heads_split(NULL, &heads, (const float *)product.device, bias.device, (float *)logits.device,
                               (float *)value.device, err));
    FARM(farm_cuda_heads_join(NULL, &heads, (const float *)dlogits.device, (const float *)dvalue.device, joined.device,
                              err));
    CUDA(cudaDeviceSynchronize());
    check(numbers_error(&logits, expected_logits) == 0 && numbers_error(&value, expected_value) == 0 &&
              numbers_error(&joined, expected) == 0,
          "heads of %u rows of %d actions in %d, %s", rows, actions, pitch, type_name(type));
}

// Gradients add up over two calls. Fused sums may round to the next bf16.
static void test_join(enum farm_cuda_type type, uint32_t rows, int features, int flat) {
    const struct memory_scope scope;
    const size_t units = FARM_NET_JOIN_UNITS, weights = units * (size_t)flat, in = (size_t)rows * (size_t)features,
                 out = (size_t)rows * ((size_t)features + units);
    const bool bf16 = type == FARM_CUDA_BF16;
    const struct numbers x = numbers_random(type, in), y = numbers_make(type, out, NULL),
                         dy = numbers_random(type, out);
    const struct numbers weight = numbers_random(type, weights), bias = numbers_random(type, units);
    const struct numbers dx = numbers_make(type, in, NULL),
                         numbers = numbers_random(FARM_CUDA_F32, (size_t)rows * flat);
    const struct numbers gradient = numbers_random(FARM_CUDA_F32, weights + units);
    const struct farm_join cpu = {features, flat, bf16, weight.host, bias.host};
    uint8_t *in_x = host_of((const uint8_t *)x.device, in * type_bytes(type)), *in_dx = host_array<uint8_t>(in * 4);
    uint8_t *out_dy = host_of((const uint8_t *)dy.device, out * type_bytes(type)),
            *out_y = host_array<uint8_t>(out * 4);
    float *expected_y = host_array<float>(out), *expected_dx = host_array<float>(in);
    farm_join_forward(&cpu, in_x, numbers.host, (int)rows, out_y);
    for (size_t i = 0; i < out; i++) expected_y[i] = farm_number_at(out_y, bf16, i);
    const struct farm_cuda_join join = {type, rows, features, (int)units, flat, (const float *)numbers.device};
    FARM(farm_cuda_join(NULL, &join, x.device, weight.device, bias.device, y.device, err));
    const double forward = numbers_error(&y, expected_y);
    if (rows) CUDA(cudaMemcpy(y.device, out_y, out * type_bytes(type), cudaMemcpyHostToDevice));
    for (int call = 0; call < 2; call++) {
        float *sums = (float *)gradient.device;
        farm_join_backward(&cpu, numbers.host, out_y, out_dy, (int)rows, in_dx, gradient.host, gradient.host + weights);
        FARM(farm_cuda_join_gradient(NULL, &join, y.device, dy.device, dx.device, sums, sums + weights, err));
    }
    for (size_t i = 0; i < in; i++) expected_dx[i] = farm_number_at(in_dx, bf16, i);
    const double backward = numbers_error(&gradient, gradient.host);
    check(forward <= (bf16 ? 1e-3 : 1e-6) && backward <= 1e-5 && numbers_error(&dx, expected_dx) == 0,
          "a join of %d numbers beside %d features in %u rows, %s: off by %.1e, gradients by %.1e", flat, features,
          rows, type_name(type), forward, backward);
}

// A step of an LSTM layer, whose state has `state` numbers, and back through it.
static void test_lstm(enum farm_cuda_type type, uint32_t columns, uint32_t units, uint32_t state, bool last) {
    const struct memory_scope scope;
    const size_t count = (size_t)columns * units, next = last ? 0 : count;
    const struct numbers gates = numbers_random(FARM_CUDA_F32, 4 * count), out = numbers_make(type, count, NULL);
    const struct numbers bias_ih = numbers_random(type, 4 * (size_t)units), bias_hh = numbers_random(type, 4 * units);
    const struct numbers in = numbers_random(FARM_CUDA_F32, columns * state);
    const struct numbers state_out = numbers_make(FARM_CUDA_F32, columns * state, in.host);
    const struct numbers cells = numbers_make(FARM_CUDA_F32, 2 * count, NULL);
    const struct numbers before = numbers_make(type, count + next, NULL), dout = numbers_random(type, count);
    const struct numbers dh_after = numbers_random(FARM_CUDA_F32, count), dcells = numbers_random(FARM_CUDA_F32, count);
    const struct numbers dgates = numbers_make(type, 4 * count, NULL);
    uint8_t *flags = host_array<uint8_t>(2 * columns);
    for (uint32_t i = 0; i < 2 * columns; i++) flags[i] = random_below(&rng, 3) ? FARM_STEP_LAST : FARM_STEP_FIRST;
    float *sums_back = host_array<float>(4 * count);
    for (size_t i = 0; i < count; i++) {
        const size_t c = i / units, u = i % units, at = c * 4 * units + u, s = c * state + u;
        const bool first = flags[c] & FARM_STEP_FIRST, cut = last || flags[columns + c] & FARM_STEP_FIRST;
        struct farm_lstm_gates sums;
        float *sum[] = {&sums.i, &sums.f, &sums.g, &sums.o}, cell = first ? 0 : in.host[s + units];
        const float cell_before = cell;
        for (size_t k = 0; k < 4; k++)
            *sum[k] = gates.host[at + k * units] + bias_ih.host[k * units + u] + bias_hh.host[k * units + u];
        const float h = farm_lstm_forward(&sums, &cell);
        for (size_t k = 0; k < 4; k++) gates.host[at + k * units] = *sum[k];
        before.host[i] = first ? 0 : as_type(type, in.host[s]);
        if (!last) before.host[count + i] = cut ? 0 : as_type(type, h);
        cells.host[i] = in.host[s + units], cells.host[count + i] = cell;
        out.host[i] = as_type(type, h);
        if (last) state_out.host[s] = h, state_out.host[s + units] = cell;
        if (cut) dcells.host[i] = 0;
        const struct farm_lstm_gates back =
            farm_lstm_backward(&sums, cell_before, cell, dout.host[i] + (cut ? 0 : dh_after.host[i]), &dcells.host[i]);
        const float backs[] = {back.i, back.f, back.g, back.o};
        for (size_t k = 0; k < 4; k++) sums_back[at + k * units] = as_type(type, backs[k]);
    }
    const struct farm_cuda_lstm lstm = {type,
                                        columns,
                                        units,
                                        state,
                                        last,
                                        device_of(flags, (last ? 1 : 2) * (size_t)columns),
                                        (float *)gates.device,
                                        (float *)cells.device,
                                        before.device};
    FARM(farm_cuda_lstm_enter(NULL, &lstm, (const float *)in.device, err));
    FARM(farm_cuda_lstm_forward(NULL, &lstm, bias_ih.device, bias_hh.device, out.device, (float *)state_out.device,
                                err));
    FARM(farm_cuda_lstm_backward(NULL, &lstm, dout.device, last ? NULL : (const float *)dh_after.device,
                                 (float *)dcells.device, dgates.device, err));
    CUDA(cudaDeviceSynchronize());
    const struct numbers *f32[] = {&gates, &cells, &state_out, &dcells}, *rounded[] = {&out, &before};
    double error = 0, rounded_error = numbers_error(&dgates, sums_back);
    for (const struct numbers *n : f32) error = fmax(error, numbers_error(n, n->host));
    for (const struct numbers *n : rounded) rounded_error = fmax(rounded_error, numbers_error(n, n->host));
    check(error < 1e-5 && rounded_error < (type == FARM_CUDA_BF16 ? 2e-3 : 1e-5),
          "LSTM of %u units in %u columns, %s%s: off by %.1e (bound 1e-5), in its type by %.1e", units, columns,
          type_name(type), last ? ", last step" : "", error, rounded_error);
}

static void test_layers(enum farm_cuda_type type) {
    const struct farm_pool pools[] = {{84, 84, 16, 42, 42, 3, 2, 0, 0}, {21, 11, 32, 11, 6, 3, 2, 1, 1},
                                      {9, 7, 5, 4, 3, 2, 2, 0, 0},      {6, 8, 3, 6, 8, 3, 1, 1, 1},
                                      {1, 1, 7, 1, 1, 3, 2, 1, 1},      {13, 5, 9, 5, 3, 5, 3, 2, 2},
                                      {10, 13, 12, 5, 7, 3, 2, 0, 1}};
    for (const struct farm_pool &p : pools) test_pool(type, p.height > 80 ? 3 : 17, &p);
    const size_t rows[] = {0, 1, 7, 64, 1001, 26901};
    const int channels[] = {1, 5, 8, 16, 24, 64, 257, 2056};
    for (size_t r : rows)
        for (int c : channels) {
            if (r * (size_t)c > (few ? 100000 : 2000000)) continue;
            for (int kind = FARM_ACTIVATION_RELU; kind <= FARM_ACTIVATION_SILU; kind++) {
                test_activate(type, (enum farm_activation)kind, r, c);
                if (kind <= FARM_ACTIVATION_NONE) test_slope_gradient(type, (enum farm_activation)kind, r, c);
            }
            test_norm(type, (enum farm_activation)(c % 5), r, c);
        }
    const size_t counts[] = {0, 1, 3, 8, 1023, 4096, 70001};
    for (size_t count : counts) test_elements(type, count);
    test_heads(type, 0, 6, 8);
    test_heads(type, 1, 1, 2);
    test_heads(type, 673, 6, 8);
    test_heads(type, 100, 18, 24);
    test_join(type, 0, 256, 3);
    test_join(type, 1, 1, 1);
    test_join(type, 673, 256, 17);
    test_join(type, 257, 19, 8);
    for (int last = 0; last < 2; last++) {
        test_lstm(type, 0, 8, 16, last);
        test_lstm(type, 1, 1, 2, last);
        test_lstm(type, 37, 19, 80, last);
        test_lstm(type, 64, 256, 512, last);
    }
}

// ---- V-trace ----

static uint8_t random_flags(void) {
    const uint32_t draw = random_below(&rng, 20);
    if (draw == 0) return FARM_STEP_FIRST;
    if (draw == 1) return FARM_STEP_LAST | FARM_STEP_TERMINATED;
    if (draw == 2) return FARM_STEP_LAST | FARM_STEP_TRUNCATED;
    return 0;
}

// Forbids every third action except the first in a quarter of the rows.
static void forbid_actions(float *logits, int rows, int actions) {
    for (int row = 0; row < rows; row += 4)
        for (int a = 1; a < actions; a += 3) logits[row * actions + a] = -INFINITY;
}

// Twice, because terms add up over calls.
static void differentiate_on_cpu(const struct farm_algo_rows *rows, double *terms) {
    const int count = farm_algo_row_count(rows);
    for (int call = 0; call < 2; call++) {
        for (int row = 0; row < count; row++) farm_vtrace_prepare(rows, row);
        for (int column = 0; column < rows->columns; column++) farm_vtrace_column(rows, column);
        for (int row = 0; row < count; row++) {
            float term[FARM_VTRACE_TERMS] = {0};
            farm_vtrace_row(rows, row, term);
            for (int k = 0; k < FARM_VTRACE_TERMS; k++) terms[k] += term[k];
        }
        for (int row = count; row < count + rows->columns; row++) farm_algo_no_gradient(rows, row);
    }
}
static void differentiate_on_gpu(const struct farm_algo_rows *rows, void *scratch, double *terms) {
    double *device = device_of(terms, FARM_ALGO_TERMS_MAX);
    for (int call = 0; call < 2; call++)
        FARM(farm_cuda_algo_differentiate(NULL, "vtrace", rows, true, scratch, device, err));
    CUDA(cudaMemcpy(terms, device, FARM_ALGO_TERMS_MAX * sizeof *terms, cudaMemcpyDeviceToHost));
}

static double relative_error(double x, double reference) {
    return fabs(x - reference) / fmax(1, fabs(reference));
}

static void test_vtrace(int steps, int columns, int actions) {
    const struct memory_scope scope;
    const size_t count = (size_t)steps * columns, rows = count + columns, outputs = rows * actions;
    const float option[] = {0.99f, 0.01f, 0.5f, 1, 1, 1.5f, 0.95f};
    float *policy = random_floats(&rng, outputs, -4, 4), *behaviour = random_floats(&rng, outputs, -4, 4);
    float *value = random_floats(&rng, rows, -5, 5), *reward = random_floats(&rng, rows, -2, 2);
    int32_t *action = host_array<int32_t>(rows);
    uint8_t *flags = host_array<uint8_t>(rows);
    forbid_actions(behaviour, (int)rows, actions);
    for (size_t row = 0; row < rows; row++) {
        flags[row] = random_flags();
        action[row] = (int32_t)random_below(&rng, (uint32_t)(actions + 2) / 3) * 3; // never forbidden
        if (flags[row] & FARM_STEP_LAST)                                            // must not be read
            action[row] = -1000000, policy[row * actions] = behaviour[row * actions] = NAN;
    }
    struct farm_algo_rows cpu = {};
    memcpy(cpu.option, option, sizeof option);
    cpu.head = farm_head_categorical(actions);
    cpu.steps = steps, cpu.columns = cpu.bootstrap = columns;
    struct farm_algo_rows gpu = cpu;
    cpu.policy = policy, cpu.behaviour = behaviour, cpu.value = value, cpu.reward = reward, cpu.flags = flags;
    cpu.action = (const uint8_t *)action;
    cpu.scratch = random_floats(&rng, FARM_VTRACE_SCRATCH * count, 0, 1);
    cpu.dpolicy = random_floats(&rng, outputs, 0, 1), cpu.dvalue = random_floats(&rng, rows, 0, 1);
    gpu.policy = device_of(policy, outputs); // to be masked by the kernels
    forbid_actions(policy, (int)rows, actions);
    gpu.behaviour = device_of(behaviour, outputs);
    gpu.value = device_of(value, rows), gpu.reward = device_of(reward, rows), gpu.flags = device_of(flags, rows);
    gpu.action = (const uint8_t *)device_of(action, rows);
    gpu.scratch = device_poisoned<float>(FARM_VTRACE_SCRATCH * count);
    gpu.dpolicy = device_poisoned<float>(outputs), gpu.dvalue = device_poisoned<float>(rows);
    void *sums = device_poisoned(farm_cuda_algo_scratch_bytes((int)rows));
    double expected[FARM_ALGO_TERMS_MAX] = {}, terms[FARM_ALGO_TERMS_MAX] = {}, again[FARM_ALGO_TERMS_MAX] = {};
    differentiate_on_cpu(&cpu, expected);
    differentiate_on_gpu(&gpu, sums, terms);
    differentiate_on_gpu(&gpu, sums, again);

    float *scratch = host_of(gpu.scratch, FARM_VTRACE_SCRATCH * count);
    float *dpolicy = host_of(gpu.dpolicy, outputs), *dvalue = host_of(gpu.dvalue, rows);
    double trace_error = 0, sum_error = 0;
    for (int k = 0; k < FARM_VTRACE_SCRATCH; k++)
        trace_error = fmax(trace_error, error_of(scratch + k * count, cpu.scratch + k * count, count));
    for (int k = 0; k < FARM_ALGO_TERMS_MAX; k++)
        if (k != FARM_VTRACE_CLIPPED) sum_error = fmax(sum_error, relative_error(terms[k], expected[k]));
    const double error = fmax(error_of(dpolicy, cpu.dpolicy, outputs), error_of(dvalue, cpu.dvalue, rows));
    bool zeros = true; // poison is a small number
    for (size_t row = 0; row < rows; row++) zeros &= cpu.dvalue[row] != 0 || dvalue[row] == 0;
    const bool clipped = fabs(terms[FARM_VTRACE_CLIPPED] - expected[FARM_VTRACE_CLIPPED]) <= 2; // a ratio at the bound
    check(trace_error < 1e-5 && error < 1e-5 && sum_error < 1e-5 && zeros && clipped,
          "V-trace of %d steps of %d columns of %d actions: targets off by %.1e, gradients by %.1e, sums by %.1e "
          "(bounds 1e-5)",
          steps, columns, actions, trace_error, error, sum_error);
    check(memcmp(terms, again, sizeof terms) == 0, "V-trace of %d steps of %d columns: the same bits again", steps,
          columns);
}

// ---- sampling ----

// Whether u is so near the border between two actions' shares that either is right.
static bool near_border(const float *logits, int actions, float u) {
    double sum = 0, below = 0, largest = logits[farm_categorical_greedy(logits, actions)];
    for (int a = 0; a < actions; a++) sum += exp(logits[a] - largest);
    for (int a = 0; a < actions; a++) {
        below += exp(logits[a] - largest);
        if (fabs(below / sum - u) < 4e-6) return true;
    }
    return false;
}

// how: 0 draws from logits, 1 is greedy, 2 explores by duelling action-values under version 3 of device memory.
static void test_sample(uint32_t rows, int actions, int how) {
    const struct memory_scope scope;
    float *logits = random_floats(&rng, (size_t)rows * actions, -6, 6);
    uint8_t *mask = host_array<uint8_t>((size_t)rows * actions); // what forbid_actions forbids
    for (size_t i = 0; i < (size_t)rows * actions; i++) mask[i] = i / actions % 4 || i % actions % 3 != 1;
    for (uint32_t row = 5; row < rows; row += 97) logits[(size_t)row * actions + random_below(&rng, actions)] = NAN;
    uint64_t *stream = host_array<uint64_t>(rows), *counter = host_array<uint64_t>(rows);
    for (uint32_t row = 0; row < rows; row++) {
        stream[row] = farm_random_stream(random_bits(&rng), random_below(&rng, 64));
        counter[row] = (uint64_t)random_bits(&rng) << 20 | random_bits(&rng);
    }
    struct farm_cuda_sample sample = {};
    static const char *const kinds[] = {"categorical", "greedy", "action-values"};
    const uint64_t version = 3;
    float *value = random_floats(&rng, rows, -6, 6);
    sample.sampler.greedy = how == 1;
    sample.sampler.seed = (uint64_t)random_bits(&rng) << 32 | random_bits(&rng);
    sample.sampler.epsilon_start = 1, sample.sampler.epsilon_versions = 4, sample.sampler.ladder = 3;
    sample.sampler.environments = 1ull << 32, sample.sampler.width = 1;
    sample.rows = rows;
    sample.head = farm_head_categorical(actions);
    if (how == 2) sample.head.kind = FARM_HEAD_GREEDY_Q, sample.head.duelling = 1;
    sample.version = device_of(&version, 1);
    sample.value = device_of(value, rows);
    sample.stream = device_of(stream, rows);
    sample.counter = device_of(counter, rows);
    sample.mask = how ? device_of(mask, (size_t)rows * actions) : NULL;
    if (!how) forbid_actions(logits, (int)rows, actions);
    sample.policy = device_of(logits, (size_t)rows * actions);
    if (how) forbid_actions(logits, (int)rows, actions); // the kernel masks its own
    sample.action = device_poisoned(rows * sizeof(int32_t));
    FARM(farm_cuda_sample(NULL, &sample, err));
    CUDA(cudaDeviceSynchronize());
    int32_t *got = host_of((const int32_t *)sample.action, rows), chosen = -1;
    const float *values = host_of(sample.value, rows);
    uint32_t wrong = 0, border = 0;
    sample.sampler.version = version;
    for (uint32_t row = 0; row < rows; row++) {
        float *of = logits + (size_t)row * actions;
        farm_head_finish(&sample.head, of, &value[row]);
        wrong += !(values[row] == value[row] || isnan(value[row]));
        farm_head_choose(&sample.head, &sample.sampler, stream[row], counter[row], of, &chosen, NULL);
        if (got[row] == chosen) continue;
        const float u = farm_random_uniform(sample.sampler.seed, stream[row], counter[row]);
        const float epsilon = farm_sampler_epsilon(&sample.sampler, stream[row]);
        const bool either = how != 1 && got[row] >= 0 && got[row] < actions && of[got[row]] > -INFINITY &&
                            (how ? fabsf(u - epsilon) < 1e-6f : near_border(of, actions, u));
        *(either ? &border : &wrong) += 1;
    }
    const float *masked = host_of(sample.policy, (size_t)rows * actions);
    for (size_t i = 0; i < (size_t)rows * actions; i++) wrong += !(masked[i] == logits[i] || isnan(logits[i]));
    check(wrong == 0 && border <= 2 + rows / 10000, "sampling of %u rows of %d actions, %s: %u wrong, %u on a border",
          rows, actions, kinds[how], wrong, border);
}

// Squashed numbers and their samples, or scaled ones; a greedy choice needs no draw.
static void test_sample_numbers(uint32_t rows, int dims, bool squash) {
    const struct memory_scope scope;
    const size_t numbers = (size_t)rows * dims;
    struct farm_env_spec env = {};
    env.action.kind = FARM_ACTION_CONTINUOUS;
    env.action.dims = (uint32_t)dims;
    for (int d = 0; d < dims; d++) env.action.low[d] = -2 - (float)d, env.action.high[d] = 1;
    struct farm_head_options options = {};
    options.squash = squash;
    options.scale = true;
    struct farm_cuda_sample sample = {};
    FARM(farm_head_make(&env, options, &sample.head, err));
    float *policy = random_floats(&rng, 2 * numbers, -2, 2);
    uint64_t *stream = host_array<uint64_t>(rows), *counter = host_array<uint64_t>(rows);
    for (uint32_t row = 0; row < rows; row++) stream[row] = farm_random_stream(row, 3), counter[row] = 7 * row;
    sample.sampler.greedy = rows == 1;
    sample.sampler.seed = 11;
    sample.rows = rows;
    sample.stream = device_of(stream, rows), sample.counter = device_of(counter, rows);
    sample.policy = device_of(policy, 2 * numbers);
    sample.action = device_poisoned(numbers * sizeof(float)), sample.sample = device_poisoned(numbers * sizeof(float));
    FARM(farm_cuda_sample(NULL, &sample, err));
    CUDA(cudaDeviceSynchronize());
    const float *action = host_of((const float *)sample.action, numbers);
    const float *drawn = host_of((const float *)sample.sample, numbers);
    float *own_action = host_array<float>(numbers), *own_drawn = host_array<float>(numbers);
    for (uint32_t row = 0; row < rows; row++)
        farm_head_choose(&sample.head, &sample.sampler, stream[row], counter[row], policy + 2 * (size_t)row * dims,
                         own_action + (size_t)row * dims, own_drawn + (size_t)row * dims);
    const double error = fmax(error_of(action, own_action, numbers), squash ? error_of(drawn, own_drawn, numbers) : 0);
    check(error < 1e-5, "%s sampling of %u rows of %d numbers: off by %.1e (bound 1e-5)",
          squash ? "squashed" : "scaled", rows, dims, error);
}

// ---- optimiser ----

struct optimiser_case {
    struct farm_cuda_optimiser gpu;
    struct farm_optimiser_state cpu;
    float *params; // the CPU's
};

static const char *optimiser_name(enum farm_optimiser_kind kind) {
    return kind == FARM_OPTIMISER_ADAM ? "Adam" : "RMSProp";
}

static struct optimiser_case optimiser_make(enum farm_optimiser_kind kind, size_t count, float clip_norm) {
    struct optimiser_case c = {};
    c.gpu.config = farm_optimiser_default(kind);
    c.gpu.config.clip_norm = clip_norm;
    c.gpu.count = count;
    c.params = random_floats(&rng, count, -1, 1);
    float *first = random_floats(&rng, count, 0, 1), *second = random_floats(&rng, count, 0, 1);
    farm_optimiser_init(&c.gpu.config, count, kind == FARM_OPTIMISER_ADAM ? first : NULL, second, &c.cpu);
    c.gpu.params = device_of(c.params, count);
    c.gpu.first = kind == FARM_OPTIMISER_ADAM ? device_of(first, count) : NULL;
    c.gpu.second = device_of(second, count);
    c.gpu.params_bf16 = device_poisoned<uint16_t>(count);
    struct farm_cuda_optimiser_control control = {};
    control.learning_rate = 3e-4f;
    c.gpu.control = device_of(&control, 1);
    c.gpu.scratch = device_poisoned(FARM_CUDA_OPTIMISER_SCRATCH_BYTES);
    return c;
}

static struct farm_cuda_optimiser_control optimiser_step(struct optimiser_case *c, const float *gradients) {
    struct farm_cuda_optimiser_control control;
    float *device = device_of(gradients, c->gpu.count);
    c->gpu.gradients = device;
    FARM(farm_cuda_optimiser_step(NULL, &c->gpu, err));
    CUDA(cudaMemcpy(&control, c->gpu.control, sizeof control, cudaMemcpyDeviceToHost));
    return control;
}

static void test_optimiser(enum farm_optimiser_kind kind, size_t count) {
    const struct memory_scope scope;
    struct optimiser_case c = optimiser_make(kind, count, 40);
    double norm_error = 0;
    bool steps = true;
    const int updates = few && count > 100000 ? 2 : 5;
    for (int step = 0; step < updates; step++) {
        const float size = step % 2 ? 10.0f : 1e-3f; // large ones are clipped
        float *gradients = random_floats(&rng, count, -size, size);
        const struct farm_cuda_optimiser_control control = optimiser_step(&c, gradients);
        const float norm = optimiser_step(&c.gpu.config, &c.cpu, 3e-4f, c.params, gradients);
        norm_error = fmax(norm_error, fabs(control.norm - norm) / fmax(norm, 1e-30));
        steps &= control.applied == 1 && control.step == c.cpu.step;
    }
    float *params = host_of(c.gpu.params, count), *second = host_of(c.gpu.second, count);
    uint16_t *rounded = host_of(c.gpu.params_bf16, count);
    const double error = fmax(error_of(params, c.params, count), error_of(second, c.cpu.second, count));
    bool bf16 = true;
    for (size_t i = 0; i < count; i++) bf16 &= rounded[i] == farm_bf16(params[i]);
    check(error < 1e-6 && norm_error < 1e-6 && steps && bf16,
          "%s over %zu parameters, %d updates: off by %.1e, norm by %.1e (bounds 1e-6), bf16 copy %s",
          optimiser_name(kind), count, updates, error, norm_error, bf16 ? "equal" : "differs");
}

// A gradient that must change nothing.
static void test_optimiser_refuses(enum farm_optimiser_kind kind, float bad, float clip_norm) {
    const struct memory_scope scope;
    const size_t count = 70001;
    struct optimiser_case c = optimiser_make(kind, count, clip_norm);
    float *gradients = random_floats(&rng, count, -1, 1);
    struct farm_cuda_optimiser_control control = optimiser_step(&c, gradients);
    float *params = host_of(c.gpu.params, count), *second = host_of(c.gpu.second, count);
    gradients[random_below(&rng, (uint32_t)count)] = bad;
    control = optimiser_step(&c, gradients);
    float *params_after = host_of(c.gpu.params, count), *second_after = host_of(c.gpu.second, count);
    check(control.applied == 0 && control.step == 1 && isinf(control.norm) &&
              memcmp(params, params_after, count * sizeof(float)) == 0 &&
              memcmp(second, second_after, count * sizeof(float)) == 0,
          "%s: a gradient with %g in it changes nothing (clip %g)", optimiser_name(kind), bad, clip_norm);
}

// ---- answer ----

enum { LANES_MAX = 64, WIDTH_MAX = 40, STATE = 6 };

// One lane's answers in the segment, at least 64 bytes apart.
struct answers {
    int32_t action[WIDTH_MAX + 16], sample[WIDTH_MAX + 16];
    float logits[WIDTH_MAX * 18 + 16];
    float value[WIDTH_MAX + 16];
    float carry[WIDTH_MAX * STATE + 16];
    uint64_t version[8];
    uint64_t acted[8];
};

// The device address of `field` of the host's copy.
template <typename T> static T *for_device(const struct segment *segment, T *field) {
    return (T *)(segment->device + ((uint8_t *)field - segment->host));
}

static void test_answer(uint32_t lane_count, int actions, bool samples) {
    const struct memory_scope scope;
    struct segment segment = segment_make((sizeof(struct answers) * LANES_MAX + 8 + 4095) / 4096 * 4096, false);
    uint64_t *word = (uint64_t *)(void *)(segment.host + sizeof(struct answers) * LANES_MAX);
    struct answers *lanes = (struct answers *)segment.host;
    struct answers *expected = host_array<struct answers>(LANES_MAX);
    memset(lanes, POISON, sizeof *lanes * LANES_MAX);
    memset(expected, POISON, sizeof *lanes * LANES_MAX);
    struct farm_cuda_answer_lane items[LANES_MAX];
    uint32_t rows = 0;
    for (uint32_t l = 0; l < lane_count; l++) {
        struct farm_cuda_answer_lane *item = &items[l];
        item->action = (uint8_t *)for_device(&segment, lanes[l].action);
        item->sample = samples ? (uint8_t *)for_device(&segment, lanes[l].sample) : NULL;
        item->policy = for_device(&segment, lanes[l].logits);
        item->value = for_device(&segment, lanes[l].value);
        item->carry = l % 3 ? for_device(&segment, lanes[l].carry) : NULL;
        item->version = for_device(&segment, lanes[l].version);
        item->acted = l % 5 == 4 ? NULL : for_device(&segment, lanes[l].acted);
        item->acted_value = (uint64_t)random_bits(&rng) << 32 | random_bits(&rng);
        item->row = rows;
        item->count = 1 + random_below(&rng, WIDTH_MAX);
        rows += item->count;
    }
    float *logits = random_floats(&rng, (size_t)rows * actions, -9, 9), *value = random_floats(&rng, rows, -9, 9),
          *states = random_floats(&rng, (size_t)rows * STATE, -9, 9);
    int32_t *action = host_array<int32_t>(rows);
    for (uint32_t row = 0; row < rows; row++) action[row] = (int32_t)random_below(&rng, actions);
    int32_t *drawn = host_array<int32_t>(rows);
    for (uint32_t row = 0; row < rows; row++) drawn[row] = (int32_t)random_bits(&rng);
    struct farm_head head = farm_head_categorical(actions);
    head.samples = samples;
    const uint64_t version = (uint64_t)random_bits(&rng) << 32 | 77;
    for (uint32_t l = 0; l < lane_count; l++) {
        const struct farm_cuda_answer_lane *item = &items[l];
        memcpy(expected[l].action, action + item->row, item->count * sizeof *action);
        if (samples) memcpy(expected[l].sample, drawn + item->row, item->count * sizeof *drawn);
        memcpy(expected[l].logits, logits + (size_t)item->row * actions, (size_t)item->count * actions * sizeof(float));
        memcpy(expected[l].value, value + item->row, item->count * sizeof(float));
        if (item->carry) memcpy(expected[l].carry, states + item->row * STATE, item->count * STATE * sizeof(float));
        expected[l].version[0] = version;
        if (item->acted) expected[l].acted[0] = item->acted_value;
    }
    const struct farm_cuda_answer answer = {device_of(items, lane_count),
                                            lane_count,
                                            head,
                                            (const uint8_t *)device_of(action, rows),
                                            (const uint8_t *)device_of(drawn, rows),
                                            device_of(logits, (size_t)rows * actions),
                                            device_of(value, rows),
                                            device_of(&version, 1),
                                            device_of(states, (size_t)rows * STATE),
                                            STATE,
                                            for_device(&segment, word),
                                            device_of(&version, 1)};
    FARM(farm_cuda_answer(NULL, &answer, err));
    CUDA(cudaDeviceSynchronize());
    check(memcmp(lanes, expected, sizeof *lanes * LANES_MAX) == 0 && *word == (lane_count ? version : 0),
          "answers to %u lanes, %u rows of %d actions", lane_count, rows, actions);
    segment_free(&segment);
}

// ---- errors ----

static void test_errors(void) {
    struct farm_error err = {};
    struct farm_cuda_pull pull = {NULL, NULL, 3, 0, 0};
    check(farm_cuda_pull(NULL, FARM_CUDA_PULL_LOADS, &pull, &err) == FARM_E_INVALID, "a pull of 0 bytes: %s",
          err.message);
    struct farm_cuda_stack stack = {};
    stack.rows = stack.stack = stack.channels = stack.height = stack.width = 1;
    stack.out = (void *)8;
    check(farm_cuda_stack(NULL, &stack, &err) == FARM_E_INVALID, "a stack at an odd address: %s", err.message);
    struct farm_algo_rows rows = {};
    rows.columns = 3;
    check(farm_cuda_algo_differentiate(NULL, "vtrace", &rows, true, NULL, NULL, &err) == FARM_E_INVALID,
          "V-trace of no steps: %s", err.message);
    struct farm_cuda_lstm lstm = {};
    check(farm_cuda_lstm_enter(NULL, &lstm, NULL, &err) == FARM_E_INVALID, "an LSTM without units: %s", err.message);
    check(farm_cuda_algo_check("chess", &err) == FARM_E_UNSUPPORTED, "an algorithm that no GPU runs: %s", err.message);
    pull.bytes = 16;
    pull.blocks = UINT32_MAX; // more than a grid's maximum
    const enum farm_status status = farm_cuda_pull(NULL, FARM_CUDA_PULL_LOADS, &pull, &err);
    check(status == FARM_E_IO && strstr(err.message, "pull_loads") && strstr(err.message, "pull.cu:"),
          "a launch that CUDA refuses names call, code and place: %s", err.message);
}

// ---- all ----

// Bulk copies come last: an error of theirs would end all later tests of the process.
static void test_all(void) {
    test_pull(FARM_CUDA_PULL_LOADS, "by loads");
    test_stack();
    test_layers(FARM_CUDA_F32);
    test_layers(FARM_CUDA_BF16);
    test_convs();
    test_signal();
    const int steps[] = {1, 2, 20, 33}, columns[] = {0, 1, 31, 32, 33, 127, 128, 129, 257}, actions[] = {1, 4, 18};
    for (int t : steps)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) test_vtrace(t, columns[c], actions[(c + t) % 3]);
    const uint32_t rows[] = {0, 1, 127, 128, 129, 5000};
    for (uint32_t r : rows)
        for (int a : actions)
            for (int how = 0; how < 3; how++) test_sample(r, a, how);
    test_sample(400000, 6, 0);
    for (uint32_t r : {1u, 63u, 1000u})
        for (int dims : {1, 6, 32})
            for (bool squash : {true, false}) test_sample_numbers(r, dims, squash);
    const size_t counts[] = {0, 1, 3, 1023, 1024, 4097, 600001, 1700003};
    for (size_t count : counts) {
        if (few && count > 1000000) continue; // 600001 is more than a grid's threads too
        test_optimiser(FARM_OPTIMISER_RMSPROP, count);
        test_optimiser(FARM_OPTIMISER_ADAM, count);
    }
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (float x : bad) {
        test_optimiser_refuses(FARM_OPTIMISER_RMSPROP, x, 40);
        test_optimiser_refuses(FARM_OPTIMISER_ADAM, x, 0);
    }
    test_optimiser_refuses(FARM_OPTIMISER_RMSPROP, 1e19f, 0);
    const uint32_t lanes[] = {0, 1, 7, LANES_MAX};
    for (uint32_t l : lanes) test_answer(l, 1 + (int)(l % 18), l % 2);
    test_errors();
    test_pull(FARM_CUDA_PULL_BULK, "by bulk copies");
}

int main(int argc, char **argv) {
    int devices = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess || devices == 0) {
        printf("no GPU here, nothing was tested: %s\n", cudaGetErrorString(code));
        return 77;
    }
    if (argc == 2 && strcmp(argv[1], "--device") == 0) {
        print_machine();
        printf("\n");
        return 0;
    }
    rng.seed = (uint64_t)time(NULL);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--few") == 0)
            few = true;
        else
            rng.seed = strtoull(argv[i], NULL, 0);
    print_machine();
    printf("\nseed %llu\n", (unsigned long long)rng.seed);
    test_all();
    CUDA(cudaDeviceSynchronize());
    return checks_end();
}
