// The width of lanes: topo/width.h.
#include <criterion/criterion.h>

#include "topo/width.h"

static struct farm_width_request request(double step_ns, uint64_t step_bytes) {
    return (struct farm_width_request){
        .step_ns = step_ns, .step_bytes = step_bytes, .steps = 33, .lanes = 2, .cache_bytes = 16 << 20};
}

Test(topo, gives_expensive_environments_narrow_lanes) {
    const struct farm_width_request atari = request(240e3, 7056);
    cr_assert_eq(farm_width_choose(&atari), FARM_WIDTH_ENVS_MIN);
}

Test(topo, gives_cheap_environments_wide_lanes) {
    const struct farm_width_request cartpole = request(60, 16), procgen = request(11e3, 12288);
    const uint32_t wide = farm_width_choose(&cartpole), medium = farm_width_choose(&procgen);
    cr_assert(wide >= 2048 && wide <= FARM_WIDTH_ENVS_MAX, "%u", wide);
    cr_assert(medium >= FARM_WIDTH_ENVS_MIN && medium < wide, "%u", medium);
}

Test(topo, keeps_the_states_of_cheap_environments_with_large_observations_in_the_cache) {
    struct farm_width_request breakout = request(290, 7056);
    const uint32_t envs = farm_width_choose(&breakout);
    cr_assert(envs * breakout.step_bytes <= breakout.cache_bytes / 4, "%u", envs);
    breakout.cache_bytes = 0; // no cache to keep
    cr_assert(farm_width_choose(&breakout) > envs);
}

Test(topo, keeps_rings_in_the_cache_if_that_costs_few_turns) {
    struct farm_width_request quick = request(2000, 7056);
    quick.cache_bytes = 64 << 20;
    const uint32_t envs = farm_width_choose(&quick);
    cr_assert(envs * quick.steps * quick.step_bytes <= quick.cache_bytes / 2, "%u", envs);
    quick.cache_bytes = 0;
    cr_assert(farm_width_choose(&quick) > envs);
}

Test(topo, gives_multiples_of_the_lanes_up_to_the_maximum) {
    struct farm_width_request cheap = request(1, 1);
    for (cheap.lanes = 1; cheap.lanes <= 64; cheap.lanes++) {
        const uint32_t envs = farm_width_choose(&cheap);
        cr_assert_eq(envs % cheap.lanes, 0);
        cr_assert(envs < FARM_WIDTH_ENVS_MAX + cheap.lanes);
    }
}

Test(topo, expects_wider_lanes_of_cached_rings_to_be_faster) {
    const struct farm_width_request cartpole = request(60, 16);
    cr_assert(farm_width_step_ns(&cartpole, 1024) < farm_width_step_ns(&cartpole, 16));
    cr_assert(farm_width_step_ns(&cartpole, 16) > cartpole.step_ns);
}
