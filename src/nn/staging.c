// See staging.h.
#include "nn/staging.h"

#include <math.h>
#include <string.h>

uint16_t farm_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// One plane (a channel of a frame) into every `channels`-th element of out.
static void spread_f32(const uint8_t *plane, size_t pixels, size_t channels, float *out) {
    for (size_t i = 0; i < pixels; i++) out[i * channels] = plane == NULL ? 0.0f : (float)plane[i];
}

static void spread_bf16(const uint8_t *plane, size_t pixels, size_t channels, uint16_t *out) {
    for (size_t i = 0; i < pixels; i++) out[i * channels] = plane == NULL ? 0 : farm_bf16((float)plane[i]);
}

void farm_stage_frames(const struct farm_net_io *io, const void *const *rows, int batch, int padded, bool bf16,
                       void *out) {
    const size_t pixels = (size_t)io->height * (size_t)io->width;
    const size_t frame_channels = (size_t)io->frame_channels, stack = (size_t)io->stack;
    const size_t channels = stack * frame_channels, row = channels * pixels;
    for (size_t b = 0; b < (size_t)batch; b++)
        for (size_t c = 0; c < channels; c++) {
            const uint8_t *frame = rows[b * stack + c / frame_channels];
            const uint8_t *plane = frame == NULL ? NULL : frame + c % frame_channels * pixels;
            if (bf16)
                spread_bf16(plane, pixels, channels, (uint16_t *)out + b * row + c);
            else
                spread_f32(plane, pixels, channels, (float *)out + b * row + c);
        }
    const size_t row_bytes = row * (bf16 ? sizeof(uint16_t) : sizeof(float));
    memset((char *)out + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}

void farm_stage_flat(const struct farm_net_io *io, const void *const *rows, int batch, int padded, bool bf16,
                     void *out) {
    const size_t row = (size_t)io->flat;
    const size_t row_bytes = row * (bf16 ? sizeof(uint16_t) : sizeof(float));
    for (size_t b = 0; b < (size_t)batch; b++) {
        const float *from = rows[b];
        if (bf16)
            for (size_t i = 0; i < row; i++) ((uint16_t *)out)[b * row + i] = farm_bf16(from[i]);
        else
            memcpy((char *)out + b * row_bytes, from, row_bytes);
    }
    memset((char *)out + (size_t)batch * row_bytes, 0, (size_t)(padded - batch) * row_bytes);
}
