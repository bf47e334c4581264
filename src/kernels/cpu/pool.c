// See pool.h: the loops for any CPU, and the choice.
#include "kernels/cpu/pool_loops.h"

static const struct farm_pool_loops *loops_of_this_cpu(void) {
    static const struct farm_pool_loops portable = {forward, backward};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_pool_avx2;
#endif
    return &portable;
}

void farm_pool_forward(const struct farm_pool_shape *shape, const void *in, int batch, void *out, uint8_t *taps) {
    loops_of_this_cpu()->forward(shape, in, batch, out, taps);
}

void farm_pool_backward(const struct farm_pool_shape *shape, const void *dout, const uint8_t *taps, int batch,
                        void *din) {
    loops_of_this_cpu()->backward(shape, dout, taps, batch, din);
}
