// The CUDA backend's host code over the emulator (tests/support/cuda_emulator), with the CPU backend as the reference.
// The emulator runs work only when a thread waits for it, so reading an answer or an update too early is wrong in every
// run.
#include "farm.h"

#include <pthread.h>
#include <stdio.h>

#include "kernels/cuda/check.h"
#include "learner/backend_module.h"

TestSuite(cuda_backend, .timeout = 120);

// ---- arithmetic ----

Test(cuda_backend, plays_and_learns_as_the_cpu_does) {
    expect_what_the_cpu_does(usual(true));
    expect_what_the_cpu_does(usual(false));
}

Test(cuda_backend, averages_losses_over_all_windows_at_once_as_the_cpu_does) {
    struct setting setting = usual(false);
    setting.loss_mean = true;
    setting.micro_batch = 0;
    setting.infer_batch_max = 2; // lanes wider than a batch
    setting.spin_ns = 0;         // the host sleeps until the GPU is done
    expect_what_the_cpu_does(setting);
}

Test(cuda_backend, makes_updates_smaller_than_the_batch) {
    expect_smaller_update(usual(true), WIDTH);
}

// ---- mirror, registration ----

Test(cuda_backend, an_update_begun_ahead_is_the_same_update) {
    for (enum farm_mirror mirror = FARM_MIRROR_FULL; mirror <= FARM_MIRROR_OFF; mirror++)
        for (int frames = 0; frames < 2; frames++) {
            struct setting setting = usual(frames);
            setting.mirror = mirror;
            expect_ahead_agrees(setting);
        }
    struct setting bounced = usual(true);
    farm_emulator.refuse_registration = 1;
    bounced.mirror = FARM_MIRROR_WINDOW;
    expect_ahead_agrees(bounced);
    expect_nothing_left();
}

Test(cuda_backend, frames_cross_the_bus_as_often_as_the_mirror_requires_and_no_number_changes) {
    expect_all_mirrors_agree(usual(true));
}

Test(cuda_backend, the_mirror_changes_no_number_of_flat_observations_in_bf16) {
    struct setting setting = usual(false);
    setting.precision = FARM_PRECISION_BF16;
    expect_all_mirrors_agree(setting);
}

// Inference uses the fastest way; so do training's windows, except the copy engines, which its graph cannot contain.
static void expect_way_agrees(enum farm_emulator_way way) {
    struct setting setting = usual(true);
    setting.mirror = FARM_MIRROR_WINDOW;
    struct record *by_loads = run_alone(setting, &farm_backend_cuda);
    setting.obs_way = way;
    struct record *other = run_alone(setting, &farm_backend_cuda);
    expect_obs_paths(other, setting);
    expect_same(other, by_loads, "another way");
    expect_nothing_left();
    forget(by_loads);
    forget(other);
}

Test(cuda_backend, observations_are_the_same_by_bulk_copies_and_by_copy_engines) {
    expect_way_agrees(FARM_EMULATOR_BULK);
    expect_way_agrees(FARM_EMULATOR_COPIES);
}

