// See maxpool.h: the loops for any CPU, and the choice.
#include "kernels/cpu/maxpool_loops.h"

static const struct farm_maxpool_loops *loops_of_this_cpu(void) {
    static const struct farm_maxpool_loops portable = {forward, backward};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_maxpool_avx2;
#endif
    return &portable;
}

void farm_maxpool_forward(const struct farm_maxpool_shape *shape, const void *in, int batch, void *out, uint8_t *taps) {
    loops_of_this_cpu()->forward(shape, in, batch, out, taps);
}

void farm_maxpool_backward(const struct farm_maxpool_shape *shape, const void *dout, const uint8_t *taps, int batch,
                           void *din) {
    loops_of_this_cpu()->backward(shape, dout, taps, batch, din);
}
