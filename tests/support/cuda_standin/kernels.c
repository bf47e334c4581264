// The functions of kernels/cuda/kernels.h on the CPU: each puts one piece of work into the stand-in's stream, which
// does with the shared inline arithmetic (src/kernels/*.h) what the kernel would do, one element after another. Sums
// are in another order than the kernels'. Every array is held against the stand-in's memory before it is touched.
#include <assert.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/gather.h"
#include "kernels/random.h"
#include "nn/staging.h"
#include "standin.h"

#define LAUNCH(name, work, arguments) launch(stream, err, name, work, &(arguments), sizeof(arguments))

static enum farm_status launch(cudaStream_t stream, struct farm_error *err, const char *name,
                               void (*work)(const void *arguments), const void *arguments, size_t bytes) {
    const cudaError_t code = farm_standin_launch(stream, name, work, arguments, bytes);
    return code == cudaSuccess ? FARM_OK : farm_cuda_fail(err, code, name, __FILE__, __LINE__);
}

static void reads(const void *address, size_t bytes, const char *what) {
    farm_standin_need(address, bytes, false, what);
}
static void writes(const void *address, size_t bytes, const char *what) {
    farm_standin_need(address, bytes, true, what);
}

static size_t size_of(enum farm_cuda_type type) {
    return type == FARM_CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
}
static void put(void *array, enum farm_cuda_type type, size_t i, float number) {
    if (type == FARM_CUDA_BF16)
        ((uint16_t *)array)[i] = farm_bf16(number);
    else
        ((float *)array)[i] = number;
}
static float get(const void *array, enum farm_cuda_type type, size_t i) {
    return farm_number_at(array, type == FARM_CUDA_BF16, i);
}
static bool aligned(const void *address) {
    return (uintptr_t)address % 16 == 0;
}
static enum farm_status misaligned(struct farm_error *err, const char *name) {
    return farm_fail(err, FARM_E_INVALID, "%s: arrays must be 16-byte aligned", name);
}

// ---- pull, stack ----

enum farm_status farm_cuda_pull_supported(enum farm_cuda_pull_way way, struct farm_error *err) {
    int device, major;
    FARM_CUDA_TRY(cudaGetDevice(&device));
    FARM_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (way == FARM_CUDA_PULL_LOADS || major >= 9) return FARM_OK;
    return farm_fail(err, FARM_E_UNSUPPORTED, "bulk copies need a GPU of compute capability 9.0, this one has %d.x",
                     major);
}

static void pull(const void *arguments) {
    const struct farm_cuda_pull *p = arguments;
    reads(p->from, p->count * sizeof *p->from, "pull: from");
    reads(p->to, p->count * sizeof *p->to, "pull: to");
    for (uint32_t i = 0; i < p->count; i++) {
        reads(p->from[i], p->bytes, "pull: a piece's source");
        writes(p->to[i], p->bytes, "pull: a piece's target");
        memcpy(p->to[i], p->from[i], p->bytes);
    }
}

enum farm_status farm_cuda_pull(struct CUstream_st *stream, enum farm_cuda_pull_way way, const struct farm_cuda_pull *p,
                                struct farm_error *err) {
    if (p->count == 0) return FARM_OK;
    if (p->bytes == 0 || p->bytes > INT32_MAX)
        return farm_fail(err, FARM_E_INVALID, "a pull of %u pieces of %zu bytes", p->count, p->bytes);
    const enum farm_status status = farm_cuda_pull_supported(way, err);
    return status ? status : LAUNCH("pull", pull, *p);
}

static void stack(const void *arguments) {
    const struct farm_cuda_stack *s = arguments;
    const size_t pixels = (size_t)s->height * s->width, channels = (size_t)s->stack * s->channels;
    const size_t frames = (size_t)s->rows * s->stack;
    reads(s->frames, frames * sizeof *s->frames, "stack: frames");
    writes(s->out, s->rows * channels * pixels * size_of(s->type), "stack: out");
    for (size_t f = 0; f < frames; f++) {
        const uint8_t *frame = s->frames[f];
        if (frame) reads(frame, s->channels * pixels, "stack: a frame");
        for (size_t i = 0; i < s->channels * pixels; i++) {
            const size_t row = f / s->stack, channel = f % s->stack * s->channels + i / pixels, pixel = i % pixels;
            const size_t at = s->layout == FARM_CUDA_NHWC ? (row * pixels + pixel) * channels + channel
                                                          : (row * channels + channel) * pixels + pixel;
            put(s->out, s->type, at, frame ? farm_pixel_unit(frame[i]) : 0);
        }
    }
}

