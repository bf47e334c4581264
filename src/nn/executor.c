// See executor.h. farm_executor_create allocates all memory and makes all layers, one for each of the network's ops
// (the heads are the last); forward and backward only run them. oneDNN's primitives are made for one batch size, so
// batches are padded to the next rung of a ladder of sizes. A layer whose form differs from the layer before converts
// its input into rows of its own, and their gradient back.
#include "nn/executor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "kernels/bf16.h"
#include "kernels/norm.h"
#include "kernels/random.h"
#include "nn/inputs.h"
#include "nn/layer.h"

enum { LAYERS_MAX = FARM_NET_OPS_MAX };

// From libgomp, whose header comes only with the compiler's own OpenMP support.
void omp_set_num_threads(int threads);

// The conversions of a layer's input and of its gradient.
struct cast {
    struct farm_dnnl_op in, diff_in;
};

struct farm_executor {
    struct farm_net net;
    struct farm_arithmetic arithmetic;
    int batch_max;
    bool training;
    double *op_seconds;

    struct farm_dnnl dnnl; // owns all memory below
    struct farm_ladder ladder;
    int layer_count;
    struct farm_op_layer layers[LAYERS_MAX];
    struct cast *casts[LAYERS_MAX]; // [ladder.count]; NULL: no conversion
    float *flat;                    // [batch_max][io.flat], the flat input of the last forward
    float *mean, *inverse;          // [io.flat]; NULL: not normalised
    int forward_batch;              // rows of the last forward
    const float *cleared;           // gradients that the next backward begins (farm_executor_clear); NULL: none
    const void *bound;              // farm_executor_bind's; NULL: the executor's own memory
    uint64_t packed_layout;         // 0: not known yet
};

// Keeps oneDNN's loops in the calling thread. OpenMP stores this number per thread, so every entry sets it.
static void use_one_thread(void) {
    omp_set_num_threads(1);
}

// The kind of layer that computes op i.
static const struct farm_op_methods *methods_of(const struct farm_executor *ex, int i) {
    static const struct farm_op_methods *const methods[] = {
        [FARM_NET_OP_CONV] = &farm_op_dnnl, [FARM_NET_OP_DENSE] = &farm_op_dnnl,
        [FARM_NET_OP_POOL] = &farm_op_pool, [FARM_NET_OP_RELU] = &farm_op_norm,
        [FARM_NET_OP_JOIN] = &farm_op_join, [FARM_NET_OP_LSTM] = &farm_op_lstm,
        [FARM_NET_OP_NORM] = &farm_op_norm, [FARM_NET_OP_ACTIVATION] = &farm_op_norm,
    };
    const struct farm_net_op *op = &ex->net.ops[i];
    const struct farm_form form = ex->arithmetic.forms[i];
    if (i == 0 && ex->net.io.frame_channels > 0) return &farm_op_frames;
    return form.winograd && farm_winograd_has(op, form.block) ? &farm_op_winograd : methods[op->kind];
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
        struct farm_op_layer *layer = &ex->layers[i];
        *layer = (struct farm_op_layer){.methods = methods_of(ex, i),
                                        .net = &ex->net,
                                        .arithmetic = &ex->arithmetic,
                                        .ladder = &ex->ladder,
                                        .dnnl = &ex->dnnl};
        layer->config = (struct farm_layer_config){
            .op = *op,
            .block = ex->arithmetic.forms[i].block,
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
    const struct farm_layer_config *from = &ex->layers[i - 1].config, *to = &ex->layers[i].config;
    return from->type != to->type || (to->op.in.height > 0 && from->layout != to->layout);
}

static void raise_to(size_t *bytes, size_t wanted) {
    if (wanted > *bytes) *bytes = wanted;
}

// Gives the layers their rows. Layers of one place share its memory, of `rows` rows as wide as the widest.
static void place_rows(struct farm_executor *ex) {
    const size_t rows = (size_t)ex->batch_max, slack = ex->net.state > 0 ? (size_t)farm_lstm_slack(ex->batch_max) : 0;
    size_t out_bytes[LAYERS_MAX] = {0}, diff_bytes[LAYERS_MAX] = {0};
    void *outs[LAYERS_MAX] = {NULL}, *diffs[LAYERS_MAX] = {NULL};
    struct farm_net_places places;
    farm_net_plan_places(&ex->net, ex->training, &places);
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_layer_config *config = &ex->layers[i].config;
        raise_to(&out_bytes[places.out[i]], farm_dnnl_row_bytes(config->op.out, config->out_type));
        if (ex->training) raise_to(&diff_bytes[places.diff[i]], farm_dnnl_row_bytes(config->op.out, config->type));
    }
    for (int k = 0; k < ex->layer_count; k++) {
        if (out_bytes[k]) outs[k] = farm_dnnl_keep(&ex->dnnl, rows * out_bytes[k]);
        if (diff_bytes[k]) diffs[k] = farm_dnnl_keep(&ex->dnnl, (rows + slack) * diff_bytes[k]);
    }
    for (int i = 0; i < ex->layer_count; i++) {
        const struct farm_layer_config *config = &ex->layers[i].config;
        const size_t in_bytes = rows * farm_dnnl_row_bytes(config->op.in, config->type);
        const bool cast = needs_cast(ex, i), own = cast || (i == 0 && ex->net.io.frame_channels == 0);
        ex->layers[i].rows = (struct farm_layer_rows){
            .in = own     ? farm_dnnl_keep(&ex->dnnl, in_bytes)
                  : i > 0 ? ex->layers[i - 1].rows.out
                          : NULL,
            .out = outs[places.out[i]],
            .diff_in = cast && ex->training ? farm_dnnl_keep(&ex->dnnl, in_bytes)
                       : i > 0              ? diffs[places.diff[i - 1]]
                                            : NULL,
            .diff_out = diffs[places.diff[i]],
        };
    }
}

