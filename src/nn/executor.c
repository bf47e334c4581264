// See executor.h. farm_executor_create allocates all memory and makes all primitives; forward and backward only run
// them. An executor's layers are the network's ops, the heads being the last. oneDNN's primitives are made for one
// batch size, so batches are padded to the next rung of a ladder of sizes. A layer whose form differs from the layer
// before converts its input into rows of its own, and their gradient back.
#include "nn/executor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "kernels/bf16.h"
#include "kernels/pixels.h"
#include "nn/dnnl_layer.h"
#include "nn/inputs.h"
#include "nn/join.h"
#include "nn/lstm.h"
#include "nn/own_layer.h"

enum { LAYERS_MAX = FARM_NET_OPS_MAX, RUNGS_MAX = 64 };

// From libgomp, whose header comes only with the compiler's own OpenMP support.
void omp_set_num_threads(int threads);

// One batch size. Layers that oneDNN does not compute have no ops.
struct rung {
    int batch;
    struct farm_dnnl_layer_ops ops[LAYERS_MAX];
    struct farm_dnnl_op cast[LAYERS_MAX], cast_back[LAYERS_MAX]; // empty without a conversion
};

// The first layer over frames, which kernels/conv_u8.h computes.
struct conv_u8 {
    bool used;
    struct farm_conv_u8_shape shape;
    void *packed;
    void *scratch;
    float *bias;
    const uint8_t **frames; // [batch_max][images * stack] of the last forward
    uint8_t *planes;        // [batch_max][images * stack] frames, if they come interleaved or are normalised
    int16_t *scale;         // [2][pixels] of farm_inputs_scale_pixels; NULL: not normalised
    float scale_count;      // steps behind it
};

// The flat input.
struct flat {
    float *rows;                    // [batch_max][flat], of the last forward
    float *mean, *inverse;          // [flat]; NULL: not normalised
    float *join_weight, *join_bias; // of FARM_NET_OP_JOIN
};

// Memory of [batch_max] rows; row_bytes 0: unused.
struct buffer {
    size_t row_bytes;
    void *data;
};

struct farm_executor {
    struct farm_net_spec spec;
    struct farm_net net;
    struct farm_arithmetic arithmetic;
    int batch_max;
    bool training;
    double *op_seconds;

    struct farm_dnnl dnnl;
    struct conv_u8 conv_u8;
    struct flat flat;
    int layer_count;
    struct farm_dnnl_layer_config configs[LAYERS_MAX];
    struct farm_dnnl_layer layers[LAYERS_MAX]; // empty if conv_u8, own or a join computes the op
    struct farm_lstm lstms[FARM_NET_LSTM_LAYERS_MAX];
    struct farm_own_layer own[LAYERS_MAX];
    void *own_scratch; // of all
    struct farm_net_places places;
    struct buffer outs[LAYERS_MAX], diffs[LAYERS_MAX]; // by place; diffs: training
    struct buffer ins[LAYERS_MAX];  // of layers that convert, and flat rows that enter the first layer
    struct buffer back[LAYERS_MAX]; // training: gradients of ins of layers that convert
    int rung_count;
    struct rung rungs[RUNGS_MAX];
    int forward_batch;    // rows of the last forward
    const float *cleared; // gradients that the next backward begins (farm_executor_clear); NULL: none
};

// Keeps oneDNN's loops in the calling thread. OpenMP stores this number per thread, so every entry sets it.
static void use_one_thread(void) {
    omp_set_num_threads(1);
}

// Of pictures. In training a product reads them as parameters lie, channel by channel: rows are converted in less time
// than weights and their gradients would be permuted for each optimiser step.
static dnnl_format_tag_t layout_of(const struct farm_executor *ex, int i) {
    const struct farm_form form = ex->arithmetic.forms[i];
    if (ex->training && ex->net.ops[i].kind == FARM_NET_OP_DENSE) return dnnl_nchw;
    return form.block == 16 ? dnnl_nChw16c : form.block == 8 ? dnnl_nChw8c : dnnl_nhwc;
}

