// Stacks frames of the mirror into the network's input, NHWC: x / 255 or normalised, f32 or bf16. A thread writes one
// pixel of all channels. Memory-bound: reads one byte, writes two or four.
#include "kernels/cuda/common.cuh"
#include "kernels/pixels.h"

enum { THREADS = 256 };

static __device__ void store_number(float *out, float x) {
    *out = x;
}
static __device__ void store_number(uint16_t *out, float x) {
    *out = farm_cuda_bf16(x);
}

// The number of a byte of this image's frame, pixel `plane_at` of its planes.
static __device__ float number_of(const struct farm_cuda_stack &s, uint8_t byte, uint32_t image, uint32_t plane_at) {
    if (!s.scale) return farm_pixel_unit(byte);
    const uint32_t pixels = s.channels * s.height * s.width;
    const int16_t *mean = s.scale + image * pixels + plane_at;
    return farm_pixel_number(farm_pixel_normalised(byte, mean[0], mean[s.images * pixels]));
}

template <typename T> static __global__ void __launch_bounds__(THREADS) stack_nhwc(const struct farm_cuda_stack s) {
    const uint32_t pixels = s.height * s.width, pixel = blockIdx.y * THREADS + threadIdx.x, row = blockIdx.x;
    if (pixel >= pixels) return;
    const uint8_t *const *frames = (const uint8_t *const *)s.frames + (size_t)row * s.stack;
    const uint32_t first = s.interleaved ? pixel * s.channels : pixel, next = s.interleaved ? 1 : pixels;
    const uint32_t per_image = s.scale ? s.stack / s.images : 1;
    T *out = (T *)s.out + ((size_t)row * pixels + pixel) * s.stack * s.channels;
    for (uint32_t f = 0; f < s.stack; f++)
        for (uint32_t c = 0; c < s.channels; c++)
            store_number(out + f * s.channels + c,
                         frames[f] ? number_of(s, frames[f][first + c * next], f / per_image, c * pixels + pixel) : 0);
}

// Four numbers of 4 pixels, stored at once.
template <typename T> struct alignas(16) sixteen { T of[4][4]; };

// Four grey frames of one image, the usual case, and a multiple of four pixels: a thread loads 4 pixels of each frame.
template <typename T> static __global__ void __launch_bounds__(THREADS) stack_nhwc_4(const struct farm_cuda_stack s) {
    const uint32_t pixels = s.height * s.width, pixel = 4 * (blockIdx.y * THREADS + threadIdx.x), row = blockIdx.x;
    if (pixel >= pixels) return;
    const uint8_t *const *frames = (const uint8_t *const *)s.frames + (size_t)row * 4;
    sixteen<T> numbers;
#pragma unroll
    for (int f = 0; f < 4; f++) {
        uint32_t bytes = 0;
        if (frames[f] && (uintptr_t)frames[f] % 4 == 0)
            bytes = *(const uint32_t *)(frames[f] + pixel);
        else if (frames[f])
            for (int k = 0; k < 4; k++) bytes |= (uint32_t)frames[f][pixel + k] << 8 * k;
#pragma unroll
        for (int k = 0; k < 4; k++)
            store_number(&numbers.of[k][f], frames[f] ? number_of(s, (uint8_t)(bytes >> 8 * k), 0, pixel + k) : 0);
    }
    ((sixteen<T> *)s.out)[((size_t)row * pixels + pixel) / 4] = numbers;
}

template <typename T>
static enum farm_status launch(struct CUstream_st *stream, const struct farm_cuda_stack *s, struct farm_error *err) {
    const uint32_t pixels = s->height * s->width;
    const bool usual = s->stack == 4 && s->channels == 1 && (!s->scale || s->images == 1) && pixels % 4 == 0;
    const dim3 rows(s->rows, farm_cuda_blocks(pixels, usual ? 4 * THREADS : THREADS));
    return farm_cuda_launch({"stack_nhwc", stream, rows, THREADS}, err, usual ? stack_nhwc_4<T> : stack_nhwc<T>, *s);
}

enum farm_status farm_cuda_stack(struct CUstream_st *stream, const struct farm_cuda_stack *s, struct farm_error *err) {
    const uint64_t count = (uint64_t)s->channels * s->height * s->width;
    if (s->rows == 0) return FARM_OK;
    if (s->stack == 0 || count == 0 || s->height > 4096 || s->width > 4096 || s->channels > 256 || count >= 1 << 24 ||
        (uint64_t)s->rows * s->stack > INT32_MAX || (uintptr_t)s->out % 16 ||
        (s->scale && (s->images == 0 || s->stack % s->images)))
        return farm_fail(err, FARM_E_INVALID,
                         "cannot stack %u rows of %u frames of %ux%ux%u at %p: sizes from 1 to 16 M pixels a frame, "
                         "16-byte aligned",
                         s->rows, s->stack, s->channels, s->height, s->width, s->out);
    return s->type == FARM_CUDA_BF16 ? launch<uint16_t>(stream, s, err) : launch<float>(stream, s, err);
}