static void make_flat(struct farm_executor *ex) {
    const size_t bytes = (size_t)ex->net.io.flat * sizeof(float);
    if (bytes == 0) return;
    ex->flat = farm_dnnl_keep(&ex->dnnl, (size_t)ex->batch_max * bytes);
    if (ex->net.normalise < 0) return;
    farm_dnnl_keep_packed(&ex->dnnl, bytes, &ex->mean);
    farm_dnnl_keep_packed(&ex->dnnl, bytes, &ex->inverse);
}

// 1, 2, 4, 6, ..., 12, 16, 20, 24, 32, 48, 64, 96, ...: at most a quarter of the rows are padding.
static int next_rung(int batch) {
    if (batch < 24) return batch < 2 ? 2 : batch < 12 ? batch + 2 : batch + 4;
    return (batch & (batch - 1)) == 0 ? batch / 2 * 3 : batch / 3 * 4;
}

static void make_ladder(struct farm_executor *ex, bool one_size) {
    struct farm_ladder *ladder = &ex->ladder;
    for (int batch = 1; batch < ex->batch_max && !one_size; batch = next_rung(batch)) {
        assert(ladder->count + 1 < FARM_RUNGS_MAX);
        ladder->rows[ladder->count++] = batch;
    }
    ladder->rows[ladder->count++] = ex->batch_max;
}

static enum farm_status make_casts(struct farm_executor *ex, int i, struct farm_error *err) {
    const struct farm_op_layer *from = &ex->layers[i - 1], *to = &ex->layers[i];
    const struct farm_layer_config *a = &from->config, *b = &to->config;
    struct cast *casts = ex->casts[i] = farm_dnnl_keep(&ex->dnnl, (size_t)ex->ladder.count * sizeof *casts);
    enum farm_status status = FARM_OK;
    for (int r = 0; r < ex->ladder.count && casts != NULL && status == FARM_OK; r++) {
        const int rows = ex->ladder.rows[r];
        const farm_dnnl_md out_md = farm_dnnl_rows_md(&ex->dnnl, a->op.out, rows, a->type, a->layout);
        const farm_dnnl_md in_md = farm_dnnl_rows_md(&ex->dnnl, a->op.out, rows, b->type, b->layout);
        const struct farm_dnnl_binding out = {0, out_md, from->rows.out}, in = {0, in_md, to->rows.in},
                                       diff_in = {0, in_md, to->rows.diff_in},
                                       diff_out = {0, out_md, from->rows.diff_out};
        status = farm_dnnl_reorder_make(&ex->dnnl, out, in, false, &casts[r].in, err);
        if (status == FARM_OK && ex->training)
            status = farm_dnnl_reorder_make(&ex->dnnl, diff_in, diff_out, false, &casts[r].diff_in, err);
    }
    return status;
}

static enum farm_status make_layer(struct farm_executor *ex, int i, struct farm_error *err) {
    struct farm_op_layer *layer = &ex->layers[i];
    const enum farm_status status = needs_cast(ex, i) ? make_casts(ex, i, err) : FARM_OK;
    if (status != FARM_OK) return status;
    layer->own = farm_dnnl_keep(&ex->dnnl, layer->methods->own_bytes);
    return ex->dnnl.lacking ? FARM_OK : layer->methods->make(layer, err);
}