// Opens a backend on rings with an unanswered step; text: [4096] its log.
static void open_and_read_log(struct farm *farm, char *text) {
    for (uint32_t id = 0; id < LANE_COUNT; id++) write_step(farm, id, 0);
    FILE *file = tmpfile();
    const int before = dup(STDERR_FILENO);
    cr_assert(file && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    const enum farm_status status = open_backend(farm, &farm_backend_cuda);
    cr_assert_geq(dup2(before, STDERR_FILENO), 0);
    close(before);
    cr_assert_eq(status, FARM_OK, "%s", farm->err.message);
    rewind(file);
    text[fread(text, 1, 4095, file)] = 0;
    fclose(file);
}

// The measurement has brought the observations into the mirror.
static void expect_mirrored(const struct farm *farm) {
    const struct farm_cuda_context *context = farm_cuda_backend_context(farm->backend, 0);
    uint8_t there[SIDE * SIDE];
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        for (uint32_t e = 0; e < WIDTH; e++) {
            const void *place = farm_cuda_mirror_at(&context->mirror, id, 0, e);
            cr_assert_eq(cudaMemcpy(there, place, sizeof there, cudaMemcpyDeviceToHost), cudaSuccess);
            cr_assert_arr_eq(there, farm_lane_obs(farm->lanes.lanes[id].lane, 0, 0, e), sizeof there, "lane %u", id);
        }
}

// The microseconds after `what`; checks them against the GB/s, for all environments' observations together.
static double microseconds_of(const char *text, const char *what) {
    double gb_per_s = -1, us = -1;
    const char *at = strstr(text, what);
    cr_assert(at && sscanf(at + strlen(what), " %lf GB/s %lf us", &gb_per_s, &us) == 2, "no '%s' in: %s", what, text);
    cr_assert_gt(us, 0);
    cr_assert_float_eq(gb_per_s * us, ENVIRONMENTS * SIDE * SIDE * 1e-3, 0.1, "%g GB/s %g us", gb_per_s, us);
    return us;
}

Test(cuda_backend, logs_the_time_of_each_way_that_exists) {
    const char *const words[] = {" by loads (", " by bulk copies (", " by copy engines ("};
    const uint64_t tried[][FARM_EMULATOR_WAYS] = {
        {2, 0, 0}, {2, 2, 0}, {2, 2, 1}}; // loads and bulk copies with two numbers of blocks
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) {
        struct setting setting = usual(true);
        setting.obs_way = (enum farm_emulator_way)way;
        struct farm *farm = open_farm(setting);
        char text[4096];
        const struct farm_emulator_account before = farm_emulator_account();
        uint64_t read[FARM_EMULATOR_WAYS] = {0};
        open_and_read_log(farm, text);
        add_read(read, &before);
        expect_obs_path(farm);
        expect_mirrored(farm);
        for (int k = 0; k < FARM_EMULATOR_WAYS; k++) // each seven times, and once before
            if (k != FARM_EMULATOR_LOADS || farm_emulator_sees_loads)
                cr_assert_eq(read[k], tried[way][k] * 8 * ENVIRONMENTS * SIDE * SIDE, "way %d: %lu bytes", k, read[k]);
        cr_assert_not_null(strstr(text, words[way]), "%s", text);
        (void)microseconds_of(text, "loads 1");
        if (way != FARM_EMULATOR_LOADS) (void)microseconds_of(text, "bulk copies 2");
        if (way == FARM_EMULATOR_COPIES) (void)microseconds_of(text, ", copy engines");
        cr_assert_eq(strstr(text, "bulk copies 1") == NULL, way == FARM_EMULATOR_LOADS, "%s", text);
        cr_assert_eq(strstr(text, ", copy engines ") == NULL, way != FARM_EMULATOR_COPIES, "%s", text);
        cr_assert_eq(cudaGetLastError(), cudaSuccess);
        close_farm(farm);
    }
    expect_nothing_left();
}

// The host's copies together with the pull, which is slow here.
Test(cuda_backend, logs_the_time_of_copies_if_registration_is_refused) {
    struct setting setting = usual(true);
    setting.obs_way = FARM_EMULATOR_BULK; // loads are slow
    struct farm *farm = open_farm(setting);
    char text[4096];
    farm_emulator.refuse_registration = 1;
    const int64_t slow_us = farm_emulator.slow_loads;
    open_and_read_log(farm, text);
    expect_mirrored(farm);
    cr_assert_not_null(strstr(text, "CUDA refuses to register the actors' up segments"), "%s", text);
    cr_assert_not_null(strstr(text, "are copied into pinned memory and cross the bus by loads (12 at once"), "%s",
                       text);
    cr_assert_geq(microseconds_of(text, "both together"), (double)slow_us, "%s", text);
    (void)microseconds_of(text, "one copy of as many bytes from pinned memory");
    close_farm(farm);
}

Test(cuda_backend, refused_registration_changes_no_number) {
    expect_bounced_agrees(usual(true), &farm_emulator.refuse_registration);
    farm_emulator_reset();
    expect_bounced_agrees(usual(false), &farm_emulator.refuse_registration);
    farm_emulator_reset();
    expect_bounced_agrees(usual(true), &farm_emulator.refuse_read_only);
}