enum farm_status farm_cuda_stack(struct CUstream_st *stream, const struct farm_cuda_stack *s, struct farm_error *err) {
    if (s->rows == 0) return FARM_OK;
    if (s->stack == 0 || s->channels == 0 || s->height == 0 || s->width == 0 || !aligned(s->out))
        return farm_fail(err, FARM_E_INVALID, "cannot stack %u rows of %u frames of %ux%ux%u at %p", s->rows, s->stack,
                         s->channels, s->height, s->width, s->out);
    return LAUNCH("stack", stack, *s);
}

// ---- layers ----

struct activate {
    enum farm_slope kind;
    enum farm_cuda_type type;
    const void *in, *bias;
    void *out;
    size_t count, channels;
};
static void activate(const void *arguments) {
    const struct activate *a = arguments;
    reads(a->in, a->count * size_of(a->type), "activate: in");
    writes(a->out, a->count * size_of(a->type), "activate: out");
    if (a->bias) reads(a->bias, a->channels * size_of(a->type), "activate: bias");
    for (size_t i = 0; i < a->count; i++) {
        const float bias = a->bias ? get(a->bias, a->type, i % a->channels) : 0;
        put(a->out, a->type, i, farm_slope_apply(a->kind, get(a->in, a->type, i) + bias));
    }
}

enum farm_status farm_cuda_activate(struct CUstream_st *stream, enum farm_slope kind, enum farm_cuda_type type,
                                    const void *in, void *out, size_t count, struct farm_error *err) {
    if (!aligned(in) || !aligned(out)) return misaligned(err, "activate");
    const struct activate a = {.kind = kind, .type = type, .in = in, .out = out, .count = count};
    return count == 0 ? FARM_OK : LAUNCH("activate", activate, a);
}

enum farm_status farm_cuda_bias_activate(struct CUstream_st *stream, enum farm_slope kind, enum farm_cuda_type type,
                                         const void *bias, void *x, size_t rows, int channels, struct farm_error *err) {
    if (!aligned(x)) return misaligned(err, "bias_activate");
    if (channels < 1) return farm_fail(err, FARM_E_INVALID, "bias_activate: %d channels", channels);
    const size_t count = rows * (size_t)channels;
    const struct activate a = {kind, type, x, bias, x, count, (size_t)channels};
    return count == 0 ? FARM_OK : LAUNCH("bias_activate", activate, a);
}

static void slope_gradient(const void *arguments) {
    const struct farm_cuda_slope_gradient *g = arguments;
    const size_t channels = (size_t)g->channels, bytes = g->rows * channels * size_of(g->type);
    const bool reads_y = g->kind != FARM_SLOPE_ONE;
    if (reads_y) reads(g->y, bytes, "slope_gradient: y");
    writes(g->dy, bytes, "slope_gradient: dy");
    writes(g->bias_gradient, channels * sizeof(float), "slope_gradient: bias gradient");
    writes(g->scratch, farm_cuda_slope_gradient_scratch_bytes(g->rows, g->channels), "slope_gradient: scratch");
    for (size_t c = 0; c < channels; c++) {
        double sum = 0;
        for (size_t r = 0; r < g->rows; r++) {
            const size_t i = r * channels + c;
            const float dy = farm_slope_gradient(g->kind, reads_y ? get(g->y, g->type, i) : 0, get(g->dy, g->type, i));
            put(g->dy, g->type, i, dy);
            sum += (double)dy;
        }
        g->bias_gradient[c] += (float)sum;
    }
    memset(g->scratch, 0xA5, farm_cuda_slope_gradient_scratch_bytes(g->rows, g->channels));
}

