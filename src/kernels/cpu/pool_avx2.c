// The loops of pool_loops.h with AVX2.
#include "kernels/cpu/pool_loops.h"

const struct farm_pool_loops farm_pool_avx2 = {forward, backward};
