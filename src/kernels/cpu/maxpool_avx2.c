// The loops of maxpool_loops.h with AVX2.
#include "kernels/cpu/maxpool_loops.h"

const struct farm_maxpool_loops farm_maxpool_avx2 = {forward, backward};