enum farm_status farm_cuda_slope_gradient(struct CUstream_st *stream, const struct farm_cuda_slope_gradient *g,
                                          struct farm_error *err) {
    if (g->rows == 0) return FARM_OK;
    if (g->channels < 1) return farm_fail(err, FARM_E_INVALID, "slope_gradient: %d channels", g->channels);
    if (!aligned(g->dy) || (g->kind != FARM_SLOPE_ONE && !aligned(g->y))) return misaligned(err, "slope_gradient");
    return LAUNCH("slope_gradient", slope_gradient, *g);
}

size_t farm_cuda_slope_gradient_scratch_bytes(size_t rows, int channels) {
    return rows > 0 && channels > 0 ? sizeof(float) * (size_t)channels : 0;
}

struct relu_gradient {
    enum farm_cuda_type type;
    const void *y, *dy;
    void *sum;
    size_t count;
};
static void relu_gradient_add(const void *arguments) {
    const struct relu_gradient *g = arguments;
    reads(g->y, g->count * size_of(g->type), "relu_gradient_add: y");
    reads(g->dy, g->count * size_of(g->type), "relu_gradient_add: dy");
    writes(g->sum, g->count * size_of(g->type), "relu_gradient_add: sum");
    for (size_t i = 0; i < g->count; i++) {
        const float dy = farm_slope_gradient(FARM_SLOPE_RELU, get(g->y, g->type, i), get(g->dy, g->type, i));
        put(g->sum, g->type, i, get(g->sum, g->type, i) + dy);
    }
}

enum farm_status farm_cuda_relu_gradient_add(struct CUstream_st *stream, enum farm_cuda_type type, const void *y,
                                             const void *dy, void *sum, size_t count, struct farm_error *err) {
    if (!aligned(y) || !aligned(dy) || !aligned(sum)) return misaligned(err, "relu_gradient_add");
    const struct relu_gradient g = {type, y, dy, sum, count};
    return count == 0 ? FARM_OK : LAUNCH("relu_gradient_add", relu_gradient_add, g);
}

struct pool {
    struct farm_pool shape;
    enum farm_cuda_type type;
    size_t rows;
    const void *in;
    void *out;
    uint8_t *where;
    const uint8_t *maxima;
};
static size_t pool_in(const struct farm_pool *p) {
    return (size_t)p->height * (size_t)p->width * (size_t)p->channels;
}
static size_t pool_out(const struct farm_pool *p) {
    return (size_t)p->out_height * (size_t)p->out_width * (size_t)p->channels;
}

static void pool(const void *arguments) {
    const struct pool *p = arguments;
    const struct farm_pool *s = &p->shape;
    const size_t in = pool_in(s), out = pool_out(s), each = size_of(p->type), channels = (size_t)s->channels;
    reads(p->in, p->rows * in * each, "pool: in");
    writes(p->out, p->rows * out * each, "pool: out");
    if (p->where) writes(p->where, p->rows * out, "pool: where");
    for (size_t i = 0; i < p->rows * out; i++) {
        const char *picture = (const char *)p->in + i / out * in * each;
        const size_t pixel = i % out / channels, width = (size_t)s->out_width;
        uint8_t where;
        const float most = farm_pool_maximum(s, picture, p->type == FARM_CUDA_BF16, (int)(pixel / width),
                                             (int)(pixel % width), (int)(i % channels), &where);
        put(p->out, p->type, i, most);
        if (p->where) p->where[i] = where;
    }
}

static enum farm_status check_pool(const struct farm_pool *p, const void *in, const void *out, const uint8_t *where,
                                   struct farm_error *err) {
    if (!aligned(in) || !aligned(out) || !aligned(where)) return misaligned(err, "pool");
    if (p->channels < 1 || p->kernel < 1 || p->kernel > FARM_POOL_KERNEL_MAX || p->stride < 1)
        return farm_fail(err, FARM_E_INVALID, "a pool of %d channels, kernel %d, stride %d", p->channels, p->kernel,
                         p->stride);
    return FARM_OK;
}

enum farm_status farm_cuda_pool(struct CUstream_st *stream, const struct farm_pool *shape, enum farm_cuda_type type,
                                size_t rows, const void *in, void *out, uint8_t *where, struct farm_error *err) {
    const enum farm_status status = check_pool(shape, in, out, where, err);
    const struct pool p = {.shape = *shape, .type = type, .rows = rows, .in = in, .out = out, .where = where};
    return status || rows == 0 ? status : LAUNCH("pool", pool, p);
}

