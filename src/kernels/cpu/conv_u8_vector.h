// Vectors of 32-bit elements for the first convolution: eight with AVX2, sixteen with AVX-512. An element is a float, a
// whole number, or a pair of 16-bit whole numbers. Included by files that are compiled for those instructions.
#ifndef FARM_KERNELS_CPU_CONV_U8_VECTOR_H
#define FARM_KERNELS_CPU_CONV_U8_VECTOR_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/conv_u8_packed.h"

// Where LANES channels of outputs lie, in elements: eight, and eight more that follow unless blocks have eight.
struct place {
    size_t low, high;
};

#if defined(__AVX512VNNI__)
enum { LANES = 16, POSITIONS = 12 };
typedef __m512i vector;
typedef __m512 floats; // + and * work on it
#define INTRINSIC(name)         _mm512_##name
#define INTRINSIC_OF_BITS(name) _mm512_##name##_si512
#else
enum { LANES = 8, POSITIONS = 6 };
typedef __m256i vector;
typedef __m256 floats; // + and * work on it
#define INTRINSIC(name)         _mm256_##name
#define INTRINSIC_OF_BITS(name) _mm256_##name##_si256
#endif

static inline vector vector_load(const void *at) {
    return INTRINSIC_OF_BITS(loadu)(at);
}
static inline void vector_store(void *at, vector v) {
    INTRINSIC_OF_BITS(storeu)(at, v);
}
static inline vector vector_all(int32_t x) {
    return INTRINSIC(set1_epi32)(x);
}
static inline vector vector_broadcast(const void *at) {
    int32_t element;
    memcpy(&element, at, sizeof element);
    return vector_all(element);
}
static inline vector vector_add(vector a, vector b) {
    return INTRINSIC(add_epi32)(a, b);
}
static inline vector vector_subtract(vector a, vector b) {
    return INTRINSIC(sub_epi32)(a, b);
}
static inline floats floats_load(const float *at) {
    return INTRINSIC(loadu_ps)(at);
}
static inline void floats_store(float *at, floats x) {
    INTRINSIC(storeu_ps)(at, x);
}
static inline floats floats_relu(floats x) { // NaN stays
    return INTRINSIC(max_ps)(INTRINSIC(setzero_ps)(), x);
}
static inline floats floats_of(vector whole) {
    return INTRINSIC(cvtepi32_ps)(whole);
}
static inline vector vector_round(floats x) {
    return INTRINSIC(cvtps_epi32)(x);
}

// The upper halves, rounded as farm_bf16 does, in the lower halves of the elements.
static inline vector bf16_of(floats x) {
    const vector exact = (vector)x, odd = INTRINSIC_OF_BITS(and)(INTRINSIC(srli_epi32)(exact, 16), vector_all(1));
    const vector rounded = vector_add(exact, vector_add(odd, vector_all(0x7fff)));
#if defined(__AVX512VNNI__)
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const vector kept = _mm512_mask_or_epi32(rounded, nan, exact, vector_all(0x400000));
#else
    const floats nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const vector quiet = _mm256_or_si256(exact, vector_all(0x400000));
    const vector kept = (vector)_mm256_blendv_ps((floats)rounded, (floats)quiet, nan);
#endif
    return INTRINSIC(srli_epi32)(kept, 16);
}

// vector_add_pairs: sum + a.low · b.low + a.high · b.high in each element. vector_pair: the low halves of a's elements
// beside those of b's. load_out, store_out: LANES outputs, f32 or bf16.
#if defined(__AVX512VNNI__)
static inline vector vector_add_pairs(vector sum, vector a, vector b) {
    return _mm512_dpwssd_epi32(sum, a, b);
}
static inline vector vector_pair(vector a, vector b) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
}

