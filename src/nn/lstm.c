// An LSTM layer over a sequence (FARM_NET_OP_LSTM) in an executor: one recurrent product a step, of all columns, and
// kernels/lstm.h between. Gates, cells and the state are f32; h becomes bf16 where products read it.
#include <assert.h>
#include <farm/step.h>
#include <string.h>

#include "kernels/lstm_rows.h"
#include "nn/layer.h"

// rows.in [rows][4 * units]: what the input adds to the sums; a forward turns it into the gates. rows.diff_in too:
// gradients by the sums, in the product's type.
struct lstm {
    struct farm_op_layer product; // recurrent: FORWARD and DATA for columns, WEIGHTS for all rows of a sequence
    struct farm_dnnl_layer own;   // the product's
    size_t units;
    size_t state, at;   // floats of an environment's state; where this layer's h lies in them
    bool bf16;          // before, out and gradients by out and sums; else f32
    void *before;       // [rows][units] h before each step as the product reads it: 0 at FIRST
    float *cells;       // [columns][units] c before the first step, then [rows][units] c after each
    float *sums;        // [columns][4 * units] forward, [columns][units] backward
    float *dcells;      // [columns][units]
    float *row, *zeros; // [5 * units] scratch; [units]
};

static enum farm_status make(struct farm_op_layer *layer, struct farm_error *err) {
    const struct farm_layer_config *config = &layer->config;
    struct farm_dnnl *dnnl = layer->dnnl;
    struct lstm *lstm = layer->own;
    const size_t units = (size_t)config->op.out.channels, row = units * sizeof(float);
    const size_t rows = (size_t)config->batch_max, slack = (size_t)farm_lstm_slack(config->batch_max);
    lstm->units = units;
    lstm->state = (size_t)layer->net->state;
    lstm->at = (size_t)config->op.state;
    lstm->bf16 = config->type == dnnl_bf16;
    lstm->before = farm_dnnl_keep(dnnl, (rows + slack) * row);
    lstm->cells = farm_dnnl_keep(dnnl, 2 * rows * row);
    lstm->sums = farm_dnnl_keep(dnnl, 4 * rows * row);
    lstm->dcells = farm_dnnl_keep(dnnl, rows * row);
    lstm->row = farm_dnnl_keep(dnnl, 5 * row);
    lstm->zeros = farm_dnnl_keep(dnnl, row);
    lstm->product = *layer;
    struct farm_layer_config *product = &lstm->product.config;
    product->op.kind = FARM_NET_OP_DENSE;
    product->op.in = config->op.out;
    product->op.out = config->op.in;
    product->out_type = product->diff_in_type = dnnl_f32;
    lstm->product.rows = (struct farm_layer_rows){lstm->before, lstm->sums, lstm->sums, layer->rows.diff_in};
    lstm->product.own = &lstm->own;
    const enum farm_status status = farm_op_dnnl.make(&lstm->product, err);
    layer->writes = lstm->product.writes;
    return status;
}

static void load(struct farm_op_layer *layer, const float *params) {
    struct lstm *lstm = layer->own;
    farm_op_dnnl.load(&lstm->product, params);
}

// Row r of rows of `units` numbers that products read.
static void *row_at(const struct lstm *lstm, const void *rows, size_t units, size_t r) {
    return (char *)(uintptr_t)rows + r * units * (lstm->bf16 ? sizeof(uint16_t) : sizeof(float));
}

// Stores f32 as products read it.
static void put_row(const struct lstm *lstm, const float *from, size_t count, void *to) {
    if (lstm->bf16)
        farm_lstm_rows()->to_bf16(count, from, to);
    else if (from != to)
        memcpy(to, from, count * sizeof *from);
}

static bool is_first(struct farm_sequence sequence, size_t r) {
    return (sequence.flags[r] & FARM_STEP_FIRST) != 0;
}

// c before row r's step.
static const float *cell_before(const struct lstm *lstm, struct farm_sequence sequence, size_t r) {
    return is_first(sequence, r) ? lstm->zeros : lstm->cells + r * lstm->units;
}