Test(cuda_backend, everything_is_registered_during_the_run_only) {
    expect_registered(usual(true));
}

// A ring leaves and joins again while the other one is served; its registration and mirror go and return.
static void leave_and_join(struct farm *farm) {
    if (farm->n % 7 != 3) return;
    const struct farm_emulator_account before = farm_emulator_account();
    const bool registered = before.registered > 0;
    farm->ops->leave(farm->backend, 1);
    const struct farm_emulator_account absent = farm_emulator_account();
    cr_assert_eq(before.registered - absent.registered, registered ? 2 : 0);
    cr_assert_lt(absent.device_bytes, before.device_bytes);
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
    const struct farm_emulator_account again = farm_emulator_account();
    cr_assert_eq(again.registered, before.registered);
    cr_assert_eq(again.device_bytes, before.device_bytes);
}

static void expect_absence_changes_nothing(struct setting setting) {
    struct record *steady = run_alone(setting, &farm_backend_cuda);
    struct farm *farm = open_ready(setting);
    expect_steady(farm, leave_and_join, steady, "a ring that leaves and joins");
}

Test(cuda_backend, a_ring_that_leaves_and_joins_changes_no_number) {
    for (int mirror = FARM_MIRROR_FULL; mirror <= FARM_MIRROR_OFF; mirror++) {
        struct setting setting = usual(true);
        setting.mirror = (enum farm_mirror)mirror;
        expect_absence_changes_nothing(setting);
    }
    expect_absence_changes_nothing(usual(false));
}

Test(cuda_backend, a_ring_that_joins_a_bounced_farm_is_bounced) {
    farm_emulator.refuse_registration = 1;
    expect_absence_changes_nothing(usual(true));
}

static void expect_join_refused(struct farm *farm, const char *why) {
    const struct farm_emulator_account before = farm_emulator_account();
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_E_LIMIT);
    cr_assert(strstr(farm->err.message, why) != NULL, "%s", farm->err.message);
    const struct farm_emulator_account after = farm_emulator_account();
    cr_assert_eq(after.registered, before.registered);
    cr_assert_eq(after.device_bytes, before.device_bytes);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
}

Test(cuda_backend, a_ring_without_room_is_refused_and_leaks_nothing) {
    struct farm *farm = open_ready(usual(true));
    cr_assert_eq(step(farm), FARM_OK);
    farm->ops->leave(farm->backend, 1);
    const int64_t memory = farm_emulator.memory;
    farm_emulator.memory = (int64_t)farm_emulator_account().device_bytes;
    expect_join_refused(farm, "ring-steps");
    farm_emulator.memory = memory;
    farm_emulator.refuse_read_only = 1;
    expect_join_refused(farm, "up segment of actor 1");
    farm_emulator.refuse_read_only = 0;
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
    cr_assert_eq(step(farm), FARM_OK, "%s", farm->err.message);
    close_farm(farm);
}

// The parameters after four windows, each trained on before its last step is answered.
static float *train_in_step(struct setting setting, const struct farm_backend_ops *ops, size_t *count) {
    struct farm *farm = open_farm(setting);
    must_open_backend(farm, ops);
    for (uint64_t window = 1; window <= 4; window++) {
        play_to(farm, window * UNROLL);
        publish_step(farm);
        must_update(farm);
        cr_assert_eq(answer_step(farm), FARM_OK);
    }
    *count = farm->net.parameter_count;
    float *params = memcpy(malloc(*count * sizeof *params), params_now(farm), *count * sizeof *params);
    close_farm(farm);
    return params;
}

Test(cuda_backend, trains_windows_whose_last_step_is_unanswered_as_the_cpu_does) {
    for (int k = 0; k < 4; k++) { // the mirrors with frames, and numbers
        struct setting setting = usual(k < 3);
        size_t count;
        setting.sync = true;
        setting.mirror = k < 3 ? (enum farm_mirror)k : FARM_MIRROR_FULL;
        float *theirs = train_in_step(setting, &farm_backend_cpu, &count);
        float *ours = train_in_step(setting, &farm_backend_cuda, &count);
        cr_assert_lt(distance(ours, theirs, count), 1e-5, "mirror %d", k);
        free(ours);
        free(theirs);
    }
    expect_nothing_left();
}