static void pool_gradient(const void *arguments) {
    const struct pool *p = arguments;
    const struct farm_pool *s = &p->shape;
    const size_t in = pool_in(s), out = pool_out(s), each = size_of(p->type), channels = (size_t)s->channels;
    reads(p->in, p->rows * out * each, "pool_gradient: dy");
    reads(p->maxima, p->rows * out, "pool_gradient: where");
    writes(p->out, p->rows * in * each, "pool_gradient: dx");
    for (size_t i = 0; i < p->rows * in; i++) {
        const size_t row = i / in, pixel = i % in / channels, width = (size_t)s->width;
        put(p->out, p->type, i,
            farm_pool_gradient(s, (const char *)p->in + row * out * each, p->maxima + row * out,
                               p->type == FARM_CUDA_BF16, (int)(pixel / width), (int)(pixel % width),
                               (int)(i % channels)));
    }
}

enum farm_status farm_cuda_pool_gradient(struct CUstream_st *stream, const struct farm_pool *shape,
                                         enum farm_cuda_type type, size_t rows, const void *dy, const uint8_t *where,
                                         void *dx, struct farm_error *err) {
    const enum farm_status status = check_pool(shape, dy, dx, where, err);
    const struct pool p = {.shape = *shape, .type = type, .rows = rows, .in = dy, .out = dx, .maxima = where};
    return status || rows == 0 ? status : LAUNCH("pool_gradient", pool_gradient, p);
}

struct convert {
    const void *in;
    void *out;
    size_t count;
};
static void round_all(const void *arguments) {
    const struct convert *c = arguments;
    const float *in = c->in;
    uint16_t *out = c->out;
    reads(in, c->count * sizeof *in, "round: in");
    writes(out, c->count * sizeof *out, "round: out");
    for (size_t i = 0; i < c->count; i++) out[i] = farm_bf16(in[i]);
}

enum farm_status farm_cuda_round(struct CUstream_st *stream, const float *in, uint16_t *out, size_t count,
                                 struct farm_error *err) {
    if (!aligned(in) || !aligned(out)) return misaligned(err, "round");
    const struct convert c = {in, out, count};
    return count == 0 ? FARM_OK : LAUNCH("round", round_all, c);
}

static void add_bf16(const void *arguments) {
    const struct convert *c = arguments;
    const uint16_t *x = c->in;
    float *sum = c->out;
    reads(x, c->count * sizeof *x, "add_bf16: x");
    writes(sum, c->count * sizeof *sum, "add_bf16: sum");
    for (size_t i = 0; i < c->count; i++) sum[i] += farm_bf16_value(x[i]);
}

enum farm_status farm_cuda_add_bf16(struct CUstream_st *stream, const uint16_t *x, float *sum, size_t count,
                                    struct farm_error *err) {
    if (!aligned(x) || !aligned(sum)) return misaligned(err, "add_bf16");
    const struct convert c = {x, sum, count};
    return count == 0 ? FARM_OK : LAUNCH("add_bf16", add_bf16, c);
}

struct heads {
    struct farm_cuda_heads shape;
    const float *product, *dlogits, *dvalue;
    const void *bias;
    float *logits, *value;
    void *joined;
};
static void heads_split(const void *arguments) {
    const struct heads *h = arguments;
    const size_t rows = h->shape.rows, actions = (size_t)h->shape.actions, pitch = (size_t)h->shape.pitch;
    reads(h->product, rows * pitch * sizeof(float), "heads_split: product");
    reads(h->bias, (actions + 1) * size_of(h->shape.type), "heads_split: bias");
    writes(h->logits, rows * actions * sizeof(float), "heads_split: logits");
    writes(h->value, rows * sizeof(float), "heads_split: value");
    for (size_t r = 0; r < rows; r++)
        for (size_t a = 0; a <= actions; a++)
            *(a < actions ? &h->logits[r * actions + a] : &h->value[r]) =
                h->product[r * pitch + a] + get(h->bias, h->shape.type, a);
}
static void heads_join(const void *arguments) {
    const struct heads *h = arguments;
    const size_t rows = h->shape.rows, actions = (size_t)h->shape.actions, pitch = (size_t)h->shape.pitch;
    reads(h->dlogits, rows * actions * sizeof(float), "heads_join: dlogits");
    reads(h->dvalue, rows * sizeof(float), "heads_join: dvalue");
    writes(h->joined, rows * pitch * size_of(h->shape.type), "heads_join: joined");
    for (size_t r = 0; r < rows; r++)
        for (size_t a = 0; a < pitch; a++)
            put(h->joined, h->shape.type, r * pitch + a,
                a < actions    ? h->dlogits[r * actions + a]
                : a == actions ? h->dvalue[r]
                               : 0);
}

