// The first convolution with AVX2: vectors of eight 32-bit elements, and what is built on them.
#define FARM_CONV_U8_NAME farm_conv_u8_avx2
#include "kernels/cpu/conv_u8_fast.h"
