// A network's layers besides convolutions and products: activations, layer normalisation, gradients of activations and
// biases, maxima, sums, roundings, the heads, a flat input that joins (kernels/layers.h). Memory-bound: 16 bytes a
// thread, if rows allow it.
#include "kernels/cuda/common.cuh"

enum { THREADS = 256, SLABS_MAX = 256, SLAB_NUMBERS = 64 * THREADS };

// 16 bytes of numbers, or one number.
template <typename T, int WIDTH> struct alignas(WIDTH * sizeof(T)) pack { T of[WIDTH]; };
template <typename T> struct widest { static constexpr int width = 16 / sizeof(T); };

// Blocks whose threads have 16 bytes of numbers each.
static unsigned blocks_of(enum farm_cuda_type type, size_t count) {
    return farm_cuda_blocks(count, THREADS * (16 / (type == FARM_CUDA_BF16 ? sizeof(uint16_t) : sizeof(float))));
}

static enum farm_status check_aligned(const char *name, const void *a, const void *b, const void *c,
                                      struct farm_error *err) {
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "%s: arrays must be 16-byte aligned", name);
}

// ---- activations ----

// The channel's bias, or 0 if bias is NULL. Advances to the next channel.
template <typename T> static __device__ float next_bias(const T *bias, uint32_t channels, uint32_t *channel) {
    if (!bias) return 0;
    const float number = load(bias + *channel);
    *channel = *channel + 1 == channels ? 0 : *channel + 1;
    return number;
}

// The activation, or, with dy, the gradient by `in`; ReLU's is added to `out`.
template <typename T>
static __device__ float activated(enum farm_activation kind, const T *in, float bias, const T *dy, const T *out) {
    if (!dy) return farm_slope_apply(kind, load(in) + bias);
    return (kind == FARM_ACTIVATION_RELU ? load(out) : 0) + farm_slope_at(kind, load(in)) * load(dy);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) activate(enum farm_activation kind, const T *in, const T *bias,
                                                           const T *dy, T *out, size_t count, uint32_t channels) {
    constexpr int width = widest<T>::width;
    typedef const pack<T, width> numbers;
    const size_t from = ((size_t)blockIdx.x * THREADS + threadIdx.x) * width;
    if (from >= count) return;
    uint32_t channel = bias ? (uint32_t)(from % channels) : 0;
    if (count - from < width) {
        for (size_t i = from; i < count; i++)
            store(out + i, activated(kind, in + i, next_bias(bias, channels, &channel), dy ? dy + i : NULL, out + i));
        return;
    }
    numbers p = *(numbers *)(in + from), d = dy ? *(numbers *)(dy + from) : p;
    pack<T, width> y = dy ? *(numbers *)(out + from) : p;
#pragma unroll
    for (int k = 0; k < width; k++)
        store(&y.of[k], activated(kind, &p.of[k], next_bias(bias, channels, &channel), dy ? &d.of[k] : NULL, &y.of[k]));
    *(pack<T, width> *)(out + from) = y;
}

static enum farm_status launch_activate(struct CUstream_st *stream, enum farm_activation kind, enum farm_cuda_type type,
                                        const void *in, const void *bias, const void *dy, void *out, size_t count,
                                        int channels, struct farm_error *err) {
    const enum farm_status status = check_aligned("activate", in, dy, out, err);
    if (status || count == 0) return status;
    const struct farm_cuda_grid grid = {"activate", stream, blocks_of(type, count), THREADS};
    if (type == FARM_CUDA_BF16)
        return farm_cuda_launch(grid, err, activate<uint16_t>, kind, (const uint16_t *)in, (const uint16_t *)bias,
                                (const uint16_t *)dy, (uint16_t *)out, count, (uint32_t)channels);
    return farm_cuda_launch(grid, err, activate<float>, kind, (const float *)in, (const float *)bias, (const float *)dy,
                            (float *)out, count, (uint32_t)channels);
}

enum farm_status farm_cuda_activate(struct CUstream_st *stream, enum farm_activation kind, enum farm_cuda_type type,
                                    const void *in, const void *dy, void *out, size_t count, struct farm_error *err) {
    return launch_activate(stream, kind, type, in, NULL, dy, out, count, 1, err);
}