static enum farm_status check_heads(const struct farm_cuda_heads *h, struct farm_error *err) {
    if (h->actions >= 1 && h->pitch > h->actions) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "heads of %d actions in rows of %d", h->actions, h->pitch);
}

enum farm_status farm_cuda_heads_split(struct CUstream_st *stream, const struct farm_cuda_heads *shape,
                                       const float *product, const void *bias, float *logits, float *value,
                                       struct farm_error *err) {
    const enum farm_status status = check_heads(shape, err);
    const struct heads h = {.shape = *shape, .product = product, .bias = bias, .logits = logits, .value = value};
    return status || shape->rows == 0 ? status : LAUNCH("heads_split", heads_split, h);
}

enum farm_status farm_cuda_heads_join(struct CUstream_st *stream, const struct farm_cuda_heads *shape,
                                      const float *dlogits, const float *dvalue, void *joined, struct farm_error *err) {
    const enum farm_status status = check_heads(shape, err);
    const struct heads h = {.shape = *shape, .dlogits = dlogits, .dvalue = dvalue, .joined = joined};
    return status || shape->rows == 0 ? status : LAUNCH("heads_join", heads_join, h);
}

// ---- V-trace, loss, log-probabilities, sampling ----

struct vtrace {
    struct farm_vtrace_config config;
    struct farm_vtrace_batch batch;
};
static void vtrace(const void *arguments) {
    const struct vtrace *v = arguments;
    const struct farm_vtrace_batch *b = &v->batch;
    const size_t rows = (size_t)b->steps * (size_t)b->columns, all = rows + (size_t)b->columns, f = sizeof(float);
    reads(b->target_log_prob, rows * f, "vtrace: target_log_prob");
    reads(b->behaviour_log_prob, rows * f, "vtrace: behaviour_log_prob");
    reads(b->reward, all * f, "vtrace: reward");
    reads(b->flags, all, "vtrace: flags");
    reads(b->value, all * f, "vtrace: value");
    writes(b->vs, rows * f, "vtrace: vs");
    writes(b->advantage, rows * f, "vtrace: advantage");
    writes(b->weight, rows * f, "vtrace: weight");
    for (int column = 0; column < b->columns; column++) farm_vtrace_column(&v->config, b, column);
}

enum farm_status farm_cuda_vtrace(struct CUstream_st *stream, const struct farm_vtrace_config *config,
                                  const struct farm_vtrace_batch *batch, struct farm_error *err) {
    if (batch->columns == 0) return FARM_OK;
    if (batch->steps < 1 || batch->columns < 0)
        return farm_fail(err, FARM_E_INVALID, "V-trace over %d steps of %d columns", batch->steps, batch->columns);
    const struct vtrace v = {*config, *batch};
    return LAUNCH("vtrace", vtrace, v);
}

struct log_prob {
    const float *logits;
    const int32_t *action;
    int rows, actions;
    float *out;
};
static void log_prob_rows(const void *arguments) {
    const struct log_prob *l = arguments;
    const size_t rows = (size_t)l->rows;
    reads(l->logits, rows * (size_t)l->actions * sizeof(float), "log_prob_rows: logits");
    reads(l->action, rows * sizeof *l->action, "log_prob_rows: action");
    writes(l->out, rows * sizeof(float), "log_prob_rows: out");
    farm_log_prob_rows(l->logits, l->action, l->rows, l->actions, l->out);
}

