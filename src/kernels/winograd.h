// Convolutions by Winograd's minimal filtering (Winograd 1980; Lavin and Gray 2016), f32. Of a 3x3 kernel of stride 1,
// tiles of 6x6 inputs are transformed with the points 0, +-1, +-1/2 and infinity: 36 products stand for the 144 of 4x4
// outputs. A 4x4 kernel of stride 2 is a 2x2 kernel over four times the channels, the even and odd rows and columns of
// its input; of that, tiles of 4x4 inputs are transformed with the points 0, +-1 and infinity: 16 products stand for
// the 36 of 3x3 outputs. Forward, and the gradients by input and weights. Rounding errors are up to a few times those
// of a direct sum; a result does not depend on the other observations. Runs in an executor's thread.
#ifndef FARM_KERNELS_WINOGRAD_H
#define FARM_KERNELS_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>

struct farm_winograd_shape {
    int kernel, stride; // 3 and 1, or 4 and 2
    int pad[2];         // rows above and columns left of the input, zeros; below and right: as the output needs
    int channels, height, width; // channels: a multiple of 8
    int outputs, out_height, out_width;
    int block; // adjacent channels of both pictures: 8 or 16 (nChw8c, nChw16c); 0: all (NHWC)
};

// Is the shape one of these?
bool farm_winograd_runs(const struct farm_winograd_shape *shape);

// Bytes of transformed weights.
size_t farm_winograd_packed_bytes(const struct farm_winograd_shape *shape);

enum farm_winograd_pass { FARM_WINOGRAD_FORWARD, FARM_WINOGRAD_DATA };

// The passes. `packed` and `scratch` start at a 64-byte boundary; what scratch holds does not matter.
struct farm_winograd_loops {
    size_t (*scratch_bytes)(const struct farm_winograd_shape *shape);

    // Transforms weights [outputs][channels][kernel][kernel] for FORWARD or DATA, once per version of the parameters.
    void (*pack)(const struct farm_winograd_shape *shape, enum farm_winograd_pass pass, const float *weights,
                 void *packed);

    // out = convolution of `in` [batch] + bias [outputs], plus out if `add`; then ReLU, which keeps NaN, if `relu`.
    void (*forward)(const struct farm_winograd_shape *shape, const void *packed, const float *bias, const float *in,
                    int batch, bool add, bool relu, float *out, void *scratch);

    // din = the gradient by the input, from that by the output. Adds the gradients to
    // dweights [outputs][channels][kernel][kernel] and dbias [outputs].
    void (*backward)(const struct farm_winograd_shape *shape, const void *packed, const float *in, const float *dout,
                     int batch, float *din, float *dweights, float *dbias, void *scratch);
};

// Of this CPU.
const struct farm_winograd_loops *farm_winograd_loops(void);

extern const struct farm_winograd_loops farm_winograd_portable, farm_winograd_avx2;

#endif
