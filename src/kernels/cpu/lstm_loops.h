// The loops of kernels/lstm_rows.h, made vectors (LOOPS) by each including file for its instructions.
#ifndef FARM_KERNELS_CPU_LSTM_LOOPS_H
#define FARM_KERNELS_CPU_LSTM_LOOPS_H

#include "kernels/bf16.h"
#include "kernels/lstm.h"
#include "kernels/lstm_rows.h"

static void forward(size_t units, const float *restrict more, const float *restrict before, float *restrict gates,
                    float *restrict cell, float *restrict h) {
    for (size_t i = 0, f = units, g = 2 * units, o = 3 * units; i < units; i++, f++, g++, o++) {
        struct farm_lstm_gates unit = {gates[i] + more[i], gates[f] + more[f], gates[g] + more[g], gates[o] + more[o]};
        float c = before[i];
        h[i] = farm_lstm_forward(&unit, &c);
        cell[i] = c;
        gates[i] = unit.i;
        gates[f] = unit.f;
        gates[g] = unit.g;
        gates[o] = unit.o;
    }
}

static void backward(size_t units, const float *restrict gates, const float *restrict before,
                     const float *restrict cell, const float *restrict dh, const float *restrict more,
                     float *restrict dcell, float *restrict dgates) {
    for (size_t i = 0, f = units, g = 2 * units, o = 3 * units; i < units; i++, f++, g++, o++) {
        const struct farm_lstm_gates unit = {gates[i], gates[f], gates[g], gates[o]};
        float dc = dcell[i];
        const struct farm_lstm_gates d = farm_lstm_backward(&unit, before[i], cell[i], dh[i] + more[i], &dc);
        dcell[i] = dc;
        dgates[i] = d.i;
        dgates[f] = d.f;
        dgates[g] = d.g;
        dgates[o] = d.o;
    }
}

static void to_bf16(size_t count, const float *restrict from, uint16_t *restrict to) {
    for (size_t i = 0; i < count; i++) to[i] = farm_bf16(from[i]);
}

static void from_bf16(size_t count, const uint16_t *restrict from, float *restrict to) {
    for (size_t i = 0; i < count; i++) to[i] = farm_bf16_value(from[i]);
}

#endif