static void plan_layers(struct farm_executor *ex) {
    ex->layer_count = ex->net.op_count;
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_net_op *op = &ex->net.ops[i];
        const dnnl_data_type_t type = ex->arithmetic.forms[i].bf16 ? dnnl_bf16 : dnnl_f32;
        const bool rounds = i + 1 < ex->layer_count && op[1].kind != FARM_NET_OP_LSTM;
        ex->configs[i] = (struct farm_dnnl_layer_config){
            .op = *op,
            .weight_offset = op->weight >= 0 ? ex->net.tensors[op->weight].offset : 0,
            .bias_offset = op->bias >= 0 ? ex->net.tensors[op->bias].offset : 0,
            .type = type,
            .out_type = rounds ? type : dnnl_f32,
            .diff_in_type = type,
            .layout = layout_of(ex, i),
            .training = ex->training,
            .data_gradient = i > 0,
            .batch_max = ex->batch_max,
        };
    }
}

// Does layer i read rows of another form than the layer before writes? Vectors are the same in each layout.
static bool needs_cast(const struct farm_executor *ex, int i) {
    if (i == 0) return false;
    const struct farm_dnnl_layer_config *from = &ex->configs[i - 1], *to = &ex->configs[i];
    return from->type != to->type || (to->op.in.height > 0 && from->layout != to->layout);
}

static bool is_join(const struct farm_executor *ex, int i) {
    return ex->configs[i].op.kind == FARM_NET_OP_JOIN;
}

static bool is_lstm(const struct farm_executor *ex, int i) {
    return ex->configs[i].op.kind == FARM_NET_OP_LSTM;
}

static bool is_own(const struct farm_executor *ex, int i) {
    return ex->own[i].kind != FARM_OWN_NONE;
}

static struct farm_lstm *lstm_at(struct farm_executor *ex, int i) {
    return &ex->lstms[ex->configs[i].op.state / (2 * ex->net.io.lstm)];
}

static bool has_planes(const struct farm_net_io *io) {
    return farm_net_interleaved(io) || io->normalise_frames;
}

static size_t frame_bytes(const struct farm_net_io *io) {
    return (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width;
}

static size_t frames_of_row(const struct farm_net_io *io) {
    return (size_t)(io->images * io->stack);
}

static bool allocate_conv_u8(struct farm_executor *ex) {
    struct conv_u8 *conv = &ex->conv_u8;
    const struct farm_net_io *io = &ex->net.io;
    const size_t frames = (size_t)ex->batch_max * frames_of_row(io);
    conv->frames = farm_dnnl_alloc(frames * sizeof *conv->frames);
    if (has_planes(io)) conv->planes = farm_dnnl_alloc(frames * frame_bytes(io));
    conv->packed = farm_dnnl_alloc(farm_conv_u8_packed_bytes(&conv->shape));
    conv->bias = farm_dnnl_alloc((size_t)conv->shape.outputs * sizeof *conv->bias);
    if (io->normalise_frames) conv->scale = farm_dnnl_alloc(2 * (size_t)farm_net_pixels(io) * sizeof *conv->scale);
    conv->scale_count = -1;
    conv->scratch = farm_dnnl_alloc(farm_conv_u8_scratch_bytes(&conv->shape));
    return conv->packed != NULL && conv->bias != NULL && conv->scratch != NULL && conv->frames != NULL &&
           (conv->planes != NULL || !has_planes(io)) && (conv->scale != NULL || !io->normalise_frames);
}

static bool allocate_flat(struct farm_executor *ex) {
    struct flat *flat = &ex->flat;
    const size_t width = (size_t)ex->net.io.flat;
    flat->rows = farm_dnnl_alloc((size_t)ex->batch_max * width * sizeof *flat->rows);
    flat->join_weight = farm_dnnl_alloc(FARM_NET_JOIN_UNITS * width * sizeof *flat->join_weight);
    flat->join_bias = farm_dnnl_alloc(FARM_NET_JOIN_UNITS * sizeof *flat->join_bias);
    if (ex->net.normalise >= 0) {
        flat->mean = farm_dnnl_alloc(width * sizeof *flat->mean);
        flat->inverse = farm_dnnl_alloc(width * sizeof *flat->inverse);
        if (!flat->mean || !flat->inverse) return false;
    }
    return flat->rows != NULL && flat->join_weight != NULL && flat->join_bias != NULL;
}

static void raise_to(struct buffer *buffer, size_t row_bytes) {
    if (row_bytes > buffer->row_bytes) buffer->row_bytes = row_bytes;
}

static bool allocate_buffers(struct buffer *buffers, int batch_max) {
    bool ok = true;
    for (int i = 0; i < LAYERS_MAX; i++) {
        if (buffers[i].row_bytes == 0) continue;
        buffers[i].data = farm_dnnl_alloc((size_t)batch_max * buffers[i].row_bytes);
        ok = ok && buffers[i].data != NULL;
    }
    return ok;
}

static bool allocate_rows(struct farm_executor *ex) {
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_dnnl_layer_config *config = &ex->configs[i];
        const size_t in_bytes = farm_dnnl_row_bytes(config->op.in, config->type);
        raise_to(&ex->outs[ex->places.out[i]], farm_dnnl_row_bytes(config->op.out, config->out_type));
        if (ex->training) raise_to(&ex->diffs[ex->places.diff[i]], farm_dnnl_row_bytes(config->op.out, config->type));
        if (needs_cast(ex, i) || (i == 0 && !ex->conv_u8.used)) raise_to(&ex->ins[i], in_bytes);
        if (needs_cast(ex, i) && ex->training) raise_to(&ex->back[i], in_bytes);
        if (is_lstm(ex, i) && !farm_lstm_make(config, (size_t)ex->net.state, ex->batch_max, lstm_at(ex, i)))
            return false;
    }
    const int slack = ex->net.state > 0 ? farm_lstm_slack(ex->batch_max) : 0;
    return allocate_buffers(ex->outs, ex->batch_max) && allocate_buffers(ex->diffs, ex->batch_max + slack) &&
           allocate_buffers(ex->ins, ex->batch_max) && allocate_buffers(ex->back, ex->batch_max) &&
           (!ex->conv_u8.used || allocate_conv_u8(ex)) && (ex->net.io.flat == 0 || allocate_flat(ex));
}

