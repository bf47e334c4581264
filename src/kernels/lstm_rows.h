// Rows of kernels/lstm.h's units on the CPU, in the widest vectors of the machine. Runs in an executor's thread; pure.
#ifndef FARM_KERNELS_LSTM_ROWS_H
#define FARM_KERNELS_LSTM_ROWS_H

#include <stddef.h>
#include <stdint.h>

// Vectors of [units], and [4][units] for the gates i, f, g, o; none overlap. `cell`, `before`: c, and c a step before.
struct farm_lstm_rows {
    // gates: what the input adds to the sums; becomes the gates. more: the other addend.
    void (*forward)(size_t units, const float *more, const float *before, float *gates, float *cell, float *h);
    // dh, more: addends of the gradient by h. dcell: of the next step; becomes that by `before`. dgates: by the sums.
    void (*backward)(size_t units, const float *gates, const float *before, const float *cell, const float *dh,
                     const float *more, float *dcell, float *dgates);
    void (*to_bf16)(size_t count, const float *from, uint16_t *to); // farm_bf16
    void (*from_bf16)(size_t count, const uint16_t *from, float *to);
};

// Of this CPU.
const struct farm_lstm_rows *farm_lstm_rows(void);

extern const struct farm_lstm_rows farm_lstm_rows_portable, farm_lstm_rows_avx2, farm_lstm_rows_avx512;

#endif
