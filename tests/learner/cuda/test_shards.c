// Several GPUs over the emulator: which GPU a shard gets, and what may be missing. test_numbers.c compares what they
// compute; test_faults.c loses them.
#include "farm.h"

TestSuite(cuda_shards, .timeout = 120);

Test(cuda_shards, refuses_more_gpus_than_cuda_shows) {
    const struct setting setting = usual_setting(true, 2);
    farm_emulator.devices = 1;
    expect_refused(setting, FARM_E_UNSUPPORTED, "--gpus");
}

// The emulator shows 0000:00:00.0 and 0000:01:00.0: by name the first shard would get the second GPU.
Test(cuda_shards, uses_cuda_s_numbers_if_a_planned_gpu_is_hidden) {
    with_farm *farm = open_farm(usual_setting(true, 2));
    farm->learner.shards[0].gpu = "0000:01:00.0";
    farm->learner.shards[1].gpu = "0000:41:00.0";
    must_open_backend(farm, &farm_backend_cuda);
    cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
}

// The plan names the GPUs in another order than CUDA's numbers.
Test(cuda_shards, a_shard_runs_on_its_planned_gpu) {
    with_farm *farm = open_farm(usual_setting(true, 2));
    farm->learner.shards[0].gpu = "0000:01:00.0";
    farm->learner.shards[1].gpu = "0000:00:00.0";
    must_open_backend(farm, &farm_backend_cuda);
    for (uint32_t k = 0; k < 2; k++) cr_assert_eq(farm_cuda_backend_context(farm->backend, k)->device, 1 - (int)k);
    cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
    farm_emulator.fall_off_device = 1;
    farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works;
    for (uint32_t id = 0; id < LANE_COUNT; id++) write_step(farm, id, farm->n);
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        const struct farm_intake_lane *of = &farm->lanes.lanes[id];
        const struct farm_policy_rows rows = {.lane = of->lane, .lane_id = id, .n = farm->n, .env_count = WIDTH};
        cr_assert_eq(farm->ops->infer(farm->backend, of->shard, &rows, 1, &farm->err),
                     of->shard == 0 ? FARM_E_DEAD : FARM_OK, "lane %u", id);
    }
}

Test(cuda_shards, several_gpus_without_nccl_are_an_error) {
    const struct setting setting = usual_setting(true, 2);
    farm_emulator_vendor.no_nccl = true;
    expect_refused(setting, FARM_E_NOT_FOUND, "NCCL");
}
