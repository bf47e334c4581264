// Convolutions in bf16 with f32 sums by the tensor cores' m16n8k16 product, for sizes at which cuDNN 9's algorithms are
// slow: few channels (4, 16, 32), where an input picture's band fits shared memory (docs/CUDA.md has the times). A
// block copies a band of a picture, zeros around it, into shared memory; the products read it there, so nothing is
// copied into columns. A picture's pixel has `pitch` bytes there, 16 spare ones: 8 neighbours lie in different banks.
//
// Rows of a kernel's height are contiguous: element e of row kh is pixel e / C, channel e % C. A row is padded to a
// multiple of 16 elements with weights of zero.
#include "kernels/cuda/common.cuh"

enum {
    WARPS = 8,              // in a block of the forward product
    BAND_BYTES = 40 << 10,  // a picture's share of shared memory, about: several blocks share a multiprocessor
    BLOCKS_WANTED = 264,    // smaller bands for few pictures, so that all multiprocessors work
    PIXELS_LEAST = 128,     // in a band
    SLABS = 264,            // blocks of a weight gradient: a constant, so that the sums' order depends on sizes alone
    SHARED_MOST = 99 << 10, // the smallest device's
};

// A band: `rows` output rows from the `y`-th on, of picture `picture`; in shared memory, input row y * stride - top is
// the tile's first, input column -left its first column.
struct band {
    int picture, y, rows;
};

struct layout {
    struct farm_cuda_conv conv;
    int bands, band_rows; // bands in a picture; output rows in a band, fewer in the last one
    int tile_width;       // pixels in shared memory
    uint32_t row_bytes, tile_bytes;
    uint64_t over_width; // 2^32 / out_width, rounded up: divides numbers of pixels without a division
};

// Bytes of a pixel in shared memory.
static constexpr uint32_t pitch_of(int channels) {
    return channels == 4 ? 8 : 2 * (uint32_t)channels + 16;
}

template <int C> struct pixel {
    static constexpr int pitch = pitch_of(C), part = C == 4 ? 8 : 16, parts = 2 * C / part; // bytes
};

static __device__ uint32_t number_at(const uint8_t *at) {
    return *(const uint16_t *)at;
}
static __device__ uint32_t pair_at(const uint8_t *at) {
    return *(const uint32_t *)at;
}

static __device__ band band_of(const layout &l, int index) {
    const int y = index % l.bands * l.band_rows, left = l.conv.out_height - y;
    return {index / l.bands, y, left < l.band_rows ? left : l.band_rows};
}

// Copies the band's input into `tile`: a warp takes one row after another.
template <int C> static __device__ void load_tile(const layout &l, const band &b, const uint16_t *x, uint8_t *tile) {
    typedef pixel<C> P;
    const struct farm_cuda_conv &c = l.conv;
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32, rows = (b.rows - 1) * c.stride + c.kernel;
    for (int r = threadIdx.x / 32; r < rows; r += warps) {
        const int y = b.y * c.stride - c.top + r;
        for (int i = lane; i < l.tile_width * P::parts; i += 32) {
            const int column = i / P::parts, at = column - c.left;
            const bool inside = y >= 0 && y < c.height && at >= 0 && at < c.width;
            const size_t from = (((size_t)b.picture * c.height + (inside ? y : 0)) * c.width + (inside ? at : 0)) * C;
            farm_cuda_copy_async<P::part>(tile + r * l.row_bytes + column * P::pitch + i % P::parts * P::part,
                                          (const uint8_t *)(x + from) + i % P::parts * P::part, inside);
        }
    }
}

// Where output pixel `m` of a band finds its first input pixel in the tile.
template <int C> static __device__ uint32_t place_of(const layout &l, int m) {
    const int y = (int)((uint64_t)m * l.over_width >> 32), x = m - y * l.conv.out_width;
    return (uint32_t)(y * l.conv.stride) * l.row_bytes + (uint32_t)(x * l.conv.stride * pixel<C>::pitch);
}

// Where 16 elements from e on lie in a row of the kernel.
template <int C> static __device__ constexpr uint32_t row_place(int e) {
    return C == 4 ? (uint32_t)e * 2 : (uint32_t)(e / C * pixel<C>::pitch + e % C * 2);
}

// ---- y = weight * x, and the gradient by x ----

