// The flat input of a network: numbers, whole numbers, choices and bytes of a row's parts side by side as f32, with
// normalised ones scaled. Runs where a network runs; pure. Does not know lanes.
#ifndef FARM_NN_INPUTS_H
#define FARM_NN_INPUTS_H

#include "nn/net.h"

#define FARM_NORMALISED_MOST 10.0f // normalised numbers are clipped to +- this

// How numbers are normalised: (x - mean) * inverse, inverse = 1 / sqrt(variance + 1e-8). [flat] each, from the
// statistics in the parameters; parts that are not normalised keep what their scale holds.
void farm_inputs_scale(const struct farm_net *net, const float *params, float *mean, float *inverse);

// Writes a row's flat input [io->flat]. parts: [io->input_count] pointers, NULL: zeros (before normalisation). mean and
// inverse: NULL if the network normalises nothing. A choice out of range becomes zeros. io: of a made network.
void farm_inputs_write(const struct farm_net_io *io, const float *mean, const float *inverse, const void *const *parts,
                       float *out);

// Reads a frame [height][width][channels] into planes.
void farm_inputs_planes(const struct farm_net_io *io, const uint8_t *frame, uint8_t *planes);

#endif
