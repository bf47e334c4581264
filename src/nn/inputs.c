// See inputs.h.
#include "nn/inputs.h"

#include <math.h>
#include <string.h>

#include "kernels/gather.h"
#include "kernels/pixels.h"

void farm_inputs_scale(const struct farm_net *net, const float *params, float *mean, float *inverse) {
    const int pixels = farm_net_pixels(&net->io);
    const float *from = params + net->tensors[net->normalise].offset + pixels;
    const float *variance = params + net->tensors[net->normalise + 1].offset + pixels;
    for (int i = 0; i < net->io.flat; i++) {
        mean[i] = from[i];
        inverse[i] = 1.0f / sqrtf(variance[i] + 1e-8f);
    }
}

void farm_inputs_scale_pixels(const struct farm_net *net, const float *params, int16_t *scale) {
    const int pixels = farm_net_pixels(&net->io);
    const float *mean = params + net->tensors[net->normalise].offset;
    const float *variance = params + net->tensors[net->normalise + 1].offset;
    const bool known = params[net->tensors[net->normalise + 2].offset] > 0;
    for (int i = 0; i < pixels; i++) {
        const struct farm_pixel_scale pixel = farm_pixel_scale_of(mean[i], variance[i]);
        scale[i] = pixel.mean;
        scale[pixels + i] = known ? pixel.gain : 0;
    }
}

static void write_one_hot(const struct farm_net_input *input, const uint8_t *part, float *out) {
    memset(out, 0, (size_t)farm_net_input_width(input) * sizeof *out);
    for (int i = 0; i < input->count; i++, out += input->choices) {
        int32_t choice;
        memcpy(&choice, part + (size_t)i * sizeof choice, sizeof choice);
        if (choice >= 0 && choice < input->choices) out[choice] = 1;
    }
}

// The memory may have any alignment: packed observations follow one another.
static void write_part(const struct farm_net_io *io, const struct farm_net_input *input, const uint8_t *part,
                       float *out) {
    int32_t whole;
    switch (input->kind) {
    case FARM_INPUT_NUMBERS:
        memcpy(out, part, (size_t)input->count * sizeof *out);
        break;
    case FARM_INPUT_WHOLE:
        for (int i = 0; i < input->count; i++) {
            memcpy(&whole, part + (size_t)i * sizeof whole, sizeof whole);
            out[i] = (float)whole;
        }
        break;
    case FARM_INPUT_ONE_HOT:
        write_one_hot(input, part, out);
        break;
    case FARM_INPUT_BYTES:
        for (int i = 0; i < input->count; i++) out[i] = (float)part[i] / (float)(input->choices - 1);
        break;
    case FARM_INPUT_SIGN:
        memcpy(out, part, (size_t)input->count * sizeof *out);
        for (int i = 0; i < input->count; i++) out[i] = farm_reward_clip(out[i], 1);
        break;
    case FARM_INPUT_SCALED:
        memcpy(out, part, (size_t)input->count * sizeof *out);
        for (int i = 0; i < input->count; i++) out[i] = (out[i] - io->last_offset[i]) / io->last_scale[i];
        break;
    }
}

void farm_inputs_write(const struct farm_net_io *io, const float *mean, const float *inverse, const void *const *parts,
                       float *out) {
    for (int k = 0; k < io->input_count; k++) {
        const struct farm_net_input *input = &io->inputs[k];
        const int width = farm_net_input_width(input);
        if (parts[k])
            write_part(io, input, parts[k], out);
        else
            memset(out, 0, (size_t)width * sizeof *out);
        for (int i = 0; i < width && input->normalise; i++)
            out[i] = farm_reward_clip((out[i] - mean[i]) * inverse[i], FARM_NORMALISED_MOST);
        out += width;
        if (mean) mean += width, inverse += width;
    }
}

const uint8_t *farm_inputs_planes(const struct farm_net_io *io, const uint8_t *frame, uint8_t *planes) {
    if (!farm_net_interleaved(io)) return frame;
    const size_t channels = (size_t)io->frame_channels, pixels = (size_t)io->height * (size_t)io->width;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++) planes[c * pixels + i] = frame[i * channels + c];
    return planes;
}