enum farm_status farm_cuda_bias_activate(struct CUstream_st *stream, enum farm_activation kind,
                                         enum farm_cuda_type type, const void *bias, void *x, size_t rows, int channels,
                                         struct farm_error *err) {
    if (channels < 1) return farm_fail(err, FARM_E_INVALID, "bias_activate: %d channels", channels);
    return launch_activate(stream, kind, type, x, bias, NULL, x, rows * (size_t)channels, channels, err);
}

// ---- layer normalisation: a warp belongs to a row ----

// The mean of a warp's sums, in all its lanes.
static __device__ float row_mean(float sum, int channels) {
    return (float)(__shfl_sync(0xffffffffu, farm_cuda_warp_sum(sum), 0) / channels);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) norm_rows(const struct farm_cuda_norm g) {
    const size_t row = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, at = row * (size_t)g.channels;
    const int lane = threadIdx.x % 32;
    if (row >= g.rows) return;
    const T *x = (const T *)g.x + at, *weight = (const T *)g.weight, *bias = (const T *)g.bias;
    T *y = (T *)g.y + at, *dy = (T *)g.dy + at;
    float sum = 0, squares = 0, sum_dn = 0, sum_dnn = 0;
    for (int c = lane; c < g.channels; c += 32) sum += load(x + c);
    const float mean = row_mean(sum, g.channels);
    for (int c = lane; c < g.channels; c += 32) squares += (load(x + c) - mean) * (load(x + c) - mean);
    const float inverse = 1 / sqrtf(row_mean(squares, g.channels) + FARM_NORM_EPSILON);
    for (int c = lane; c < g.channels; c += 32) {
        const float n = (load(x + c) - mean) * inverse, z = load(weight + c) * n + load(bias + c);
        const float dz = g.dy ? load(dy + c) * farm_slope_at(g.activation, z) : 0, dn = load(weight + c) * dz;
        store(y + c, g.dy ? dz * n : farm_slope_apply(g.activation, z));
        if (g.dy) store(dy + c, dz);
        sum_dn += dn;
        sum_dnn += dn * n;
    }
    if (!g.dx) return;
    const float mean_dn = row_mean(sum_dn, g.channels), mean_dnn = row_mean(sum_dnn, g.channels);
    for (int c = lane; c < g.channels; c += 32) {
        const float n = (load(x + c) - mean) * inverse, dn = load(weight + c) * load(dy + c);
        store((T *)g.dx + at + c, inverse * (dn - mean_dn - n * mean_dnn));
    }
}

enum farm_status farm_cuda_norm(struct CUstream_st *stream, const struct farm_cuda_norm *g, struct farm_error *err) {
    const struct farm_cuda_grid grid = {"norm_rows", stream, farm_cuda_blocks(g->rows, THREADS / 32), THREADS};
    if (g->channels < 1) return farm_fail(err, FARM_E_INVALID, "norm: %d channels", g->channels);
    if (g->rows == 0) return FARM_OK;
    return farm_cuda_launch(grid, err, g->type == FARM_CUDA_BF16 ? norm_rows<uint16_t> : norm_rows<float>, *g);
}

// ---- gradients of activation and bias ----

static uint32_t slabs_of(size_t rows, int channels) {
    const size_t slabs = (rows * (size_t)channels + SLAB_NUMBERS - 1) / SLAB_NUMBERS;
    return slabs < SLABS_MAX ? (uint32_t)slabs : (uint32_t)SLABS_MAX;
}

size_t farm_cuda_slope_gradient_scratch_bytes(size_t rows, int channels) {
    return rows > 0 && channels > 0 ? sizeof(float) * slabs_of(rows, channels) * (size_t)channels : 0;
}