// The elements e and e + 1 of row kh for output n. FLIP: the gradient by x is a convolution of dy with the kernel
// turned round; C counts dy's channels, N those of x.
template <int C, int KERNEL, int N, bool FLIP>
static __device__ uint32_t weights_at(const uint16_t *weight, int n, int kh, int e) {
    if (e >= KERNEL * C) return 0;
    if (!FLIP) return *(const uint32_t *)(weight + (n * KERNEL + kh) * (KERNEL * C) + e);
    const int at = ((KERNEL - 1 - kh) * KERNEL + KERNEL - 1 - e / C) * N + n, next = KERNEL * KERNEL * N;
    return weight[e % C * next + at] | (uint32_t)weight[(e % C + 1) * next + at] << 16;
}

// A lane's outputs of one pixel: 2 * NT channels.
template <int COUNT> struct alignas(2 * COUNT) channels { uint16_t of[COUNT]; };

// The n-tile's column 2 t + j is channel t * 2 NT + 2 nt + j, so that a lane's channels are contiguous.
template <int C, int KERNEL, int N, bool FLIP>
static __global__ void __launch_bounds__(WARPS * 32, N > 16 ? 2 : 3)
    conv_forward(const struct layout l, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, bool add,
                 bool relu, uint16_t *out) {
    constexpr int NT = N / 8, MT = 2, STEPS = (KERNEL * C + 15) / 16; // steps of a kernel's row
    typedef channels<2 * NT> pack;
    uint8_t *shared = farm_cuda_shared();
    uint2 *b = (uint2 *)shared; // [KERNEL][STEPS][NT][32]
    uint8_t *tile = shared + KERNEL * STEPS * NT * 32 * sizeof(uint2);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const band at = band_of(l, blockIdx.x);
    for (int i = threadIdx.x; i < KERNEL * STEPS * NT * 32; i += WARPS * 32) {
        const int column = i % 32 / 4, n = column / 2 * 2 * NT + i / 32 % NT * 2 + column % 2;
        const int step = i / (32 * NT), kh = step / STEPS, e = step % STEPS * 16 + i % 4 * 2;
        b[i].x = weights_at<C, KERNEL, N, FLIP>(weight, n, kh, e);
        b[i].y = weights_at<C, KERNEL, N, FLIP>(weight, n, kh, e + 8);
    }
    load_tile<C>(l, at, x, tile);
    farm_cuda_copies_done();
    __syncthreads();
    const int pixels = at.rows * l.conv.out_width;
    const size_t first = ((size_t)at.picture * l.conv.out_height + at.y) * l.conv.out_width;
    float biases[2 * NT];
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) biases[i] = bias ? load(bias + t * 2 * NT + i) : 0;
    for (int m = (int)threadIdx.x / 32 * (MT * 16); m < pixels; m += WARPS * MT * 16) {
        uint32_t from[MT][2]; // in the tile
        float sum[MT][NT][4] = {};
        pack addends[MT][2];
#pragma unroll
        for (int k = 0; k < MT; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int p = m + k * 16 + half * 8 + g;
                from[k][half] = place_of<C>(l, p < pixels ? p : 0) + (uint32_t)t * 4;
                if (add && p < pixels) addends[k][half] = *(const pack *)(out + (first + p) * N + t * 2 * NT);
            }
#pragma unroll
        for (int kh = 0; kh < KERNEL; kh++)
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const uint32_t place = kh * l.row_bytes + row_place<C>(step * 16);
                uint32_t weights[NT][2];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint2 w = b[((kh * STEPS + step) * NT + n) * 32 + lane];
                    weights[n][0] = w.x;
                    weights[n][1] = w.y;
                }
#pragma unroll
                for (int k = 0; k < MT; k++) {
                    const uint32_t a[4] = {pair_at(tile + from[k][0] + place), pair_at(tile + from[k][1] + place),
                                           pair_at(tile + from[k][0] + place + 16),
                                           pair_at(tile + from[k][1] + place + 16)};
#pragma unroll
                    for (int n = 0; n < NT; n++) farm_cuda_mma(sum[k][n], a, weights[n]);
                }
            }
#pragma unroll
        for (int k = 0; k < MT; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int p = m + k * 16 + half * 8 + g;
                if (p >= pixels) continue;
                pack numbers;
#pragma unroll
                for (int i = 0; i < 2 * NT; i++) {
                    float number = sum[k][i / 2][half * 2 + i % 2] + biases[i];
                    if (add) number += load(&addends[k][half].of[i]);
                    store(&numbers.of[i], relu && number < 0 ? 0 : number);
                }
                *(pack *)(out + (first + p) * N + t * 2 * NT) = numbers;
            }
    }
}

