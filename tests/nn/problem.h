// Shared by the tests of both executors: a network with parameters, input rows, gradients of its
// outputs, and the right answer; and how far an answer is off.
#ifndef TESTS_NN_PROBLEM_H
#define TESTS_NN_PROBLEM_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "../support/nets.h"
#include "kernels/random.h"
#include "nn/executor.h"

#define CONV(kind_, out_, kernel_, stride_, activation_)                                                               \
    {                                                                                                                  \
        .kind = FARM_LAYER_##kind_, .out = out_, .kernel = kernel_, .stride = stride_,                                 \
        .activation = FARM_ACTIVATION_##activation_                                                                    \
    }
#define DENSE(out_, activation_)                                                                                       \
    { .kind = FARM_LAYER_DENSE, .out = out_, .activation = FARM_ACTIVATION_##activation_ }
#define NORM(activation_)                                                                                              \
    { .kind = FARM_LAYER_NORM, .activation = FARM_ACTIVATION_##activation_ }

// An answer's parts: logits, values, and the gradient of each tensor.
enum { PARTS_MAX = 2 + FARM_TENSORS_MAX };

// What a network computes, one array after another.
struct answer {
    float *logits, *value, *grads;
    int padded;
};

struct problem {
    struct farm_net_spec spec;
    struct farm_net net;
    int batch;
    float *params;
    uint8_t *frames; // one after another
    float *numbers;  // [batch][io.flat]
    const void **rows;
    float *dlogits, *dvalue;
    struct answer right;
    float bf16_errors[PARTS_MAX];  // part by part, of bf16 computed by JAX or PyTorch
    struct problem_device *device; // the GPU test's
};

static const struct farm_net_io atari = {.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6};

static inline void *array(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    cr_assert_not_null(memory);
    return memory;
}

static inline double distance(const float *a, const float *b, size_t count) {
    double off = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return off == 0 ? 0 : sqrt(off / norm); // NaN if any number is
}

static inline size_t frame_bytes(const struct farm_net_io *io) {
    return (size_t)(io->frame_channels * io->height * io->width);
}

// Frames of a row.
static inline size_t row_frames(const struct farm_net_io *io) {
    return io->frame_channels > 0 ? (size_t)(io->images * io->stack) : 0;
}

static inline struct answer answer_new(const struct farm_net *net, int batch) {
    const size_t rows = (size_t)batch, logits = rows * (size_t)net->io.actions;
    struct answer a = {.logits = array(logits + rows + net->parameter_count, sizeof(float))};
    a.value = a.logits + logits;
    a.grads = a.value + rows;
    return a;
}

static inline struct problem *problem_new(const struct farm_net_spec *spec, const struct farm_net_io *io, int batch) {
    struct problem *p = array(1, sizeof *p);
    struct farm_error err = {.message = ""};
    p->spec = *spec;
    p->batch = batch;
    cr_assert_eq(farm_net_make(&p->spec, io, &p->net, &err), FARM_OK, "%s", err.message);
    const size_t rows = (size_t)batch, frames = row_frames(&p->net.io), pointers = (size_t)farm_net_pointers(&p->net);
    const size_t logits = rows * (size_t)io->actions, flat = (size_t)io->flat;
    p->params = array(p->net.parameter_count, sizeof(float));
    p->frames = array(rows * frames, frame_bytes(io));
    p->numbers = array(rows * flat, sizeof(float));
    p->rows = array(rows * pointers, sizeof *p->rows);
    for (size_t i = 0; i < rows * pointers; i++) {
        const size_t r = i / pointers, k = i % pointers; // one part of a flat input
        p->rows[i] =
            k < frames ? (const void *)(p->frames + (r * frames + k) * frame_bytes(io)) : p->numbers + r * flat;
    }
    p->dlogits = array(logits, sizeof(float));
    p->dvalue = array(rows, sizeof(float));
    p->right = answer_new(&p->net, batch);
    return p;
}

static inline void problem_free_host(struct problem *p) {
    void *const parts[] = {p->params, p->frames, p->numbers, p->rows, p->dlogits, p->dvalue, p->right.logits, p};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
}

// Random parameters, biases too, and pictures that are partly smooth, as games' are.
static inline void problem_randomise(struct problem *p, uint64_t seed) {
    const struct farm_net_io *io = &p->net.io;
    const size_t rows = (size_t)p->batch, flat = rows * (size_t)io->flat;
    farm_net_init(&p->net, FARM_INIT_UNIFORM, seed, p->params);
    for (size_t i = 0; i < p->net.parameter_count; i++)
        if (p->params[i] == 0) p->params[i] = 0.1f * (farm_random_uniform(seed, 1, i) - 0.5f);
    for (size_t i = 0; i < rows * (size_t)io->actions; i++) p->dlogits[i] = farm_random_uniform(seed, 2, i) - 0.5f;
    for (size_t i = 0; i < rows; i++) p->dvalue[i] = farm_random_uniform(seed, 3, i) - 0.5f;
    for (size_t i = 0; i < flat; i++) p->numbers[i] = 2 * farm_random_uniform(seed, 4, i) - 1;
    for (size_t i = 0; i < rows * row_frames(io) * frame_bytes(io); i++)
        p->frames[i] = (uint8_t)(255 * farm_random_uniform(seed, 5, i / 64 % 3 == 0 ? i : i / 64));
}

#endif