enum farm_status farm_cuda_log_prob_rows(struct CUstream_st *stream, const float *logits, const int32_t *action,
                                         int rows, int actions, float *out, struct farm_error *err) {
    if (rows == 0) return FARM_OK;
    if (rows < 0 || actions < 1)
        return farm_fail(err, FARM_E_INVALID, "log-probabilities of %d rows of %d actions", rows, actions);
    const struct log_prob l = {logits, action, rows, actions, out};
    return LAUNCH("log_prob_rows", log_prob_rows, l);
}

struct loss {
    struct farm_loss_config config;
    struct farm_loss_batch batch;
    void *scratch;
    struct farm_loss_stats *stats;
};
static void loss(const void *arguments) {
    const struct loss *l = arguments;
    const struct farm_loss_batch *b = &l->batch;
    const size_t rows = (size_t)b->rows, f = sizeof(float), row = (size_t)b->actions * f;
    const void *const columns[] = {b->value, b->vs, b->advantage, b->weight, b->action};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) reads(columns[i], rows * f, "loss: a column");
    reads(b->logits, rows * row, "loss: logits");
    reads(b->behaviour_logits, rows * row, "loss: behaviour_logits");
    writes(b->dlogits, rows * row, "loss: dlogits");
    writes(b->dvalue, rows * f, "loss: dvalue");
    writes(l->scratch, farm_cuda_loss_scratch_bytes(b->rows), "loss: scratch");
    writes(l->stats, sizeof *l->stats, "loss: stats");
    farm_loss(&l->config, b, l->stats);
}

size_t farm_cuda_loss_scratch_bytes(int rows) {
    return rows > 0 ? 6 * sizeof(double) * (((size_t)rows + 127) / 128) : 0;
}

enum farm_status farm_cuda_loss(struct CUstream_st *stream, const struct farm_loss_config *config,
                                const struct farm_loss_batch *batch, void *scratch, struct farm_loss_stats *stats,
                                struct farm_error *err) {
    if (batch->rows == 0) return FARM_OK;
    if (batch->rows < 0 || batch->actions < 1)
        return farm_fail(err, FARM_E_INVALID, "a loss of %d rows of %d actions", batch->rows, batch->actions);
    const struct loss l = {*config, *batch, scratch, stats};
    return LAUNCH("loss", loss, l);
}

static void sample(const void *arguments) {
    const struct farm_cuda_sample *s = arguments;
    const size_t actions = (size_t)s->actions;
    reads(s->stream, s->rows * sizeof *s->stream, "sample: stream");
    reads(s->counter, s->rows * sizeof *s->counter, "sample: counter");
    reads(s->logits, s->rows * actions * sizeof *s->logits, "sample: logits");
    writes(s->action, s->rows * sizeof *s->action, "sample: action");
    for (size_t r = 0; r < s->rows; r++)
        s->action[r] =
            farm_sample_action(&s->sampler, s->stream[r], s->counter[r], s->logits + r * actions, s->actions);
}

enum farm_status farm_cuda_sample(struct CUstream_st *stream, const struct farm_cuda_sample *s,
                                  struct farm_error *err) {
    if (s->rows == 0) return FARM_OK;
    if (s->actions < 1) return farm_fail(err, FARM_E_INVALID, "sampling from %d actions", s->actions);
    return LAUNCH("sample", sample, *s);
}

// ---- optimiser ----

static void optimiser_step(const void *arguments) {
    const struct farm_cuda_optimiser *o = arguments;
    const bool adam = o->config.kind == FARM_OPTIMISER_ADAM;
    const size_t bytes = o->count * sizeof(float);
    struct farm_cuda_optimiser_control *control = o->control;
    reads(o->gradients, bytes, "optimiser: gradients");
    writes(o->params, bytes, "optimiser: params");
    writes(o->second, bytes, "optimiser: second");
    if (adam) writes(o->first, bytes, "optimiser: first");
    if (o->params_bf16) writes(o->params_bf16, bytes / 2, "optimiser: params_bf16");
    writes(o->scratch, FARM_CUDA_OPTIMISER_SCRATCH_BYTES, "optimiser: scratch");
    writes(control, sizeof *control, "optimiser: control");
    double sum = 0;
    for (size_t i = 0; i < o->count; i++) sum += (double)o->gradients[i] * (double)o->gradients[i];
    const double norm = sqrt(sum);
    control->applied = farm_optimiser_applies(&o->config, norm);
    control->norm = control->applied ? norm : (double)INFINITY;
    if (!control->applied) return;
    control->step++;
    control->factors = farm_optimiser_factors_make(&o->config, control->step, control->learning_rate, norm);
    for (size_t i = 0; i < o->count; i++) {
        if (adam)
            farm_adam_update(&control->factors, o->gradients[i], o->first + i, o->second + i, o->params + i);
        else
            farm_rmsprop_update(&control->factors, o->gradients[i], o->second + i, o->params + i);
        if (o->params_bf16) o->params_bf16[i] = farm_bf16(o->params[i]);
    }
}