// ---- the gradient by the weight ----

// Shared memory of a band of dy: [pixels][N], zeros up to a multiple of 16 pixels.
template <int N> static __device__ void load_gradient(const layout &l, const band &b, const uint16_t *dy, uint8_t *to) {
    typedef pixel<N> P;
    const int pixels = b.rows * l.conv.out_width, all = (pixels + 15) / 16 * 16;
    const size_t first = ((size_t)b.picture * l.conv.out_height + b.y) * l.conv.out_width;
    for (int i = threadIdx.x; i < all * P::parts; i += blockDim.x) {
        const int p = i / P::parts;
        const bool inside = p < pixels;
        farm_cuda_copy_async<P::part>(to + p * P::pitch + i % P::parts * P::part,
                                      (const uint8_t *)(dy + (first + (inside ? p : 0)) * N) + i % P::parts * P::part,
                                      inside);
    }
}

// Warps: one for each row of the kernel, times the shares of the pixels, which are few if each warp has many sums.
template <int C, int KERNEL, int N> struct split {
    static constexpr int count = KERNEL == 3 && C * N < 1024 ? 4 : 2, warps = KERNEL * count;
};

// A block takes one band after another: dweight[n][kh][e] = sum over pixels of dy[n] x[e in row kh], which is a product
// of dy transposed and x. A warp sums row kh of a share of the pixels; part: [blocks][N][KERNEL][KERNEL * C].
template <int C, int KERNEL, int N>
static __global__ void __launch_bounds__(split<C, KERNEL, N>::warps * 32)
    conv_weight_gradient(const struct layout l, int bands, const uint16_t *x, const uint16_t *dy, float *part) {
    constexpr int ROW = KERNEL * C, NT = (ROW + 7) / 8, MT = N / 16, SHARES = split<C, KERNEL, N>::count;
    uint8_t *tile = farm_cuda_shared(), *gradient = tile + l.tile_bytes;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    const int kh = warp % KERNEL, share = warp / KERNEL;
    float sum[MT][NT][4] = {};
    for (int i = blockIdx.x; i < bands; i += gridDim.x) {
        const band at = band_of(l, i);
        load_tile<C>(l, at, x, tile);
        load_gradient<N>(l, at, dy, gradient);
        farm_cuda_copies_done();
        __syncthreads();
        const int pixels = at.rows * l.conv.out_width;
        for (int m = share * 16; m < pixels; m += SHARES * 16) {
            const uint8_t *from[4];
            uint32_t a[MT][4];
#pragma unroll
            for (int k = 0; k < 4; k++) { // pixels 2t, 2t + 1, 2t + 8, 2t + 9
                const int p = m + t * 2 + k % 2 + k / 2 * 8;
                from[k] = tile + place_of<C>(l, p < pixels ? p : 0) + kh * l.row_bytes + g * 2;
            }
#pragma unroll
            for (int k = 0; k < MT; k++)
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const uint8_t *d =
                        gradient + (m + t * 2 + r / 2 * 8) * pixel<N>::pitch + (k * 16 + r % 2 * 8 + g) * 2;
                    a[k][r] = number_at(d) | number_at(d + pixel<N>::pitch) << 16;
                }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint32_t place = row_place<C>(n * 8);
                const uint32_t b[2] = {number_at(from[0] + place) | number_at(from[1] + place) << 16,
                                       number_at(from[2] + place) | number_at(from[3] + place) << 16};
#pragma unroll
                for (int k = 0; k < MT; k++) farm_cuda_mma(sum[k][n], a[k], b);
            }
        }
        __syncthreads(); // the next band overwrites the tile
    }
    float4 *sums = (float4 *)farm_cuda_shared() + (kh * 32 + lane) * (MT * NT);
    for (int s = 1; s < SHARES; s++) {
        if (share == s)
#pragma unroll
            for (int i = 0; i < MT * NT; i++) {
                const float *of = sum[i / NT][i % NT];
                sums[i] = {of[0], of[1], of[2], of[3]};
            }
        __syncthreads();
        if (share == 0)
#pragma unroll
            for (int i = 0; i < MT * NT; i++) {
                float *of = sum[i / NT][i % NT];
                const float4 more = sums[i];
                of[0] += more.x;
                of[1] += more.y;
                of[2] += more.z;
                of[3] += more.w;
            }
        __syncthreads();
    }
    if (share > 0) return;
