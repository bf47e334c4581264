// See lstm.h.
#include "nn/lstm.h"

#include <assert.h>
#include <farm/step.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/lstm_rows.h"

struct farm_dnnl_layer_config farm_lstm_product(const struct farm_dnnl_layer_config *config) {
    struct farm_dnnl_layer_config product = *config;
    product.op.kind = FARM_NET_OP_DENSE;
    product.op.in = config->op.out;
    product.op.out = config->op.in;
    product.out_type = product.diff_in_type = dnnl_f32;
    return product;
}

// Only sequences of several steps need any, and a rung of the executor's ladder has at most half more rows than asked.
int farm_lstm_slack(int rows_max) {
    return rows_max / 4 + 1;
}

bool farm_lstm_make(const struct farm_dnnl_layer_config *config, size_t state, int rows_max, struct farm_lstm *lstm) {
    const size_t units = (size_t)config->op.out.channels, row = units * sizeof(float), rows = (size_t)rows_max;
    *lstm = (struct farm_lstm){
        .units = units, .state = state, .at = (size_t)config->op.state, .bf16 = config->type == dnnl_bf16};
    lstm->before = farm_dnnl_alloc((rows + (size_t)farm_lstm_slack(rows_max)) * row);
    lstm->cells = farm_dnnl_alloc(2 * rows * row);
    lstm->product = farm_dnnl_alloc(4 * rows * row);
    lstm->dcells = farm_dnnl_alloc(rows * row);
    lstm->row = farm_dnnl_alloc(5 * row);
    lstm->zeros = farm_dnnl_alloc(row);
    return lstm->before && lstm->cells && lstm->product && lstm->dcells && lstm->row && lstm->zeros;
}

void farm_lstm_drop(struct farm_lstm *lstm) {
    void *const parts[] = {lstm->before, lstm->cells, lstm->product, lstm->dcells, lstm->row, lstm->zeros};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
}

struct farm_dnnl_layer_rows farm_lstm_rows_of(const struct farm_lstm *lstm, void *diff_out) {
    return (struct farm_dnnl_layer_rows){
        .in = lstm->before, .out = lstm->product, .diff_in = lstm->product, .diff_out = diff_out};
}

// Row r of rows that products read, of so many units.
static void *row_at(const struct farm_lstm *lstm, const void *rows, size_t units, size_t r) {
    return (char *)(uintptr_t)rows + r * units * (lstm->bf16 ? sizeof(uint16_t) : sizeof(float));
}

// Stores f32 as products read it.
static void put_row(const struct farm_lstm *lstm, const float *from, size_t count, void *to) {
    if (lstm->bf16)
        farm_lstm_rows()->to_bf16(count, from, to);
    else if (from != to)
        memcpy(to, from, count * sizeof *from);
}

static bool is_first(struct farm_sequence sequence, size_t r) {
    return (sequence.flags[r] & FARM_STEP_FIRST) != 0;
}

// c before row r's step.
static const float *cell_before(const struct farm_lstm *lstm, struct farm_sequence sequence, size_t r) {
    return is_first(sequence, r) ? lstm->zeros : lstm->cells + r * lstm->units;
}

static void enter_state(struct farm_lstm *lstm, struct farm_sequence sequence) {
    for (size_t c = 0; c < (size_t)sequence.columns; c++) {
        const float *state = sequence.state_in + c * lstm->state + lstm->at;
        put_row(lstm, state, lstm->units, row_at(lstm, lstm->before, lstm->units, c));
        memcpy(lstm->cells + c * lstm->units, state + lstm->units, lstm->units * sizeof *state);
    }
}

static void leave_state(const struct farm_lstm *lstm, struct farm_sequence sequence, size_t column, const float *h,
                        const float *cell) {
    float *state = sequence.state_out + column * lstm->state + lstm->at;
    memcpy(state, h, lstm->units * sizeof *h);
    memcpy(state + lstm->units, cell, lstm->units * sizeof *cell);
}

void farm_lstm_run(struct farm_lstm *lstm, struct farm_dnnl *dnnl, struct farm_dnnl_op *product,
                   struct farm_sequence sequence, float *gates, void *out) {
    const size_t units = lstm->units, columns = (size_t)sequence.columns, rows = (size_t)sequence.steps * columns;
    enter_state(lstm, sequence);
    for (size_t r = 0; r < rows; r++) {
        if (r % columns == 0) { // a step begins
            for (size_t k = r; k < r + columns; k++)
                if (is_first(sequence, k)) put_row(lstm, lstm->zeros, units, row_at(lstm, lstm->before, units, k));
            farm_dnnl_op_bind(product, DNNL_ARG_SRC, row_at(lstm, lstm->before, units, r));
            farm_dnnl_op_run(dnnl, product);
        }
        void *to = row_at(lstm, out, units, r);
        float *h = lstm->bf16 ? lstm->row : to, *cell = lstm->cells + (r + columns) * units;
        farm_lstm_rows()->forward(units, lstm->product + r % columns * 4 * units, cell_before(lstm, sequence, r),
                                  gates + r * 4 * units, cell, h);
        put_row(lstm, h, units, to);
        if (r + columns < rows)
            put_row(lstm, h, units, row_at(lstm, lstm->before, units, r + columns));
        else if (sequence.state_out)
            leave_state(lstm, sequence, r % columns, h, cell);
    }
}

// From the gradients by h and c after row r's step to those by its sums and by c before it. last: no gradient comes
// from the step after.
static void step_back(struct farm_lstm *lstm, struct farm_sequence sequence, size_t r, bool last, const float *gates,
                      const void *dout, void *dgates) {
    const size_t units = lstm->units, columns = (size_t)sequence.columns, column = r % columns;
    const struct farm_lstm_rows *loops = farm_lstm_rows();
    const float *dh = row_at(lstm, dout, units, r), *more = last ? lstm->zeros : lstm->product + column * units;
    void *to = row_at(lstm, dgates, 4 * units, r);
    float *dcell = lstm->dcells + column * units, *dsums = lstm->bf16 ? lstm->row + units : to;
    if (lstm->bf16) {
        loops->from_bf16(units, row_at(lstm, dout, units, r), lstm->row);
        dh = lstm->row;
    }
    if (last) memset(dcell, 0, units * sizeof *dcell);
    loops->backward(units, gates + r * 4 * units, cell_before(lstm, sequence, r), lstm->cells + (r + columns) * units,
                    dh, more, dcell, dsums);
    put_row(lstm, dsums, 4 * units, to);
}

void farm_lstm_run_back(struct farm_lstm *lstm, struct farm_dnnl *dnnl, struct farm_dnnl_op *product,
                        struct farm_sequence sequence, int padded, const float *gates, const void *dout, void *dgates) {
    const size_t units = lstm->units, columns = (size_t)sequence.columns, rows = (size_t)sequence.steps * columns;
    for (size_t t = (size_t)sequence.steps; t-- > 0;) {
        for (size_t r = t * columns; r < (t + 1) * columns; r++)
            step_back(lstm, sequence, r, r + columns >= rows || is_first(sequence, r + columns), gates, dout, dgates);
        if (t == 0) break;
        farm_dnnl_op_bind(product, DNNL_ARG_DIFF_DST, row_at(lstm, dgates, 4 * units, t * columns));
        farm_dnnl_op_run(dnnl, product);
    }
    const size_t number = lstm->bf16 ? sizeof(uint16_t) : sizeof(float), beyond = ((size_t)padded - rows) * number;
    memset(row_at(lstm, lstm->before, units, rows), 0, beyond * units);
    memset(row_at(lstm, dgates, 4 * units, rows), 0, beyond * 4 * units);
}
