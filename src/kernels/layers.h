// What layers compute besides products: activations and their slopes, maxima under a kernel and their gradients, in f32
// or bf16. For the CUDA kernels (for maxima their parts, several channels a thread), their tests and kernels/norm.h;
// the learner's CPU backend has oneDNN and kernels/maxpool.h too. Pictures are NHWC. Pure arithmetic.
#ifndef FARM_KERNELS_LAYERS_H
#define FARM_KERNELS_LAYERS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/device.h"
#include "kernels/lstm.h"

// ELU is e^x - 1 below 0 (Clevert et al. 2016); SiLU is x sigmoid(x) (Elfwing et al. 2018).
enum farm_activation {
    FARM_ACTIVATION_RELU,
    FARM_ACTIVATION_TANH,
    FARM_ACTIVATION_NONE,
    FARM_ACTIVATION_ELU,
    FARM_ACTIVATION_SILU
};

// The activation of x. NaN stays NaN. e^x - 1 = 2 t / (1 - t) with t = tanh(x / 2), without loss of digits near 0.
static inline FARM_HD float farm_slope_apply(enum farm_activation kind, float x) {
    if (kind == FARM_ACTIVATION_RELU) return x < 0 ? 0 : x;
    if (kind == FARM_ACTIVATION_TANH) return farm_lstm_tanh(x);
    if (kind == FARM_ACTIVATION_SILU) return x * farm_lstm_sigmoid(x);
    if (kind == FARM_ACTIVATION_NONE || x > 0) return x;
    const float t = farm_lstm_tanh(x / 2);
    return 2 * t / (1 - t);
}

// Its derivative at x.
static inline FARM_HD float farm_slope_at(enum farm_activation kind, float x) {
    if (kind == FARM_ACTIVATION_RELU || kind == FARM_ACTIVATION_NONE) return kind == FARM_ACTIVATION_NONE || x > 0;
    if (kind == FARM_ACTIVATION_ELU) return x > 0 ? 1 : farm_lstm_exp(x);
    const float y = kind == FARM_ACTIVATION_TANH ? farm_lstm_tanh(x) : farm_lstm_sigmoid(x);
    return kind == FARM_ACTIVATION_TANH ? 1 - y * y : y * (1 + x * (1 - y));
}

// The gradient by the sum before ReLU, tanh or none, whose result is y; dy is the gradient by y.
static inline FARM_HD float farm_slope_gradient(enum farm_activation kind, float y, float dy) {
    if (kind == FARM_ACTIVATION_RELU) return y > 0 ? dy : 0;
    return kind == FARM_ACTIVATION_TANH ? dy * (1 - y * y) : dy;
}

// A maximum under a square kernel, of pixels inside the picture. Every window must hold a pixel.
struct farm_pool {
    int height, width, channels; // the input's shape
    int out_height, out_width;
    int kernel, stride; // kernel <= FARM_POOL_KERNEL_MAX
    int pad_top, pad_left;
};
enum { FARM_POOL_KERNEL_MAX = 15 }; // a place under the kernel fits a byte

// Whether `number` replaces the maximum so far (if one was found). The first of equals stays; NaN is the largest.
static inline FARM_HD bool farm_pool_takes(bool found, float most, float number) {
    return !found || number > most || (number != number && most == most);
}

// The maximum of channel c under the window of output (y, x) of a picture; *where: its kernel row * kernel + column.
static inline FARM_HD float farm_pool_maximum(const struct farm_pool *p, const void *picture, bool bf16, int y, int x,
                                              int c, uint8_t *where) {
    const int top = y * p->stride - p->pad_top, left = x * p->stride - p->pad_left;
    bool found = false;
    float most = 0;
    *where = 0;
    for (int i = 0; i < p->kernel; i++)
        for (int j = 0; j < p->kernel; j++) {
            const int row = top + i, column = left + j;
            if (row < 0 || row >= p->height || column < 0 || column >= p->width) continue;
            const size_t pixel = (size_t)row * (size_t)p->width + (size_t)column;
            const float number = farm_number_at(picture, bf16, pixel * (size_t)p->channels + (size_t)c);
            if (farm_pool_takes(found, most, number)) {
                most = number;
                *where = (uint8_t)(i * p->kernel + j);
            }
            found = true;
        }
    return most;
}

// The first window that holds row (or column) `at`.
static inline FARM_HD int farm_pool_first(int at, int pad, int kernel, int stride) {
    const int lowest = at + pad - kernel + 1;
    return lowest <= 0 ? 0 : (lowest + stride - 1) / stride;
}

// The gradient by channel c of input (y, x): the sum over windows whose maximum it is. dy, where: [h][w][channels].
static inline FARM_HD float farm_pool_gradient(const struct farm_pool *p, const void *dy, const uint8_t *where,
                                               bool bf16, int y, int x, int c) {
    float sum = 0;
    for (int oy = farm_pool_first(y, p->pad_top, p->kernel, p->stride);
         oy < p->out_height && oy * p->stride <= y + p->pad_top; oy++)
        for (int ox = farm_pool_first(x, p->pad_left, p->kernel, p->stride);
             ox < p->out_width && ox * p->stride <= x + p->pad_left; ox++) {
            const int i = y + p->pad_top - oy * p->stride, j = x + p->pad_left - ox * p->stride;
            const size_t at = ((size_t)oy * (size_t)p->out_width + (size_t)ox) * (size_t)p->channels + (size_t)c;
            if (where[at] == i * p->kernel + j) sum += farm_number_at(dy, bf16, at);
        }
    return sum;
}

#endif
