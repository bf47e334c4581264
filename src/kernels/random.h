// Random numbers without state: Philox4x32-10 maps (seed, stream, counter) to a number, so that actor, CPU learner and
// GPU draw the same number for the same step of an environment in any order, and a checkpoint holds no generator. Pure.
// Not for cryptography. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
#ifndef FARM_KERNELS_RANDOM_H
#define FARM_KERNELS_RANDOM_H

#include <math.h>
#include <stdint.h>

#include "kernels/device.h"

struct farm_philox_block {
    uint32_t word[4];
};

// One block: ten rounds over the counter (word[0] lowest), with the key raised by Weyl constants from round to round.
static inline FARM_HD struct farm_philox_block farm_philox(struct farm_philox_block counter, uint32_t key0,
                                                           uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * counter.word[0];
        const uint64_t product1 = (uint64_t)0xCD9E8D57u * counter.word[2];
        struct farm_philox_block next;
        next.word[0] = (uint32_t)(product1 >> 32) ^ counter.word[1] ^ key0;
        next.word[1] = (uint32_t)product1;
        next.word[2] = (uint32_t)(product0 >> 32) ^ counter.word[3] ^ key1;
        next.word[3] = (uint32_t)product0;
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// The stream of one environment of one lane.
static inline FARM_HD uint64_t farm_random_stream(uint32_t lane, uint32_t env) {
    return (uint64_t)lane << 32 | env;
}

// 128 random bits for step `counter` of `stream`. Seeds, streams and counters may take any value.
static inline FARM_HD struct farm_philox_block farm_random_block(uint64_t seed, uint64_t stream, uint64_t counter) {
    struct farm_philox_block block;
    block.word[0] = (uint32_t)counter;
    block.word[1] = (uint32_t)(counter >> 32);
    block.word[2] = (uint32_t)stream;
    block.word[3] = (uint32_t)(stream >> 32);
    return farm_philox(block, (uint32_t)seed, (uint32_t)(seed >> 32));
}

// The middle of one of 2^23 equal intervals of (0, 1): never 0, never 1, exact in f32, so that its logarithm is finite.
static inline FARM_HD float farm_random_unit(uint32_t bits) {
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}

// Uniform in (0, 1).
static inline FARM_HD float farm_random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    return farm_random_unit(farm_random_block(seed, stream, counter).word[0]);
}

// Standard normal (Box and Muller 1958): each counter has two, which = 0 and 1.
static inline FARM_HD float farm_random_normal(uint64_t seed, uint64_t stream, uint64_t counter, int which) {
    const struct farm_philox_block block = farm_random_block(seed, stream, counter);
    const float radius = sqrtf(-2 * logf(farm_random_unit(block.word[0])));
    const float angle = 6.283185307179586f * farm_random_unit(block.word[1]);
    return radius * (which ? sinf(angle) : cosf(angle));
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits.
static inline FARM_HD uint64_t farm_random_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// The seed of one environment of one lane in one generation of its actor. Draws by farm_random_uniform under the same
// job seed are unrelated to it: the key is mixed first.
static inline FARM_HD uint64_t farm_seed_derive(uint64_t seed, uint32_t lane, uint32_t env, uint64_t generation) {
    const struct farm_philox_block block =
        farm_random_block(farm_random_mix(seed), farm_random_stream(lane, env), generation);
    return (uint64_t)block.word[1] << 32 | block.word[0];
}

#endif
