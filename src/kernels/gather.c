// See gather.h.
#include "kernels/gather.h"

void farm_pixels_to_units(const uint8_t *restrict pixels, float *restrict units, size_t count) {
    for (size_t i = 0; i < count; i++) units[i] = farm_pixel_unit(pixels[i]);
}
