// Convolutions by Winograd's minimal filtering (Winograd 1980; Lavin and Gray 2016), f32: tiles of 6 x 6 inputs are
// transformed with the points 0, +-sqrt(1/2), +-sqrt(2) and infinity, so 36 products stand for the 144 of 4 x 4 outputs
// of a 3x3 kernel (stride 1), or for the 100 of 5 x 5 outputs of a 2x2 kernel. A 4x4 kernel of stride 2 is the latter
// over four times the channels: the even and odd rows and columns of its input. Forward, data and weight gradients.
// Rounding errors are a few times those of a direct sum. Runs in an executor's thread; no memory order.
// Not for other kernels, and not for channels that are no multiple of 8.
#ifndef FARM_KERNELS_WINOGRAD_H
#define FARM_KERNELS_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>

struct farm_winograd_shape {
    int kernel, stride; // 3 and 1, or 4 and 2
    int pad[2];         // rows above and columns left of the input, zeros; below and right: as the output needs
    int channels, height, width;
    int outputs, out_height, out_width;
    int block; // adjacent channels of both pictures: 8 or 16 (nChw8c, nChw16c); 0: all (NHWC)
};

// Is the shape one of these?
bool farm_winograd_runs(const struct farm_winograd_shape *shape);

enum farm_winograd_pass { FARM_WINOGRAD_FORWARD, FARM_WINOGRAD_DATA };

// Transforms weights [outputs][channels][kernel][kernel] for a pass into farm_winograd_packed_bytes bytes at a 64-byte
// boundary, once per version of the parameters.
size_t farm_winograd_packed_bytes(const struct farm_winograd_shape *shape);
void farm_winograd_pack(const struct farm_winograd_shape *shape, enum farm_winograd_pass pass, const float *weights,
                        void *packed);

// Size of the scratch of the functions below, which starts at a 64-byte boundary; its contents do not matter.
size_t farm_winograd_scratch_bytes(const struct farm_winograd_shape *shape);

// out = convolution of `in` + bias [outputs], plus what is in out if `add`; then ReLU if `relu`. Pictures of `batch`
// observations, 32-byte aligned.
void farm_winograd_forward(const struct farm_winograd_shape *shape, const void *packed, const float *bias,
                           const float *in, int batch, bool add, bool relu, float *out, void *scratch);

// din = the gradient by the input, from that by the output; packed: for DATA. Adds the gradients to
// dweights [outputs][channels][kernel][kernel] and dbias [outputs].
void farm_winograd_backward(const struct farm_winograd_shape *shape, const void *packed, const float *in,
                            const float *dout, int batch, float *din, float *dweights, float *dbias, void *scratch);

// The above, compiled for other instructions.
struct farm_winograd_loops {
    size_t (*scratch_bytes)(const struct farm_winograd_shape *);
    void (*pack)(const struct farm_winograd_shape *, enum farm_winograd_pass, const float *, void *);
    void (*forward)(const struct farm_winograd_shape *, const void *, const float *, const float *, int, bool, bool,
                    float *, void *);
    void (*backward)(const struct farm_winograd_shape *, const void *, const float *, const float *, int, float *,
                     float *, float *, void *);
};
extern const struct farm_winograd_loops farm_winograd_avx2;

#endif