static bool make_own(struct farm_executor *ex) {
    size_t scratch_bytes = 0;
    for (int i = ex->conv_u8.used ? 1 : 0; i < ex->layer_count; i++) {
        const struct farm_form form = ex->arithmetic.forms[i];
        if (!farm_own_layer_make(&ex->configs[i], form.block, form.winograd, &ex->own[i])) return false;
        const size_t bytes = farm_own_layer_scratch_bytes(&ex->own[i]);
        if (bytes > scratch_bytes) scratch_bytes = bytes;
    }
    ex->own_scratch = farm_dnnl_alloc(scratch_bytes);
    return ex->own_scratch != NULL;
}

// 1, 2, 4, 6, ..., 12, 16, 20, 24, 32, 48, 64, 96, ...: at most a quarter of the rows are padding.
static int next_rung(int batch) {
    if (batch < 24) return batch < 2 ? 2 : batch < 12 ? batch + 2 : batch + 4;
    return (batch & (batch - 1)) == 0 ? batch / 2 * 3 : batch / 3 * 4;
}

static void *layer_out(const struct farm_executor *ex, int i) {
    return ex->outs[ex->places.out[i]].data;
}

// NULL if not training.
static void *layer_diff(const struct farm_executor *ex, int i) {
    return ex->diffs[ex->places.diff[i]].data;
}

// Makes the conversions of layer i's input and of its gradient.
static enum farm_status make_casts(struct farm_executor *ex, int i, struct rung *rung, struct farm_error *err) {
    const struct farm_dnnl_layer_config *from = &ex->configs[i - 1], *to = &ex->configs[i];
    const farm_dnnl_md out_md = farm_dnnl_rows_md(&ex->dnnl, from->op.out, rung->batch, from->type, from->layout);
    const farm_dnnl_md in_md = farm_dnnl_rows_md(&ex->dnnl, from->op.out, rung->batch, to->type, to->layout);
    const struct farm_dnnl_binding out = {0, out_md, layer_out(ex, i - 1)}, in = {0, in_md, ex->ins[i].data};
    const struct farm_dnnl_binding diff_out = {0, out_md, layer_diff(ex, i - 1)}, back = {0, in_md, ex->back[i].data};
    enum farm_status status = farm_dnnl_reorder_make(&ex->dnnl, out, in, false, &rung->cast[i], err);
    if (status != FARM_OK || !ex->training) return status;
    return farm_dnnl_reorder_make(&ex->dnnl, back, diff_out, false, &rung->cast_back[i], err);
}

