// One op of a network as an executor computes it: an object of one of the kinds below. A new kind is a file with its
// farm_op_methods, a line here and a row in executor.c. An executor's thread runs it. Does not know which op is next.
#ifndef FARM_NN_LAYER_H
#define FARM_NN_LAYER_H

#include <string.h>

#include "nn/dnnl_op.h"
#include "nn/net.h"

struct farm_arithmetic;

struct farm_layer_config {
    struct farm_net_op op;
    int block;                         // channels of a picture that lie together; 0: all
    size_t weight_offset, bias_offset; // in the flat parameters, in floats
    dnnl_data_type_t type;             // inputs, packed weights and gradients of outputs: f32 or bf16
    dnnl_data_type_t out_type;         // outputs
    dnnl_data_type_t diff_in_type;     // gradients of inputs
    dnnl_format_tag_t layout;          // pictures: nhwc, nChw8c or nChw16c
    bool training;
    bool data_gradient; // false: first layer
    int batch_max;
};

// An op's rows and their gradients, each batch_max rows. in is NULL for frames; diff_in NULL for the first layer, both
// gradients without training.
struct farm_layer_rows {
    void *in, *out, *diff_in, *diff_out;
};

// The batch sizes for which layers are made, in order. Calls are padded to the next one.
enum { FARM_RUNGS_MAX = 64 };
struct farm_ladder {
    int count, rows[FARM_RUNGS_MAX];
};

// The rung for `rows` rows.
static inline int farm_ladder_find(const struct farm_ladder *ladder, int rows) {
    int r = 0;
    while (ladder->rows[r] < rows) r++;
    return r;
}

// One call of the executor.
struct farm_op_call {
    struct farm_sequence sequence;
    int rows, padded, rung;    // the sequence's rows; with padding; the ladder's rung
    const void *const *inputs; // forward: farm_executor_forward's rows
    const float *flat;         // [rows][io.flat], the flat input
    float *grads;              // backward: [parameter_count], added to
    bool begins;               // the sum: weights that the layer `writes` are written instead
};

struct farm_op_layer {
    const struct farm_op_methods *methods;
    const struct farm_net *net;
    const struct farm_arithmetic *arithmetic;
    struct farm_layer_config config;
    struct farm_layer_rows rows;
    const struct farm_ladder *ladder;
    struct farm_dnnl *dnnl; // owns all memory, and scratch between ops
    void *own;              // the kind's
    size_t writes;          // weights whose gradients a backward that begins a sum writes; 0: none
};

struct farm_op_methods {
    size_t own_bytes; // of `own`, which is zeroed before make
    // Memory that lacks may be NULL: the executor reports it. Rows are in place.
    enum farm_status (*make)(struct farm_op_layer *layer, struct farm_error *err);
    void (*load)(struct farm_op_layer *layer, const float *params); // all; NULL: no parameters
    // Writes `padded` rows of out, or from `rows` on zeros.
    void (*forward)(struct farm_op_layer *layer, const struct farm_op_call *call);
    // From diff_out, the gradient before an activation of CONV or DENSE, to diff_in, if there is one, and grads. The
    // same padding.
    void (*backward)(struct farm_op_layer *layer, const struct farm_op_call *call);
};

extern const struct farm_op_methods farm_op_dnnl;     // dnnl_layer.c: CONV, DENSE
extern const struct farm_op_methods farm_op_frames;   // a CONV over u8 frames (kernels/conv_u8.h)
extern const struct farm_op_methods farm_op_join;     // join.h
extern const struct farm_op_methods farm_op_lstm;     // kernels/lstm.h
extern const struct farm_op_methods farm_op_norm;     // kernels/norm.h: NORM, RELU, ACTIVATION
extern const struct farm_op_methods farm_op_pool;     // kernels/maxpool.h
extern const struct farm_op_methods farm_op_winograd; // a CONV whose form says so (kernels/winograd.h)

// Can kernels/winograd.h compute the op, in blocks of `block` channels (0: all)?
bool farm_winograd_has(const struct farm_net_op *op, int block);

// Rows beyond an LSTM's gradients by its sums that its passes for columns may read. Only sequences of several steps
// need any, and a rung of the ladder has at most half more rows than asked.
static inline int farm_lstm_slack(int rows_max) {
    return rows_max / 4 + 1;
}

size_t farm_dnnl_row_bytes(struct farm_shape shape, dnnl_data_type_t type);

// `count` rows of `shape`: pictures in `layout`, vectors one after another; or as oneDNN prefers if `layout` is any.
farm_dnnl_md farm_dnnl_rows_md(struct farm_dnnl *dnnl, struct farm_shape shape, int count, dnnl_data_type_t type,
                               dnnl_format_tag_t layout);

// Makes the call's padding zeros.
static inline void farm_pad_rows(void *rows, size_t row_bytes, const struct farm_op_call *call) {
    memset((char *)rows + (size_t)call->rows * row_bytes, 0, (size_t)(call->padded - call->rows) * row_bytes);
}

// ---- ops on oneDNN (dnnl_layer.c) ----

// The operations for one batch size; those that are not needed are empty.
struct farm_dnnl_rung {
    struct farm_dnnl_op pass[FARM_DNNL_PASSES];
    const void *weights; // where FORWARD reads them, if it has packed ones; its bias lies in the same block
};

// `own` of farm_op_dnnl.
struct farm_dnnl_layer {
    // What each pass reads or, WEIGHTS, writes, in the layout that its primitive prefers. DATA shares FORWARD's memory
    // if both prefer the same. In training, a pass that prefers the parameters' own layout has no memory here: it reads
    // them where they lie.
    farm_dnnl_md weights_md[FARM_DNNL_PASSES], flat_md; // flat: the parameters' own
    void *weights[FARM_DNNL_PASSES];
    float *bias, *diff_bias; // [out.channels]; the bias and FORWARD's weights may lie in a block that is bound
    struct farm_dnnl_op
        pack[FARM_DNNL_PASSES]; // from flat parameters; WEIGHTS: added to flat gradients (empty: as they)
    struct farm_dnnl_rung *rungs;
};

// The FORWARD pass of a rung, which reads the weights where they are now.
struct farm_dnnl_op *farm_dnnl_layer_forward(struct farm_dnnl_layer *layer, int rung);

// Runs the WEIGHTS pass and adds its result to this layer's part of the flat gradients. If the call begins a sum,
// weights that the layer `writes` are not read but written; the others are zeros. Only for layers with weights.
void farm_dnnl_layer_add_gradient(struct farm_op_layer *layer, const struct farm_op_call *call);

#endif