static inline floats load_out(const void *array, struct place at, bool bf16) {
    if (bf16) {
        const uint16_t *from = array;
        const __m128i low = _mm_loadu_si128((const __m128i *)(from + at.low));
        const __m128i high = _mm_loadu_si128((const __m128i *)(from + at.high));
        return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_set_m128i(high, low)), 16);
    }
    const float *from = array;
    if (at.high == at.low + 8) return _mm512_loadu_ps(from + at.low);
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + at.low)), _mm256_loadu_ps(from + at.high),
                              1);
}

static inline void store_out(void *array, struct place at, bool bf16, floats x) {
    if (bf16) {
        uint16_t *to = array;
        const __m256i packed = _mm512_cvtepi32_epi16(bf16_of(x));
        _mm_storeu_si128((__m128i *)(to + at.low), _mm256_castsi256_si128(packed));
        _mm_storeu_si128((__m128i *)(to + at.high), _mm256_extracti128_si256(packed, 1));
        return;
    }
    float *to = array;
    if (at.high == at.low + 8) {
        floats_store(to + at.low, x);
        return;
    }
    _mm256_storeu_ps(to + at.low, _mm512_castps512_ps256(x));
    _mm256_storeu_ps(to + at.high, _mm512_extractf32x8_ps(x, 1));
}
#else
// The empty statement keeps the sum in its register: GCC would add two steps' products first, and run out of them.
static inline vector vector_add_pairs(vector sum, vector a, vector b) {
    sum = vector_add(sum, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(sum));
    return sum;
}
static inline vector vector_pair(vector a, vector b) {
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}

static inline floats load_out(const void *array, struct place at, bool bf16) {
    if (!bf16) return floats_load((const float *)array + at.low);
    const __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)array + at.low));
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

static inline void store_out(void *array, struct place at, bool bf16, floats x) {
    if (!bf16) {
        floats_store((float *)array + at.low, x);
        return;
    }
    const vector kept = bf16_of(x);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
    _mm_storeu_si128((__m128i *)((uint16_t *)array + at.low), packed);
}
#endif

// sum + a · b, in pairs of whole numbers or in floats.
static inline __attribute__((always_inline)) vector add_product(bool whole, vector sum, vector a, vector b) {
    if (whole) return vector_add_pairs(sum, a, b);
    return (vector)INTRINSIC(fmadd_ps)((floats)a, (floats)b, (floats)sum);
}

// Where LANES channels from `channel` on of position 0 lie, in an observation whose first output is element `first`.
static inline struct place place_of(const struct farm_conv_u8_shape *shape, size_t first, int channel) {
    const struct place at = {first + farm_conv_u8_out_at(shape, 0, channel),
                             first + farm_conv_u8_out_at(shape, 0, channel + LANES - 8)};
    return at;
}
static inline struct place moved(const struct farm_conv_u8_shape *shape, struct place at, size_t positions) {
    const size_t elements = positions * (size_t)shape->block;
    return (struct place){at.low + elements, at.high + elements};
}

// LANES channels of one observation from `channel` on: sums their gradients, and finds their quantisation.
static inline void measure_gradients(const struct farm_conv_u8_shape *shape, const void *dout, size_t first,
                                     int channel, const struct farm_conv_u8_work *work) {
    const size_t positions = farm_conv_u8_positions(shape);
    const int terms = farm_conv_u8_rows_at_once(shape) * farm_conv_u8_out_width(shape);
    struct place at = place_of(shape, first, channel);
    vector largest = vector_all(0);
    floats sum = {0};
    for (size_t p = 0; p < positions; p++, at = moved(shape, at, 1)) {
        const floats d = load_out(dout, at, shape->bf16);
        largest = INTRINSIC(max_epi32)(largest, INTRINSIC_OF_BITS(and)((vector)d, vector_all(0x7fffffff)));
        sum += d;
    }
    floats_store(work->dbias + channel, floats_load(work->dbias + channel) + sum);
    uint32_t magnitudes[LANES];
    vector_store(magnitudes, largest);
    for (int o = 0; o < LANES; o++)
        farm_conv_u8_quantise_channel(magnitudes[o], farm_conv_u8_whole_max(terms), &work->step[channel + o],
                                      &work->inverse[channel + o]);
}

#endif