static struct farm_dnnl_layer_rows rows_of(const struct farm_executor *ex, int i) {
    const bool cast = needs_cast(ex, i);
    return (struct farm_dnnl_layer_rows){
        .in = i == 0 || cast ? ex->ins[i].data : layer_out(ex, i - 1),
        .out = layer_out(ex, i),
        .diff_in = i == 0 ? NULL
                   : cast ? ex->back[i].data
                          : layer_diff(ex, i - 1),
        .diff_out = layer_diff(ex, i),
    };
}

static enum farm_status make_layer(struct farm_executor *ex, int i, struct rung *rung, struct farm_error *err) {
    struct farm_dnnl_layer_rows rows = rows_of(ex, i);
    if (i == 0 && ex->conv_u8.used) return FARM_OK;
    const enum farm_status status = needs_cast(ex, i) ? make_casts(ex, i, rung, err) : FARM_OK;
    if (status != FARM_OK || is_join(ex, i) || is_own(ex, i)) return status;
    if (is_lstm(ex, i)) rows = farm_lstm_rows_of(lstm_at(ex, i), layer_diff(ex, i - 1));
    return farm_dnnl_layer_ops_make(&ex->dnnl, &ex->layers[i], rung->batch, &rows, &rung->ops[i], err);
}

static enum farm_status make_rung(struct farm_executor *ex, int batch, struct farm_error *err) {
    assert(ex->rung_count < RUNGS_MAX);
    struct rung *rung = &ex->rungs[ex->rung_count];
    *rung = (struct rung){.batch = batch};
    ex->rung_count++;
    enum farm_status status = FARM_OK;
    for (int i = 0; i < ex->layer_count && status == FARM_OK; i++) status = make_layer(ex, i, rung, err);
    return status;
}

static enum farm_status build(struct farm_executor *ex, bool one_size, struct farm_error *err) {
    enum farm_status status = farm_dnnl_open(&ex->dnnl, err);
    if (status != FARM_OK) return status;
    plan_layers(ex);
    farm_net_plan_places(&ex->net, ex->training, &ex->places);
    if (!allocate_rows(ex) || !make_own(ex))
        return farm_fail(err, FARM_E_LIMIT, "no memory for network %s with %d rows; use smaller batches", ex->spec.name,
                         ex->batch_max);
    for (int i = ex->conv_u8.used ? 1 : 0; i < ex->layer_count && status == FARM_OK; i++) {
        const struct farm_dnnl_layer_config product = farm_lstm_product(&ex->configs[i]);
        const struct farm_dnnl_layer_config *config = is_lstm(ex, i) ? &product : &ex->configs[i];
        if (!is_join(ex, i) && !is_own(ex, i)) status = farm_dnnl_layer_make(&ex->dnnl, config, &ex->layers[i], err);
    }
    for (int batch = 1; batch < ex->batch_max && status == FARM_OK && !one_size; batch = next_rung(batch))
        status = make_rung(ex, batch, err);
    return status == FARM_OK ? make_rung(ex, ex->batch_max, err) : status;
}

