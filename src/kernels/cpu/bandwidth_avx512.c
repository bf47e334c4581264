// The bandwidth kernels in vectors of 64 bytes. See kernels/bandwidth_loops.h.
#include <immintrin.h>

#define BANDWIDTH_VECTOR 64
#define BANDWIDTH_RUN    farm_bandwidth_run_avx512
#include "kernels/bandwidth_loops.h"

BANDWIDTH_INLINE void bandwidth_stream(double *to, bandwidth_vector x) {
    _mm512_stream_pd(to, (__m512d)x);
}
BANDWIDTH_INLINE void bandwidth_stream_end(void) {
    _mm_sfence();
}
