// The CUDA backend's host code over the emulator (tests/support/cuda_emulator): its log, registration, rings that come
// and go, streams, state, threads.
#include "access.h"
#include "farm.h"

#include <pthread.h>
#include <stdio.h>

#include "base/time.h"
#include "learner/backend.h"

TestSuite(cuda_backend, .timeout = 120);

// ---- ways across the bus ----

// Opens a backend on rings with an unanswered step; text: [4096] its log.
static void open_and_read_log(struct rig *farm, char *text) {
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
static void expect_mirrored(const struct rig *farm) {
    const struct farm_cuda_context *context = farm_cuda_backend_context(farm->backend, 0);
    uint8_t there[SIDE * SIDE];
    for (uint32_t id = 0; id < LANE_COUNT; id++)
        for (uint32_t e = 0; e < WIDTH; e++) {
            const void *place = farm_cuda_mirror_at(&context->mirror, id, 0, 0, e);
            cr_assert_eq(cudaMemcpy(there, place, sizeof there, cudaMemcpyDeviceToHost), cudaSuccess);
            cr_assert_arr_eq(there, farm_lane_obs(rig_lane(farm, id), 0, 0, e), sizeof there, "lane %u", id);
        }
}

// The microseconds after `what`; checks them against the GB/s, for all environments' observations together.
static double microseconds_of(const char *text, const char *what) {
    double gb_per_s = -1, us = -1;
    const char *at = strstr(text, what);
    cr_assert(at && sscanf(at + strlen(what), " %lf GB/s %lf us", &gb_per_s, &us) == 2, "no '%s' in: %s", what, text);
    cr_assert_gt(us, 0);
    const double rounding = 0.1 + 0.05 * gb_per_s; // to a tenth of a microsecond
    cr_assert_float_eq(gb_per_s * us, ENVIRONMENTS * SIDE * SIDE * 1e-3, rounding, "%g GB/s %g us", gb_per_s, us);
    return us;
}

Test(cuda_backend, logs_the_time_of_each_way_that_exists) {
    const char *const words[] = {" by loads (", " by bulk copies (", " by copy engines ("};
    const uint64_t tried[][FARM_EMULATOR_WAYS] = {
        {2, 0, 0}, {2, 2, 0}, {2, 2, 1}}; // loads and bulk copies with two numbers of blocks
    for (int way = 0; way < FARM_EMULATOR_WAYS; way++) {
        struct setting setting = usual_setting(true, 1);
        setting.obs_way = (enum farm_emulator_way)way;
        with_farm *farm = open_farm(setting);
        char text[4096];
        const struct farm_emulator_account before = farm_emulator_account();
        uint64_t read[FARM_EMULATOR_WAYS] = {0};
        open_and_read_log(farm, text);
        add_bytes_read(read, &before);
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
    }
    expect_nothing_left();
}

// The host's copies together with the pull, which is slow here.
Test(cuda_backend, logs_the_time_of_copies_if_registration_is_refused) {
    struct setting setting = usual_setting(true, 1);
    setting.obs_way = FARM_EMULATOR_BULK; // loads are slow
    with_farm *farm = open_farm(setting);
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
}

// ---- registration, rings that come and go ----

Test(cuda_backend, every_ring_is_registered_once_and_during_the_run_only) {
    for (uint32_t shards = 1; shards <= 2; shards++) {
        with_farm *farm = open_ready(usual_setting(true, shards));
        uint64_t bytes = 0;
        for (int r = 0; r < RINGS; r++) bytes += farm->lanes.rings[r].up.bytes + farm->lanes.rings[r].down.bytes;
        cr_assert_eq(farm_emulator_account().registered, 2 * RINGS);
        cr_assert_eq(farm_emulator_account().registered_bytes, bytes);
        const unsigned both = cudaHostRegisterPortable | cudaHostRegisterMapped;
        for (uint32_t id = 0; id < LANE_COUNT; id++) {
            const struct farm_cuda_context *context =
                farm_cuda_backend_context(farm->backend, farm->lanes.lanes[id].shard);
            const struct farm_lane *lane = rig_lane(farm, id);
            cr_assert_eq(farm_emulator_registration(farm_cuda_up(context, id, farm_lane_obs(lane, 0, 0, 0))),
                         both | cudaHostRegisterReadOnly);
            cr_assert_eq(farm_emulator_registration(farm_cuda_down(context, id, &lane->down->acted)), both);
        }
        farm->ops->destroy(farm->backend);
        farm->backend = NULL;
        expect_nothing_left();
    }
}

Test(cuda_backend, a_ring_that_leaves_and_joins_changes_no_number) {
    struct setting setting = usual_setting(true, 1);
    for (; setting.mirror <= FARM_MIRROR_OFF; setting.mirror++)
        expect_absence_changes_nothing(open_ready(setting), run_alone(setting, &farm_backend_cuda));
    setting = usual_setting(false, 1);
    expect_absence_changes_nothing(open_ready(setting), run_alone(setting, &farm_backend_cuda));
}

Test(cuda_backend, a_ring_that_joins_a_bounced_farm_is_bounced) {
    const struct setting setting = usual_setting(true, 1);
    farm_emulator.refuse_registration = 1;
    expect_absence_changes_nothing(open_ready(setting), run_alone(setting, &farm_backend_cuda));
}

static void expect_join_refused(struct rig *farm, const char *why) {
    const struct farm_emulator_account before = farm_emulator_account();
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_E_LIMIT);
    cr_assert(strstr(farm->err.message, why) != NULL, "%s", farm->err.message);
    const struct farm_emulator_account after = farm_emulator_account();
    cr_assert_eq(after.registered, before.registered);
    cr_assert_eq(after.device_bytes, before.device_bytes);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
}

