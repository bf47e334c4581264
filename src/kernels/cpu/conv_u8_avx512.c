// The first convolution with AVX-512 and VNNI: vectors of sixteen 32-bit elements, and what is built on them.
#define FARM_CONV_U8_NAME farm_conv_u8_avx512
#include "kernels/cpu/conv_u8_fast.h"
