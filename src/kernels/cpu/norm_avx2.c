// The loops of norm.h with AVX2.
#include "kernels/cpu/norm_loops.h"

const struct farm_norm_loops farm_norm_avx2 = {run, slope};
