// Several GPUs over the emulator: each serves the rings of its shard, and their gradients are summed. The emulator
// aborts if one touches another's memory, or waits for ever for a lost one.
#include "farm.h"

TestSuite(cuda_shards, .timeout = 120);

static struct setting two(bool frames) {
    struct setting setting = usual(frames);
    setting.shards = 2;
    farm_emulator.devices = 2;
    return setting;
}

Test(cuda_shards, two_gpus_play_and_learn_as_the_cpu_does) {
    expect_what_the_cpu_does(two(true));
    expect_what_the_cpu_does(two(false));
}

// The mean is over all windows, not over each GPU's.
Test(cuda_shards, an_update_with_uneven_shares_is_the_same_update) {
    struct setting setting = two(true);
    setting.batch = 9;
    setting.loss_mean = true;
    setting.micro_batch = 2;
    expect_what_the_cpu_does(setting);
}

// The mean is over the update's windows, not the batch's or each GPU's. Adam ignores a gradient's scale; its norm shows
// it.
Test(cuda_shards, makes_updates_smaller_than_the_batch) {
    struct setting setting = two(true);
    setting.loss_mean = true;
    expect_smaller_update(setting, 7);
}

Test(cuda_shards, an_update_begun_ahead_is_the_same_update) {
    expect_ahead_agrees(two(true));
    expect_ahead_agrees(two(false));
    expect_nothing_left();
}

Test(cuda_shards, mirrors_and_bounce_buffers_change_no_number) {
    expect_all_mirrors_agree(two(true));
    expect_bounced_agrees(two(true), &farm_emulator.refuse_registration);
}

Test(cuda_shards, every_ring_is_registered_once_during_the_run_only) {
    expect_registered(two(true));
}

// The next answers of either GPU are of the restored state.
Test(cuda_shards, a_restored_state_reaches_every_gpu) {
    expect_state_restored(two(true));
}

// ---- faults ----

Test(cuda_shards, refuses_more_gpus_than_cuda_shows) {
    const struct setting setting = two(true);
    farm_emulator.devices = 1;
    expect_refused(setting, FARM_E_UNSUPPORTED, "--gpus");
}

// The emulator shows 0000:00:00.0 and 0000:01:00.0: by name the first shard would get the second GPU.
Test(cuda_shards, uses_cuda_s_numbers_if_a_planned_gpu_is_hidden) {
    struct farm *farm = open_farm(two(true));
    farm->learner.shards[0].gpu = "0000:01:00.0";
    farm->learner.shards[1].gpu = "0000:41:00.0";
    must_open_backend(farm, &farm_backend_cuda);
    cr_assert_eq(step(farm), FARM_OK, "%s", farm->err.message);
    close_farm(farm);
}

// The plan names the GPUs in another order than CUDA's numbers.
Test(cuda_shards, a_shard_runs_on_its_planned_gpu) {
    struct farm *farm = open_farm(two(true));
    farm->learner.shards[0].gpu = "0000:01:00.0";
    farm->learner.shards[1].gpu = "0000:00:00.0";
    must_open_backend(farm, &farm_backend_cuda);
    for (uint32_t k = 0; k < 2; k++) cr_assert_eq(farm_cuda_backend_context(farm->backend, k)->device, 1 - (int)k);
    cr_assert_eq(step(farm), FARM_OK, "%s", farm->err.message);
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
    const struct setting setting = two(true);
    farm_emulator_vendor.no_nccl = true;
    expect_refused(setting, FARM_E_NOT_FOUND, "NCCL");
}

Test(cuda_shards, releases_everything_wherever_memory_ends) {
    expect_released(two(true), 6);
}

enum { UPDATES = 3 };

// Plays and trains until an error. states: receives the parameters of each version; may be NULL.
static enum farm_status play(struct farm *farm, float **states) {
    const size_t bytes = farm->net.parameter_count * sizeof(float);
    enum farm_status status = FARM_OK;
    while (!status && farm->n < (UPDATES + 1) * UNROLL) {
        const uint64_t version = farm->version;
        if (states && !states[version]) states[version] = memcpy(malloc(bytes), params_now(farm), bytes);
        status = step(farm);
        if (!status && farm->n > farm->trained + UNROLL) status = update(farm);
    }
    return status;
}

// One GPU is lost at some piece of work; the other one waits in the sum. The state left is that of a complete update.
static void lose_gpu(int device, uint64_t works, float *const *states) {
    farm_emulator_reset();
    struct farm *farm = open_ready(two(true));
    farm_emulator.fall_off_device = device;
    farm_emulator.fall_off_after = (int64_t)works;
    const enum farm_status status = play(farm, NULL);
    cr_assert_eq(status, FARM_E_DEAD, "GPU %d lost after %lu pieces of work: %s", device, works, farm->err.message);
    const struct farm_backend_state last = farm->ops->state(farm->backend);
    cr_assert_leq(last.version, farm->version);
    cr_assert_arr_eq(farm_backend_vector(&last, ""), states[last.version], farm->net.parameter_count * sizeof(float),
                     "GPU %d lost after %lu pieces of work: no version %lu", device, works, last.version);
    close_farm(farm);
}

Test(cuda_shards, a_lost_gpu_is_an_error_and_leaves_no_other_waiting) {
    struct farm *farm = open_ready(two(true));
    float *states[UPDATES + 1] = {0};
    const uint64_t before = farm_emulator_account().works;
    cr_assert_eq(play(farm, states), FARM_OK, "%s", farm->err.message);
    close_farm(farm);
    for (int device = 0; device < 2; device++)
        for (uint64_t works = before; works < before + 240; works += 11) lose_gpu(device, works, states);
    for (int version = 0; version <= UPDATES; version++) free(states[version]);
}

static struct farm *volatile left[2]; // hanging: cannot be freed

// One of two hangs and both wait in the sum; the run ends, also if inference notices first.
static struct farm *hang_one(bool inferring) {
    struct farm *farm = open_farm(two(true));
    farm->learner.state_every_s = 1e-9;
    must_open_backend(farm, &farm_backend_cuda);
    play_to(farm, UNROLL + 1);
    must_update(farm);
    play_to(farm, 2 * UNROLL + 1);
    farm_emulator.hang_device = 1;
    farm_emulator.hang_after = (int64_t)farm_emulator_account().works;
    farm->learner.gpu_limit_s = 0.05;
    if (inferring) cr_assert_eq(step(farm), FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_eq(update(farm), FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_not_null(strstr(farm->err.message, "one hangs"), "%s", farm->err.message);
    if (!inferring) cr_assert_eq(step(farm), FARM_E_DEAD);
    cr_assert_eq(farm->ops->state(farm->backend).version, 1);
    farm->ops->destroy(farm->backend);
    return farm;
}

Test(cuda_shards, a_hanging_gpu_is_an_error_and_no_thread_waits_for_it_again, .timeout = 10) {
    left[0] = hang_one(false);
    farm_emulator_reset();
    left[1] = hang_one(true);
}

Test(cuda_shards, trains_shuffled_minibatches_as_the_cpu_does) {
    struct setting setting = two(true);
    setting.minibatches = 2;
    expect_what_the_cpu_does(setting);
}
