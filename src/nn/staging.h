// Rows at pointers become the matrix that oneDNN's first layer reads: stacked u8 frames as a picture with the stack as
// channels (NHWC), flat f32 rows as they are; both in f32 or bf16. For inputs that kernels/conv_u8.h does not take.
// Pure.
#ifndef FARM_NN_STAGING_H
#define FARM_NN_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "nn/net.h"

// Pixels keep their values 0..255, which both types hold exactly: the division by 255 belongs into the weights.
// rows: [batch][stack] frames u8 [frame_channels][height][width], NULL = zeros.
// out: [padded][height][width][stack * frame_channels] f32 (or bf16 where `bf16`); rows from `batch` on are zeros.
void farm_stage_frames(const struct farm_net_io *io, const void *const *rows, int batch, int padded, bool bf16,
                       void *out);

// rows: [batch] pointers to f32 [flat]; out: [padded][flat], rows from `batch` on are zeros.
void farm_stage_flat(const struct farm_net_io *io, const void *const *rows, int batch, int padded, bool bf16,
                     void *out);

// Rounds to the nearest bf16, ties to even; NaN stays NaN.
uint16_t farm_bf16(float x);

#endif
