// An environment's ceiling, calculated by hand for Atari's traffic.
#include <criterion/criterion.h>

#include "bw/env.h"

Test(bw, a_step_of_pong_is_its_frame_and_37_bytes) {
    struct farm_env_spec spec = {.obs_count = 1, .frames_per_step = 4};
    spec.obs[0] = (struct farm_field_spec){.name = "screen", .dtype = FARM_U8, .rank = 2, .dims = {84, 84}};
    spec.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {6}};
    const struct farm_bw_env_traffic traffic = farm_bw_env_traffic(&spec);
    cr_assert_eq(traffic.obs_bytes, 7056);
    cr_assert_eq(traffic.other_bytes, 4 + 1 + 4 + 6 * 4 + 4, "reward, flags, action, logits, value");
}

Test(bw, steps_cost_what_they_write_and_read) {
    static const struct {
        uint64_t obs_bytes, other_bytes;
        uint32_t host_reads;
        struct farm_bw_env_bandwidth bandwidth;
        double steps_per_s;
    } cases[] = {
        {9000, 1000, 2, {.read = 38e9, .write = 20e9}, 1e6}, // 10,000 B written in 0.5 us, 19,000 B read in 0.5 us
        {10000, 0, 1, {.read = 1, .write = 1, .mixed = 40e9}, 2e6}, // a mixed bandwidth stands for both
        {10000, 0, 1, {.read = 1e9}, 0},                            // not measured: not known
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_bw_env_traffic traffic = {cases[i].obs_bytes, cases[i].other_bytes};
        cr_assert_float_eq(farm_bw_env_steps_per_s(&traffic, cases[i].host_reads, &cases[i].bandwidth),
                           cases[i].steps_per_s, 1, "case %zu", i);
    }
}
