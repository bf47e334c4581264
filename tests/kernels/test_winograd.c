// Winograd's convolutions, with all instructions, against the definition in f64: both kernels, odd sizes, padding, all
// layouts, more tiles than are computed at a time. The executor's tests compare whole networks with PyTorch.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"
#include "kernels/winograd.h"

enum { BATCH = 3, MOST = 1 << 15 };

// kernel, stride, pad, input, output, block
static const struct farm_winograd_shape shapes[] = {
    {3, 1, {1, 1}, 16, 27, 6, 8, 27, 6, 8},   // 3 x 14 tiles: chunks begin within an observation
    {4, 2, {1, 0}, 8, 27, 27, 16, 13, 13, 8}, // 3 x 25 tiles, as above
    {3, 1, {0, 0}, 8, 9, 3, 24, 7, 1, 0},     {3, 1, {1, 1}, 16, 1, 1, 16, 1, 1, 16},
    {4, 2, {1, 0}, 8, 15, 20, 16, 7, 9, 8},   {4, 2, {0, 0}, 16, 4, 26, 16, 1, 12, 0},
    {4, 2, {1, 1}, 16, 2, 2, 16, 1, 1, 16},
};

static size_t at(int block, int channels, int c, int height, int width, int y, int x) {
    block = block ? block : channels;
    return (size_t)(((c / block * height + y) * width + x) * block + c % block);
}

struct numbers {
    float given[MOST], got[MOST];
    double right[MOST];
};

static void draw(struct numbers *n, uint64_t stream) {
    for (uint64_t i = 0; i < MOST; i++) n->given[i] = farm_random_uniform(7, stream, i) - 0.5f;
    memset(n->right, 0, sizeof n->right);
    memset(n->got, 0xff, sizeof n->got); // NaN
}

static double distance(const float *got, const double *right, size_t count) {
    double off = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        off += ((double)got[i] - right[i]) * ((double)got[i] - right[i]);
        norm += right[i] * right[i];
    }
    return sqrt(off / norm);
}

// out, in and weight: `given` is what is multiplied, `right` what that gives the others.
static void convolve(const struct farm_winograd_shape *s, struct numbers *in, struct numbers *out,
                     struct numbers *weight, double dbias[]) {
    const size_t inputs = (size_t)(s->channels * s->height * s->width);
    const size_t outputs = (size_t)(s->outputs * s->out_height * s->out_width);
    for (size_t b = 0; b < BATCH; b++)
        for (int o = 0; o < s->outputs; o++)
            for (int p = 0; p < s->out_height * s->out_width; p++) {
                const int y = p / s->out_width, x = p % s->out_width;
                const size_t to = b * outputs + at(s->block, s->outputs, o, s->out_height, s->out_width, y, x);
                dbias[o] += (double)out->given[to];
                for (int k = 0; k < s->channels * s->kernel * s->kernel; k++) {
                    const int c = k / s->kernel / s->kernel;
                    const int row = y * s->stride + k / s->kernel % s->kernel - s->pad[0];
                    const int column = x * s->stride + k % s->kernel - s->pad[1];
                    if (row < 0 || column < 0 || row >= s->height || column >= s->width) continue;
                    const size_t from = b * inputs + at(s->block, s->channels, c, s->height, s->width, row, column);
                    const size_t w = (size_t)(o * s->channels * s->kernel * s->kernel + k);
                    out->right[to] += (double)in->given[from] * (double)weight->given[w];
                    in->right[from] += (double)out->given[to] * (double)weight->given[w];
                    weight->right[w] += (double)in->given[from] * (double)out->given[to];
                }
            }
}

// The same bits whatever other observations the call has.
static void check_alone(const struct farm_winograd_loops *loops, const struct farm_winograd_shape *s,
                        const struct numbers *given, size_t count, const struct numbers *other, size_t other_count,
                        const void *packed, bool backward, void *scratch) {
    static float got[MOST], alone[MOST], weights[MOST];
    float bias[32] = {0};
    for (size_t b = 0; b <= BATCH; b++) { // all, then each
        float *to = b ? alone + (b - 1) * other_count : got;
        const float *from = given->given + (b ? b - 1 : 0) * count;
        if (backward)
            loops->backward(s, packed, other->given, from, b ? 1 : BATCH, to, weights, bias, scratch);
        else
            loops->forward(s, packed, bias, from, b ? 1 : BATCH, false, false, to, scratch);
    }
    cr_expect_arr_eq(got, alone, BATCH * other_count * sizeof *got);
}

