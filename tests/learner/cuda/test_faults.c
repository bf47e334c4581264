// Faults of a GPU, which the emulator makes: it does not start, has too little memory, is lost or hangs; even if it is
// one of two.
#include "farm.h"

TestSuite(cuda_faults, .timeout = 120);

Test(cuda_faults, a_gpu_that_does_not_start_is_refused_with_the_reason) {
    const struct {
        int64_t *setting, value;
        const char *word;
    } cases[] = {{&farm_emulator.devices, 0, "--device cpu"},
                 {&farm_emulator.driver, 12040, "older than this build needs"},
                 {&farm_emulator.no_start, cudaErrorUnknown, "--device cpu"},
                 {&farm_emulator.no_start, cudaErrorSystemNotReady, "fabric manager"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        farm_emulator_reset();
        const struct setting setting = usual_setting(true, 1);
        *cases[i].setting = cases[i].value;
        expect_refused(setting, FARM_E_UNSUPPORTED, cases[i].word);
    }
}

static uint64_t device_bytes_of(struct setting setting) {
    struct rig *farm = open_ready(setting);
    const uint64_t bytes = farm_emulator_account().device_bytes;
    close_farm(farm);
    return bytes;
}

Test(cuda_faults, takes_a_smaller_mirror_if_memory_is_short_and_reports_sizes_if_none_fits) {
    struct setting setting = usual_setting(true, 1);
    with_record *full = run_alone(setting, &farm_backend_cuda);
    setting.mirror = FARM_MIRROR_OFF;
    const int64_t least = (int64_t)device_bytes_of(setting);
    setting.mirror = FARM_MIRROR_FULL;
    farm_emulator.memory = least + least / 32 + 8192; // the smallest mirror, the reserve, and little more
    with_record *small = run_alone(setting, &farm_backend_cuda);
    expect_same(small, full, "little memory");
    farm_emulator.memory = least / 2;
    expect_refused(setting, FARM_E_LIMIT, "--infer-batch-max");
}

// The vendor's handles come after the mirror: with the largest mirror the last of four finds no memory.
Test(cuda_faults, takes_a_smaller_mirror_if_the_vendor_takes_the_spare_memory) {
    struct setting setting = usual_setting(true, 1);
    with_record *full = run_alone(setting, &farm_backend_cuda);
    const uint64_t large = device_bytes_of(setting);
    setting.mirror = FARM_MIRROR_WINDOW;
    const uint64_t medium = device_bytes_of(setting);
    cr_assert_gt(large, medium + 4096);
    farm_emulator.memory = (int64_t)(large + large / 32 + 8192);
    farm_emulator_vendor.handle_bytes = ((uint64_t)farm_emulator.memory - (large + medium) / 2) / 4;
    setting.mirror = FARM_MIRROR_FULL;
    struct rig *farm = open_ready(setting);
    with_record *window = run_farm(farm, false);
    cr_assert_gt(farm->stats.bus_train_bytes, 0, "a full mirror");
    expect_same(window, full, "window");
    close_farm(farm);
    farm_emulator_vendor.handle_bytes = (size_t)farm_emulator.memory; // more than any mirror leaves
    farm = open_farm(setting);
    cr_assert_neq(open_backend(farm, &farm_backend_cuda), FARM_OK);
    close_farm(farm);
}

// Whichever allocation fails, all earlier ones are released.
Test(cuda_faults, releases_everything_wherever_memory_ends) {
    for (uint32_t shards = 1; shards <= 2; shards++) {
        farm_emulator_reset(); // the memory of the pass before was short
        const int64_t parts = shards == 1 ? 12 : 6;
        with_farm *farm = open_ready(usual_setting(true, shards));
        const int64_t all = (int64_t)(farm_emulator_account().device_bytes / shards);
        farm->ops->destroy(farm->backend);
        for (int64_t part = 0; part < parts; part++) {
            farm_emulator.memory = all * part / parts;
            farm->backend = NULL;
            cr_assert_eq(open_backend(farm, &farm_backend_cuda), FARM_E_LIMIT, "%s", farm->err.message);
            expect_nothing_left();
        }
        farm->backend = NULL;
    }
}

enum { UPDATES = 3 };

// Plays and trains until an error. states: receives the parameters of each version; may be NULL.
static enum farm_status play_to_end(struct rig *farm, float **states) {
    const size_t bytes = farm->net.parameter_count * sizeof(float);
    enum farm_status status = FARM_OK;
    while (!status && farm->n < (UPDATES + 1) * UNROLL) {
        const uint64_t version = farm->version;
        if (states && !states[version]) states[version] = memcpy(malloc(bytes), rig_params(farm), bytes);
        status = play_step(farm);
        if (!status && farm->n > farm->trained + UNROLL) status = rig_update(farm, false);
    }
    return status;
}

// A GPU is lost after some pieces of work; another one waits in the sum. The state left is that of a complete update.
static void lose_gpu(uint32_t shards, int device, uint64_t works, float *const *states) {
    farm_emulator_reset();
    with_farm *farm = open_ready(usual_setting(true, shards));
    farm_emulator.fall_off_device = device;
    farm_emulator.fall_off_after = (int64_t)works;
    const enum farm_status status = play_to_end(farm, NULL);
    cr_assert_eq(status, FARM_E_DEAD, "GPU %d lost after %lu pieces of work: %s", device, works, farm->err.message);
    const struct farm_backend_state last = farm->ops->state(farm->backend);
    cr_assert_leq(last.version, farm->version);
    cr_assert_arr_eq(farm_backend_vector(&last, ""), states[last.version], farm->net.parameter_count * sizeof(float),
                     "GPU %d lost after %lu pieces of work: no version %lu", device, works, last.version);
}

Test(cuda_faults, a_gpu_lost_at_any_piece_of_work_is_an_error_and_leaves_no_thread_waiting) {
    const uint64_t pieces[] = {120, 240}, apart[] = {7, 11};
    for (uint32_t shards = 1; shards <= 2; shards++) {
        farm_emulator_reset();
        struct rig *farm = open_ready(usual_setting(true, shards));
        float *states[UPDATES + 1] = {0};
        const uint64_t before = farm_emulator_account().works;
        cr_assert_gt(before, 100); // every kernel has run before anything is captured
        cr_assert_eq(play_to_end(farm, states), FARM_OK, "%s", farm->err.message);
        close_farm(farm);
        for (int device = 0; device < (int)shards; device++)
            for (uint64_t works = before; works < before + pieces[shards - 1]; works += apart[shards - 1])
                lose_gpu(shards, device, works, states);
        for (int version = 0; version <= UPDATES; version++) free(states[version]);
    }
}

Test(cuda_faults, a_lost_gpu_loses_only_the_updates_since_the_last_copy_of_its_state) {
    const double every_s[] = {1e-9, 1000};
    for (int i = 0; i < 2; i++) {
        farm_emulator_reset();
        with_farm *farm = open_farm(usual_setting(true, 1));
        farm->learner.device.state_every_s = every_s[i];
        must_open_backend(farm, &farm_backend_cuda);
        while (farm->n < 3 * UNROLL + 1) {
            cr_assert_eq(play_step(farm), FARM_OK);
            if (farm->n > farm->trained + UNROLL) must_update(farm);
        }
        farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works;
        cr_assert_eq(play_step(farm), FARM_E_DEAD, "%s", farm->err.message);
        cr_assert_not_null(strstr(farm->err.message, "--resume"), "%s", farm->err.message);
        cr_assert_eq(rig_update(farm, false), FARM_E_DEAD, "%s", farm->err.message);
        cr_assert_eq(farm->ops->state(farm->backend).version, i == 0 ? 3 : 0);
    }
}

static struct rig *volatile hanging[3]; // cannot be freed

// The last GPU hangs in inference or in training; another one waits in the sum. Both threads end within the limit, the
// earlier state is kept, and no thread waits for a GPU again.
static struct rig *hang_gpu(uint32_t shards, bool inferring, uint64_t spin_ns) {
    farm_emulator_reset();
    struct setting setting = usual_setting(true, shards);
    setting.spin_ns = spin_ns;
    struct rig *farm = open_farm(setting);
    farm->learner.device.state_every_s = 1e-9;
    must_open_backend(farm, &farm_backend_cuda);
    play_to(farm, UNROLL + 1);
    must_update(farm);
    play_to(farm, 2 * UNROLL + 1);
    farm_emulator.hang_device = (int)shards - 1;
    farm_emulator.hang_after = (int64_t)farm_emulator_account().works;
    farm->learner.device.limit_s = 0.05;
    const char *const of_update = shards == 1 ? "an update has" : "one hangs";
    const enum farm_status first = inferring ? play_step(farm) : rig_update(farm, false);
    cr_assert_eq(first, FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_not_null(strstr(farm->err.message, inferring ? "inference has not ended after 0.05 s" : of_update));
    if (inferring || shards == 1) cr_assert_not_null(strstr(farm->err.message, "--resume"), "%s", farm->err.message);
    farm->learner.device.limit_s = 1e9;
    cr_assert_eq(farm->ops->state(farm->backend).version, 1);
    const enum farm_status other = inferring ? rig_update(farm, false) : play_step(farm);
    cr_assert_eq(other, FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_not_null(strstr(farm->err.message, inferring && shards > 1 ? of_update : "the GPU hangs"), "%s",
                       farm->err.message);
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_E_DEAD);
    farm->ops->leave(farm->backend, 1);
    farm->ops->destroy(farm->backend);
    return farm;
}

Test(cuda_faults, gives_up_an_inference_that_never_ends, .timeout = 10) {
    hanging[0] = hang_gpu(1, true, 1000);
    hanging[1] = hang_gpu(1, true, 0);
    hanging[2] = hang_gpu(2, true, 1000);
}

Test(cuda_faults, gives_up_an_update_that_never_ends, .timeout = 10) {
    hanging[0] = hang_gpu(1, false, 1000);
    hanging[1] = hang_gpu(2, false, 1000);
}

// The state would be copied after the next update's gradients, which are in the stream.
Test(cuda_faults, a_hanging_gpu_leaves_the_earlier_state, .timeout = 10) {
    struct rig *farm = hanging[0] = open_played(usual_setting(true, 1), 2 * UNROLL + 1);
    cr_assert_eq(rig_update(farm, true), FARM_OK, "%s", farm->err.message);
    farm_emulator.hang_after = (int64_t)farm_emulator_account().works;
    farm->learner.device.limit_s = 0.05;
    cr_assert_eq(farm->ops->state(farm->backend).version, 0);
    cr_assert_eq(play_step(farm), FARM_E_DEAD);
    farm->ops->destroy(farm->backend);
}
