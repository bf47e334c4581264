// Both methods of the first convolution's fast path; each cpu/conv_u8_*.c defines their names and includes it once.
#include "kernels/cpu/conv_u8_direct.h"
#include "kernels/cpu/conv_u8_winograd.h"

const struct farm_conv_u8_method FARM_CONV_U8_DIRECT = {direct_place, direct_forward, direct_backward,
                                                        farm_conv_u8_add_total};
const struct farm_conv_u8_method FARM_CONV_U8_WINOGRAD = {winograd_place, winograd_forward, winograd_backward,
                                                          winograd_add_total};
