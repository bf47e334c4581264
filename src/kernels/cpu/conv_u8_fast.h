// A fast path of the first convolution: Winograd if the shape allows it, else direct. Each cpu/conv_u8_*.c
// includes it once and defines FARM_CONV_U8_NAME.
#include "kernels/cpu/conv_u8_direct.h"
#include "kernels/cpu/conv_u8_winograd.h"

static struct work place(const struct farm_conv_u8_shape *shape, void *scratch, size_t *bytes) {
    return farm_conv_u8_is_winograd(shape) ? winograd_place(shape, scratch, bytes)
                                           : direct_place(shape, scratch, bytes);
}

static size_t scratch_bytes(const struct farm_conv_u8_shape *shape) {
    size_t bytes;
    place(shape, NULL, &bytes);
    return bytes;
}

static void forward(const struct farm_conv_u8_shape *shape, const void *packed, const float *bias,
                    const uint8_t *const *frames, int batch, void *out, void *scratch) {
    const struct farm_conv_u8_packed view = farm_conv_u8_view(shape, packed);
    const bool winograd = farm_conv_u8_is_winograd(shape);
    size_t bytes;
    const struct work work = direct_place(shape, winograd ? NULL : scratch, &bytes); // Winograd needs none here
    if (!winograd) memset(work.pixels, 0, (size_t)farm_conv_u8_rows(shape) * work.width * sizeof *work.pixels);
    for (int n = 0; n < batch; n++) {
        const size_t first = (size_t)n * farm_conv_u8_out_count(shape);
        const uint8_t *planes[FARM_CONV_U8_PLANES_MAX];
        farm_conv_u8_find_planes(shape, frames + n * shape->stack, planes);
        if (winograd)
            winograd_forward(shape, &view, bias, planes, out, first);
        else
            direct_forward(shape, &view, bias, planes, &work, out, first);
    }
}

static void backward_weights(const struct farm_conv_u8_shape *shape, const uint8_t *const *frames, int batch,
                             const void *dout, float *dweights, float *dbias, void *scratch) {
    const int taps = farm_conv_u8_rows(shape) * shape->kernel;
    const bool winograd = farm_conv_u8_is_winograd(shape);
    size_t bytes;
    const struct work work = place(shape, scratch, &bytes);
    memset(scratch, 0, bytes);
    for (int n = 0; n < batch; n++) {
        const size_t first = (size_t)n * farm_conv_u8_out_count(shape);
        const uint8_t *planes[FARM_CONV_U8_PLANES_MAX];
        farm_conv_u8_find_planes(shape, frames + n * shape->stack, planes);
        if (winograd)
            winograd_backward(shape, planes, dout, first, &work);
        else
            direct_backward(shape, planes, dout, first, &work);
    }
    for (int o = 0; o < shape->outputs; o++) {
        dbias[o] += work.dbias[o];
        for (int t = 0; t < taps; t++) {
            const size_t at = winograd ? winograd_total_at(shape, t, o) : (size_t)(t * shape->outputs + o);
            dweights[o * taps + t] += work.total[at] / 255.0f;
        }
    }
}

const struct farm_conv_u8_fast FARM_CONV_U8_NAME = {
    .forward = forward, .backward_weights = backward_weights, .scratch_bytes = scratch_bytes};