// A block walks every gridDim.x-th strip of rows, `columns` packs wide: thread t has pack t % columns of strip row
// t / columns. part: [gridDim.x][channels], the sums of this block's rows.
template <typename T, int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    slope_gradient(const struct farm_cuda_slope_gradient g, uint32_t columns, float *part) {
    __shared__ float sums[THREADS][WIDTH];
    typedef pack<T, WIDTH> numbers;
    const uint32_t groups = (uint32_t)g.channels / WIDTH, lanes = THREADS / columns;
    const uint32_t lane = threadIdx.x / columns, group = blockIdx.y * columns + threadIdx.x % columns;
    const bool active = lane < lanes && group < groups;
    float sum[WIDTH] = {};
    for (size_t r = (size_t)blockIdx.x * lanes + lane; active && r < g.rows; r += (size_t)gridDim.x * lanes) {
        numbers dy = ((const numbers *)g.dy)[r * groups + group], y = dy;
        if (g.kind != FARM_ACTIVATION_NONE) y = ((const numbers *)g.y)[r * groups + group];
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            const float number = farm_slope_gradient(g.kind, load(&y.of[k]), load(&dy.of[k]));
            sum[k] += number;
            store(&dy.of[k], number);
        }
        if (g.kind != FARM_ACTIVATION_NONE) ((numbers *)g.dy)[r * groups + group] = dy;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++) sums[threadIdx.x][k] = sum[k];
    for (uint32_t left = lanes; left > 1;) {
        const uint32_t half = (left + 1) / 2;
        __syncthreads();
        if (lane + half < left)
#pragma unroll
            for (int k = 0; k < WIDTH; k++) sums[threadIdx.x][k] += sums[threadIdx.x + half * columns][k];
        left = half;
    }
    if (lane > 0 || group >= groups) return;
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        part[(size_t)blockIdx.x * (uint32_t)g.channels + group * WIDTH + k] = sums[threadIdx.x][k];
}

// 32 numbers per block, 8 threads per number.
static __global__ void __launch_bounds__(THREADS)
    add_slabs(const float *part, uint32_t slabs, uint32_t count, float *total) {
    __shared__ float sums[THREADS];
    const uint32_t lane = threadIdx.x / 32, number = blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0;
    for (uint32_t s = lane; number < count && s < slabs; s += THREADS / 32) sum += part[(size_t)s * count + number];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (lane > 0 || number >= count) return;
    for (uint32_t l = 1; l < THREADS / 32; l++) sum += sums[l * 32 + threadIdx.x];
    total[number] += sum;
}

enum farm_status farm_cuda_add_slabs(struct CUstream_st *stream, const float *part, uint32_t slabs, uint32_t count,
                                     float *sum, struct farm_error *err) {
    if (count == 0 || slabs == 0) return FARM_OK;
    return farm_cuda_launch({"add_slabs", stream, farm_cuda_blocks(count, 32), THREADS}, err, add_slabs, part, slabs,
                            count, sum);
}

template <typename T, int WIDTH>
static enum farm_status launch_slope_gradient(struct CUstream_st *stream, const struct farm_cuda_slope_gradient *g,
                                              struct farm_error *err) {
    const uint32_t groups = (uint32_t)g->channels / WIDTH, columns = groups < THREADS ? groups : (uint32_t)THREADS;
    const dim3 blocks(slabs_of(g->rows, g->channels), farm_cuda_blocks(groups, columns));
    return farm_cuda_launch({"slope_gradient", stream, blocks, THREADS}, err, slope_gradient<T, WIDTH>, *g, columns,
                            (float *)g->scratch);
}

enum farm_status farm_cuda_slope_gradient(struct CUstream_st *stream, const struct farm_cuda_slope_gradient *g,
                                          struct farm_error *err) {
    if (g->rows == 0) return FARM_OK;
    if (g->channels < 1) return farm_fail(err, FARM_E_INVALID, "slope_gradient: %d channels", g->channels);
    enum farm_status status =
        check_aligned("slope_gradient", g->dy, g->kind == FARM_ACTIVATION_NONE ? NULL : g->y, NULL, err);
    if (status) return status;
    const bool bf16 = g->type == FARM_CUDA_BF16;
    if (bf16 && g->channels % widest<uint16_t>::width == 0)
        status = launch_slope_gradient<uint16_t, widest<uint16_t>::width>(stream, g, err);
    else if (bf16)
        status = launch_slope_gradient<uint16_t, 1>(stream, g, err);
    else if (g->channels % widest<float>::width == 0)
        status = launch_slope_gradient<float, widest<float>::width>(stream, g, err);
    else
        status = launch_slope_gradient<float, 1>(stream, g, err);
    if (status) return status;
    return farm_cuda_add_slabs(stream, (const float *)g->scratch, slabs_of(g->rows, g->channels), (uint32_t)g->channels,
                               g->bias_gradient, err);
}

