// The first convolution against a naive one in double precision, and the fast path against the portable one bit by bit.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/conv_u8.h"

// One convolution's data: batch observations of `shape`.
struct problem {
    struct farm_conv_u8_shape shape;
    int batch, taps, positions;
    uint8_t *pixels;
    const uint8_t **frames;
    float *weights, *bias, *out, *dout, *dweights, *dbias;
    void *packed, *scratch;
    uint64_t random;
};

static const struct farm_conv_u8_shape atari = {.stack = 4,
                                                .height = 84,
                                                .width = 84,
                                                .kernel = 8,
                                                .stride = 4,
                                                .outputs = 16,
                                                .layout = FARM_CONV_U8_NHWC,
                                                .precision = FARM_CONV_U8_I16};

static void *aligned(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    cr_assert_not_null(memory);
    memset(memory, 0, bytes);
    return memory;
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
    p.taps = shape.stack * shape.kernel * shape.kernel;
    p.positions = farm_conv_u8_out_height(&shape) * farm_conv_u8_out_width(&shape);
    const size_t frame_bytes = (size_t)(shape.height * shape.width), frames = (size_t)(batch * shape.stack);
    p.pixels = aligned(frames * frame_bytes);
    p.frames = aligned(frames * sizeof *p.frames);
    for (size_t i = 0; i < frames * frame_bytes; i++) p.pixels[i] = (uint8_t)(128 + 127 * uniform(&p));
    for (size_t i = 0; i < frames; i++) p.frames[i] = i % 5 == 3 ? NULL : p.pixels + i * frame_bytes;
    p.weights = aligned(weight_count(&p) * sizeof(float));
    p.dweights = aligned(weight_count(&p) * sizeof(float));
    p.bias = aligned((size_t)shape.outputs * sizeof(float));
    p.dbias = aligned((size_t)shape.outputs * sizeof(float));
    p.out = aligned(out_count(&p) * sizeof(float));
    p.dout = aligned(out_count(&p) * sizeof(float));
    for (size_t i = 0; i < weight_count(&p); i++) p.weights[i] = (float)(0.0625 * uniform(&p));
    for (int o = 0; o < shape.outputs; o++) p.bias[o] = (float)(0.3 * uniform(&p));
    for (size_t i = 0; i < out_count(&p); i++) { // half zero, the others with a long tail
        const double u = uniform(&p), v = uniform(&p);
        p.dout[i] = v < 0 ? 0 : (float)(1e-3 * u * u * u);
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

static size_t index_of(const struct problem *p, int n, int position, int o) {
    const size_t first = (size_t)n * (size_t)p->positions * (size_t)p->shape.outputs;
    if (p->shape.layout == FARM_CONV_U8_NHWC) return first + (size_t)(position * p->shape.outputs + o);
    return first + (size_t)((o / 8 * p->positions + position) * 8 + o % 8);
}

static double pixel_at(const struct problem *p, int n, int position, int tap) {
    const struct farm_conv_u8_shape *s = &p->shape;
    const int width = farm_conv_u8_out_width(s), k = s->kernel;
    const uint8_t *frame = p->frames[n * s->stack + tap / (k * k)];
    const int y = position / width * s->stride + tap / k % k, x = position % width * s->stride + tap % k;
    return frame == NULL ? 0 : frame[y * s->width + x] / 255.0;
}

// The naive forward pass before ReLU.
static double naive_output(const struct problem *p, int n, int position, int o) {
    double sum = p->bias[o];
    for (int t = 0; t < p->taps; t++) sum += pixel_at(p, n, position, t) * p->weights[o * p->taps + t];
    return sum;
}

// Relative error of the whole output in the Euclidean norm.
static double forward_error(struct problem *p) {
    farm_conv_u8_forward(&p->shape, p->packed, p->bias, p->frames, p->batch, p->out);
    double error = 0, norm = 0;
    for (int n = 0; n < p->batch; n++)
        for (int position = 0; position < p->positions; position++)
            for (int o = 0; o < p->shape.outputs; o++) {
                const double want = fmax(0, naive_output(p, n, position, o));
                const double got = (double)p->out[index_of(p, n, position, o)];
                error += (got - want) * (got - want);
                norm += want * want;
            }
    cr_assert_gt(norm, 0);
    return sqrt(error / norm);
}

// The same of the weight gradient; the bias gradient is checked to 1e-5 of what is summed.
static double backward_error(struct problem *p) {
    farm_conv_u8_backward_weights(&p->shape, p->frames, p->batch, p->dout, p->dweights, p->dbias, p->scratch);
    double error = 0, norm = 0;
    double *want = calloc((size_t)p->taps, sizeof *want);
    for (int o = 0; o < p->shape.outputs; o++) {
        double bias = 0, summed = 0;
        memset(want, 0, (size_t)p->taps * sizeof *want);
        for (int n = 0; n < p->batch; n++)
            for (int position = 0; position < p->positions; position++) {
                const double d = (double)p->dout[index_of(p, n, position, o)];
                bias += d;
                summed += fabs(d);
                for (int t = 0; d != 0 && t < p->taps; t++) want[t] += d * pixel_at(p, n, position, t);
            }
        cr_assert_leq(fabs((double)p->dbias[o] - bias), 1e-5 * summed, "bias gradient of channel %d", o);
        for (int t = 0; t < p->taps; t++) {
            const double off = (double)p->dweights[o * p->taps + t] - want[t];
            error += off * off;
            norm += want[t] * want[t];
        }
    }
    free(want);
    return sqrt(error / norm);
}

static struct farm_conv_u8_shape atari_shape(int stack, int outputs, enum farm_conv_u8_layout layout) {
    struct farm_conv_u8_shape shape = atari;
    shape.stack = stack;
    shape.outputs = outputs;
    shape.layout = layout;
    return shape;
}

// bf16 weights would be off by up to 2^-9 = 2e-3 each.
Test(kernels_conv_u8, forward_is_within_2e_4_of_double_precision) {
    for (int stack = 1; stack <= 4; stack++)
        for (int layout = 0; layout < 2; layout++) {
            const int outputs = stack % 2 == 0 ? 32 : 16, batch = stack + layout;
            struct problem p =
                make_problem(atari_shape(stack, outputs, (enum farm_conv_u8_layout)layout), batch, (uint64_t)stack);
            const double error = forward_error(&p);
            cr_assert_leq(error, 2e-4, "stack %d, outputs %d, layout %d: error %g", stack, outputs, layout, error);
            free_problem(&p);
        }
}

Test(kernels_conv_u8, weight_gradient_is_within_1e_3_of_double_precision) {
    for (int stack = 1; stack <= 4; stack++)
        for (int layout = 0; layout < 2; layout++) {
            const int outputs = stack % 2 == 0 ? 16 : 32, batch = 5 - stack + layout;
            struct problem p = make_problem(atari_shape(stack, outputs, (enum farm_conv_u8_layout)layout), batch,
                                            (uint64_t)stack + 100);
            const double error = backward_error(&p);
            cr_assert_leq(error, 1e-3, "stack %d, outputs %d, layout %d: error %g", stack, outputs, layout, error);
            free_problem(&p);
        }
}

Test(kernels_conv_u8, other_shapes_and_float_precision_work_too) {
    static const struct farm_conv_u8_shape shapes[] = {
        {2, 20, 33, 5, 3, 8, FARM_CONV_U8_NCHW8C, FARM_CONV_U8_I16},
        {3, 17, 17, 3, 1, 24, FARM_CONV_U8_NHWC, FARM_CONV_U8_I16},
        {1, 9, 9, 9, 7, 8, FARM_CONV_U8_NHWC, FARM_CONV_U8_I16},
        {4, 84, 84, 8, 4, 8, FARM_CONV_U8_NHWC, FARM_CONV_U8_I16},
        {4, 84, 84, 8, 4, 16, FARM_CONV_U8_NCHW8C, FARM_CONV_U8_F32},
        {2, 20, 33, 5, 3, 16, FARM_CONV_U8_NHWC, FARM_CONV_U8_F32},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct problem p = make_problem(shapes[i], 3, i);
        const int exact = shapes[i].precision == FARM_CONV_U8_F32;
        const double forward = forward_error(&p), backward = backward_error(&p);
        cr_assert_leq(forward, exact ? 1e-6 : 3e-4, "shape %zu: forward error %g", i, forward);
        cr_assert_leq(backward, exact ? 1e-5 : 1e-3, "shape %zu: backward error %g", i, backward);
        free_problem(&p);
    }
}

static void must_be_the_same_bits(struct problem *p, const char *what) {
    float *out = aligned(out_count(p) * sizeof(float)), *dweights = aligned(weight_count(p) * sizeof(float));
    float *dbias = aligned((size_t)p->shape.outputs * sizeof(float));
    farm_conv_u8_forward(&p->shape, p->packed, p->bias, p->frames, p->batch, p->out);
    farm_conv_u8_forward_portable(&p->shape, p->packed, p->bias, p->frames, p->batch, out);
    cr_assert_eq(memcmp(out, p->out, out_count(p) * sizeof(float)), 0, "%s: forward", what);
    memset(p->dweights, 0, weight_count(p) * sizeof(float));
    farm_conv_u8_backward_weights(&p->shape, p->frames, p->batch, p->dout, p->dweights, p->dbias, p->scratch);
    farm_conv_u8_backward_weights_portable(&p->shape, p->frames, p->batch, p->dout, dweights, dbias, p->scratch);
    cr_assert_eq(memcmp(dweights, p->dweights, weight_count(p) * sizeof(float)), 0, "%s: gradient", what);
    free(out);
    free(dweights);
    free(dbias);
}

Test(kernels_conv_u8, fast_path_gives_the_portable_paths_bits) {
    for (int stack = 1; stack <= 4; stack++)
        for (int outputs = 16; outputs <= 48; outputs += 16) {
            const enum farm_conv_u8_layout layout = (enum farm_conv_u8_layout)((stack + outputs / 16) % 2);
            struct problem p = make_problem(atari_shape(stack, outputs, layout), 2, (uint64_t)(stack + outputs));
            must_be_the_same_bits(&p, "random");
            free_problem(&p);
        }
}

// The largest sums there can be: white frames or a grid of white blocks, all weights (gradients) largest, with one sign
// or with the signs that suit the grid.
Test(kernels_conv_u8, sums_do_not_overflow_at_the_extremes) {
    for (int grid = 0; grid < 2; grid++) {
        struct problem p = make_problem(atari, 1, 1);
        for (int s = 0; s < 4; s++) p.frames[s] = p.pixels + s * 84 * 84;
        for (int i = 0; i < 4 * 84 * 84; i++) p.pixels[i] = grid && (i / (4 * 84) + i % 84 / 4) % 2 ? 0 : 255;
        for (int i = 0; i < 16 * 256; i++) {
            const int sign = grid && (i / 32 + i / 4) % 2 ? -1 : 1;
            p.weights[i] = (float)(i / 256 % 2 ? sign : -sign);
        }
        for (int n = 0; n < 400 * 16; n++) p.dout[n] = grid && (n / 16 / 20 + n / 16 % 20) % 2 ? -2.0f : 2.0f;
        farm_conv_u8_pack(&p.shape, p.weights, p.packed);
        must_be_the_same_bits(&p, grid ? "grid" : "white");
        cr_assert_leq(forward_error(&p), 1e-6);
        memset(p.dweights, 0, weight_count(&p) * sizeof(float));
        memset(p.dbias, 0, 16 * sizeof(float));
        cr_assert_leq(backward_error(&p), 1e-6);
        free_problem(&p);
    }
}

Test(kernels_conv_u8, gradients_are_added_to_what_is_there) {
    struct problem p = make_problem(atari, 2, 5);
    farm_conv_u8_backward_weights(&p.shape, p.frames, 2, p.dout, p.dweights, p.dbias, p.scratch);
    const float weight = p.dweights[77], bias = p.dbias[3];
    farm_conv_u8_backward_weights(&p.shape, p.frames, 2, p.dout, p.dweights, p.dbias, p.scratch);
    cr_assert_neq(weight, 0);
    cr_assert_float_eq(p.dweights[77], 2 * weight, fabsf(weight) * 1e-5f);
    cr_assert_float_eq(p.dbias[3], 2 * bias, fabsf(bias) * 1e-5f);
    free_problem(&p);
}

Test(kernels_conv_u8, zero_gradients_and_tiny_ones_do_no_harm) {
    struct problem p = make_problem(atari, 1, 6);
    for (size_t i = 0; i < out_count(&p); i++) p.dout[i] = i % 16 == 2 ? 1e-40f : 0;
    farm_conv_u8_backward_weights(&p.shape, p.frames, 1, p.dout, p.dweights, p.dbias, p.scratch);
    for (size_t i = 0; i < weight_count(&p); i++) cr_assert_eq(p.dweights[i], 0);
    free_problem(&p);
}

Test(kernels_conv_u8, what_is_not_finite_shows_in_its_channel_only) {
    for (int path = 0; path < 2; path++) {
        struct problem p = make_problem(atari, 1, 7);
        p.weights[5 * 256 + 9] = path ? NAN : INFINITY;
        p.dout[index_of(&p, 0, 123, 11)] = path ? -INFINITY : NAN;
        farm_conv_u8_pack(&p.shape, p.weights, p.packed);
        if (path) {
            farm_conv_u8_forward(&p.shape, p.packed, p.bias, p.frames, 1, p.out);
            farm_conv_u8_backward_weights(&p.shape, p.frames, 1, p.dout, p.dweights, p.dbias, p.scratch);
        } else {
            farm_conv_u8_forward_portable(&p.shape, p.packed, p.bias, p.frames, 1, p.out);
            farm_conv_u8_backward_weights_portable(&p.shape, p.frames, 1, p.dout, p.dweights, p.dbias, p.scratch);
        }
        for (int o = 0; o < 16; o++) {
            cr_assert_eq(isnan(p.out[index_of(&p, 0, 200, o)]) != 0, o == 5, "output of channel %d", o);
            cr_assert_eq(isnan(p.dweights[o * 256 + 40]) != 0, o == 11, "gradient of channel %d", o);
        }
        free_problem(&p);
    }
}

Test(kernels_conv_u8, reads_no_byte_outside_a_frame) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 84 * 84, pages = (bytes + page - 1) / page;
    for (int end = 0; end < 2;
         end++) { // the frame begins at a page after, or ends at a page before, an untouchable one
        struct problem p = make_problem(atari_shape(1, 16, FARM_CONV_U8_NHWC), 1, 8);
        uint8_t *memory = mmap(NULL, (pages + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(memory, MAP_FAILED);
        cr_assert_eq(mprotect(memory + page, pages * page, PROT_READ | PROT_WRITE), 0);
        uint8_t *frame = end ? memory + page + pages * page - bytes : memory + page;
        memcpy(frame, p.pixels, bytes);
        p.frames[0] = frame;
        cr_assert_leq(forward_error(&p), 2e-4);
        cr_assert_leq(backward_error(&p), 1e-3);
        munmap(memory, (pages + 2) * page);
        free_problem(&p);
    }
}

Test(kernels_conv_u8, rejects_shapes_that_make_no_sense) {
    for (int i = 0; i < 6; i++) {
        struct farm_conv_u8_shape shape = atari;
        struct farm_error err;
        int *field[] = {&shape.stack, &shape.height, &shape.kernel, &shape.stride, &shape.outputs, &shape.outputs};
        const int value[] = {0, 7, 65, 0, 12, 0};
        *field[i] = value[i];
        cr_assert_eq(farm_conv_u8_check(&shape, &err), FARM_E_INVALID, "field %d", i);
        cr_assert_not_null(strstr(err.message, "first convolution"));
    }
}
