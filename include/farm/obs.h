// Copies a finished observation to its place. For environments that keep a picture and need less than a microsecond or
// two for a step: with FARM_ENV_OBS_FAR the stores bypass the caches, which saves the memory reads that ordinary stores
// cause. The actor orders these stores before it publishes the step. Runs in an actor process.
#ifndef FARM_OBS_H
#define FARM_OBS_H

#include <stdint.h>
#include <string.h>

#include <farm/env.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// Copies from[bytes] to obs[bytes], the same bytes whatever `hints` (of farm_env_config) are. Any alignment; no
// overlap. The first and the last 64 to 127 bytes go through the cache, because the actor reads the bytes at both ends.
static inline void farm_obs_copy(void *obs, const void *from, size_t bytes, uint32_t hints) {
#if defined(__x86_64__)
    enum { LINE = 64 };
    if ((hints & FARM_ENV_OBS_FAR) && bytes >= 8 * LINE) {
        char *to = (char *)obs;
        const char *source = (const char *)from;
        const size_t head = LINE + (size_t)(-(uintptr_t)to % LINE);
        size_t at = head;
        memcpy(to, source, head);
        for (; at + 2 * LINE <= bytes; at += LINE)
            for (int i = 0; i < LINE; i += 16)
                _mm_stream_si128((__m128i *)(void *)(to + at + i),
                                 _mm_loadu_si128((const __m128i *)(const void *)(source + at + i)));
        memcpy(to + at, source + at, bytes - at);
        return;
    }
#endif
    (void)hints;
    memcpy(obs, from, bytes);
}

#endif