// ---- maxima: a block belongs to one picture, a thread to WIDTH channels of one pixel ----

template <typename T, int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    pool_rows(const struct farm_pool p, const T *in, T *out, uint8_t *where) {
    typedef pack<T, WIDTH> numbers;
    const uint32_t groups = (uint32_t)p.channels / WIDTH, width = (uint32_t)p.out_width;
    const uint32_t count = (uint32_t)p.out_height * width * groups, i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= count) return;
    const uint32_t pixel = i / groups, group = i % groups;
    const int top = (int)(pixel / width) * p.stride - p.pad_top, left = (int)(pixel % width) * p.stride - p.pad_left;
    const numbers *picture =
        (const numbers *)in + (size_t)blockIdx.x * ((uint32_t)p.height * (uint32_t)p.width * groups);
    float most[WIDTH] = {};
    pack<uint8_t, WIDTH> places = {};
    bool found = false;
    for (int row = top; row < top + p.kernel; row++)
        for (int column = left; column < left + p.kernel; column++) {
            if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
            const numbers here = picture[(uint32_t)(row * p.width + column) * groups + group];
            const uint8_t place = (uint8_t)((row - top) * p.kernel + column - left);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                const float number = load(&here.of[k]);
                if (!farm_pool_takes(found, most[k], number)) continue;
                most[k] = number;
                places.of[k] = place;
            }
            found = true;
        }
    numbers result;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) store(&result.of[k], most[k]);
    ((numbers *)out)[(size_t)blockIdx.x * count + i] = result;
    if (where) ((pack<uint8_t, WIDTH> *)where)[(size_t)blockIdx.x * count + i] = places;
}

// As farm_pool_gradient: the same windows in the same order.
template <typename T, int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    pool_gradient_rows(const struct farm_pool p, const T *dy, const uint8_t *where, T *dx) {
    typedef pack<T, WIDTH> numbers;
    const uint32_t groups = (uint32_t)p.channels / WIDTH, width = (uint32_t)p.width;
    const uint32_t count = (uint32_t)p.height * width * groups, i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= count) return;
    const uint32_t group = i % groups;
    const int y = (int)(i / groups / width) + p.pad_top, x = (int)(i / groups % width) + p.pad_left;
    const size_t first = (size_t)blockIdx.x * ((uint32_t)p.out_height * (uint32_t)p.out_width * groups);
    float sum[WIDTH] = {};
    for (int oy = farm_pool_first(y, 0, p.kernel, p.stride); oy < p.out_height && oy * p.stride <= y; oy++)
        for (int ox = farm_pool_first(x, 0, p.kernel, p.stride); ox < p.out_width && ox * p.stride <= x; ox++) {
            const int place = (y - oy * p.stride) * p.kernel + x - ox * p.stride;
            const size_t at = first + (uint32_t)(oy * p.out_width + ox) * groups + group;
            const numbers here = ((const numbers *)dy)[at];
            const pack<uint8_t, WIDTH> places = ((const pack<uint8_t, WIDTH> *)where)[at];
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                if (places.of[k] == place) sum[k] += load(&here.of[k]);
        }
    numbers result;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) store(&result.of[k], sum[k]);
    ((numbers *)dx)[(size_t)blockIdx.x * count + i] = result;
}

template <typename T, int WIDTH>
static enum farm_status launch_pool(struct CUstream_st *stream, const struct farm_pool *p, size_t rows, const void *in,
                                    void *out, uint8_t *where, struct farm_error *err) {
    const size_t groups = (size_t)p->out_height * (size_t)p->out_width * (size_t)(p->channels / WIDTH);
    const dim3 blocks((unsigned)rows, farm_cuda_blocks(groups, THREADS));
    return farm_cuda_launch({"pool_rows", stream, blocks, THREADS}, err, pool_rows<T, WIDTH>, *p, (const T *)in,
                            (T *)out, where);
}
template <typename T, int WIDTH>
static enum farm_status launch_pool_gradient(struct CUstream_st *stream, const struct farm_pool *p, size_t rows,
                                             const void *dy, const uint8_t *where, void *dx, struct farm_error *err) {
    const size_t groups = (size_t)p->height * (size_t)p->width * (size_t)(p->channels / WIDTH);
    const dim3 blocks((unsigned)rows, farm_cuda_blocks(groups, THREADS));
    return farm_cuda_launch({"pool_gradient_rows", stream, blocks, THREADS}, err, pool_gradient_rows<T, WIDTH>, *p,
                            (const T *)dy, where, (T *)dx);
}

