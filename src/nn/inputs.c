// See inputs.h.
#include "nn/inputs.h"

#include <math.h>
#include <string.h>

void farm_inputs_scale(const struct farm_net *net, const float *params, float *mean, float *inverse) {
    const float *from = params + net->tensors[net->normalise].offset;
    const float *variance = params + net->tensors[net->normalise + 1].offset;
    for (int i = 0; i < net->io.flat; i++) {
        mean[i] = from[i];
        inverse[i] = 1.0f / sqrtf(variance[i] + 1e-8f);
    }
}

static float clip(float x, float most) {
    return x > most ? most : x < -most ? -most : x; // NaN stays NaN
}

// Number i of a part. The memory may have any alignment: packed observations follow one another.
static float number_at(const struct farm_net_input *input, const void *part, int i) {
    float number;
    int32_t whole;
    if (input->kind == FARM_INPUT_BYTES) return (float)((const uint8_t *)part)[i] / (float)(input->choices - 1);
    if (input->kind == FARM_INPUT_WHOLE) {
        memcpy(&whole, (const uint8_t *)part + (size_t)i * sizeof whole, sizeof whole);
        return (float)whole;
    }
    memcpy(&number, (const uint8_t *)part + (size_t)i * sizeof number, sizeof number);
    return input->kind == FARM_INPUT_SIGN ? clip(number, 1) : number;
}

static void write_one_hot(const struct farm_net_input *input, const void *part, float *out) {
    for (int i = 0; i < input->count; i++, out += input->choices) {
        int32_t choice;
        memcpy(&choice, (const uint8_t *)part + (size_t)i * sizeof choice, sizeof choice);
        if (choice >= 0 && choice < input->choices) out[choice] = 1;
    }
}

void farm_inputs_write(const struct farm_net_io *io, const float *mean, const float *inverse, const void *const *parts,
                       float *out) {
    int at = 0;
    for (int k = 0; k < io->input_count; k++) {
        const struct farm_net_input *input = &io->inputs[k];
        const int width = farm_net_input_width(input);
        float *to = out + at;
        if (!parts[k] || input->kind == FARM_INPUT_ONE_HOT)
            memset(to, 0, (size_t)width * sizeof *to);
        else
            for (int i = 0; i < width; i++) to[i] = number_at(input, parts[k], i);
        if (parts[k] && input->kind == FARM_INPUT_ONE_HOT) write_one_hot(input, parts[k], to);
        for (int i = 0; i < width && input->normalise; i++)
            to[i] = clip((to[i] - mean[at + i]) * inverse[at + i], FARM_NORMALISED_MOST);
        at += width;
    }
}

void farm_inputs_planes(const struct farm_net_io *io, const uint8_t *frame, uint8_t *planes) {
    const size_t channels = (size_t)io->frame_channels, pixels = (size_t)io->height * (size_t)io->width;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++) planes[c * pixels + i] = frame[i * channels + c];
}