#pragma unroll
    for (int k = 0; k < MT; k++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int e = n * 8 + t * 2 + i % 2, channel = k * 16 + i / 2 * 8 + g;
                if (e < ROW) part[(((size_t)blockIdx.x * N + channel) * KERNEL + kh) * ROW + e] = sum[k][n][i];
            }
}

// ---- sizes and launches ----

// The kernels of one size.
typedef void forward_kernel(const struct layout, const uint16_t *, const uint16_t *, const uint16_t *, bool, bool,
                            uint16_t *);
typedef void gradient_kernel(const struct layout, int, const uint16_t *, const uint16_t *, float *);

struct size {
    int channels, kernel, out_channels, stride;
    forward_kernel *forward, *data; // NULL: none
    gradient_kernel *weight;
    unsigned weight_threads;
};

template <int C, int KERNEL, int N, int STRIDE> static constexpr size size_of() {
    size s = {C,
              KERNEL,
              N,
              STRIDE,
              conv_forward<C, KERNEL, N, false>,
              NULL,
              conv_weight_gradient<C, KERNEL, N>,
              split<C, KERNEL, N>::warps * 32};
    if constexpr (STRIDE == 1 && C % 8 == 0) s.data = conv_forward<N, KERNEL, C, true>;
    return s;
}

static constexpr size sizes[] = {size_of<4, 3, 16, 1>(),  size_of<16, 3, 16, 1>(), size_of<16, 3, 32, 1>(),
                                 size_of<32, 3, 32, 1>(), size_of<4, 8, 16, 4>(),  size_of<4, 8, 32, 4>()};

static const size *find_size(const struct farm_cuda_conv *c) {
    for (const size &s : sizes)
        if (s.channels == c->channels && s.kernel == c->kernel && s.out_channels == c->out_channels &&
            s.stride == c->stride)
            return &s;
    return NULL;
}

// The convolution of which the gradient by x is the result.
static struct farm_cuda_conv turned(const struct farm_cuda_conv *c) {
    struct farm_cuda_conv t = *c;
    t.channels = c->out_channels, t.height = c->out_height, t.width = c->out_width;
    t.out_channels = c->channels, t.out_height = c->height, t.out_width = c->width;
    t.top = c->kernel - 1 - c->top, t.left = c->kernel - 1 - c->left;
    return t;
}

static struct layout lay_out(const struct farm_cuda_conv *c, bool gradient) {
    struct layout l = {};
    l.conv = *c;
    l.tile_width = (c->out_width - 1) * c->stride + c->kernel + (c->channels == 4); // a row's padding reads one more
    l.over_width = ((UINT64_C(1) << 32) + (uint64_t)c->out_width - 1) / (uint64_t)c->out_width;
    l.row_bytes = (uint32_t)l.tile_width * pitch_of(c->channels);
    const uint32_t more = gradient ? (uint32_t)c->out_width * pitch_of(c->out_channels) : 0;
    int most = 1;
    while (most < c->out_height &&
           (uint32_t)(most * c->stride + c->kernel) * l.row_bytes + (uint32_t)(most + 1) * more <= BAND_BYTES)
        most++;
    l.bands = (c->out_height + most - 1) / most;
    while (!gradient && c->rows * l.bands < BLOCKS_WANTED && l.bands < c->out_height &&
           (c->out_height + l.bands - 1) / l.bands * c->out_width > PIXELS_LEAST)
        l.bands++;
    l.band_rows = (c->out_height + l.bands - 1) / l.bands;
    l.bands = (c->out_height + l.band_rows - 1) / l.band_rows;
    l.tile_bytes = ((uint32_t)((l.band_rows - 1) * c->stride + c->kernel) * l.row_bytes + 15) / 16 * 16;
    return l;
}

static unsigned forward_shared(const struct layout &l) {
    const int steps = (l.conv.kernel * l.conv.channels + 15) / 16;
    return (unsigned)(l.conv.kernel * steps * l.conv.out_channels / 8 * 32) * 8 + l.tile_bytes;
}

static unsigned gradient_shared(const struct layout &l) {
    const unsigned pixels = (unsigned)(l.band_rows * l.conv.out_width + 15) / 16 * 16;
    const unsigned bands = l.tile_bytes + pixels * pitch_of(l.conv.out_channels);
    const unsigned sums =
        (unsigned)(l.conv.kernel * l.conv.out_channels / 16 * ((l.conv.kernel * l.conv.channels + 7) / 8)) * 512;
    return bands > sums ? bands : sums;
}

