// A fast path of the first convolution: Winograd if the shape allows it, else direct. Each cpu/conv_u8_*.c
// includes it once and defines FARM_CONV_U8_NAME.

#include "kernels/cpu/conv_u8_direct.h"
#include "kernels/cpu/conv_u8_winograd.h"

static void forward(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                    const uint8_t *const *frames, int batch, void *out, void *scratch) {
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    const bool winograd = farm_conv_u8_is_winograd(shape);
    size_t bytes;
    const struct direct direct = direct_place(shape, winograd ? NULL : scratch, &bytes);
    if (!winograd) memset(direct.lines, 0, direct.line_count * direct.width * sizeof *direct.lines);
    for (int n = 0; n < batch; n++) {
        const size_t first = (size_t)n * farm_conv_u8_out_count(shape);
        const uint8_t *planes[FARM_CONV_U8_PLANES_MAX];
        farm_conv_u8_find_planes(shape, frames + n * shape->stack, planes);
        if (winograd)
            winograd_forward(shape, &view, bias, planes, out, first);
        else
            direct_forward(shape, &view, bias, planes, &direct, out, first);
    }
}

static void backward_weights(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                             const void *dout, float *dweights, float *dbias, void *scratch) {
    if (farm_conv_u8_is_winograd(shape))
        winograd_backward_all(shape, frames, batch, dout, dweights, dbias, scratch);
    else
        direct_backward_all(shape, frames, batch, dout, dweights, dbias, scratch);
}

static size_t scratch_bytes(const struct farm_conv_u8_shape *shape) {
    size_t bytes;
    if (farm_conv_u8_is_winograd(shape)) return winograd_scratch_bytes(shape);
    direct_place(shape, NULL, &bytes);
    return bytes;
}

const struct farm_conv_u8_fast FARM_CONV_U8_NAME = {
    .forward = forward, .backward_weights = backward_weights, .scratch_bytes = scratch_bytes};
