// In place of src/nn/arithmetic*.c, which need oneDNN and every kernel: the line of a policy's arithmetic is any text.
#include <stdio.h>

#include "nn/arithmetic.h"

bool farm_arithmetic_read(const struct farm_net *net, const char *plan, struct farm_arithmetic *a) {
    *a = (struct farm_arithmetic){.path = 0};
    return plan[0] != 0;
}

void farm_arithmetic_write(const struct farm_net *net, const struct farm_arithmetic *a,
                           char plan[FARM_ARITHMETIC_PLAN_BYTES]) {
    snprintf(plan, FARM_ARITHMETIC_PLAN_BYTES, "0 0");
}

struct farm_arithmetic farm_arithmetic_uniform(const struct farm_net *net, enum farm_precision precision,
                                               struct farm_form form) {
    return (struct farm_arithmetic){.forms = {form}};
}
