// The first convolution over u8 frames (kernels/conv_u8.h) in an executor. It reads planes where they lie; frames that
// are interleaved or normalised are copied first.
#include <string.h>

#include "kernels/conv_u8.h"
#include "kernels/pixels.h"
#include "nn/arithmetic.h"
#include "nn/inputs.h"
#include "nn/layer.h"

struct frames {
    struct farm_conv_u8_shape shape;
    void *packed;
    float *bias;
    const uint8_t **list; // [batch_max][images * stack] frames of the last forward
    uint8_t *planes;      // [batch_max][images * stack] frames, if they come interleaved or are normalised
    int16_t *scale;       // [2][pixels] of farm_inputs_scale_pixels; NULL: not normalised
    float scale_count;    // steps behind it
};

static size_t frame_bytes(const struct farm_net_io *io) {
    return (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width;
}

static enum farm_status make(struct farm_op_layer *layer, struct farm_error *err) {
    struct frames *frames = layer->own;
    struct farm_dnnl *dnnl = layer->dnnl;
    const struct farm_net_io *io = &layer->net->io;
    const size_t count = (size_t)layer->config.batch_max * (size_t)(io->images * io->stack);
    (void)err;
    frames->shape = farm_arithmetic_first(layer->net, layer->arithmetic);
    frames->list = farm_dnnl_keep(dnnl, count * sizeof *frames->list);
    if (farm_net_interleaved(io) || io->normalise_frames)
        frames->planes = farm_dnnl_keep(dnnl, count * frame_bytes(io));
    farm_dnnl_keep_packed(dnnl, farm_conv_u8_packed_bytes(&frames->shape), &frames->packed);
    farm_dnnl_keep_packed(dnnl, (size_t)frames->shape.outputs * sizeof *frames->bias, &frames->bias);
    if (io->normalise_frames)
        farm_dnnl_keep_packed(dnnl, 2 * (size_t)farm_net_pixels(io) * sizeof *frames->scale, &frames->scale);
    frames->scale_count = -1;
    farm_dnnl_reserve(dnnl, farm_conv_u8_scratch_bytes(&frames->shape));
    return FARM_OK;
}

// Statistics change at publish only, parameters in training with each optimiser step; a run's statistics of N steps are
// the same ones.
static void load_scale(const struct farm_op_layer *layer, const float *params) {
    struct frames *frames = layer->own;
    const float count = params[layer->net->tensors[layer->net->normalise + 2].offset];
    if (layer->config.training && count == frames->scale_count) return;
    farm_inputs_scale_pixels(layer->net, params, frames->scale);
    frames->scale_count = count;
}

static void load(struct farm_op_layer *layer, const float *params) {
    struct frames *frames = layer->own;
    farm_conv_u8_pack(&frames->shape, params + layer->config.weight_offset, frames->packed);
    memcpy(frames->bias, params + layer->config.bias_offset, (size_t)frames->shape.outputs * sizeof *frames->bias);
    if (frames->scale) load_scale(layer, params);
}

// A frame of an image, as the convolution reads it.
static void enter_frame(const struct farm_net_io *io, const int16_t *scale, size_t image, const uint8_t *frame,
                        uint8_t *planes) {
    const size_t pixels = frame_bytes(io);
    frame = farm_inputs_planes(io, frame, planes);
    if (!scale) return;
    const int16_t *mean = scale + image * pixels;
    farm_pixels_normalise(frame, mean, mean + farm_net_pixels(io), pixels, planes);
}

static void forward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    struct frames *frames = layer->own;
    const struct farm_net_io *io = &layer->net->io;
    const size_t count = (size_t)(io->images * io->stack), pointers = (size_t)farm_net_pointers(layer->net);
    for (size_t i = 0; i < (size_t)call->rows * count; i++) {
        const uint8_t *frame = call->inputs[i / count * pointers + i % count];
        uint8_t *planes = frames->planes ? frames->planes + i * frame_bytes(io) : NULL;
        if (frame && planes) enter_frame(io, frames->scale, i % count / (size_t)io->stack, frame, planes);
        frames->list[i] = frame && planes ? planes : frame;
    }
    farm_conv_u8_forward(&frames->shape, frames->packed, frames->bias, frames->list, call->rows, layer->rows.out,
                         layer->dnnl->scratch);
    farm_pad_rows(layer->rows.out, farm_dnnl_row_bytes(layer->config.op.out, layer->config.type), call);
}

static void backward(struct farm_op_layer *layer, const struct farm_op_call *call) {
    const struct frames *frames = layer->own;
    farm_conv_u8_backward_weights(&frames->shape, frames->list, call->rows, layer->rows.diff_out,
                                  call->grads + layer->config.weight_offset, call->grads + layer->config.bias_offset,
                                  layer->dnnl->scratch);
}

const struct farm_op_methods farm_op_frames = {sizeof(struct frames), make, load, forward, backward};