static void enter_state(struct lstm *lstm, struct farm_sequence sequence) {
    for (size_t c = 0; c < (size_t)sequence.columns; c++) {
        const float *state = sequence.state_in + c * lstm->state + lstm->at;
        put_row(lstm, state, lstm->units, row_at(lstm, lstm->before, lstm->units, c));
        memcpy(lstm->cells + c * lstm->units, state + lstm->units, lstm->units * sizeof *state);
    }
}

static void leave_state(const struct lstm *lstm, struct farm_sequence sequence, size_t column, const float *h,
                        const float *cell) {
    float *state = sequence.state_out + column * lstm->state + lstm->at;
    memcpy(state, h, lstm->units * sizeof *h);
    memcpy(state + lstm->units, cell, lstm->units * sizeof *cell);
}

static void forward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    struct lstm *lstm = layer->own;
    const struct farm_sequence sequence = call->sequence;
    const size_t units = lstm->units, columns = (size_t)sequence.columns, rows = (size_t)call->rows;
    struct farm_dnnl_op *product =
        farm_dnnl_layer_forward(&lstm->own, farm_ladder_find(layer->ladder, sequence.columns));
    float *gates = layer->rows.in;
    enter_state(lstm, sequence);
    for (size_t r = 0; r < rows; r++) {
        if (r % columns == 0) { // a step begins
            for (size_t k = r; k < r + columns; k++)
                if (is_first(sequence, k)) put_row(lstm, lstm->zeros, units, row_at(lstm, lstm->before, units, k));
            farm_dnnl_op_bind(product, DNNL_ARG_SRC, row_at(lstm, lstm->before, units, r));
            farm_dnnl_op_run(layer->dnnl, product);
        }
        void *to = row_at(lstm, layer->rows.out, units, r);
        float *h = lstm->bf16 ? lstm->row : to, *cell = lstm->cells + (r + columns) * units;
        farm_lstm_rows()->forward(units, lstm->sums + r % columns * 4 * units, cell_before(lstm, sequence, r),
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
static void step_back(struct lstm *lstm, struct farm_sequence sequence, size_t r, bool last, const float *gates,
                      const void *dout, void *dgates) {
    const size_t units = lstm->units, columns = (size_t)sequence.columns, column = r % columns;
    const struct farm_lstm_rows *loops = farm_lstm_rows();
    const float *dh = row_at(lstm, dout, units, r), *more = last ? lstm->zeros : lstm->sums + column * units;
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

// Through time, not into the state before.
static void backward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    struct lstm *lstm = layer->own;
    const struct farm_sequence sequence = call->sequence;
    const size_t units = lstm->units, columns = (size_t)sequence.columns, rows = (size_t)call->rows;
    const size_t number = lstm->bf16 ? sizeof(uint16_t) : sizeof(float);
    struct farm_dnnl_op *product =
        &lstm->own.rungs[farm_ladder_find(layer->ladder, sequence.columns)].pass[FARM_DNNL_DATA];
    void *dgates = layer->rows.diff_in;
    for (size_t t = (size_t)sequence.steps; t-- > 0;) {
        for (size_t r = t * columns; r < (t + 1) * columns; r++)
            step_back(lstm, sequence, r, r + columns >= rows || is_first(sequence, r + columns), layer->rows.in,
                      layer->rows.diff_out, dgates);
        if (t == 0) break;
        farm_dnnl_op_bind(product, DNNL_ARG_DIFF_DST, row_at(lstm, dgates, 4 * units, t * columns));
        farm_dnnl_op_run(layer->dnnl, product);
    }
    farm_pad_rows(lstm->before, units * number, call);
    farm_pad_rows(dgates, 4 * units * number, call);
    farm_dnnl_layer_add_gradient(&lstm->product, call);
}

const struct farm_op_methods farm_op_lstm = {sizeof(struct lstm), make, load, forward, backward};
