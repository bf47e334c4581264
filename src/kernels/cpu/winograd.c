// See winograd.h: which shapes, the passes for any CPU, and the choice.
#include "kernels/cpu/winograd_loops.h"

static const struct farm_winograd_loops *loops_of_this_cpu(void) {
    static const struct farm_winograd_loops portable = {scratch_bytes, pack, forward, backward};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_winograd_avx2;
#endif
    return &portable;
}

bool farm_winograd_runs(const struct farm_winograd_shape *s) {
    const bool kernel =
        (s->kernel == 3 && s->stride == 1) || (s->kernel == 4 && s->stride == 2 && s->pad[0] == 0 && s->pad[1] == 0);
    return kernel && s->channels % 8 == 0 && s->outputs % 8 == 0 && s->block % 8 == 0 &&
           (s->block == 0 || (s->channels % s->block == 0 && s->outputs % s->block == 0));
}

size_t farm_winograd_packed_bytes(const struct farm_winograd_shape *s) {
    return POINTS * plan_of(s, TILES).weight_point * sizeof(float);
}

size_t farm_winograd_scratch_bytes(const struct farm_winograd_shape *s) {
    return loops_of_this_cpu()->scratch_bytes(s);
}

void farm_winograd_pack(const struct farm_winograd_shape *s, enum farm_winograd_pass pass, const float *weights,
                        void *packed) {
    loops_of_this_cpu()->pack(s, pass, weights, packed);
}

void farm_winograd_forward(const struct farm_winograd_shape *s, const void *packed, const float *bias, const float *in,
                           int batch, bool add, bool relu, float *out, void *scratch) {
    loops_of_this_cpu()->forward(s, packed, bias, in, batch, add, relu, out, scratch);
}

void farm_winograd_backward(const struct farm_winograd_shape *s, const void *packed, const float *in, const float *dout,
                            int batch, float *din, float *dweights, float *dbias, void *scratch) {
    loops_of_this_cpu()->backward(s, packed, in, dout, batch, din, dweights, dbias, scratch);
}