enum farm_status farm_executor_create(const struct farm_executor_config *config, struct farm_executor **out,
                                      struct farm_error *err) {
    use_one_thread();
    *out = NULL;
    if (config->batch_max < 1 || config->batch_max > 1 << 20)
        return farm_fail(err, FARM_E_INVALID, "batches have 1 to %d rows, not %d", 1 << 20, config->batch_max);
    enum farm_status status = farm_arithmetic_check(config->net, config->arithmetic, err);
    if (status != FARM_OK) return status;
    struct farm_executor *ex = calloc(1, sizeof *ex);
    if (ex == NULL) return farm_fail(err, FARM_E_LIMIT, "no memory for an executor");
    ex->spec = *config->net->spec;
    ex->net = *config->net;
    ex->net.spec = &ex->spec;
    ex->arithmetic = *config->arithmetic;
    ex->batch_max = config->batch_max;
    ex->training = config->training;
    ex->op_seconds = config->op_seconds;
    ex->conv_u8.used = ex->net.io.frame_channels > 0;
    if (ex->conv_u8.used) ex->conv_u8.shape = farm_arithmetic_first(&ex->net, &ex->arithmetic);
    status = build(ex, config->one_size, err);
    if (status == FARM_OK)
        *out = ex;
    else
        farm_executor_destroy(ex);
    return status;
}

void farm_executor_destroy(struct farm_executor *ex) {
    if (ex == NULL) return;
    for (int r = 0; r < ex->rung_count; r++)
        for (int i = 0; i < ex->layer_count; i++) {
            farm_dnnl_layer_ops_drop(&ex->rungs[r].ops[i]);
            farm_dnnl_op_drop(&ex->rungs[r].cast[i]);
            farm_dnnl_op_drop(&ex->rungs[r].cast_back[i]);
        }
    for (int i = 0; i < LAYERS_MAX; i++) {
        farm_dnnl_layer_drop(&ex->layers[i]);
        farm_own_layer_drop(&ex->own[i]);
        free(ex->outs[i].data);
        free(ex->diffs[i].data);
        free(ex->ins[i].data);
        free(ex->back[i].data);
    }
    for (int i = 0; i < FARM_NET_LSTM_LAYERS_MAX; i++) farm_lstm_drop(&ex->lstms[i]);
    void *const own[] = {ex->conv_u8.packed, ex->conv_u8.scratch, ex->conv_u8.bias,     ex->conv_u8.scale,
                         ex->conv_u8.frames, ex->conv_u8.planes,  ex->flat.rows,        ex->flat.mean,
                         ex->flat.inverse,   ex->flat.join_bias,  ex->flat.join_weight, ex->own_scratch};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) free(own[i]);
    farm_dnnl_close(&ex->dnnl);
    free(ex);
}

// Adds the time since *last to layer i's if the creator gave an array, and sets *last. i < 0: only sets it.
static void add_time(const struct farm_executor *ex, int i, uint64_t *last) {
    if (ex->op_seconds == NULL) return;
    const uint64_t now = farm_thread_cpu_ns();
    if (i >= 0) ex->op_seconds[i] += 1e-9 * (double)(now - *last);
    *last = now;
}

// Statistics change at publish only, parameters with each optimiser step; a run's statistics of so many steps are the
// same ones.
static void load_scale(struct farm_executor *ex, const float *params) {
    const float count = params[ex->net.tensors[ex->net.normalise + 2].offset];
    if (count == ex->conv_u8.scale_count) return;
    farm_inputs_scale_pixels(&ex->net, params, ex->conv_u8.scale);
    ex->conv_u8.scale_count = count;
}

void farm_executor_load(struct farm_executor *ex, const float *params) {
    use_one_thread();
    uint64_t last = 0;
    add_time(ex, -1, &last);
    if (ex->conv_u8.used) {
        farm_conv_u8_pack(&ex->conv_u8.shape, params + ex->configs[0].weight_offset, ex->conv_u8.packed);
        memcpy(ex->conv_u8.bias, params + ex->configs[0].bias_offset,
               (size_t)ex->conv_u8.shape.outputs * sizeof *ex->conv_u8.bias);
        if (ex->conv_u8.scale) load_scale(ex, params);
    }
    if (ex->flat.mean) farm_inputs_scale(&ex->net, params, ex->flat.mean, ex->flat.inverse);
    for (int i = 0; i < ex->layer_count; i++) {
        if (is_join(ex, i)) {
            memcpy(ex->flat.join_weight, params + ex->configs[i].weight_offset,
                   FARM_NET_JOIN_UNITS * (size_t)ex->net.io.flat * sizeof *ex->flat.join_weight);
            memcpy(ex->flat.join_bias, params + ex->configs[i].bias_offset,
                   FARM_NET_JOIN_UNITS * sizeof *ex->flat.join_bias);
        } else if (is_own(ex, i))
            farm_own_layer_load(&ex->own[i], params);
        else if (ex->configs[i].op.weight >= 0 && (i > 0 || !ex->conv_u8.used)) {
            farm_dnnl_layer_load(&ex->dnnl, &ex->layers[i], params);
            for (int r = 0; r < ex->rung_count; r++)
                farm_dnnl_layer_ops_bind(&ex->layers[i], &ex->rungs[r].ops[i], params);
        }
        add_time(ex, i, &last);
    }
}