static enum farm_status build(struct farm_executor *ex, bool one_size, struct farm_error *err) {
    enum farm_status status = farm_dnnl_open(&ex->dnnl, err);
    if (status != FARM_OK) return status;
    make_ladder(ex, one_size);
    plan_layers(ex);
    place_rows(ex);
    make_flat(ex);
    for (int i = 0; i < ex->layer_count && status == FARM_OK && !ex->dnnl.lacking; i++) status = make_layer(ex, i, err);
    if (!ex->dnnl.lacking) return status;
    return farm_fail(err, FARM_E_LIMIT, "no memory for network %s with %d rows; use smaller batches", ex->net.spec.text,
                     ex->batch_max);
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
    ex->net = *config->net;
    ex->arithmetic = *config->arithmetic;
    ex->batch_max = config->batch_max;
    ex->training = config->training;
    ex->op_seconds = config->op_seconds;
    status = build(ex, config->one_size, err);
    if (status == FARM_OK)
        *out = ex;
    else
        farm_executor_destroy(ex);
    return status;
}

void farm_executor_destroy(struct farm_executor *ex) {
    if (ex == NULL) return;
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

// Packs into the block that the pointers are in.
static void pack_all(struct farm_executor *ex, const float *params) {
    use_one_thread();
    uint64_t last = 0;
    add_time(ex, -1, &last);
    if (ex->mean) farm_inputs_scale(&ex->net, params, ex->mean, ex->inverse);
    for (int i = 0; i < ex->layer_count; i++) {
        if (ex->layers[i].methods->load) ex->layers[i].methods->load(&ex->layers[i], params);
        add_time(ex, i, &last);
    }
}

void farm_executor_load(struct farm_executor *ex, const float *params) {
    farm_executor_bind(ex, NULL);
    pack_all(ex, params);
}

size_t farm_executor_packed_bytes(const struct farm_executor *ex) {
    assert(!ex->training); // its backward passes read weights too
    return ex->dnnl.packed_bytes;
}

void farm_executor_pack(struct farm_executor *ex, const float *params, void *packed) {
    assert(!ex->training && (uintptr_t)packed % 64 == 0);
    farm_dnnl_point(&ex->dnnl, packed);
    pack_all(ex, params);
    farm_dnnl_point(&ex->dnnl, ex->bound);
}

void farm_executor_bind(struct farm_executor *ex, const void *packed) {
    if (packed == ex->bound) return;
    assert(!ex->training && (uintptr_t)packed % 64 == 0);
    farm_dnnl_point(&ex->dnnl, packed);
    ex->bound = packed;
}

// A permutation of weights, another type or another rounding changes some of these bytes.
uint64_t farm_executor_packed_layout(struct farm_executor *ex) {
    const size_t bytes = farm_executor_packed_bytes(ex), count = ex->net.parameter_count;
    if (ex->packed_layout) return ex->packed_layout;
    uint64_t *image = farm_dnnl_alloc(bytes), hash = bytes;
    float *probe = farm_dnnl_alloc(count * sizeof *probe);
    if (image && probe) {
        for (size_t i = 0; i < count; i++) probe[i] = 0.5f + farm_random_unit((uint32_t)farm_random_mix(i));
        farm_executor_pack(ex, probe, image);
        for (size_t i = 0; i < bytes / sizeof *image; i++) hash = farm_random_mix(hash ^ image[i]);
    } else
        hash = farm_now_ns(); // without memory: as no other's
    free(image);
    free(probe);
    return ex->packed_layout = hash ? hash : 1;
}

static struct farm_op_call call_of(const struct farm_executor *ex, struct farm_sequence sequence) {
    const int rows = sequence.steps * sequence.columns;
    assert(sequence.steps >= 1 && sequence.columns >= 1 && rows <= ex->batch_max);
    assert(ex->net.state == 0 || (sequence.flags && sequence.state_in));
    const int rung = farm_ladder_find(&ex->ladder, rows);
    return (struct farm_op_call){
        .sequence = sequence, .rows = rows, .padded = ex->ladder.rows[rung], .rung = rung, .flat = ex->flat};
}

static void cast(struct farm_executor *ex, int i, int rung, bool back) {
    struct cast *casts = ex->casts[i];
    if (casts) farm_dnnl_op_run(&ex->dnnl, back ? &casts[rung].diff_in : &casts[rung].in);
}

// Keeps the flat input; it is the first layer's if there are no frames.
static void enter_flat(struct farm_executor *ex, const struct farm_op_call *call) {
    const struct farm_op_layer *first = &ex->layers[0];
    const size_t flat = (size_t)ex->net.io.flat, pointers = (size_t)farm_net_pointers(&ex->net),
                 rows = (size_t)call->rows;
    const size_t parts = pointers - (size_t)ex->net.io.input_count; // after the frames
    for (size_t b = 0; b < rows && flat > 0; b++)
        farm_inputs_write(&ex->net.io, ex->mean, ex->inverse, call->inputs + b * pointers + parts, ex->flat + b * flat);
    if (first->rows.in == NULL) return;
    for (size_t i = 0; i < rows * flat; i++)
        farm_number_put(first->rows.in, first->config.type == dnnl_bf16, i, ex->flat[i]);
    farm_pad_rows(first->rows.in, farm_dnnl_row_bytes(first->config.op.in, first->config.type), call);
}

int farm_executor_forward(struct farm_executor *ex, const void *const *rows, struct farm_sequence sequence,
                          float *logits, float *value) {
    struct farm_op_call call = call_of(ex, sequence);
    uint64_t last = 0;
    use_one_thread();
    add_time(ex, -1, &last);
    call.inputs = rows;
    enter_flat(ex, &call);
    for (int i = 0; i < ex->layer_count; i++) {
        cast(ex, i, call.rung, false);
        ex->layers[i].methods->forward(&ex->layers[i], &call);
        add_time(ex, i, &last);
    }
    const size_t actions = (size_t)ex->net.io.actions;
    const float *heads = ex->layers[ex->layer_count - 1].rows.out;
    for (size_t b = 0; b < (size_t)call.rows; b++) {
        memcpy(logits + b * actions, heads + b * (actions + 1), actions * sizeof *logits);
        value[b] = heads[b * (actions + 1) + actions];
    }
    ex->forward_batch = call.rows;
    return call.padded;
}

// Writes the heads' gradients side by side. Padding becomes zeros, and so do all gradients from it.
static void join_heads(const struct farm_executor *ex, const float *dlogits, const float *dvalue,
                       const struct farm_op_call *call) {
    const struct farm_op_layer *heads = &ex->layers[ex->layer_count - 1];
    const size_t actions = (size_t)ex->net.io.actions, row = actions + 1;
    for (size_t i = 0; i < (size_t)call->rows * row; i++) {
        const size_t b = i / row, a = i % row;
        farm_number_put(heads->rows.diff_out, heads->config.type == dnnl_bf16, i,
                        a < actions ? dlogits[b * actions + a] : dvalue[b]);
    }
    farm_pad_rows(heads->rows.diff_out, farm_dnnl_row_bytes(heads->config.op.out, heads->config.type), call);
}

void farm_executor_clear(struct farm_executor *ex, float *grads) {
    size_t from = 0;
    for (int i = 0; i < ex->layer_count; i++) {
        if (ex->layers[i].writes == 0) continue;
        const size_t at = ex->layers[i].config.weight_offset;
        assert(from <= at); // layers lie one after another
        memset(grads + from, 0, (at - from) * sizeof *grads);
        from = at + ex->layers[i].writes;
    }
    memset(grads + from, 0, (ex->net.parameter_count - from) * sizeof *grads);
    ex->cleared = grads;
}

void farm_executor_backward(struct farm_executor *ex, struct farm_sequence sequence, const float *dlogits,
                            const float *dvalue, float *grads) {
    struct farm_op_call call = call_of(ex, sequence);
    uint64_t last = 0;
    assert(ex->training);
    assert(call.rows == ex->forward_batch);
    use_one_thread();
    add_time(ex, -1, &last);
    call.grads = grads;
    call.begins = ex->cleared == grads;
    join_heads(ex, dlogits, dvalue, &call);
    for (int i = ex->layer_count - 1; i >= 0; i--) {
        struct farm_op_layer *layer = &ex->layers[i];
        const struct farm_layer_config *config = &layer->config;
        if (config->op.activation != FARM_ACTIVATION_NONE &&
            (config->op.kind == FARM_NET_OP_CONV || config->op.kind == FARM_NET_OP_DENSE))
            farm_norm_loops()->slope(config->op.activation, config->type == dnnl_bf16, layer->rows.out,
                                     layer->rows.diff_out, layer->rows.diff_out,
                                     (size_t)call.padded * farm_shape_count(config->op.out));
        layer->methods->backward(layer, &call);
        cast(ex, i, call.rung, true);
        add_time(ex, i, &last);
    }
    ex->cleared = NULL;
}
