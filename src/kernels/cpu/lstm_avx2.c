// The loops of lstm_rows.h with AVX2.
#include "kernels/cpu/lstm_loops.h"

const struct farm_lstm_rows farm_lstm_rows_avx2 = {forward, backward, to_bf16, from_bf16};
