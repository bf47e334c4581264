// See maxpool.h: plain loops, those for any CPU, and the choice.
#include <assert.h>

#include "kernels/cpu/maxpool_loops.h"

const struct farm_maxpool_loops farm_maxpool_portable = {forward, backward};

static size_t picture_bytes(const struct farm_pool *p, int positions, bool bf16) {
    return (size_t)p->channels * (size_t)positions * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

static void forward_plain(const struct farm_pool *p, int block, bool bf16, const void *in, int batch, void *out,
                          uint8_t *taps) {
    const size_t row = picture_bytes(p, p->height * p->width, bf16), outputs = outputs_of(p);
    const size_t channels = (size_t)p->channels, width = (size_t)p->out_width;
    assert(block == p->channels);
    for (size_t i = 0; i < (size_t)batch * outputs; i++) {
        const size_t at = i % outputs / channels;
        uint8_t tap;
        farm_number_put(out, bf16, i,
                        farm_pool_maximum(p, (const char *)in + i / outputs * row, bf16, (int)(at / width),
                                          (int)(at % width), (int)(i % channels), &tap));
        if (taps) taps[i] = tap;
    }
}

static void backward_plain(const struct farm_pool *p, int block, bool bf16, const void *dout, const uint8_t *taps,
                           int batch, void *din) {
    const size_t row = picture_bytes(p, p->out_height * p->out_width, bf16), outputs = outputs_of(p);
    const size_t channels = (size_t)p->channels, width = (size_t)p->width,
                 inputs = channels * (size_t)p->height * width;
    assert(block == p->channels);
    for (size_t i = 0; i < (size_t)batch * inputs; i++) {
        const size_t b = i / inputs, at = i % inputs / channels;
        farm_number_put(din, bf16, i,
                        farm_pool_gradient(p, (const char *)dout + b * row, taps + b * outputs, bf16, (int)(at / width),
                                           (int)(at % width), (int)(i % channels)));
    }
}

const struct farm_maxpool_loops *farm_maxpool_loops(const struct farm_pool *pool) {
    static const struct farm_maxpool_loops plain = {forward_plain, backward_plain};
    if (pool->channels % 8 != 0 || pool->width > FARM_MAXPOOL_WIDTH_MAX) return &plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_maxpool_avx2;
#endif
    return &farm_maxpool_portable;
}
