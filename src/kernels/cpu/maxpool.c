// See maxpool.h: the loops for any CPU, and the choice.
#include "kernels/cpu/maxpool_loops.h"

const struct farm_maxpool_loops farm_maxpool_portable = {forward, backward};

const struct farm_maxpool_loops *farm_maxpool_loops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_maxpool_avx2;
#endif
    return &farm_maxpool_portable;
}
