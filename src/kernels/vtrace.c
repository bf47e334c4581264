// See vtrace.h.
#include "kernels/vtrace.h"

#include <assert.h>

void farm_vtrace(const struct farm_vtrace_config *config, const struct farm_vtrace_batch *batch) {
    assert(batch->steps >= 1 && batch->columns >= 1);
    for (int column = 0; column < batch->columns; column++) farm_vtrace_column(config, batch, column);
}
