// The bandwidth kernels in vectors of 32 bytes. See kernels/bandwidth_loops.h.
#include <immintrin.h>

#define BANDWIDTH_VECTOR 32
#define BANDWIDTH_RUN    farm_bandwidth_run_avx2
#include "kernels/bandwidth_loops.h"

BANDWIDTH_INLINE void bandwidth_stream(double *to, bandwidth_vector x) {
    _mm256_stream_pd(to, (__m256d)x);
}
BANDWIDTH_INLINE void bandwidth_stream_end(void) {
    _mm_sfence();
}
