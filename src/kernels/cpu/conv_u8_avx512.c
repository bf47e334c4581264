// The first convolution with AVX-512 and VNNI: vectors of sixteen 32-bit elements.
#define FARM_CONV_U8_DIRECT   farm_conv_u8_avx512
#define FARM_CONV_U8_WINOGRAD farm_conv_u8_avx512_winograd
#include "kernels/cpu/conv_u8_fast.h"