static void check(const struct farm_winograd_loops *loops, const struct farm_winograd_shape *s) {
    static struct numbers in, out, weight;
    const size_t in_row = (size_t)(s->channels * s->height * s->width), inputs = BATCH * in_row;
    const size_t out_row = (size_t)(s->outputs * s->out_height * s->out_width), outputs = BATCH * out_row;
    const size_t weights = (size_t)(s->outputs * s->channels * s->kernel * s->kernel);
    float bias[32], dbias[32] = {0};
    double right_bias[32] = {0}, right[MOST];
    const double most = s->kernel == 3 ? 5e-6 : 1e-6;
    cr_assert(farm_winograd_runs(s) && inputs <= MOST && outputs <= MOST && weights <= MOST);
    draw(&in, 1), draw(&out, 2), draw(&weight, 3);
    convolve(s, &in, &out, &weight, right_bias);
    void *packed = aligned_alloc(64, (farm_winograd_packed_bytes(s) + 63) / 64 * 64);
    void *scratch = aligned_alloc(64, (loops->scratch_bytes(s) + 63) / 64 * 64);
    memset(scratch, 0xff, loops->scratch_bytes(s)); // NaN
    for (int o = 0; o < s->outputs; o++) bias[o] = (float)o / 8;

    loops->pack(s, FARM_WINOGRAD_DATA, weight.given, packed);
    memset(weight.got, 0, sizeof weight.got);
    for (int i = 0; i < 2; i++) // weights' are added, the input's is not
        loops->backward(s, packed, in.given, out.given, BATCH, in.got, weight.got, dbias, scratch);
    for (size_t i = 0; i < weights; i++) weight.got[i] /= 2;
    for (int o = 0; o < s->outputs; o++) dbias[o] /= 2;
    cr_expect_lt(distance(in.got, in.right, inputs), most);
    cr_expect_lt(distance(weight.got, weight.right, weights), most);
    cr_expect_lt(distance(dbias, right_bias, (size_t)s->outputs), most);
    check_alone(loops, s, &out, out_row, &in, in_row, packed, true, scratch);

    loops->pack(s, FARM_WINOGRAD_FORWARD, weight.given, packed);
    memcpy(out.got, out.given, sizeof out.got);
    for (int again = 0; again < 2; again++) { // with what is there and ReLU; alone
        for (size_t i = 0; i < outputs; i++) {
            const size_t block = (size_t)(s->block ? s->block : s->outputs);
            const size_t o = i % out_row / (block * (size_t)(s->out_height * s->out_width)) * block + i % block;
            const double sum = out.right[i] + (again ? 0 : (double)out.given[i]) + (double)bias[o];
            right[i] = again ? sum : fmax(sum, 0);
        }
        loops->forward(s, packed, bias, in.given, BATCH, !again, !again, out.got, scratch);
        cr_expect_lt(distance(out.got, right, outputs), most);
    }
    check_alone(loops, s, &in, in_row, &out, out_row, packed, false, scratch);
    in.given[0] = NAN;
    loops->forward(s, packed, bias, in.given, 1, false, true, out.got, scratch);
    cr_expect(isnan(out.got[0]), "ReLU keeps NaN");
    free(packed);
    free(scratch);
}

Test(kernels_winograd, all_loops_agree_with_the_definition) {
    const struct farm_winograd_loops *all[] = {&farm_winograd_portable, farm_winograd_loops()};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int k = 0; k < 2; k++) check(all[k], &shapes[i]);
}

Test(kernels_winograd, refuses_other_shapes) {
    for (int i = 0; i < 3; i++) {
        struct farm_winograd_shape s = shapes[0];
        *(i == 0 ? &s.channels : i == 1 ? &s.stride : &s.block) = i == 1 ? 2 : 12;
        cr_expect_not(farm_winograd_runs(&s));
    }
}