static enum farm_status check_pool(const struct farm_pool *p, size_t rows, const void *a, const void *b,
                                   const uint8_t *where, struct farm_error *err) {
    const uint64_t in = (uint64_t)p->height * (uint64_t)p->width * (uint64_t)p->channels;
    if (p->channels < 1 || p->height < 1 || p->width < 1 || p->kernel < 1 || p->kernel > FARM_POOL_KERNEL_MAX ||
        p->stride < 1 || in >= 1 << 24 || rows > INT32_MAX)
        return farm_fail(err, FARM_E_INVALID, "a pool over %zu pictures of %dx%dx%d, kernel %d (at most %d), stride %d",
                         rows, p->height, p->width, p->channels, p->kernel, FARM_POOL_KERNEL_MAX, p->stride);
    return check_aligned("pool", a, b, where, err);
}

enum farm_status farm_cuda_pool(struct CUstream_st *stream, const struct farm_pool *p, enum farm_cuda_type type,
                                size_t rows, const void *in, void *out, uint8_t *where, struct farm_error *err) {
    constexpr int wide_bf16 = widest<uint16_t>::width, wide = widest<float>::width;
    const enum farm_status status = check_pool(p, rows, in, out, where, err);
    if (status || rows == 0) return status;
    if (type == FARM_CUDA_BF16)
        return (p->channels % wide_bf16 == 0 ? launch_pool<uint16_t, wide_bf16>
                                             : launch_pool<uint16_t, 1>)(stream, p, rows, in, out, where, err);
    return (p->channels % wide == 0 ? launch_pool<float, wide> : launch_pool<float, 1>)(stream, p, rows, in, out, where,
                                                                                        err);
}

enum farm_status farm_cuda_pool_gradient(struct CUstream_st *stream, const struct farm_pool *p,
                                         enum farm_cuda_type type, size_t rows, const void *dy, const uint8_t *where,
                                         void *dx, struct farm_error *err) {
    constexpr int wide_bf16 = widest<uint16_t>::width, wide = widest<float>::width;
    const enum farm_status status = check_pool(p, rows, dy, dx, where, err);
    if (status || rows == 0) return status;
    if (type == FARM_CUDA_BF16)
        return (p->channels % wide_bf16 == 0 ? launch_pool_gradient<uint16_t, wide_bf16>
                                             : launch_pool_gradient<uint16_t, 1>)(stream, p, rows, dy, where, dx, err);
    return (p->channels % wide == 0 ? launch_pool_gradient<float, wide>
                                    : launch_pool_gradient<float, 1>)(stream, p, rows, dy, where, dx, err);
}

// ---- roundings, sums, heads ----

static __global__ void __launch_bounds__(THREADS) round_all(const float *in, uint16_t *out, size_t count) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = farm_cuda_bf16(in[i]);
}

enum farm_status farm_cuda_round(struct CUstream_st *stream, const float *in, uint16_t *out, size_t count,
                                 struct farm_error *err) {
    const enum farm_status status = check_aligned("round", in, out, NULL, err);
    if (status || count == 0) return status;
    const unsigned blocks = farm_cuda_blocks(count, THREADS);
    return farm_cuda_launch({"round", stream, blocks, THREADS}, err, round_all, in, out, count);
}

static __global__ void __launch_bounds__(THREADS) add_bf16(const uint16_t *x, float *sum, size_t count) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) sum[i] += load(x + i);
}