enum farm_status farm_cuda_optimiser_step(struct CUstream_st *stream, const struct farm_cuda_optimiser *o,
                                          struct farm_error *err) {
    if (o->config.kind == FARM_OPTIMISER_ADAM && !o->first)
        return farm_fail(err, FARM_E_INVALID, "Adam needs a vector for its first moment");
    return LAUNCH("optimiser_step", optimiser_step, *o);
}

// ---- answer ----

static void answer_lane(const struct farm_cuda_answer *a, const struct farm_cuda_answer_lane *lane) {
    const size_t actions = (size_t)a->actions, count = lane->count, row = lane->row;
    reads(a->action + row, count * sizeof *a->action, "answer: action");
    reads(a->logits + row * actions, count * actions * sizeof *a->logits, "answer: logits");
    reads(a->value + row, count * sizeof *a->value, "answer: value");
    writes(lane->action, count * sizeof *lane->action, "answer: a lane's action");
    writes(lane->logits, count * actions * sizeof *lane->logits, "answer: a lane's logits");
    writes(lane->value, count * sizeof *lane->value, "answer: a lane's value");
    writes(lane->version, sizeof *lane->version, "answer: a lane's version");
    memcpy(lane->action, a->action + row, count * sizeof *lane->action);
    memcpy(lane->logits, a->logits + row * actions, count * actions * sizeof *lane->logits);
    memcpy(lane->value, a->value + row, count * sizeof *lane->value);
    *lane->version = *a->version;
    if (!lane->acted) return;
    writes(lane->acted, sizeof *lane->acted, "answer: a lane's acted");
    __atomic_store_n(lane->acted, lane->acted_value, __ATOMIC_RELEASE);
}

static void answer(const void *arguments) {
    const struct farm_cuda_answer *a = arguments;
    reads(a->lanes, a->lane_count * sizeof *a->lanes, "answer: lanes");
    reads(a->version, sizeof *a->version, "answer: version");
    for (uint32_t i = 0; i < a->lane_count; i++) answer_lane(a, &a->lanes[i]);
}

enum farm_status farm_cuda_answer(struct CUstream_st *stream, const struct farm_cuda_answer *a,
                                  struct farm_error *err) {
    if (a->lane_count == 0) return FARM_OK;
    if (a->actions < 1)
        return farm_fail(err, FARM_E_INVALID, "answers of %d actions to %u lanes", a->actions, a->lane_count);
    return LAUNCH("answer", answer, *a);
}

struct signal {
    uint64_t *word;
    const uint64_t *value;
};

static void signal_host(const void *arguments) {
    const struct signal *s = arguments;
    writes(s->word, sizeof *s->word, "signal: word");
    reads(s->value, sizeof *s->value, "signal: value");
    __atomic_store_n(s->word, *s->value, __ATOMIC_RELEASE);
}

enum farm_status farm_cuda_signal(struct CUstream_st *stream, uint64_t *word, const uint64_t *value,
                                  struct farm_error *err) {
    const struct signal arguments = {word, value};
    return LAUNCH("signal", signal_host, arguments);
}

struct scale {
    float *x, factor;
    size_t count;
};

static void scale(const void *arguments) {
    const struct scale *s = arguments;
    writes(s->x, s->count * sizeof *s->x, "scale");
    for (size_t i = 0; i < s->count; i++) s->x[i] *= s->factor;
}

enum farm_status farm_cuda_scale(struct CUstream_st *stream, float *x, size_t count, float factor,
                                 struct farm_error *err) {
    const struct scale arguments = {x, factor, count};
    return LAUNCH("scale", scale, arguments);
}
