// See join.h.
#include "nn/join.h"

#include <string.h>

#include "kernels/bf16.h"
#include "nn/net.h"

static size_t number_bytes(const struct farm_join *join) {
    return join->bf16 ? sizeof(uint16_t) : sizeof(float);
}

void farm_join_forward(const struct farm_join *join, const void *in, const float *numbers, int rows, void *out) {
    const size_t features = (size_t)join->features, flat = (size_t)join->flat, width = features + FARM_NET_JOIN_UNITS;
    const size_t bytes = number_bytes(join);
    for (size_t r = 0; r < (size_t)rows; r++) {
        memcpy((char *)out + r * width * bytes, (const char *)in + r * features * bytes, features * bytes);
        for (size_t u = 0; u < FARM_NET_JOIN_UNITS; u++) {
            float sum = join->bias[u];
            for (size_t i = 0; i < flat; i++) sum += join->weight[u * flat + i] * numbers[r * flat + i];
            farm_number_put(out, join->bf16, r * width + features + u, sum < 0 ? 0 : sum); // NaN stays NaN
        }
    }
}

void farm_join_backward(const struct farm_join *join, const float *numbers, const void *out, const void *diff_out,
                        int rows, void *diff_in, float *dweight, float *dbias) {
    const size_t features = (size_t)join->features, flat = (size_t)join->flat, width = features + FARM_NET_JOIN_UNITS;
    const size_t bytes = number_bytes(join);
    for (size_t r = 0; r < (size_t)rows; r++) {
        memcpy((char *)diff_in + r * features * bytes, (const char *)diff_out + r * width * bytes, features * bytes);
        for (size_t u = 0; u < FARM_NET_JOIN_UNITS; u++) {
            const size_t at = r * width + features + u;
            if (farm_number_at(out, join->bf16, at) == 0) continue;
            const float diff = farm_number_at(diff_out, join->bf16, at);
            dbias[u] += diff;
            for (size_t i = 0; i < flat; i++) dweight[u * flat + i] += diff * numbers[r * flat + i];
        }
    }
}
