// See norm.h: the loops for any CPU, and the choice.
#include "kernels/cpu/norm_loops.h"

const struct farm_norm_loops farm_norm_portable = {run, slope};

const struct farm_norm_loops *farm_norm_loops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_norm_avx2;
#endif
    return &farm_norm_portable;
}
