// The op that joins a flat input to the features of frames (FARM_NET_OP_JOIN): out = [in, relu(weight . numbers +
// bias)]. Rows of in and out are bf16 or f32, everything else is f32. Runs in an executor's thread; pure. Plain loops:
// the flat input beside frames is small.
#ifndef FARM_NN_JOIN_H
#define FARM_NN_JOIN_H

#include <stdbool.h>

struct farm_join {
    int features, flat; // numbers in a row of in; in a row of the flat input
    bool bf16;          // rows of in and out
    float *weight;      // [FARM_NET_JOIN_UNITS][flat]
    float *bias;        // [FARM_NET_JOIN_UNITS]
};

// in [rows][features], numbers [rows][flat], out [rows][features + FARM_NET_JOIN_UNITS].
void farm_join_forward(const struct farm_join *join, const void *in, const float *numbers, int rows, void *out);

// diff_out as out: the gradient of out; out: of the last forward. Writes diff_in as in; ADDS to dweight and dbias.
void farm_join_backward(const struct farm_join *join, const float *numbers, const void *out, const void *diff_out,
                        int rows, void *diff_in, float *dweight, float *dbias);

#endif
