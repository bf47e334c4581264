// Several GPUs over the emulator: which GPU a shard gets, what is missing, lost or hangs. The emulator aborts if a GPU
// touches another's memory, or if a wait for a lost one has no end. test_numbers.c compares what they compute.
#include "farm.h"

TestSuite(cuda_shards, .timeout = 120);

Test(cuda_shards, refuses_more_gpus_than_cuda_shows) {
    const struct setting setting = usual_setting(true, 2);
    farm_emulator.devices = 1;
    expect_refused(setting, FARM_E_UNSUPPORTED, "--gpus");
}

// The emulator shows 0000:00:00.0 and 0000:01:00.0: by name the first shard would get the second GPU.
Test(cuda_shards, uses_cuda_s_numbers_if_a_planned_gpu_is_hidden) {
    struct farm *farm = open_farm(usual_setting(true, 2));
    farm->learner.shards[0].gpu = "0000:01:00.0";
    farm->learner.shards[1].gpu = "0000:41:00.0";
    must_open_backend(farm, &farm_backend_cuda);
    cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
    close_farm(farm);
}

// The plan names the GPUs in another order than CUDA's numbers.
Test(cuda_shards, a_shard_runs_on_its_planned_gpu) {
    struct farm *farm = open_farm(usual_setting(true, 2));
    farm->learner.shards[0].gpu = "0000:01:00.0";
    farm->learner.shards[1].gpu = "0000:00:00.0";
    must_open_backend(farm, &farm_backend_cuda);
    for (uint32_t k = 0; k < 2; k++) cr_assert_eq(farm_cuda_backend_context(farm->backend, k)->device, 1 - (int)k);
    cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
    farm_emulator.fall_off_device = 1;
    farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works;
    for (uint32_t id = 0; id < LANE_COUNT; id++) write_step(farm, id, farm->n);
    for (uint32_t id = 0; id < LANE_COUNT; id++) {
        const struct farm_learner_lane *of = &farm->lanes.lanes[id];
        const struct farm_infer_rows rows = {.lane = of->lane, .lane_id = id, .n = farm->n, .env_count = WIDTH};
        cr_assert_eq(farm->ops->infer(farm->backend, of->shard, &rows, 1, &farm->err),
                     of->shard == 0 ? FARM_E_DEAD : FARM_OK, "lane %u", id);
    }
    close_farm(farm);
}

Test(cuda_shards, several_gpus_without_nccl_are_an_error) {
    const struct setting setting = usual_setting(true, 2);
    farm_emulator_vendor.no_nccl = true;
    expect_refused(setting, FARM_E_NOT_FOUND, "NCCL");
}

enum { UPDATES = 3 };

// Plays and trains until an error. states: receives the parameters of each version; may be NULL.
static enum farm_status play_to_end(struct farm *farm, float **states) {
    const size_t bytes = farm->net.parameter_count * sizeof(float);
    enum farm_status status = FARM_OK;
    while (!status && farm->n < (UPDATES + 1) * UNROLL) {
        const uint64_t version = farm->version;
        if (states && !states[version]) states[version] = memcpy(malloc(bytes), read_params(farm), bytes);
        status = play_step(farm);
        if (!status && farm->n > farm->trained + UNROLL) status = make_update(farm, false);
    }
    return status;
}

// One GPU is lost at some piece of work; the other one waits in the sum. The state left is that of a complete update.
static void lose_gpu(int device, uint64_t works, float *const *states) {
    farm_emulator_reset();
    struct farm *farm = open_ready(usual_setting(true, 2));
    farm_emulator.fall_off_device = device;
    farm_emulator.fall_off_after = (int64_t)works;
    const enum farm_status status = play_to_end(farm, NULL);
    cr_assert_eq(status, FARM_E_DEAD, "GPU %d lost after %lu pieces of work: %s", device, works, farm->err.message);
    const struct farm_backend_state last = farm->ops->state(farm->backend);
    cr_assert_leq(last.version, farm->version);
    cr_assert_arr_eq(farm_backend_vector(&last, ""), states[last.version], farm->net.parameter_count * sizeof(float),
                     "GPU %d lost after %lu pieces of work: no version %lu", device, works, last.version);
    close_farm(farm);
}

Test(cuda_shards, a_lost_gpu_is_an_error_and_leaves_no_other_waiting) {
    struct farm *farm = open_ready(usual_setting(true, 2));
    float *states[UPDATES + 1] = {0};
    const uint64_t before = farm_emulator_account().works;
    cr_assert_eq(play_to_end(farm, states), FARM_OK, "%s", farm->err.message);
    close_farm(farm);
    for (int device = 0; device < 2; device++)
        for (uint64_t works = before; works < before + 240; works += 11) lose_gpu(device, works, states);
    for (int version = 0; version <= UPDATES; version++) free(states[version]);
}

static struct farm *volatile hanging[2]; // cannot be freed

// One of two hangs and both wait in the sum; the run ends, also if inference notices first.
static struct farm *hang_gpu(bool inferring) {
    struct farm *farm = open_farm(usual_setting(true, 2));
    farm->learner.state_every_s = 1e-9;
    must_open_backend(farm, &farm_backend_cuda);
    play_to(farm, UNROLL + 1);
    must_update(farm);
    play_to(farm, 2 * UNROLL + 1);
    farm_emulator.hang_device = 1;
    farm_emulator.hang_after = (int64_t)farm_emulator_account().works;
    farm->learner.gpu_limit_s = 0.05;
    if (inferring) cr_assert_eq(play_step(farm), FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_eq(make_update(farm, false), FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_not_null(strstr(farm->err.message, "one hangs"), "%s", farm->err.message);
    if (!inferring) cr_assert_eq(play_step(farm), FARM_E_DEAD);
    cr_assert_eq(farm->ops->state(farm->backend).version, 1);
    farm->ops->destroy(farm->backend);
    return farm;
}

Test(cuda_shards, a_hanging_gpu_is_an_error_and_no_thread_waits_for_it_again, .timeout = 10) {
    hanging[0] = hang_gpu(false);
    farm_emulator_reset();
    hanging[1] = hang_gpu(true);
}
