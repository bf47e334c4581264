// See winograd.h: which shapes, the passes for any CPU, and the choice.
#include "kernels/cpu/winograd_loops.h"

const struct farm_winograd_loops farm_winograd_portable = {scratch_bytes, pack, forward, backward};

const struct farm_winograd_loops *farm_winograd_loops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_winograd_avx2;
#endif
    return &farm_winograd_portable;
}

bool farm_winograd_runs(const struct farm_winograd_shape *s) {
    const bool kernel = (s->kernel == 3 && s->stride == 1) || (s->kernel == 4 && s->stride == 2);
    return kernel && s->channels % 8 == 0 && s->outputs % 8 == 0 && s->block % 8 == 0 &&
           (s->block == 0 || (s->channels % s->block == 0 && s->outputs % s->block == 0));
}

size_t farm_winograd_packed_bytes(const struct farm_winograd_shape *s) {
    const struct plan plan = plan_of(s, VALUES);
    return (size_t)plan.points * plan.weight_point * sizeof(float);
}
