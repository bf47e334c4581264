// The first convolution with AVX2: vectors of eight 32-bit elements.
#define FARM_CONV_U8_DIRECT   farm_conv_u8_avx2
#define FARM_CONV_U8_WINOGRAD farm_conv_u8_avx2_winograd
#include "kernels/cpu/conv_u8_fast.h"
