// A step of an LSTM layer besides its products (kernels/lstm.h). A thread has one unit of a column: coalesced accesses.
#include "kernels/cuda/common.cuh"

#include <farm/step.h>

extern "C" {
#include "kernels/lstm.h"
}

enum { THREADS = 256 };

// What a thread works on: unit `unit` of column `column`, element `at` of [columns][units].
struct place {
    size_t at, gates; // gates: of gate i; the next gate is `units` further
    uint32_t column, unit;
    bool inside;
};
static __device__ struct place place_of(const struct farm_cuda_lstm &l) {
    struct place p;
    p.at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    p.column = (uint32_t)(p.at / l.units);
    p.unit = (uint32_t)(p.at % l.units);
    p.gates = (size_t)p.column * 4 * l.units + p.unit;
    p.inside = p.column < l.columns;
    return p;
}

static __device__ size_t numbers_of(const struct farm_cuda_lstm &l) {
    return (size_t)l.columns * l.units;
}
static __device__ bool is_first(const struct farm_cuda_lstm &l, const struct place &p, uint32_t step) {
    return l.flags[(size_t)step * l.columns + p.column] & FARM_STEP_FIRST;
}
// c before the step.
static __device__ float cell_before(const struct farm_cuda_lstm &l, const struct place &p) {
    return is_first(l, p, 0) ? 0 : l.cells[p.at];
}
static __device__ struct farm_lstm_gates load_gates(const struct farm_cuda_lstm &l, const struct place &p) {
    const float *gates = l.gates + p.gates;
    return {gates[0], gates[l.units], gates[2 * (size_t)l.units], gates[3 * (size_t)l.units]};
}
template <typename T>
static __device__ void store_gates(const struct farm_cuda_lstm &l, const struct place &p,
                                   const struct farm_lstm_gates &from, T *to) {
    to += p.gates;
    store(to, from.i);
    store(to + l.units, from.f);
    store(to + 2 * (size_t)l.units, from.g);
    store(to + 3 * (size_t)l.units, from.o);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) enter(const struct farm_cuda_lstm l, const float *state) {
    const struct place p = place_of(l);
    if (!p.inside) return;
    state += (size_t)p.column * l.state + p.unit;
    store((T *)l.before + p.at, is_first(l, p, 0) ? 0 : state[0]);
    l.cells[p.at] = state[l.units];
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    forward(const struct farm_cuda_lstm l, const T *bias_ih, const T *bias_hh, T *out, float *state) {
    const struct place p = place_of(l);
    if (!p.inside) return;
    struct farm_lstm_gates gates = load_gates(l, p);
    float *const sums[] = {&gates.i, &gates.f, &gates.g, &gates.o};
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        *sums[k] += load(bias_ih + k * (size_t)l.units + p.unit) + load(bias_hh + k * (size_t)l.units + p.unit);
    float cell = cell_before(l, p);
    const float h = farm_lstm_forward(&gates, &cell);
    store_gates(l, p, gates, l.gates);
    l.cells[numbers_of(l) + p.at] = cell;
    store(out + p.at, h);
    if (!l.last) store((T *)l.before + numbers_of(l) + p.at, is_first(l, p, 1) ? 0 : h);
    if (!l.last || !state) return;
    state += (size_t)p.column * l.state + p.unit;
    state[0] = h;
    state[l.units] = cell;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    backward(const struct farm_cuda_lstm l, const T *dout, const float *dh_after, float *dcells, T *dgates) {
    const struct place p = place_of(l);
    if (!p.inside) return;
    const struct farm_lstm_gates gates = load_gates(l, p);
    const bool cut = l.last || is_first(l, p, 1);
    const float dh = load(dout + p.at) + (cut ? 0 : dh_after[p.at]);
    float dcell = cut ? 0 : dcells[p.at];
    store_gates(l, p, farm_lstm_backward(&gates, cell_before(l, p), l.cells[numbers_of(l) + p.at], dh, &dcell), dgates);
    dcells[p.at] = dcell;
}

static enum farm_status check_lstm(const struct farm_cuda_lstm *l, struct farm_error *err) {
    if (l->units >= 1 && l->units <= INT32_MAX / 4 && l->state >= 2 * l->units &&
        (uint64_t)l->columns * 4 * l->units <= INT32_MAX)
        return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "an LSTM of %u units in %u columns, with %u numbers of state", l->units,
                     l->columns, l->state);
}

static struct farm_cuda_grid grid_of(const char *name, struct CUstream_st *stream, const struct farm_cuda_lstm *l) {
    return {name, stream, farm_cuda_blocks((size_t)l->columns * l->units, THREADS), THREADS};
}

enum farm_status farm_cuda_lstm_enter(struct CUstream_st *stream, const struct farm_cuda_lstm *l, const float *state,
                                      struct farm_error *err) {
    const enum farm_status status = check_lstm(l, err);
    if (status || l->columns == 0) return status;
    const struct farm_cuda_grid grid = grid_of("lstm_enter", stream, l);
    return l->type == FARM_CUDA_BF16 ? farm_cuda_launch(grid, err, enter<uint16_t>, *l, state)
                                     : farm_cuda_launch(grid, err, enter<float>, *l, state);
}

enum farm_status farm_cuda_lstm_forward(struct CUstream_st *stream, const struct farm_cuda_lstm *l, const void *bias_ih,
                                        const void *bias_hh, void *out, float *state, struct farm_error *err) {
    const enum farm_status status = check_lstm(l, err);
    if (status || l->columns == 0) return status;
    const struct farm_cuda_grid grid = grid_of("lstm_forward", stream, l);
    if (l->type == FARM_CUDA_BF16)
        return farm_cuda_launch(grid, err, forward<uint16_t>, *l, (const uint16_t *)bias_ih, (const uint16_t *)bias_hh,
                                (uint16_t *)out, state);
    return farm_cuda_launch(grid, err, forward<float>, *l, (const float *)bias_ih, (const float *)bias_hh, (float *)out,
                            state);
}

enum farm_status farm_cuda_lstm_backward(struct CUstream_st *stream, const struct farm_cuda_lstm *l, const void *dout,
                                         const float *dh_after, float *dcells, void *dgates, struct farm_error *err) {
    const enum farm_status status = check_lstm(l, err);
    if (status || l->columns == 0) return status;
    const struct farm_cuda_grid grid = grid_of("lstm_backward", stream, l);
    if (l->type == FARM_CUDA_BF16)
        return farm_cuda_launch(grid, err, backward<uint16_t>, *l, (const uint16_t *)dout, dh_after, dcells,
                                (uint16_t *)dgates);
    return farm_cuda_launch(grid, err, backward<float>, *l, (const float *)dout, dh_after, dcells, (float *)dgates);
}
