// See lstm_rows.h: the loops for any CPU, and the choice.
#include "kernels/cpu/lstm_loops.h"

const struct farm_lstm_rows farm_lstm_rows_portable = {forward, backward, to_bf16, from_bf16};

const struct farm_lstm_rows *farm_lstm_rows(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma"))
        return &farm_lstm_rows_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &farm_lstm_rows_avx2;
#endif
    return &farm_lstm_rows_portable;
}
