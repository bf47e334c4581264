// The flat input of a network: numbers, whole numbers, choices and bytes of a row's parts side by side as f32, with
// normalised ones scaled. Runs where a network runs; pure. Does not know lanes.
#ifndef FARM_NN_INPUTS_H
#define FARM_NN_INPUTS_H

#include "nn/net.h"

#define FARM_NORMALISED_MOST 10.0f // normalised numbers are clipped to +- this

// How numbers are normalised: (x - mean) * inverse, inverse = 1 / sqrt(variance + 1e-8). [flat] each, from the
// statistics in the parameters; parts that are not normalised keep what their scale holds.
void farm_inputs_scale(const struct farm_net *net, const float *params, float *mean, float *inverse);

// How pixels are normalised (kernels/pixels.h), of a network that does: means [farm_net_pixels], then as many gains.
// Before the first statistics gains are 0, and so is every pixel.
void farm_inputs_scale_pixels(const struct farm_net *net, const float *params, int16_t *scale);

// Writes a row's flat input [io->flat]. parts: [io->input_count] pointers, NULL: zeros (before normalisation). mean and
// inverse: NULL if the network normalises nothing. A choice out of range becomes zeros. io: of a made network.
void farm_inputs_write(const struct farm_net_io *io, const float *mean, const float *inverse, const void *const *parts,
                       float *out);

// The planes of a frame: the frame itself, or if its channels lie beside one another `planes`, which it writes.
const uint8_t *farm_inputs_planes(const struct farm_net_io *io, const uint8_t *frame, uint8_t *planes);

#endif
