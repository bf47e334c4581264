// One unit of an LSTM layer, forward and backward (Hochreiter and Schmidhuber 1997, "Long short-term memory"; forget
// gate: Gers et al. 2000, "Learning to forget"), in the order of torch.nn.LSTM's gates: i, f, g, o.
//
//   i, f, o = sigmoid(sum), g = tanh(sum),   c = f c_before + i g,   h = o tanh(c)
//
// Everything is f32. For inference and training; no branches or calls, so that loops become vectors. NaN stays NaN.
#ifndef FARM_KERNELS_LSTM_H
#define FARM_KERNELS_LSTM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/device.h"

struct farm_lstm_gates {
    float i, f, g, o;
};

// e^x within 1.2e-7 of itself for x in [-80, 80], which others are clipped to: a denormal product, even of an element
// that is then not selected, would take as long as hundreds of others. x = n log 2 + r, |r| <= log 2 / 2; the
// polynomial is that of Cephes (Moshier 1992, expf).
static inline FARM_HD float farm_lstm_exp(float x) {
    const float round = 12582912; // 1.5 * 2^23: a sum with it has the nearest whole number in its lowest bits
    x = x < -80 ? -80 : x;
    x = x > 80 ? 80 : x;
    const float shifted = x * 1.44269504f + round, n = shifted - round, r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f, scale;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000; // 2^n
    memcpy(&scale, &bits, sizeof scale);
    return (p * r * r + r + 1) * scale;
}

static inline FARM_HD float farm_lstm_sigmoid(float x) {
    return 1 / (1 + farm_lstm_exp(-x));
}

// Near 0 a polynomial, again of Cephes (tanhf), because the other expression loses digits there.
static inline FARM_HD float farm_lstm_tanh(float x) {
    const float size = fabsf(x), s = x * x;
    float p = -5.70498872745e-3f * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    const float near = x + x * s * p, far = copysignf(1 - 2 / (farm_lstm_exp(2 * size) + 1), x);
    return size < 0.625f ? near : far;
}

// Sums become gates; *cell: c before, which becomes c. Returns h.
static inline FARM_HD float farm_lstm_forward(struct farm_lstm_gates *gates, float *cell) {
    gates->i = farm_lstm_sigmoid(gates->i);
    gates->f = farm_lstm_sigmoid(gates->f);
    gates->g = farm_lstm_tanh(gates->g);
    gates->o = farm_lstm_sigmoid(gates->o);
    *cell = gates->f * *cell + gates->i * gates->g;
    return gates->o * farm_lstm_tanh(*cell);
}

// Returns the gradient by the sums. gates, before, cell: of the forward pass (c before, and c); dh: the gradient by h;
// *dcell: that by c from the step after, which becomes that by c before.
static inline FARM_HD struct farm_lstm_gates farm_lstm_backward(const struct farm_lstm_gates *gates, float before,
                                                                float cell, float dh, float *dcell) {
    const float t = farm_lstm_tanh(cell), dc = *dcell + dh * gates->o * (1 - t * t);
    struct farm_lstm_gates d;
    d.i = dc * gates->g * gates->i * (1 - gates->i);
    d.f = dc * before * gates->f * (1 - gates->f);
    d.g = dc * gates->i * (1 - gates->g * gates->g);
    d.o = dh * t * gates->o * (1 - gates->o);
    *dcell = dc * gates->f;
    return d;
}

#endif