Test(cuda_backend, trains_shuffled_minibatches_as_the_cpu_does) {
    for (int frames = 0; frames < 2; frames++) {
        struct setting setting = usual(frames);
        setting.minibatches = 3;
        setting.loss_mean = true;
        expect_what_the_cpu_does(setting);
    }
}

Test(cuda_backend, a_restarted_learner_trains_on_earlier_steps) {
    struct farm *ours = open_farm(usual(true)), *theirs = open_farm(usual(true));
    struct farm *const farms[] = {ours, theirs};
    for (int i = 0; i < 2; i++) {
        must_open_backend(farms[i], &farm_backend_cpu);
        play_to(farms[i], UNROLL + 3);
        farms[i]->ops->destroy(farms[i]->backend);
        farms[i]->backend = NULL;
        must_open_backend(farms[i], i == 0 ? &farm_backend_cuda : &farm_backend_cpu);
        play_to(farms[i], UNROLL + 4); // its stack reaches back before the restart
        must_update(farms[i]);
    }
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        cr_assert_lt(distance(farm_lane_policy(ours->lanes.lanes[id].lane, ours->n - 1, 0),
                              farm_lane_policy(theirs->lanes.lanes[id].lane, ours->n - 1, 0), WIDTH * ACTIONS),
                     1e-4);
    cr_assert_lt(distance(params_now(ours), params_now(theirs), ours->net.parameter_count), 1e-5);
    close_farm(ours);
    close_farm(theirs);
}

// ---- streams and graphs ----

enum { STREAMS_MAX = 8 };

// The only stream in which work has run since `before`.
static struct farm_emulator_stream busy_one(const struct farm_emulator_stream *before, size_t count) {
    struct farm_emulator_stream now[STREAMS_MAX], busy = {0};
    cr_assert_eq(farm_emulator_streams(now, STREAMS_MAX), count);
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        if (now[i].works == before[i].works) continue;
        busy = now[i];
        found++;
    }
    cr_assert_eq(found, 1, "work in %d streams", found);
    return busy;
}