Test(cuda_backend, a_ring_without_room_is_refused_and_leaks_nothing) {
    with_farm *farm = open_ready(usual_setting(true, 1));
    cr_assert_eq(play_step(farm), FARM_OK);
    farm->ops->leave(farm->backend, 1);
    const int64_t memory = farm_emulator.memory;
    farm_emulator.memory = (int64_t)farm_emulator_account().device_bytes;
    expect_join_refused(farm, "ring-steps");
    farm_emulator.memory = memory;
    farm_emulator.refuse_read_only = 1;
    expect_join_refused(farm, "up segment of actor 1");
    farm_emulator.refuse_read_only = 0;
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
    cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message);
}

// ---- streams and graphs ----

enum { STREAMS_MAX = 8 };

// The only stream in which work has run since `before`.
static struct farm_emulator_stream find_busy_stream(const struct farm_emulator_stream *before, size_t count) {
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
    with_farm *farm = open_played(usual_setting(true, 1), UNROLL);
    struct farm_emulator_stream before[STREAMS_MAX];
    int least, greatest;
    cr_assert_eq(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    size_t count = farm_emulator_streams(before, STREAMS_MAX);
    cr_assert_lt(count, STREAMS_MAX);
    cr_assert_eq(play_step(farm), FARM_OK);
    const struct farm_emulator_stream inference = find_busy_stream(before, count);
    count = farm_emulator_streams(before, STREAMS_MAX);
    must_update(farm);
    const struct farm_emulator_stream training = find_busy_stream(before, count);
    cr_assert_eq(inference.priority, greatest);
    cr_assert_eq(training.priority, least);
    cr_assert_eq(inference.flags, cudaStreamNonBlocking);
    cr_assert_eq(training.flags, cudaStreamNonBlocking);
}

// Sizes 1, 2, 4, 7, then 1, 2, 4, 8, 16, 24, 32, 40, each for two copies of the parameters; two graphs of gradients and
// one of the step.
Test(cuda_backend, inference_has_a_graph_for_each_size_of_its_ladder) {
    const uint32_t most[] = {7, 40}, rungs[] = {4, 8};
    for (int i = 0; i < 2; i++) {
        struct setting setting = usual_setting(true, 1);
        setting.infer_batch_max = most[i];
        with_farm *farm = open_ready(setting);
        cr_assert_eq(farm_emulator_account().graph_execs, 2 * rungs[i] + 3);
    }
}

// Pieces of work of an update in N passes.
static uint64_t count_works(uint32_t micro_batch) {
    struct setting setting = usual_setting(true, 1);
    setting.micro_batch = micro_batch;
    struct rig *farm = open_played(setting, UNROLL + 1);
    const uint64_t before = farm_emulator_account().works;
    must_update(farm);
    const uint64_t works = farm_emulator_account().works - before;
    close_farm(farm);
    return works;
}

// Inference waits for one pass at most.
Test(cuda_backend, an_update_is_made_in_passes_of_micro_batch_windows) {
    const uint64_t one = count_works(ENVIRONMENTS), two = count_works(ENVIRONMENTS / 2), pass = two - one;
    cr_assert_gt(pass, 10);
    cr_assert_lt(pass, one);
    cr_assert_eq(count_works(5), one + 2 * pass); // 5, 5 and 2 windows
    cr_assert_eq(count_works(1), one + (ENVIRONMENTS - 1) * pass);
    cr_assert_eq(count_works(0), one, "so few rows are one pass by default");
}

// ---- state ----

// A state restored as another version is what every GPU's next answers use, and what the next update changes.
Test(cuda_backend, a_restored_state_continues_as_before) {
    for (uint32_t shards = 1; shards <= 2; shards++) {
        const uint64_t copied_before = farm_emulator_account().device_to_host_bytes;
        with_farm *farm = open_played(usual_setting(true, shards), 2 * UNROLL + 1);
        const size_t count = farm->net.parameter_count, bytes = count * sizeof(float);
        must_update(farm);
        struct farm_backend_state state = farm->ops->state(farm->backend);
        cr_assert(state.version == 1 && state.optimiser_step == 1);
        float *const vectors[] = {state.vectors[0].values, state.vectors[1].values, state.vectors[2].values};
        float *kept[3], *after[3];
        for (int v = 0; v < 3; v++) kept[v] = memcpy(malloc(bytes), vectors[v], bytes);
        must_update(farm);
        (void)farm->ops->state(farm->backend);
        for (int v = 0; v < 3; v++) after[v] = memcpy(malloc(bytes), vectors[v], bytes);
        cr_assert_gt(distance(after[0], kept[0], count), 1e-6);
        for (int v = 0; v < 3; v++) memcpy(vectors[v], kept[v], bytes);
        cr_assert_eq(farm->ops->state_changed(farm->backend, 40, 1, &farm->err), FARM_OK);
        farm->version = 40;
        play_to(farm, farm->n + 1);
        for (uint32_t id = 0; id < LANE_COUNT; id++)
            cr_assert_eq(*farm_lane_version(rig_lane(farm, id), farm->n - 1), 40, "lane %u", id);
        farm->trained -= UNROLL;
        must_update(farm);
        cr_assert_eq(farm->ops->state(farm->backend).version, 41);
        for (int v = 0; v < 3; v++) cr_assert_arr_eq(vectors[v], after[v], bytes, "vector %d", v);
        for (int v = 0; v < 3; v++) free(kept[v]), free(after[v]);
        const struct farm_emulator_account account = farm_emulator_account();
        cr_assert_geq(account.device_to_host_bytes - copied_before, 9 * bytes);
        cr_assert_eq(account.device_to_pageable_bytes, 0, "pageable memory: the driver copies piece by piece");
    }
}

Test(cuda_backend, a_gradient_that_is_not_finite_changes_nothing) {
    struct setting setting = usual_setting(false, 1);
    setting.reward = 5;
    with_farm *farm = open_ready(setting);
    const size_t bytes = farm->net.parameter_count * sizeof(float);
    float *before = malloc(bytes);
    while (farm->n < 4 * UNROLL + 1) {
        cr_assert_eq(play_step(farm), FARM_OK);
        if (farm->n <= farm->trained + UNROLL) continue;
        const bool hit = farm->trained + UNROLL >= 9 && farm->trained < 9; // the window with the reward of step 9
        memcpy(before, rig_params(farm), bytes);
        must_update(farm);
        const double norm = farm->pass_stats.grad_norm;
        cr_assert_eq(isfinite(norm) != 0, !hit, "update from step %lu: %g", farm->trained, norm);
        const bool same = memcmp(before, rig_params(farm), bytes) == 0;
        cr_assert_eq(same, hit);
    }
    free(before);
}

static uint64_t updates_wanted, updates_made; // by the training thread

static void *train_again(void *context) {
    struct rig *farm = context;
    for (uint64_t i = 0; i < updates_wanted; i++) {
        const enum farm_status status = rig_update(farm, false);
        if (status) return farm;
        farm_store_release(&updates_made, i + 1);
        farm->trained -= UNROLL; // the same window over and over: its steps stay
    }
    return NULL;
}

// Answers the newest step again, as a restarted learner does. Returns the version.
static uint64_t answer_again(struct rig *farm) {
    farm->n--;
    cr_assert_eq(rig_infer(farm), FARM_OK, "%s", farm->err.message);
    return *farm_lane_version(farm->lanes.lanes[LANE_COUNT - 1].lane, farm->n++);
}

Test(cuda_backend, inference_runs_while_training_publishes_and_versions_never_fall) {
    with_farm *farm = open_played(usual_setting(true, 1), UNROLL + 2); // the newest step is in no window yet
    pthread_t thread;
    void *failed;
    updates_wanted = 30;
    cr_assert_eq(pthread_create(&thread, NULL, train_again, farm), 0);
    uint64_t version = 0;
    for (int i = 0; i < 200 && version < 30; i++) {
        const uint64_t now = answer_again(farm);
        cr_assert(now >= version && now <= 30, "version %lu after %lu", now, version);
        version = now;
    }
    pthread_join(thread, &failed);
    cr_assert_null(failed, "%s", farm->err.message);
    cr_assert_eq(answer_again(farm), 30);
}

static struct {
    struct rig *farm;
    pthread_t inference, training;
    uint64_t version; // when inference went on
} held;

// An inference that has chosen its parameters, and then is slow: the first update publishes, the second must wait. 0.1
// s is the time of a hundred updates.
static void hold_inference(void) {
    if (!pthread_equal(pthread_self(), held.inference)) return;
    held.inference = held.training; // the first one alone
    cr_assert_eq(pthread_create(&held.training, NULL, train_again, held.farm), 0);
    for (int waited_ms = 0; farm_load_acquire(&updates_made) < 1 && waited_ms < 20000; waited_ms++) usleep(1000);
    for (int waited_ms = 0; farm_load_acquire(&updates_made) < 2 && waited_ms < 100; waited_ms++) usleep(1000);
    held.version = farm_load_acquire(&updates_made);
}

Test(cuda_backend, training_does_not_write_parameters_that_a_slow_inference_reads) {
    struct setting setting = usual_setting(true, 1);
    setting.infer_batch_max = ENVIRONMENTS; // all lanes at once
    struct rig *farm = open_played(setting, UNROLL + 2);
    float before[ACTIONS], after[ACTIONS];
    const struct farm_lane *lane = rig_lane(farm, 0);
    memcpy(before, farm_lane_policy(lane, farm->n - 1, 0), sizeof before);
    updates_wanted = 2;
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

// The first set is rounded as the parameters in training are: equal after a copy, not after another step.
Test(cuda_backend, a_target_set_is_rounded_after_each_copy_of_it) {
    struct setting setting = usual_setting(false, 1);
    setting.bf16 = true;
    setting.q = 1;
    with_farm *farm = open_played(setting, 4 * UNROLL + 1);
    const struct farm_cuda_parameters *p = &farm_cuda_backend_context(farm->backend, 0)->parameters;
    uint16_t online[16], target[16];
    for (uint64_t k = 1; k <= 4; k++) {
        must_update(farm);
        cr_assert_eq(cudaMemcpy(online, farm_cuda_parameters_trained(p), sizeof online, cudaMemcpyDeviceToHost), 0);
        cr_assert_eq(cudaMemcpy(target, farm_cuda_parameters_target(p), sizeof target, cudaMemcpyDeviceToHost), 0);
        cr_assert_eq(memcmp(online, target, sizeof online) == 0, k % 2 == 0, "update %lu", k);
    }
}

// ---- the library ----

extern farm_backend_entry farm_cuda_backend;

Test(cuda_backend, the_library_serves_programs_of_its_own_build_only) {
    const char *commit = NULL;
    struct farm_backend_host host = {.commit = "another", .log_level = FARM_LOG_INFO, .log_role = "learner"};
    cr_assert_null(farm_cuda_backend(&host, &commit));
    cr_assert_not_null(commit);
    host.commit = commit;
    host.stopped_ns = farm_stopped_ns;
    cr_assert_eq(farm_cuda_backend(&host, &commit), &farm_backend_cuda);
}

Test(cuda_backend, refuses_a_library_without_a_backend) {
    const struct farm_backend_ops *ops = NULL;
    struct farm_error err = {0};
    cr_assert_eq(farm_backend_module_open("libm.so.6", &ops, &err), FARM_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "is not a backend") != NULL, "%s", err.message);
    cr_assert_null(ops);
}
