// An LSTM layer over a sequence (FARM_NET_OP_LSTM): one recurrent product a step, of all columns, and kernels/lstm.h
// between. Gates, cells and the state are f32; h becomes bf16 where products read it. Runs in an executor's thread.
#ifndef FARM_NN_LSTM_H
#define FARM_NN_LSTM_H

#include "nn/dnnl_layer.h"

struct farm_lstm {
    size_t units;
    size_t state, at;   // floats of an environment's state; where this layer's h lies in them
    bool bf16;          // before, out and gradients by out and sums; else f32
    void *before;       // [rows][units] h before each step as the product reads it: 0 at FIRST
    float *cells;       // [columns][units] c before the first step, then [rows][units] c after each
    float *product;     // [columns][4 * units] forward, [columns][units] backward
    float *dcells;      // [columns][units]
    float *row, *zeros; // [5 * units] scratch; [units]
};

// The layer of the recurrent product: its FORWARD and DATA passes are for columns, WEIGHTS for all rows of a sequence.
struct farm_dnnl_layer_config farm_lstm_product(const struct farm_dnnl_layer_config *config);

// Memory for up to rows_max rows, in any number of columns. config: of the LSTM op. False if there is none.
bool farm_lstm_make(const struct farm_dnnl_layer_config *config, size_t state, int rows_max, struct farm_lstm *lstm);
void farm_lstm_drop(struct farm_lstm *lstm);

// What the product's passes read and write. diff_out [rows + farm_lstm_slack(rows)][4 * units]: gradients by the sums.
struct farm_dnnl_layer_rows farm_lstm_rows_of(const struct farm_lstm *lstm, void *diff_out);

// Rows that passes for columns may read beyond the last one.
int farm_lstm_slack(int rows_max);

// gates [rows][4 * units]: what the input adds to the sums; becomes the gates. out [rows][units]: h. product: the
// FORWARD pass for at least the sequence's columns.
void farm_lstm_run(struct farm_lstm *lstm, struct farm_dnnl *dnnl, struct farm_dnnl_op *product,
                   struct farm_sequence sequence, float *gates, void *out);

// Through time, not into state_in. dout as out; writes dgates [rows][4 * units]: gradients by the sums. gates: of the
// last farm_lstm_run. product: the DATA pass for at least the sequence's columns. Rows from the sequence's to `padded`
// become zeros, for the WEIGHTS pass.
void farm_lstm_run_back(struct farm_lstm *lstm, struct farm_dnnl *dnnl, struct farm_dnnl_op *product,
                        struct farm_sequence sequence, int padded, const float *gates, const void *dout, void *dgates);

#endif
