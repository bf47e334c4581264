// Several GPUs over the emulator: which GPU a shard gets, which thread drives it, and what may be missing.
// test_numbers.c compares what they compute; test_faults.c loses them.
#include "farm.h"

#include <pthread.h>

#include "base/bitmap.h"

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

// ---- a thread beside each GPU ----

// The graphs of training that each GPU was given, and by which thread. Each thread counts its own GPU's only.
static struct {
    uint32_t launches, threads; // threads: which launched
    pthread_t thread;           // the newest
    struct farm_bitmap cpus;    // where it may run
} launched[FARM_EMULATOR_DEVICES_MAX];

static void record_launch(void) {
    int device = -1;
    cr_assert_eq(cudaGetDevice(&device), cudaSuccess);
    launched[device].threads += !launched[device].threads || !pthread_equal(launched[device].thread, pthread_self());
    launched[device].thread = pthread_self();
    launched[device].launches++;
    (void)farm_bitmap_pinned(&launched[device].cpus, NULL);
}

// What a thread launches it has gathered before, in the same call. With two CPUs or more they are different.
Test(cuda_shards, each_gpu_is_driven_by_its_own_thread_on_its_shard_s_cpus) {
    struct farm_bitmap allowed, cpus[2] = {0};
    cr_assert_eq(farm_bitmap_pinned(&allowed, NULL), FARM_OK);
    with_farm *farm = open_farm(usual_setting(true, 2));
    for (int k = 0, cpu = -1; k < 2; k++) {
        const int next = farm_bitmap_next(&allowed, cpu + 1);
        farm_bitmap_set(&cpus[k], cpu = next < 0 ? cpu : next);
        farm->learner.shards[k].cpus = &cpus[k];
    }
    must_open_backend(farm, &farm_backend_cuda);
    play_to(farm, 2 * UNROLL + 1);
    farm_emulator_before_launch = record_launch;
    must_update(farm);
    must_update(farm);
    farm_emulator_before_launch = NULL;
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(launched[k].launches, 2 * 2, "GPU %d: %u graphs", k, launched[k].launches); // gradients, step
        cr_assert_eq(launched[k].threads, 1, "GPU %d: %u threads", k, launched[k].threads);
        cr_assert_arr_eq(&launched[k].cpus, &cpus[k], sizeof cpus[k], "GPU %d: other CPUs", k);
    }
    cr_assert(pthread_equal(launched[0].thread, pthread_self()));
    cr_assert(!pthread_equal(launched[0].thread, launched[1].thread));
}