enum farm_status farm_cuda_add_bf16(struct CUstream_st *stream, const uint16_t *x, float *sum, size_t count,
                                    struct farm_error *err) {
    const enum farm_status status = check_aligned("add_bf16", x, sum, NULL, err);
    if (status || count == 0) return status;
    const unsigned blocks = farm_cuda_blocks(count, THREADS);
    return farm_cuda_launch({"add_bf16", stream, blocks, THREADS}, err, add_bf16, x, sum, count);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    heads_split(const struct farm_cuda_heads h, const float *product, const T *bias, float *logits, float *value) {
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x, columns = (uint32_t)h.actions + 1;
    const uint32_t row = i / columns, a = i % columns;
    if (row >= h.rows) return;
    const float number = product[(size_t)row * (uint32_t)h.pitch + a] + load(bias + a);
    if (a < (uint32_t)h.actions)
        logits[(size_t)row * (uint32_t)h.actions + a] = number;
    else
        value[row] = number;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    heads_join(const struct farm_cuda_heads h, const float *dlogits, const float *dvalue, T *joined) {
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x, row = i / (uint32_t)h.pitch, a = i % (uint32_t)h.pitch;
    const uint32_t actions = (uint32_t)h.actions;
    if (row >= h.rows) return;
    store(joined + i, a < actions ? dlogits[(size_t)row * actions + a] : a == actions ? dvalue[row] : 0);
}

static enum farm_status check_heads(const struct farm_cuda_heads *h, struct farm_error *err) {
    if (h->actions >= 1 && h->pitch > h->actions && (uint64_t)h->rows * (uint64_t)h->pitch <= INT32_MAX) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "heads of %d actions in %u rows of %d", h->actions, h->rows, h->pitch);
}

enum farm_status farm_cuda_heads_split(struct CUstream_st *stream, const struct farm_cuda_heads *h,
                                       const float *product, const void *bias, float *logits, float *value,
                                       struct farm_error *err) {
    const enum farm_status status = check_heads(h, err);
    if (status || h->rows == 0) return status;
    const unsigned blocks = farm_cuda_blocks((size_t)h->rows * ((size_t)h->actions + 1), THREADS);
    const struct farm_cuda_grid grid = {"heads_split", stream, blocks, THREADS};
    if (h->type == FARM_CUDA_BF16)
        return farm_cuda_launch(grid, err, heads_split<uint16_t>, *h, product, (const uint16_t *)bias, logits, value);
    return farm_cuda_launch(grid, err, heads_split<float>, *h, product, (const float *)bias, logits, value);
}

enum farm_status farm_cuda_heads_join(struct CUstream_st *stream, const struct farm_cuda_heads *h, const float *dlogits,
                                      const float *dvalue, void *joined, struct farm_error *err) {
    const enum farm_status status = check_heads(h, err);
    if (status || h->rows == 0) return status;
    const unsigned blocks = farm_cuda_blocks((size_t)h->rows * (size_t)h->pitch, THREADS);
    const struct farm_cuda_grid grid = {"heads_join", stream, blocks, THREADS};
    if (h->type == FARM_CUDA_BF16)
        return farm_cuda_launch(grid, err, heads_join<uint16_t>, *h, dlogits, dvalue, (uint16_t *)joined);
    return farm_cuda_launch(grid, err, heads_join<float>, *h, dlogits, dvalue, (float *)joined);
}

// ---- a flat input that joins features ----

enum { JOIN_THREADS = 1024 };

// A thread belongs to one number of y.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    join_rows(const struct farm_cuda_join j, const T *x, const T *weight, const T *bias, T *y) {
    const uint32_t features = (uint32_t)j.features, flat = (uint32_t)j.flat, width = features + (uint32_t)j.units;
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row = i / width;
    const uint32_t column = (uint32_t)(i % width);
    if (row >= j.rows) return;
    if (column < features) {
        y[i] = x[row * features + column];
        return;
    }
    float sum = load(bias + (column - features));
    for (uint32_t k = 0; k < flat; k++)
        sum += load(weight + (size_t)(column - features) * flat + k) * j.numbers[row * flat + k];
    store(y + i, farm_slope_apply(FARM_ACTIVATION_RELU, sum));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) join_features(const struct farm_cuda_join j, const T *dy, T *dx) {
    const uint32_t features = (uint32_t)j.features;
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row = i / features;
    if (row < j.rows) dx[i] = dy[row * (features + (uint32_t)j.units) + i % features];
}

