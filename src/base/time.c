// See time.h.
#include "base/time.h"

static const uint64_t never = 0;
const uint64_t *farm_stopped_ns = &never;
