// An environment's ceilings: worked out by hand for Atari's traffic, and what is not known stays unknown.
#include <criterion/criterion.h>

#include "bw/env.h"

static struct farm_env_spec pong(void) {
    struct farm_env_spec spec = {.obs_count = 1, .frames_per_step = 4};
    spec.obs[0] = (struct farm_field_spec){.name = "screen", .dtype = FARM_U8, .rank = 2, .dims = {84, 84}};
    spec.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {6}};
    return spec;
}

Test(bw, a_step_of_pong_is_its_frame_and_37_bytes) {
    const struct farm_env_spec spec = pong();
    const struct farm_bw_env_traffic traffic = farm_bw_env_traffic(&spec, 1);
    cr_assert_eq(traffic.obs_bytes, 7056);
    cr_assert_eq(traffic.other_bytes, 4 + 1 + 4 + 6 * 4 + 4, "reward, flags, action, logits, value");
    cr_assert_eq(traffic.frames_per_step, 4);
}

Test(bw, memory_is_the_sum_of_writing_and_reading) {
    const struct farm_bw_env_traffic traffic = {
        .obs_bytes = 9000, .other_bytes = 1000, .host_reads = 2, .frames_per_step = 4};
    const struct farm_bw_env_bandwidth bandwidth = {.read = 38e9, .write = 20e9};
    // 10,000 B written in 0.5 us, 19,000 B read in 0.5 us.
    const struct farm_bw_env_ceiling ceiling = farm_bw_env_ceiling(&traffic, &bandwidth);
    cr_assert_float_eq(ceiling.memory_steps_per_s, 1e6, 1);
    cr_assert_float_eq(ceiling.frames_per_s, 4e6, 4);
    cr_assert_eq(ceiling.limit, FARM_BW_ENV_MEMORY);
    cr_assert_eq(ceiling.bus_steps_per_s, 0, "no GPU");
}

Test(bw, a_mixed_bandwidth_stands_for_both) {
    const struct farm_bw_env_traffic traffic = {.obs_bytes = 10000, .host_reads = 1, .frames_per_step = 1};
    const struct farm_bw_env_bandwidth bandwidth = {.read = 1, .write = 1, .mixed = 40e9};
    cr_assert_float_eq(farm_bw_env_ceiling(&traffic, &bandwidth).steps_per_s, 2e6, 1);
}

Test(bw, the_bus_limits_where_it_is_slower) {
    const struct farm_bw_env_traffic traffic = {.obs_bytes = 10000, .host_reads = 1, .frames_per_step = 1};
    struct farm_bw_env_bandwidth bandwidth = {.mixed = 40e9, .host_to_device = 10e9};
    struct farm_bw_env_ceiling ceiling = farm_bw_env_ceiling(&traffic, &bandwidth);
    cr_assert_eq(ceiling.limit, FARM_BW_ENV_BUS);
    cr_assert_float_eq(ceiling.steps_per_s, 1e6, 1);
    bandwidth.host_to_device = 50e9;
    ceiling = farm_bw_env_ceiling(&traffic, &bandwidth);
    cr_assert_eq(ceiling.limit, FARM_BW_ENV_MEMORY);
    cr_assert_float_eq(ceiling.steps_per_s, 2e6, 1);
}

Test(bw, what_was_not_measured_is_not_known) {
    const struct farm_bw_env_traffic traffic = {.obs_bytes = 10000, .host_reads = 1, .frames_per_step = 1};
    const struct farm_bw_env_ceiling ceiling =
        farm_bw_env_ceiling(&traffic, &(struct farm_bw_env_bandwidth){.read = 1e9});
    cr_assert_eq(ceiling.limit, FARM_BW_ENV_UNKNOWN);
    cr_assert_eq(ceiling.steps_per_s, 0);
}