// A block sums the gradients of all weights of one input, the last block those of the biases: thread t has unit t %
// units of every row that is t / units modulo the number of lanes.
template <typename T>
static __global__ void __launch_bounds__(JOIN_THREADS)
    join_weights(const struct farm_cuda_join j, const T *y, const T *dy, float *weight_gradient, float *bias_gradient) {
    __shared__ float sums[JOIN_THREADS];
    const uint32_t units = (uint32_t)j.units, flat = (uint32_t)j.flat, width = (uint32_t)j.features + units;
    const uint32_t lanes = JOIN_THREADS / units, lane = threadIdx.x / units, unit = threadIdx.x % units;
    const uint32_t input = blockIdx.x;
    float sum = 0;
    for (uint32_t row = lane; lane < lanes && row < j.rows; row += lanes) {
        const size_t at = (size_t)row * width + (uint32_t)j.features + unit;
        const float gradient = farm_slope_gradient(FARM_ACTIVATION_RELU, load(y + at), load(dy + at));
        sum += input < flat ? gradient * j.numbers[(size_t)row * flat + input] : gradient;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (lane > 0) return;
    for (uint32_t l = 1; l < lanes; l++) sum += sums[l * units + unit];
    *(input < flat ? weight_gradient + (size_t)unit * flat + input : bias_gradient + unit) += sum;
}

static enum farm_status check_join(const struct farm_cuda_join *j, struct farm_error *err) {
    if (j->features >= 1 && j->units >= 1 && j->units <= JOIN_THREADS && j->flat >= 1 &&
        (uint64_t)j->rows * ((uint64_t)j->features + (uint64_t)j->units) <= INT32_MAX)
        return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "a join of %d numbers by %d units with %d features in %u rows", j->flat,
                     j->units, j->features, j->rows);
}

enum farm_status farm_cuda_join(struct CUstream_st *stream, const struct farm_cuda_join *j, const void *x,
                                const void *weight, const void *bias, void *y, struct farm_error *err) {
    const enum farm_status status = check_join(j, err);
    if (status || j->rows == 0) return status;
    const unsigned blocks = farm_cuda_blocks((size_t)j->rows * (size_t)(j->features + j->units), THREADS);
    const struct farm_cuda_grid grid = {"join_rows", stream, blocks, THREADS};
    if (j->type == FARM_CUDA_BF16)
        return farm_cuda_launch(grid, err, join_rows<uint16_t>, *j, (const uint16_t *)x, (const uint16_t *)weight,
                                (const uint16_t *)bias, (uint16_t *)y);
    return farm_cuda_launch(grid, err, join_rows<float>, *j, (const float *)x, (const float *)weight,
                            (const float *)bias, (float *)y);
}

template <typename T>
static enum farm_status launch_join_gradient(struct CUstream_st *stream, const struct farm_cuda_join *j, const T *y,
                                             const T *dy, T *dx, float *weight_gradient, float *bias_gradient,
                                             struct farm_error *err) {
    const unsigned blocks = farm_cuda_blocks((size_t)j->rows * (size_t)j->features, THREADS);
    const enum farm_status status =
        farm_cuda_launch({"join_features", stream, blocks, THREADS}, err, join_features<T>, *j, dy, dx);
    if (status) return status;
    return farm_cuda_launch({"join_weights", stream, (unsigned)j->flat + 1, JOIN_THREADS}, err, join_weights<T>, *j, y,
                            dy, weight_gradient, bias_gradient);
}

enum farm_status farm_cuda_join_gradient(struct CUstream_st *stream, const struct farm_cuda_join *j, const void *y,
                                         const void *dy, void *dx, float *weight_gradient, float *bias_gradient,
                                         struct farm_error *err) {
    const enum farm_status status = check_join(j, err);
    if (status || j->rows == 0) return status;
    if (j->type == FARM_CUDA_BF16)
        return launch_join_gradient(stream, j, (const uint16_t *)y, (const uint16_t *)dy, (uint16_t *)dx,
                                    weight_gradient, bias_gradient, err);
    return launch_join_gradient(stream, j, (const float *)y, (const float *)dy, (float *)dx, weight_gradient,
                                bias_gradient, err);
}