static struct rung *rung_for(struct farm_executor *ex, int batch) {
    assert(batch >= 1 && batch <= ex->batch_max);
    int r = 0;
    while (ex->rungs[r].batch < batch) r++;
    return &ex->rungs[r];
}

// A frame of an image, as the first layer reads it.
static void enter_frame(const struct farm_executor *ex, size_t image, const uint8_t *frame, uint8_t *planes) {
    const struct farm_net_io *io = &ex->net.io;
    const size_t pixels = frame_bytes(io);
    frame = farm_inputs_planes(io, frame, planes);
    if (!ex->conv_u8.scale) return;
    const int16_t *mean = ex->conv_u8.scale + image * pixels;
    farm_pixels_normalise(frame, mean, mean + farm_net_pixels(io), pixels, planes);
}

// Lists the rows' frames.
static void enter_frames(struct farm_executor *ex, const void *const *rows, int batch) {
    const struct farm_net_io *io = &ex->net.io;
    const size_t frames = frames_of_row(io), pointers = (size_t)farm_net_pointers(&ex->net);
    for (size_t i = 0; i < (size_t)batch * frames; i++) {
        const uint8_t *frame = rows[i / frames * pointers + i % frames];
        uint8_t *planes = ex->conv_u8.planes ? ex->conv_u8.planes + i * frame_bytes(io) : NULL;
        if (frame && planes) enter_frame(ex, i % frames / (size_t)io->stack, frame, planes);
        ex->conv_u8.frames[i] = frame && planes ? planes : frame;
    }
}

