// The loops of pixels.h with AVX2, sixteen pixels at a time; the same bits. pixels.c chooses them at run time.
#include "kernels/pixels.h"

#include <immintrin.h>

static inline __m256i load16(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}
static inline __m256i pixels16(const uint8_t *at) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}

static inline __m256i steps16(const uint8_t *pixels, const int16_t *mean, const int16_t *gain) {
    const __m256i off = _mm256_sub_epi16(_mm256_slli_epi16(pixels16(pixels), 6), load16(mean));
    return _mm256_mulhrs_epi16(off, load16(gain));
}

static void normalise_loop(const uint8_t *pixels, const int16_t *mean, const int16_t *gain, size_t count,
                           uint8_t *out) {
    size_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256i packed = _mm256_packs_epi16(steps16(pixels + i, mean + i, gain + i),
                                                  steps16(pixels + i + 16, mean + i + 16, gain + i + 16));
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_xor_si256(_mm256_permute4x64_epi64(packed, 0xd8),
                                                                   _mm256_set1_epi8((char)FARM_PIXEL_ZERO)));
    }
    for (; i < count; i++) out[i] = farm_pixel_normalised(pixels[i], mean[i], gain[i]);
}

static inline void add8(uint32_t *sum, __m256i more) {
    _mm256_storeu_si256((__m256i *)sum, _mm256_add_epi32(load16(sum), more));
}

static void add_loop(const uint8_t *pixels, size_t count, uint32_t *sum, uint32_t *squares) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256i eight = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(pixels + i)));
        add8(sum + i, eight);
        add8(squares + i, _mm256_madd_epi16(eight, eight));
    }
    for (; i < count; i++) {
        sum[i] += pixels[i];
        squares[i] += (uint32_t)pixels[i] * pixels[i];
    }
}

const struct farm_pixels_loops farm_pixels_avx2 = {normalise_loop, add_loop};
