// The passes of winograd_loops.h with AVX2.
#include "kernels/cpu/winograd_loops.h"

const struct farm_winograd_loops farm_winograd_avx2 = {scratch_bytes, pack, forward, backward};
