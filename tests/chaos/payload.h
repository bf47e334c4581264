// The contents of an observation: any reader can tell its writer, whether it is whole, what must lie beside it in the
// lane, and which answer belongs to it. Memory only.
#ifndef TESTS_CHAOS_PAYLOAD_H
#define TESTS_CHAOS_PAYLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "chaos.h"
#include "kernels/random.h"

// The beginning of an observation; random filler follows.
struct chaos_payload {
    uint64_t checksum;   // over everything behind it
    uint64_t generation; // life of the actor
    uint64_t sequence;   // steps of this environment in this life before this one
    uint64_t episode;    // the same
    uint32_t lane, env;  // numbers in the whole farm
    uint32_t flags;      // that the lane carries beside it
    int32_t action;      // that led to it; -1 at FIRST
    float reward;
    uint32_t bytes; // the observation's
};

struct chaos_answer {
    int32_t action;
    float value, logit;
};

static inline uint64_t chaos_checksum(const uint8_t *observation, uint32_t bytes) {
    uint64_t sum = bytes, word = 0;
    uint32_t at = sizeof(uint64_t);
    for (; at + 8 <= bytes; at += 8) {
        memcpy(&word, observation + at, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 29;
    }
    word = 0;
    memcpy(&word, observation + at, bytes - at);
    return farm_random_mix(sum ^ word);
}

// The answer to the observation with this checksum.
static inline struct chaos_answer chaos_answer_to(uint64_t checksum) {
    const uint64_t bits = farm_random_mix(checksum ^ 0xA5A5A5A5u);
    return (struct chaos_answer){.action = (int32_t)(bits % CHAOS_ACTIONS),
                                 .value = (float)(bits >> 40),
                                 .logit = (float)(bits >> 20 & 0xFFFFF)};
}

#endif