Test(cuda_backend, inference_has_a_stream_of_the_highest_priority_and_training_one_of_the_lowest) {
    struct farm *farm = open_played(usual(true), UNROLL);
    struct farm_emulator_stream before[STREAMS_MAX];
    int least, greatest;
    cr_assert_eq(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    size_t count = farm_emulator_streams(before, STREAMS_MAX);
    cr_assert_lt(count, STREAMS_MAX);
    cr_assert_eq(step(farm), FARM_OK);
    const struct farm_emulator_stream inference = busy_one(before, count);
    count = farm_emulator_streams(before, STREAMS_MAX);
    must_update(farm);
    const struct farm_emulator_stream training = busy_one(before, count);
    cr_assert_eq(inference.priority, greatest);
    cr_assert_eq(training.priority, least);
    cr_assert_eq(inference.flags, cudaStreamNonBlocking);
    cr_assert_eq(training.flags, cudaStreamNonBlocking);
    close_farm(farm);
}

// Sizes 1, 2, 4, 7, then 1, 2, 4, 8, 16, 24, 32, 40, each for two copies of the parameters; two graphs of gradients and
// one of the step.
Test(cuda_backend, inference_has_a_graph_for_each_size_of_its_ladder) {
    const uint32_t most[] = {7, 40}, rungs[] = {4, 8};
    for (int i = 0; i < 2; i++) {
        struct setting setting = usual(true);
        setting.infer_batch_max = most[i];
        struct farm *farm = open_ready(setting);
        cr_assert_eq(farm_emulator_account().graph_execs, 2 * rungs[i] + 3);
        close_farm(farm);
    }
}

// Pieces of work of an update in so many passes.
static uint64_t works_of(uint32_t micro_batch) {
    struct setting setting = usual(true);
    setting.micro_batch = micro_batch;
    struct farm *farm = open_played(setting, UNROLL + 1);
    const uint64_t before = farm_emulator_account().works;
    must_update(farm);
    const uint64_t works = farm_emulator_account().works - before;
    close_farm(farm);
    return works;
}

// Inference waits for one pass at most.
Test(cuda_backend, an_update_is_made_in_passes_of_micro_batch_windows) {
    const uint64_t one = works_of(ENVIRONMENTS), two = works_of(ENVIRONMENTS / 2), pass = two - one;
    cr_assert_gt(pass, 10);
    cr_assert_lt(pass, one);
    cr_assert_eq(works_of(5), one + 2 * pass); // 5, 5 and 2 windows
    cr_assert_eq(works_of(1), one + (ENVIRONMENTS - 1) * pass);
    cr_assert_eq(works_of(0), one, "so few rows are one pass by default");
}

// ---- state ----

Test(cuda_backend, a_restored_state_continues_as_before) {
    expect_state_restored(usual(true));
}

Test(cuda_backend, a_gradient_that_is_not_finite_changes_nothing) {
    struct setting setting = usual(false);
    setting.reward = 5;
    struct farm *farm = open_ready(setting);
    const size_t bytes = farm->net.parameter_count * sizeof(float);
    float *before = malloc(bytes);
    while (farm->n < 4 * UNROLL + 1) {
        cr_assert_eq(step(farm), FARM_OK);
        if (farm->n <= farm->trained + UNROLL) continue;
        const bool hit = farm->trained + UNROLL >= 9 && farm->trained < 9; // the window with the reward of step 9
        memcpy(before, params_now(farm), bytes);
        must_update(farm);
        const double norm = farm->pass_stats.grad_norm;
        cr_assert_eq(isfinite(norm) != 0, !hit, "update from step %lu: %g", farm->trained, norm);
        const bool same = memcmp(before, params_now(farm), bytes) == 0;
        cr_assert_eq(same, hit);
    }
    free(before);
    close_farm(farm);
}

static uint64_t updates_made; // by the training thread, for the other one

static void *train(struct farm *farm, int updates) {
    for (int i = 0; i < updates; i++) {
        const enum farm_status status = update(farm);
        if (status) return farm;
        farm_store_release(&updates_made, (uint64_t)i + 1);
        farm->trained -= UNROLL; // the same window over and over: its steps stay
    }
    return NULL;
}

static void *train_on(void *farm) {
    return train(farm, 30);
}

static void *train_twice(void *farm) {
    return train(farm, 2);
}

// Answers the newest step again, as a restarted learner does. Returns the version.
static uint64_t answer_again(struct farm *farm) {
    farm->n--;
    cr_assert_eq(answer(farm, true), FARM_OK, "%s", farm->err.message);
    return *farm_lane_version(farm->lanes.lanes[LANE_COUNT - 1].lane, farm->n++);
}

Test(cuda_backend, inference_runs_while_training_publishes_and_versions_never_fall) {
    struct farm *farm = open_played(usual(true), UNROLL + 2); // the newest step is in no window yet
    pthread_t thread;
    void *failed;
    cr_assert_eq(pthread_create(&thread, NULL, train_on, farm), 0);
    uint64_t version = 0;
    for (int i = 0; i < 200 && version < 30; i++) {
        const uint64_t now = answer_again(farm);
        cr_assert(now >= version && now <= 30, "version %lu after %lu", now, version);
        version = now;
    }
    pthread_join(thread, &failed);
    cr_assert_null(failed, "%s", farm->err.message);
    cr_assert_eq(answer_again(farm), 30);
    close_farm(farm);
}

static struct {
    struct farm *farm;
    pthread_t inference, training;
    uint64_t version; // when inference went on
} held;

// An inference that has chosen its parameters, and then is slow: the first update publishes, the second must wait. 0.1
// s is the time of a hundred updates.
static void hold_inference(void) {
    if (!pthread_equal(pthread_self(), held.inference)) return;
    held.inference = held.training; // the first one alone
    cr_assert_eq(pthread_create(&held.training, NULL, train_twice, held.farm), 0);
    for (int waited_ms = 0; farm_load_acquire(&updates_made) < 1 && waited_ms < 20000; waited_ms++) usleep(1000);
    for (int waited_ms = 0; farm_load_acquire(&updates_made) < 2 && waited_ms < 100; waited_ms++) usleep(1000);
    held.version = farm_load_acquire(&updates_made);
}

Test(cuda_backend, training_does_not_write_parameters_that_a_slow_inference_reads) {
    struct setting setting = usual(true);
    setting.infer_batch_max = ENVIRONMENTS; // all lanes at once
    struct farm *farm = open_played(setting, UNROLL + 2);
    float before[ACTIONS], after[ACTIONS];
    const struct farm_lane *lane = farm->lanes.lanes[0].lane;
    memcpy(before, farm_lane_policy(lane, farm->n - 1, 0), sizeof before);
    held.farm = farm;
    held.inference = pthread_self();
    farm_emulator_before_launch = hold_inference;
    const uint64_t version = answer_again(farm);
    memcpy(after, farm_lane_policy(lane, farm->n - 1, 0), sizeof after);
    void *failed;
    pthread_join(held.training, &failed);
    farm_emulator_before_launch = NULL;
    cr_assert_null(failed, "%s", farm->err.message);
    cr_assert_eq(held.version, 1, "%lu updates while one inference read", held.version);
    cr_assert_eq(version, 0);
    cr_assert_arr_eq(after, before, sizeof before);
    cr_assert_eq(answer_again(farm), 2);
    cr_assert_neq(memcmp(farm_lane_policy(lane, farm->n - 1, 0), before, sizeof before), 0);
    close_farm(farm);
}

// ---- the library ----

extern farm_backend_entry farm_cuda_backend;

Test(cuda_backend, the_library_serves_programs_of_its_own_build_only) {
    const char *commit = NULL;
    struct farm_backend_host host = {.commit = "another", .log_level = FARM_LOG_INFO, .log_role = "learner"};
    cr_assert_null(farm_cuda_backend(&host, &commit));
    cr_assert_not_null(commit);
    host.commit = commit;
    cr_assert_eq(farm_cuda_backend(&host, &commit), &farm_backend_cuda);
}

Test(cuda_backend, refuses_a_library_without_a_backend) {
    const struct farm_backend_ops *ops = NULL;
    struct farm_error err = {0};
    cr_assert_eq(farm_backend_module_open("libm.so.6", &ops, &err), FARM_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "is not a backend") != NULL, "%s", err.message);
    cr_assert_null(ops);
}