bool farm_cuda_conv_has(const struct farm_cuda_conv *c, enum farm_cuda_conv_part part) {
    const size *s = find_size(c);
    if (!s || c->rows < 1 || c->out_width < 1 || c->out_height < 1) return false;
    if (part == FARM_CUDA_CONV_WEIGHT) return gradient_shared(lay_out(c, true)) <= SHARED_MOST;
    if (part == FARM_CUDA_CONV_FORWARD) return forward_shared(lay_out(c, false)) <= SHARED_MOST;
    const struct farm_cuda_conv t = turned(c);
    return s->data && forward_shared(lay_out(&t, false)) <= SHARED_MOST;
}

static enum farm_status check(const struct farm_cuda_conv *c, enum farm_cuda_conv_part part, const void *a,
                              const void *b, const void *d, struct farm_error *err) {
    if (!farm_cuda_conv_has(c, part))
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "no kernel convolves %d rows of %dx%dx%d with %d of %dx%d at stride %d", c->rows, c->height,
                         c->width, c->channels, c->out_channels, c->kernel, c->kernel, c->stride);
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % 16)
        return farm_fail(err, FARM_E_INVALID, "a convolution's arrays must be 16-byte aligned");
    return FARM_OK;
}

template <typename Kernel> static enum farm_status allow(Kernel *kernel, unsigned bytes, struct farm_error *err) {
    if (bytes <= 48 << 10) return FARM_OK;
    FARM_CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MOST));
    return FARM_OK;
}

static enum farm_status launch_forward(struct CUstream_st *stream, forward_kernel *kernel,
                                       const struct farm_cuda_conv *c, const void *x, const void *weight,
                                       const void *bias, bool add, bool relu, void *y, struct farm_error *err) {
    const struct layout l = lay_out(c, false);
    const unsigned bytes = forward_shared(l);
    const enum farm_status status = allow(kernel, bytes, err);
    if (status) return status;
    return farm_cuda_launch({"conv_forward", stream, (unsigned)(c->rows * l.bands), WARPS * 32, bytes}, err, kernel, l,
                            (const uint16_t *)x, (const uint16_t *)weight, (const uint16_t *)bias, add, relu,
                            (uint16_t *)y);
}

enum farm_status farm_cuda_conv_forward(struct CUstream_st *stream, const struct farm_cuda_conv *c, const void *x,
                                        const void *weight, const void *bias, bool add, bool relu, void *y,
                                        struct farm_error *err) {
    const enum farm_status status = check(c, FARM_CUDA_CONV_FORWARD, x, weight, y, err);
    return status ? status : launch_forward(stream, find_size(c)->forward, c, x, weight, bias, add, relu, y, err);
}

enum farm_status farm_cuda_conv_data_gradient(struct CUstream_st *stream, const struct farm_cuda_conv *c,
                                              const void *weight, const void *dy, void *dx, struct farm_error *err) {
    const enum farm_status status = check(c, FARM_CUDA_CONV_DATA, weight, dy, dx, err);
    const struct farm_cuda_conv t = turned(c);
    return status ? status : launch_forward(stream, find_size(c)->data, &t, dy, weight, NULL, false, false, dx, err);
}

size_t farm_cuda_conv_scratch_bytes(const struct farm_cuda_conv *c) {
    return sizeof(float) * SLABS * (size_t)c->out_channels * (size_t)(c->kernel * c->kernel * c->channels);
}

enum farm_status farm_cuda_conv_weight_gradient(struct CUstream_st *stream, const struct farm_cuda_conv *c,
                                                const void *x, const void *dy, float *gradient, void *scratch,
                                                struct farm_error *err) {
    enum farm_status status = check(c, FARM_CUDA_CONV_WEIGHT, x, dy, scratch, err);
    if (status) return status;
    const struct layout l = lay_out(c, true);
    const unsigned bytes = gradient_shared(l);
    const int bands = c->rows * l.bands, blocks = bands < SLABS ? bands : SLABS;
    status = allow(find_size(c)->weight, bytes, err);
    if (!status)
        status = farm_cuda_launch(
            {"conv_weight_gradient", stream, (unsigned)blocks, find_size(c)->weight_threads, bytes}, err,
            find_size(c)->weight, l, bands, (const uint16_t *)x, (const uint16_t *)dy, (float *)scratch);
    if (!status)
        status = farm_cuda_add_slabs(stream, (const float *)scratch, (uint32_t)blocks,
                                     (uint32_t)(c->out_channels * c->kernel * c->kernel * c->channels), gradient, err);
    return status;
}