// Writes the first layer's output (frames) or its input (flat rows), and keeps the flat input. Rows from `batch` on
// become zeros.
static void enter_rows(struct farm_executor *ex, const void *const *rows, int batch, int padded) {
    const struct farm_dnnl_layer_config *first = &ex->configs[0];
    const size_t flat = (size_t)ex->net.io.flat, pointers = (size_t)farm_net_pointers(&ex->net);
    const size_t row_bytes = farm_dnnl_row_bytes(ex->conv_u8.used ? first->op.out : first->op.in, first->type);
    char *to = ex->conv_u8.used ? layer_out(ex, 0) : ex->ins[0].data;
    for (size_t b = 0; b < (size_t)batch && flat > 0; b++)
        farm_inputs_write(&ex->net.io, ex->flat.mean, ex->flat.inverse,
                          rows + b * pointers + (pointers - (size_t)ex->net.io.input_count), ex->flat.rows + b * flat);
    if (ex->conv_u8.used) {
        enter_frames(ex, rows, batch);
        farm_conv_u8_forward(&ex->conv_u8.shape, ex->conv_u8.packed, ex->conv_u8.bias, ex->conv_u8.frames, batch, to,
                             ex->conv_u8.scratch);
    } else {
        for (size_t i = 0; i < (size_t)batch * flat; i++)
            farm_number_put(to, first->type == dnnl_bf16, i, ex->flat.rows[i]);
    }
    memset(to + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}

// The join that is layer i: its rows, and their gradients in training.
static struct farm_join join_of(const struct farm_executor *ex, int i) {
    return (struct farm_join){.features = ex->configs[i].op.in.channels,
                              .flat = ex->net.io.flat,
                              .bf16 = ex->configs[i].type == dnnl_bf16,
                              .weight = ex->flat.join_weight,
                              .bias = ex->flat.join_bias};
}

static void join_forward(struct farm_executor *ex, int i, int batch, int padded) {
    const struct farm_join join = join_of(ex, i);
    const size_t row_bytes = farm_dnnl_row_bytes(ex->configs[i].op.out, ex->configs[i].type);
    char *out = layer_out(ex, i);
    farm_join_forward(&join, rows_of(ex, i).in, ex->flat.rows, batch, out);
    memset(out + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}

static void join_backward(struct farm_executor *ex, int i, int batch, int padded, float *grads) {
    const struct farm_join join = join_of(ex, i);
    const size_t row_bytes = farm_dnnl_row_bytes(ex->configs[i].op.in, ex->configs[i].type);
    char *diff_in = rows_of(ex, i).diff_in;
    farm_join_backward(&join, ex->flat.rows, layer_out(ex, i), layer_diff(ex, i), batch, diff_in,
                       grads + ex->configs[i].weight_offset, grads + ex->configs[i].bias_offset);
    memset(diff_in + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}

// The pass of layer i's recurrent product for the sequence's columns.
static struct farm_dnnl_op *column_pass(struct farm_executor *ex, int i, struct farm_sequence sequence, int pass) {
    return &rung_for(ex, sequence.columns)->ops[i].pass[pass];
}

static void lstm_forward(struct farm_executor *ex, int i, struct farm_sequence sequence) {
    farm_lstm_run(lstm_at(ex, i), &ex->dnnl, column_pass(ex, i, sequence, FARM_DNNL_FORWARD), sequence,
                  layer_out(ex, i - 1), layer_out(ex, i));
}

static void lstm_backward(struct farm_executor *ex, int i, struct farm_sequence sequence, struct rung *rung,
                          float *grads) {
    farm_lstm_run_back(lstm_at(ex, i), &ex->dnnl, column_pass(ex, i, sequence, FARM_DNNL_DATA), sequence, rung->batch,
                       layer_out(ex, i - 1), layer_diff(ex, i), layer_diff(ex, i - 1));
    farm_dnnl_layer_add_gradient(&ex->dnnl, &ex->layers[i], &rung->ops[i], ex->cleared == grads, grads);
}

// Rows of a call.
static int batch_of(const struct farm_executor *ex, struct farm_sequence sequence) {
    assert(sequence.steps >= 1 && sequence.columns >= 1);
    assert(ex->net.state == 0 || (sequence.flags && sequence.state_in));
    return sequence.steps * sequence.columns;
}

int farm_executor_forward(struct farm_executor *ex, const void *const *rows, struct farm_sequence sequence,
                          float *logits, float *value) {
    const int batch = batch_of(ex, sequence);
    use_one_thread();
    struct rung *rung = rung_for(ex, batch);
    uint64_t last = 0;
    add_time(ex, -1, &last);
    enter_rows(ex, rows, batch, rung->batch);
    for (int i = 0; i < ex->layer_count; i++) {
        farm_dnnl_op_run(&ex->dnnl, &rung->cast[i]);
        if (is_join(ex, i)) join_forward(ex, i, batch, rung->batch);
        if (is_lstm(ex, i))
            lstm_forward(ex, i, sequence);
        else if (is_own(ex, i)) {
            const struct farm_dnnl_layer_rows of_layer = rows_of(ex, i);
            farm_own_layer_run(&ex->own[i], rung->batch, &of_layer, ex->own_scratch);
        } else
            farm_dnnl_op_run(&ex->dnnl, &rung->ops[i].pass[FARM_DNNL_FORWARD]);
        add_time(ex, i, &last);
    }
    const size_t actions = (size_t)ex->net.io.actions;
    const float *heads = layer_out(ex, ex->layer_count - 1);
    for (size_t b = 0; b < (size_t)batch; b++) {
        memcpy(logits + b * actions, heads + b * (actions + 1), actions * sizeof *logits);
        value[b] = heads[b * (actions + 1) + actions];
    }
    ex->forward_batch = batch;
    return rung->batch;
}

// Writes the heads' gradients side by side. Rows from `batch` on become zeros, and so do all gradients from them.
static void join_heads(const struct farm_executor *ex, const float *dlogits, const float *dvalue, int batch, int padded,
                       void *out) {
    const bool bf16 = ex->configs[ex->layer_count - 1].type == dnnl_bf16;
    const size_t actions = (size_t)ex->net.io.actions, row = actions + 1;
    for (size_t i = 0; i < (size_t)batch * row; i++) {
        const size_t b = i / row, a = i % row;
        farm_number_put(out, bf16, i, a < actions ? dlogits[b * actions + a] : dvalue[b]);
    }
    const size_t row_bytes = row * (bf16 ? sizeof(uint16_t) : sizeof(float));
    memset((char *)out + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}

// The gradient through layer i's ReLU, in place: zero where the output is not positive, whose bits, taken as a whole
// number, are not either. Buffers are whole vectors.
static void relu_backward(const struct farm_executor *ex, int i, int padded) {
    typedef int16_t halves __attribute__((vector_size(16)));
    typedef int32_t wholes __attribute__((vector_size(16)));
    const struct farm_dnnl_layer_config *config = &ex->configs[i];
    const size_t bytes = (size_t)padded * farm_dnnl_row_bytes(config->op.out, config->type);
    const void *out = layer_out(ex, i);
    void *diff = layer_diff(ex, i);
    for (size_t v = 0; v * sizeof(halves) < bytes; v++)
        if (config->type == dnnl_bf16)
            ((halves *)diff)[v] &= ((const halves *)out)[v] > 0;
        else
            ((wholes *)diff)[v] &= ((const wholes *)out)[v] > 0;
}

void farm_executor_clear(struct farm_executor *ex, float *grads) {
    size_t from = 0;
    for (int i = 0; i < ex->layer_count; i++) {
        if (!farm_dnnl_layer_writes(&ex->layers[i])) continue;
        const size_t at = ex->configs[i].weight_offset;
        assert(from <= at); // layers lie one after another
        memset(grads + from, 0, (at - from) * sizeof *grads);
        from = at + farm_dnnl_layer_weights(&ex->layers[i]);
    }
    memset(grads + from, 0, (ex->net.parameter_count - from) * sizeof *grads);
    ex->cleared = grads;
}

void farm_executor_backward(struct farm_executor *ex, struct farm_sequence sequence, const float *dlogits,
                            const float *dvalue, float *grads) {
    const int batch = batch_of(ex, sequence);
    assert(ex->training);
    assert(batch == ex->forward_batch);
    use_one_thread();
    struct rung *rung = rung_for(ex, batch);
    const int heads = ex->layer_count - 1;
    uint64_t last = 0;
    add_time(ex, -1, &last);
    join_heads(ex, dlogits, dvalue, batch, rung->batch, layer_diff(ex, heads));
    for (int i = heads; i >= 0; i--) {
        struct farm_dnnl_layer_ops *ops = &rung->ops[i];
        if (ex->configs[i].op.activation == FARM_ACTIVATION_RELU)
            relu_backward(ex, i, rung->batch);
        else
            farm_dnnl_op_run(&ex->dnnl, &ops->tanh);
        if (i == 0 && ex->conv_u8.used)
            farm_conv_u8_backward_weights(&ex->conv_u8.shape, ex->conv_u8.frames, batch, layer_diff(ex, 0),
                                          grads + ex->configs[0].weight_offset, grads + ex->configs[0].bias_offset,
                                          ex->conv_u8.scratch);
        else if (is_join(ex, i))
            join_backward(ex, i, batch, rung->batch, grads);
        else if (is_lstm(ex, i))
            lstm_backward(ex, i, sequence, rung, grads);
        else if (is_own(ex, i)) {
            const struct farm_dnnl_layer_rows rows = rows_of(ex, i);
            farm_own_layer_run_back(&ex->own[i], rung->batch, &rows, grads, ex->own_scratch);
        } else if (ex->configs[i].op.weight >= 0)
            farm_dnnl_layer_add_gradient(&ex->dnnl, &ex->layers[i], ops, ex->cleared == grads, grads);
        if (!is_lstm(ex, i)) farm_dnnl_op_run(&ex->dnnl, &ops->pass[FARM_DNNL_DATA]);
        farm_dnnl_op_run(&ex->dnnl, &rung->cast_back[i]);
        add_time(ex, i, &last);
    }
    ex->cleared = NULL;
}
