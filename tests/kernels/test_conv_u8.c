// Compares the first convolution, on each path that this CPU has, with a naive one in double precision, and with the
// portable path bit by bit.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/bf16.h"
#include "kernels/conv_u8.h"
#include "kernels/gather.h"
#include "kernels/pixels.h"

// One convolution's data: batch observations of `shape`.
struct problem {
    struct farm_conv_u8_shape shape;
    int batch, taps, positions;
    uint8_t *pixels;
    const uint8_t **frames;
    float *weights, *bias, *dweights, *dbias;
    void *out, *dout; // f32 or bf16
    void *packed, *scratch;
    uint64_t random;
};

// Stack, channels, height, width, kernel, stride, padding before and after, outputs, block, activation, bf16,
// precision, path, normalised.
static const struct farm_conv_u8_shape atari = {
    4, 1, 84, 84, 8, 4, {0, 0}, {0, 0}, 16, 16, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false};

// Shapes that the Winograd convolution does not compute: odd rows, more channels, padding, blocks, no activation.
static const struct farm_conv_u8_shape others[] = {
    {2, 1, 20, 33, 5, 3, {0, 0}, {0, 0}, 8, 8, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {3, 1, 17, 17, 3, 1, {0, 0}, {0, 0}, 24, 24, true, true, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {1, 1, 9, 9, 9, 7, {0, 0}, {0, 0}, 16, 8, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {4, 1, 84, 84, 8, 4, {0, 0}, {0, 0}, 8, 8, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {4, 1, 84, 84, 3, 1, {1, 1}, {1, 1}, 16, 16, false, true, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {3, 1, 37, 41, 3, 1, {1, 1}, {1, 1}, 16, 8, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, true},
    {1, 3, 64, 63, 3, 2, {0, 1}, {1, 1}, 48, 16, false, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {2, 3, 1, 1, 3, 1, {1, 1}, {1, 1}, 16, 8, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {1, 1, 4, 1024, 2, 1, {1, 1}, {1, 1}, 16, 16, true, false, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {2, 2, 19, 22, 3, 2, {0, 0}, {0, 0}, 13, 13, false, true, FARM_CONV_U8_I16, FARM_CONV_U8_PORTABLE, false},
    {4, 1, 84, 84, 8, 4, {0, 0}, {0, 0}, 16, 8, true, false, FARM_CONV_U8_F32, FARM_CONV_U8_PORTABLE, false},
    {2, 1, 20, 33, 5, 3, {0, 0}, {0, 0}, 16, 16, true, true, FARM_CONV_U8_F32, FARM_CONV_U8_PORTABLE, false},
    {1, 3, 31, 24, 3, 1, {1, 1}, {1, 1}, 24, 8, false, false, FARM_CONV_U8_F32, FARM_CONV_U8_PORTABLE, false},
    {1, 3, 31, 24, 3, 1, {1, 1}, {1, 1}, 24, 8, false, false, FARM_CONV_U8_F32, FARM_CONV_U8_PORTABLE, true},
};
enum { OTHERS = sizeof others / sizeof others[0] };

static void *aligned(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    cr_assert_not_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

static float *floats(size_t count) {
    return aligned(count * sizeof(float));
}

static double uniform(struct problem *p) { // -1 to 1
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)p->random / 9223372036854775808.0;
}

static size_t out_count(const struct problem *p) {
    return (size_t)p->batch * (size_t)p->positions * (size_t)p->shape.outputs;
}

static size_t weight_count(const struct problem *p) {
    return (size_t)p->taps * (size_t)p->shape.outputs;
}

// Random everything; every fifth frame is NULL.
static struct problem make_problem(struct farm_conv_u8_shape shape, int batch, uint64_t seed) {
    struct farm_error err;
    cr_assert_eq(farm_conv_u8_check(&shape, &err), FARM_OK, "%s", err.message);
    struct problem p = {.shape = shape, .batch = batch, .random = seed * 7919 + 1};
    p.taps = shape.stack * shape.channels * shape.kernel * shape.kernel;
    p.positions = farm_conv_u8_out_height(&shape) * farm_conv_u8_out_width(&shape);
    const size_t frame_bytes = (size_t)(shape.channels * shape.height * shape.width),
                 frames = (size_t)(batch * shape.stack);
    p.pixels = aligned(frames * frame_bytes);
    p.frames = aligned(frames * sizeof *p.frames);
    for (size_t i = 0; i < frames * frame_bytes; i++) p.pixels[i] = (uint8_t)(128 + 127 * uniform(&p));
    for (size_t i = 0; i < frames; i++) p.frames[i] = i % 5 == 3 ? NULL : p.pixels + i * frame_bytes;
    p.weights = floats(weight_count(&p));
    p.dweights = floats(weight_count(&p));
    p.bias = floats((size_t)shape.outputs);
    p.dbias = floats((size_t)shape.outputs);
    p.out = floats(out_count(&p));
    p.dout = floats(out_count(&p));
    for (size_t i = 0; i < weight_count(&p); i++) p.weights[i] = (float)(0.0625 * uniform(&p));
    for (int o = 0; o < shape.outputs; o++) p.bias[o] = (float)(0.3 * uniform(&p));
    for (size_t i = 0; i < out_count(&p); i++) { // half zero, the others with a long tail
        const double u = uniform(&p), v = uniform(&p);
        farm_number_put(p.dout, shape.bf16, i, v < 0 ? 0 : (float)(1e-3 * u * u * u));
    }
    p.packed = aligned(farm_conv_u8_packed_bytes(&shape));
    p.scratch = aligned(farm_conv_u8_scratch_bytes(&shape));
    farm_conv_u8_pack(&p.shape, p.weights, p.packed);
    return p;
}

static void free_problem(struct problem *p) {
    void *all[] = {p->pixels, p->frames, p->weights, p->dweights, p->bias,
                   p->dbias,  p->out,    p->dout,    p->packed,   p->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

#define with_problem __attribute__((cleanup(free_problem))) struct problem // freed at the end of its scope

static size_t index_of(const struct problem *p, int n, int position, int o) {
    const size_t first = (size_t)n * (size_t)p->positions * (size_t)p->shape.outputs;
    const int block = p->shape.block;
    return first + (size_t)((o / block * p->positions + position) * block + o % block);
}

static double out_of(const struct problem *p, const void *array, int n, int position, int o) {
    return (double)farm_number_at(array, p->shape.bf16, index_of(p, n, position, o));
}

static double pixel_at(const struct problem *p, int n, int position, int tap) {
    const struct farm_conv_u8_shape *s = &p->shape;
    const int width = farm_conv_u8_out_width(s), k = s->kernel, plane = tap / (k * k);
    const uint8_t *frame = p->frames[n * s->stack + plane / s->channels];
    const int y = position / width * s->stride + tap / k % k - s->pad_before[0];
    const int x = position % width * s->stride + tap % k - s->pad_before[1];
    if (frame == NULL || y < 0 || y >= s->height || x < 0 || x >= s->width) return 0;
    const uint8_t byte = frame[(plane % s->channels * s->height + y) * s->width + x];
    return s->normalised ? (byte - FARM_PIXEL_ZERO) / 25.4 : byte / 255.0;
}

static void run_forward(struct problem *p) {
    farm_conv_u8_forward(&p->shape, p->packed, p->bias, p->frames, p->batch, p->out, p->scratch);
}

static void run_backward(struct problem *p) {
    farm_conv_u8_backward_weights(&p->shape, p->frames, p->batch, p->dout, p->dweights, p->dbias, p->scratch);
}

// What the taps of a position read.
static void read_patch(const struct problem *p, int n, int position, double *patch) {
    for (int t = 0; t < p->taps; t++) patch[t] = pixel_at(p, n, position, t);
}

// Relative error of the whole output in the Euclidean norm.
static double forward_error(struct problem *p) {
    run_forward(p);
    double error = 0, norm = 0, *patch = calloc((size_t)p->taps, sizeof *patch);
    for (int i = 0; i < p->batch * p->positions; i++) {
        const int n = i / p->positions, position = i % p->positions;
        read_patch(p, n, position, patch);
        for (int o = 0; o < p->shape.outputs; o++) {
            double sum = p->bias[o];
            for (int t = 0; t < p->taps; t++) sum += patch[t] * p->weights[o * p->taps + t];
            const double expected = p->shape.relu ? fmax(0, sum) : sum, got = out_of(p, p->out, n, position, o);
            error += (got - expected) * (got - expected);
            norm += expected * expected;
        }
    }
    free(patch);
    cr_assert_gt(norm, 0);
    return sqrt(error / norm);
}

// The same of the weight gradient; the bias gradient is checked to 1e-5 of what is summed.
static double backward_error(struct problem *p) {
    run_backward(p);
    const int outputs = p->shape.outputs;
    double error = 0, norm = 0, *patch = calloc((size_t)p->taps, sizeof *patch);
    double *expected = calloc(weight_count(p), sizeof *expected), *bias = calloc((size_t)outputs, 2 * sizeof *bias);
    double *summed = bias + outputs;
    for (int i = 0; i < p->batch * p->positions; i++) {
        const int n = i / p->positions, position = i % p->positions;
        read_patch(p, n, position, patch);
        for (int o = 0; o < outputs; o++) {
            const double d = out_of(p, p->dout, n, position, o);
            bias[o] += d;
            summed[o] += fabs(d);
            for (int t = 0; d != 0 && t < p->taps; t++) expected[o * p->taps + t] += d * patch[t];
        }
    }
    for (int o = 0; o < outputs; o++)
        cr_assert_leq(fabs((double)p->dbias[o] - bias[o]), 1e-5 * summed[o], "bias gradient of channel %d", o);
    for (size_t k = 0; k < weight_count(p); k++) {
        const double off = (double)p->dweights[k] - expected[k];
        error += off * off;
        norm += expected[k] * expected[k];
    }
    free(patch);
    free(expected);
    free(bias);
    return sqrt(error / norm);
}

// The Winograd shape, f32 or bf16, in each layout, with and without activation.
static struct farm_conv_u8_shape atari_shape(int stack, int outputs, int variant) {
    struct farm_conv_u8_shape shape = atari;
    shape.stack = stack;
    shape.outputs = outputs;
    shape.block = variant % 3 == 0 ? outputs : variant % 3 == 1 ? 8 : 16;
    shape.bf16 = variant / 3 % 2 == 1;
    shape.relu = variant % 4 != 2;
    shape.normalised = variant / 2 % 2;
    return shape;
}

static bool has_path(struct farm_conv_u8_shape *shape, int path) {
    shape->path = (enum farm_conv_u8_path)path;
    return farm_conv_u8_runs(shape);
}

// bf16 outputs are off by up to 2^-9, gradients that come in are exact.
static void expect_close(struct farm_conv_u8_shape shape, int batch, uint64_t seed) {
    const bool exact = shape.precision == FARM_CONV_U8_F32;
    for (int path = 0; path < FARM_CONV_U8_PATHS; path++) {
        if (!has_path(&shape, path)) continue;
        with_problem p = make_problem(shape, batch, seed);
        const double forward = forward_error(&p), backward = backward_error(&p);
        const char *name = farm_conv_u8_path_name(shape.path);
        cr_expect_leq(forward, shape.bf16 ? 2e-3 : exact ? 1e-6 : 3e-4, "%s: forward error %g", name, forward);
        cr_expect_leq(backward, exact ? 1e-5 : 1e-3, "%s: backward error %g", name, backward);
    }
}

// bf16 weights would be off by up to 2^-9 = 2e-3 each.
Test(kernels_conv_u8, atari_shapes_agree_with_double_precision) {
    for (int stack = 1; stack <= 4; stack++)
        expect_close(atari_shape(stack, stack % 2 == 0 ? 32 : 16, stack - 1), stack, (uint64_t)stack);
}

Test(kernels_conv_u8, other_shapes_and_float_precision_work_too) {
    for (int i = 0; i < OTHERS; i++) expect_close(others[i], 3, (uint64_t)i);
}

static void expect_portable_bits(struct problem *p, const char *what) {
    const size_t out_bytes = out_count(p) * (p->shape.bf16 ? 2 : 4), weight_bytes = weight_count(p) * sizeof(float);
    void *out = aligned(out_bytes), *dweights = aligned(weight_bytes);
    for (int path = 0; path < FARM_CONV_U8_PATHS; path++) {
        if (!has_path(&p->shape, path)) continue;
        free(p->scratch);
        p->scratch = aligned(farm_conv_u8_scratch_bytes(&p->shape));
        memset(p->dweights, 0, weight_bytes);
        run_forward(p);
        run_backward(p);
        if (path == FARM_CONV_U8_PORTABLE) {
            memcpy(out, p->out, out_bytes);
            memcpy(dweights, p->dweights, weight_bytes);
        }
        const char *name = farm_conv_u8_path_name(p->shape.path);
        cr_expect_eq(memcmp(out, p->out, out_bytes), 0, "%s, %s: forward", what, name);
        cr_expect_eq(memcmp(dweights, p->dweights, weight_bytes), 0, "%s, %s: gradient", what, name);
    }
    free(out);
    free(dweights);
}

Test(kernels_conv_u8, all_paths_give_the_same_bits) {
    for (int i = 0; i < 12; i++) {
        with_problem p = make_problem(atari_shape(1 + i % 4, 16 + i % 3 * 16, i), 2, (uint64_t)i);
        expect_portable_bits(&p, "Winograd");
    }
    for (int i = 0; i < OTHERS; i++) {
        with_problem p = make_problem(others[i], 2, (uint64_t)i);
        if (p.shape.precision == FARM_CONV_U8_I16) expect_portable_bits(&p, "direct");
    }
}

// The largest possible sums: white frames or a grid of white blocks, all weights (gradients) largest, with one sign or
// with the grid's signs.
Test(kernels_conv_u8, sums_do_not_overflow_at_the_extremes) {
    for (int i = 0; i < 4; i++) {
        const bool grid = i % 2 == 1;
        struct farm_conv_u8_shape shape = atari;
        if (i >= 2) { // the same pixels, direct
            shape.kernel = 7;
            shape.stride = 1;
        }
        with_problem p = make_problem(shape, 1, 1);
        const int taps = p.taps, width = farm_conv_u8_out_width(&shape);
        for (int s = 0; s < 4; s++) p.frames[s] = p.pixels + s * 84 * 84;
        for (int k = 0; k < 4 * 84 * 84; k++) p.pixels[k] = grid && (k / (4 * 84) + k % 84 / 4) % 2 ? 0 : 255;
        for (int k = 0; k < 16 * taps; k++) {
            const int sign = grid && (k / 32 + k / 4) % 2 ? -1 : 1;
            p.weights[k] = (float)(k / taps % 2 ? sign : -sign);
        }
        for (int n = 0; n < p.positions * 16; n++)
            ((float *)p.dout)[n] = grid && (n / 16 / width + n / 16 % width) % 2 ? -2.0f : 2.0f;
        farm_conv_u8_pack(&p.shape, p.weights, p.packed);
        expect_portable_bits(&p, grid ? "grid" : "white");
        p.shape.path = FARM_CONV_U8_PORTABLE;
        cr_assert_leq(forward_error(&p), 1e-6);
        memset(p.dweights, 0, weight_count(&p) * sizeof(float));
        memset(p.dbias, 0, 16 * sizeof(float));
        cr_assert_leq(backward_error(&p), 1e-6);
    }
}

// Each path, Winograd (even i) and direct.
static bool has_case(int i, struct farm_conv_u8_shape *shape) {
    *shape = i % 2 == 0 ? atari : others[4];
    return has_path(shape, i / 2);
}
enum { CASES = 2 * FARM_CONV_U8_PATHS };

Test(kernels_conv_u8, gradients_are_added_to_what_is_there) {
    for (int i = 0; i < CASES; i++) {
        struct farm_conv_u8_shape shape;
        if (!has_case(i, &shape)) continue;
        with_problem p = make_problem(shape, 2, 5);
        run_backward(&p);
        const float weight = p.dweights[77], bias = p.dbias[3];
        run_backward(&p);
        cr_assert_neq(weight, 0);
        cr_assert_float_eq(p.dweights[77], 2 * weight, fabsf(weight) * 1e-5f);
        cr_assert_float_eq(p.dbias[3], 2 * bias, fabsf(bias) * 1e-5f);
    }
}

Test(kernels_conv_u8, zero_and_tiny_gradients_change_nothing) {
    for (int i = 0; i < CASES; i++) {
        struct farm_conv_u8_shape shape;
        if (!has_case(i, &shape)) continue;
        with_problem p = make_problem(shape, 1, 6);
        for (size_t k = 0; k < out_count(&p); k++) farm_number_put(p.dout, shape.bf16, k, k % 16 == 2 ? 1e-40f : 0);
        run_backward(&p);
        for (size_t k = 0; k < weight_count(&p); k++) cr_assert_eq(p.dweights[k], 0);
    }
}

Test(kernels_conv_u8, nan_and_infinity_stay_in_their_channel) {
    for (int i = 0; i < CASES; i++) {
        struct farm_conv_u8_shape shape;
        if (!has_case(i, &shape)) continue;
        for (int nan = 0; nan < 2; nan++) {
            with_problem p = make_problem(shape, 1, 7);
            p.weights[5 * p.taps + 9] = nan ? NAN : INFINITY;
            farm_number_put(p.dout, shape.bf16, index_of(&p, 0, 123, 11), nan ? -INFINITY : NAN);
            farm_conv_u8_pack(&p.shape, p.weights, p.packed);
            farm_conv_u8_forward(&p.shape, p.packed, p.bias, p.frames, 1, p.out, p.scratch);
            run_backward(&p);
            for (int o = 0; o < 16; o++) {
                cr_assert_eq(isnan(out_of(&p, p.out, 0, 200, o)) != 0, o == 5, "output of channel %d", o);
                cr_assert_eq(isnan(p.dweights[o * p.taps + 20]) != 0, o == 11, "gradient of channel %d", o);
            }
        }
    }
}

// The frame begins after, or ends before, a page that cannot be accessed.
Test(kernels_conv_u8, reads_no_byte_outside_a_frame) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < 2 * CASES; i++) {
        struct farm_conv_u8_shape shape;
        if (!has_case(i / 2, &shape)) continue;
        shape.stack = 1;
        const size_t bytes = 84 * 84, pages = (bytes + page - 1) / page;
        with_problem p = make_problem(shape, 1, 8);
        uint8_t *memory = mmap(NULL, (pages + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(memory, MAP_FAILED);
        cr_assert_eq(mprotect(memory + page, pages * page, PROT_READ | PROT_WRITE), 0);
        uint8_t *frame = i % 2 ? memory + page + pages * page - bytes : memory + page;
        memcpy(frame, p.pixels, bytes);
        p.frames[0] = frame;
        cr_assert_leq(forward_error(&p), 2e-3);
        cr_assert_leq(backward_error(&p), 1e-3);
        munmap(memory, (pages + 2) * page);
    }
}

Test(kernels_conv_u8, rejects_invalid_shapes) {
    for (int i = 0; i < 10; i++) {
        struct farm_conv_u8_shape shape = atari;
        struct farm_error err;
        int *field[] = {&shape.stack,   &shape.height, &shape.kernel,   &shape.stride,        &shape.outputs,
                        &shape.outputs, &shape.block,  &shape.channels, &shape.pad_before[0], &shape.pad_after[1]};
        const int value[] = {0, 7, 65, 0, 1025, 0, 24, 65, 8, -1};
        *field[i] = value[i];
        cr_assert_eq(farm_conv_u8_check(&shape, &err), FARM_E_INVALID, "field %d", i);
        cr_assert_not_null(strstr(err.message, "first convolution"));
    }
}

Test(kernels_conv_u8, pixels_become_units) {
    for (int i = 0; i < 256; i++) cr_assert_eq(farm_pixel_unit((uint8_t)i), (float)(i / 255.0));
}
