// The network of fuzz_checkpoint.c and make_seeds.c: two tensors, so that inputs are small.
#ifndef FARM_TESTS_FUZZ_NET_H
#define FARM_TESTS_FUZZ_NET_H

#include "nn/net.h"

enum { FUZZ_NET_PARAMETERS = 8 };

static inline struct farm_net fuzz_net_make(void) {
    return (struct farm_net){.tensor_count = 2,
                             .parameter_count = FUZZ_NET_PARAMETERS,
                             .tensors = {{.name = "w", .dims = {2, 3}, .rank = 2, .offset = 0, .count = 6},
                                         {.name = "b", .dims = {2}, .rank = 1, .offset = 6, .count = 2}}};
}

#endif
