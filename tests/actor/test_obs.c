// farm_obs_copy of farm/obs.h: the same bytes with and without the hint, for every alignment and around every size at
// which it changes its method; and an environment that uses it gives the same observations.
#include <criterion/criterion.h>
#include <farm/obs.h>
#include <stdlib.h>
#include <string.h>

#include "actor/actor.h"
#include "base/atomics.h"
#include "envs/native/native.h"

enum { BYTES_MAX = 1400, BESIDE = 96, FRAME = 7056, STEPS = 3000, SLOTS = 5 };

Test(obs, copies_the_same_bytes_past_the_caches_and_no_others) {
    static uint8_t from[BYTES_MAX + 64], to[BYTES_MAX + 64 + 2 * BESIDE], wanted[sizeof to];
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 37 + i / 251);
    for (uint32_t hints = 0; hints <= FARM_ENV_OBS_FAR; hints++)
        for (size_t bytes = 0; bytes <= BYTES_MAX; bytes += bytes < 480 ? 13 : 1)
            for (size_t skew = 0; skew < 64; skew += bytes % 4 ? 7 : 3) {
                memset(to, 0xa5, sizeof to);
                memset(wanted, 0xa5, sizeof wanted);
                memcpy(wanted + BESIDE + skew, from + skew / 3, bytes);
                farm_obs_copy(to + BESIDE + skew, from + skew / 3, bytes, hints);
                farm_fence_streams();
                cr_assert_eq(memcmp(to, wanted, sizeof to), 0, "%zu bytes, skewed by %zu, hints %u", bytes, skew,
                             hints);
            }
}

Test(obs, an_environment_with_the_hint_gives_the_same_observations) {
    const struct farm_env_api *api = farm_native_env_find("native/breakout");
    char why[256];
    static uint8_t rings[2][SLOTS * FRAME];
    void *env[2];
    for (uint32_t i = 0; i < 2; i++) {
        const struct farm_env_config config = {.seed = 5, .hints = i ? FARM_ENV_OBS_FAR : 0};
        cr_assert_not_null(env[i] = api->create(&config, why, sizeof why), "%s", why);
    }
    uint32_t answer[2] = {1, 1};
    for (int n = 0; n < STEPS; n++) {
        float reward[2] = {0, 0};
        const int32_t action = n * 7 % 11 % 4;
        for (int i = 0; i < 2; i++) {
            void *obs = rings[i] + n % SLOTS * FRAME;
            if (answer[i]) {
                api->reset(env[i], &obs);
                answer[i] = 0;
            } else {
                answer[i] = api->step(env[i], &action, &obs, &reward[i]);
            }
        }
        farm_fence_streams();
        cr_assert_eq(answer[0], answer[1]);
        cr_assert_eq(reward[0], reward[1]);
        cr_assert_eq(memcmp(rings[0], rings[1], sizeof rings[0]), 0, "step %d", n);
    }
    for (int i = 0; i < 2; i++) api->destroy(env[i]);
}