// ---- faults ----

Test(cuda_backend, a_gpu_that_does_not_start_is_refused_with_the_reason) {
    const struct {
        int64_t *setting, value;
        const char *word;
    } cases[] = {{&farm_emulator.devices, 0, "--device cpu"},
                 {&farm_emulator.driver, 12040, "older than this build needs"},
                 {&farm_emulator.no_start, cudaErrorUnknown, "--device cpu"},
                 {&farm_emulator.no_start, cudaErrorSystemNotReady, "fabric manager"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        farm_emulator_reset();
        *cases[i].setting = cases[i].value;
        expect_refused(usual(true), FARM_E_UNSUPPORTED, cases[i].word);
    }
}

static uint64_t device_bytes_of(struct setting setting) {
    struct farm *farm = open_ready(setting);
    const uint64_t bytes = farm_emulator_account().device_bytes;
    close_farm(farm);
    return bytes;
}

Test(cuda_backend, takes_a_smaller_mirror_if_memory_is_short_and_reports_sizes_if_none_fits) {
    struct setting setting = usual(true);
    struct record *full = run_alone(setting, &farm_backend_cuda);
    setting.mirror = FARM_MIRROR_OFF;
    const int64_t least = (int64_t)device_bytes_of(setting);
    setting.mirror = FARM_MIRROR_FULL;
    farm_emulator.memory = least + least / 32 + 8192; // the smallest mirror, the reserve, and little more
    struct record *small = run_alone(setting, &farm_backend_cuda);
    expect_same(small, full, "little memory");
    farm_emulator.memory = least / 2;
    expect_refused(setting, FARM_E_LIMIT, "--infer-batch-max");
    forget(full);
    forget(small);
}

// The vendor's handles come after the mirror: with the largest mirror the last of four finds no memory.
Test(cuda_backend, takes_a_smaller_mirror_if_the_vendor_takes_the_spare_memory) {
    struct setting setting = usual(true);
    struct record *full = run_alone(setting, &farm_backend_cuda);
    const uint64_t large = device_bytes_of(setting);
    setting.mirror = FARM_MIRROR_WINDOW;
    const uint64_t medium = device_bytes_of(setting);
    cr_assert_gt(large, medium + 4096);
    farm_emulator.memory = (int64_t)(large + large / 32 + 8192);
    farm_emulator_vendor.handle_bytes = ((uint64_t)farm_emulator.memory - (large + medium) / 2) / 4;
    setting.mirror = FARM_MIRROR_FULL;
    struct farm *farm = open_ready(setting);
    struct record *window = run(farm);
    cr_assert_gt(farm->stats.bus_train_bytes, 0, "a full mirror");
    expect_same(window, full, "window");
    close_farm(farm);
    farm_emulator_vendor.handle_bytes = (size_t)farm_emulator.memory; // more than any mirror leaves
    farm = open_farm(setting);
    cr_assert_neq(open_backend(farm, &farm_backend_cuda), FARM_OK);
    close_farm(farm);
    forget(full);
    forget(window);
}

static bool opens(struct setting setting, int64_t memory) {
    farm_emulator.memory = memory;
    struct farm *farm = open_farm(setting);
    const enum farm_status status = open_backend(farm, &farm_backend_cuda);
    close_farm(farm);
    return status == FARM_OK;
}

// The least memory with which the backend opens, to 128 bytes. known: what it takes.
static int64_t least_memory(struct setting setting, int64_t known) {
    int64_t refused = known / 2, enough = 2 * known;
    cr_assert(!opens(setting, refused) && opens(setting, enough));
    while (enough - refused > 128) {
        const int64_t half = (enough + refused) / 2;
        *(opens(setting, half) ? &enough : &refused) = half;
    }
    return enough;
}

// Without registration training cannot read the rings: `off` needs what `window` needs.
Test(cuda_backend, off_takes_the_memory_of_window_if_registration_is_refused) {
    struct setting setting = usual(true);
    setting.mirror = FARM_MIRROR_WINDOW;
    const int64_t window = (int64_t)device_bytes_of(setting);
    setting.mirror = FARM_MIRROR_OFF;
    const int64_t off = (int64_t)device_bytes_of(setting), least_off = least_memory(setting, off);
    cr_assert_gt(window, off + 4096);
    farm_emulator.refuse_registration = 1;
    const int64_t least = least_memory(setting, window);
    cr_assert_geq(least, least_off + (window - off) - 256, "%ld bytes of memory, and %ld unbounced", least, least_off);
    expect_nothing_left();
}

Test(cuda_backend, releases_everything_wherever_memory_ends) {
    expect_released(usual(true), 12);
}

Test(cuda_backend, a_lost_gpu_ends_both_threads_with_an_error_and_leaves_the_last_state) {
    struct farm *farm = open_played(usual(true), UNROLL + 1);
    must_update(farm);
    const struct farm_backend_state good = farm->ops->state(farm->backend);
    const size_t bytes = farm->net.parameter_count * sizeof(float);
    float *kept = memcpy(malloc(bytes), farm_backend_vector(&good, ""), bytes);
    play_to(farm, 2 * UNROLL + 1);
    must_update(farm);
    farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works + 5;
    cr_assert_eq(step(farm), FARM_E_DEAD, "%s", farm->err.message);
    cr_assert(strstr(farm->err.message, "--resume") != NULL, "%s", farm->err.message);
    cr_assert_eq(update(farm), FARM_E_DEAD, "%s", farm->err.message);
    const struct farm_backend_state last = farm->ops->state(farm->backend);
    cr_assert_eq(last.version, 1);
    cr_assert_arr_eq(farm_backend_vector(&last, ""), kept, bytes);
    free(kept);
    close_farm(farm);
}

Test(cuda_backend, a_gpu_lost_at_any_piece_of_work_is_an_error_and_no_hang) {
    struct farm *farm = open_ready(usual(true));
    const uint64_t before = farm_emulator_account().works;
    close_farm(farm);
    cr_assert_gt(before, 100); // every kernel has run before anything is captured
    for (uint64_t works = before; works < before + 120; works += 7) {
        farm_emulator_reset();
        farm = open_ready(usual(true));
        farm_emulator.fall_off_after = (int64_t)works;
        enum farm_status status = FARM_OK;
        while (!status && farm->n < 3 * UNROLL) {
            status = step(farm);
            if (!status && farm->n > farm->trained + UNROLL) status = update(farm);
        }
        cr_assert_eq(status, FARM_E_DEAD, "lost after %lu pieces of work: %s", works, farm->err.message);
        close_farm(farm);
    }
}

Test(cuda_backend, a_lost_gpu_loses_only_the_updates_since_the_last_copy_of_its_state) {
    const double every_s[] = {1e-9, 1000};
    for (int i = 0; i < 2; i++) {
        farm_emulator_reset();
        struct farm *farm = open_farm(usual(true));
        farm->learner.state_every_s = every_s[i];
        must_open_backend(farm, &farm_backend_cuda);
        while (farm->n < 3 * UNROLL + 1) {
            cr_assert_eq(step(farm), FARM_OK);
            if (farm->n > farm->trained + UNROLL) must_update(farm);
        }
        farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works;
        cr_assert_eq(step(farm), FARM_E_DEAD, "%s", farm->err.message);
        cr_assert_eq(farm->ops->state(farm->backend).version, i == 0 ? 3 : 0);
        close_farm(farm);
    }
}

static struct farm *volatile left[2]; // hanging: cannot be freed

// A GPU that hangs in inference, or in training: both threads end within the limit, the earlier state is kept, and no
// thread waits for the GPU again.
static struct farm *hang(bool inferring, uint64_t spin_ns) {
    struct setting setting = usual(true);
    setting.spin_ns = spin_ns;
    struct farm *farm = open_farm(setting);
    farm->learner.state_every_s = 1e-9;
    must_open_backend(farm, &farm_backend_cuda);
    play_to(farm, UNROLL + 1);
    must_update(farm);
    play_to(farm, 2 * UNROLL + 1);
    farm_emulator.hang_after = (int64_t)farm_emulator_account().works;
    farm->learner.gpu_limit_s = 0.05;
    const enum farm_status first = inferring ? step(farm) : update(farm);
    cr_assert_eq(first, FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_not_null(strstr(farm->err.message, inferring ? "inference has not ended after 0.05 s" : "an update has"));
    cr_assert_not_null(strstr(farm->err.message, "--resume"), "%s", farm->err.message);
    farm->learner.gpu_limit_s = 1e9;
    cr_assert_eq(farm->ops->state(farm->backend).version, 1);
    const enum farm_status other = inferring ? update(farm) : step(farm);
    cr_assert_eq(other, FARM_E_DEAD, "%s", farm->err.message);
    cr_assert_not_null(strstr(farm->err.message, "the GPU hangs"), "%s", farm->err.message);
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_E_DEAD);
    farm->ops->leave(farm->backend, 1);
    farm->ops->destroy(farm->backend);
    return farm;
}

Test(cuda_backend, gives_up_an_inference_that_never_ends, .timeout = 10) {
    left[0] = hang(true, 1000);
    farm_emulator_reset();
    left[1] = hang(true, 0);
}

Test(cuda_backend, gives_up_an_update_that_never_ends, .timeout = 10) {
    left[0] = hang(false, 1000);
}

// The state would be copied after the next update's gradients, which are in the stream.
Test(cuda_backend, a_hanging_gpu_leaves_the_earlier_state, .timeout = 10) {
    struct farm *farm = left[0] = open_played(usual(true), 2 * UNROLL + 1);
    cr_assert_eq(update_and(farm, true), FARM_OK, "%s", farm->err.message);
    farm_emulator.hang_after = (int64_t)farm_emulator_account().works;
    farm->learner.gpu_limit_s = 0.05;
    cr_assert_eq(farm->ops->state(farm->backend).version, 0);
    cr_assert_eq(step(farm), FARM_E_DEAD);
    farm->ops->destroy(farm->backend);
}
