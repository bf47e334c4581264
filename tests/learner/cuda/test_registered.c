// Devices that cannot register read-only mappings: the rings' observations are registered through a second mapping.
#include "farm.h"

#include <pthread.h>
#include <stdio.h>

#include "../../support/learner.h"
#include "learner/cuda/registered.h"

TestSuite(cuda_registered, .timeout = 60);

static struct rig *open_lent(struct setting setting) {
    struct rig *farm = open_farm(setting);
    farm_emulator.refuse_read_only = 1;
    rig_lend_writable(farm);
    must_open_backend(farm, &farm_backend_cuda);
    farm_lanes_end_writable(&farm->lanes);
    return farm;
}

// The rights of the mapping at an address, as "r--s".
static void rights_of(const void *address, char rights[5]) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    strcpy(rights, "none");
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char found[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, found) != 3) continue;
        if ((unsigned long)(uintptr_t)address >= from && (unsigned long)(uintptr_t)address < to) strcpy(rights, found);
    }
    fclose(maps);
}

static void expect_same_numbers(struct setting setting) {
    farm_emulator.refuse_read_only = 0;
    struct record *usual_record = run_alone(setting, &farm_backend_cuda);
    struct rig *farm = open_lent(setting);
    cr_assert_eq(farm_emulator_account().registered, 2 * RINGS, "nothing is bounced");
    expect_absence_changes_nothing(farm, usual_record);
}

Test(cuda_registered, a_second_mapping_changes_no_number) {
    struct setting setting = usual_setting(true, 1);
    expect_same_numbers(setting);
    setting.mirror = FARM_MIRROR_OFF;
    expect_same_numbers(setting);
}

Test(cuda_registered, a_second_mapping_of_several_pieces_is_write_protected_and_unmapped_at_the_end) {
    with_farm *farm = open_farm(usual_setting(true, 1));
    struct farm_cuda_registered registered;
    char rights[5];
    farm_emulator.refuse_read_only = 1;
    rig_lend_writable(farm);
    cr_assert_eq(farm_cuda_register(&farm->lanes, 0, 0, 8192, &registered, &farm->err), FARM_OK);
    cr_assert(registered.again && !registered.bounced[FARM_CUDA_UP] && !registered.bounced[FARM_CUDA_DOWN]);
    for (uint32_t r = 0; r < RINGS; r++) {
        const char *first = (const char *)farm->lanes.rings[r].up.header, *again = registered.rings[r].again;
        const size_t last = farm->lanes.rings[r].up.bytes - 1;
        cr_assert_neq(first, again);
        cr_assert_eq(farm_cuda_address(&registered, r, FARM_CUDA_UP, first + last), again + last);
        rights_of(again, rights);
        cr_assert_str_eq(rights, "r--s");
        rights_of(again + last, rights);
        cr_assert_str_eq(rights, "r--s");
    }
    const char *again = registered.rings[0].again;
    cr_assert_gt(farm_emulator_account().registered, 2 * RINGS, "several pieces per segment");
    farm_cuda_unregister(&registered);
    farm_cuda_unregister(&registered); // safe twice
    rights_of(again, rights);
    cr_assert_str_eq(rights, "none");
    expect_nothing_left();
}

Test(cuda_registered, maps_nothing_again_if_read_only_memory_is_registered_or_a_descriptor_is_missing) {
    with_farm *farm = open_farm(usual_setting(true, 1));
    struct farm_cuda_registered registered;
    rig_lend_writable(farm);
    cr_assert_eq(farm_cuda_register(&farm->lanes, 0, 0, 0, &registered, &farm->err), FARM_OK);
    cr_assert(!registered.again && !registered.bounced[FARM_CUDA_UP]);
    farm_cuda_unregister(&registered);
    farm_lanes_lend_writable(&farm->lanes, 1, -1); // one is missing
    farm_emulator.refuse_read_only = 1;
    cr_assert_eq(farm_cuda_register(&farm->lanes, 0, 0, 0, &registered, &farm->err), FARM_OK);
    cr_assert(!registered.again && registered.bounced[FARM_CUDA_UP] && !registered.bounced[FARM_CUDA_DOWN]);
    farm_cuda_unregister(&registered);
    expect_nothing_left();
}

Test(cuda_registered, a_ring_without_a_writable_descriptor_is_refused) {
    with_farm *farm = open_lent(usual_setting(true, 1));
    farm->ops->leave(farm->backend, 1);
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_E_INVALID);
    cr_assert(strstr(farm->err.message, "writable descriptor") != NULL, "%s", farm->err.message);
    rig_lend_writable(farm);
    farm_emulator.refuse_registration = 1;
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_E_LIMIT);
    farm_emulator.refuse_registration = 0;
    cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
}

// ---- while the others are served ----

static uint64_t stop_asked;

// Answers ring 0's newest step, and trains on its newest window, again and again.
static void *infer_on(void *context) {
    struct rig *farm = context;
    struct farm_error err;
    struct farm_policy_rows rows[LANES];
    for (uint32_t l = 0; l < LANES; l++)
        rows[l] =
            (struct farm_policy_rows){.lane = rig_lane(farm, l), .lane_id = l, .n = farm->n - 1, .env_count = WIDTH};
    while (!farm_load_relaxed(&stop_asked))
        if (farm->ops->infer(farm->backend, 0, rows, LANES, &err)) return farm;
    return NULL;
}

static void *train_on(void *context) {
    struct rig *farm = context;
    struct farm_error err;
    struct farm_pass_stats stats;
    struct farm_window windows[LANES];
    for (uint32_t l = 0; l < LANES; l++)
        windows[l] = (struct farm_window){.lane = rig_lane(farm, l), .lane_id = l, .env_count = WIDTH};
    while (!farm_load_relaxed(&stop_asked))
        if (test_train(farm->ops, farm->backend, windows, LANES, 1e-3, ++farm->version, &stats, &err)) return farm;
    return NULL;
}

Test(cuda_registered, rings_join_and_leave_while_others_are_answered_and_trained_on) {
    struct setting setting = usual_setting(true, 1);
    setting.infer_batch_max = LANES * WIDTH;
    setting.batch = LANES * WIDTH;
    with_farm *farm = open_lent(setting);
    play_to(farm, UNROLL + 2);
    pthread_t inference, training;
    void *failed[2];
    cr_assert_eq(pthread_create(&inference, NULL, infer_on, farm), 0);
    cr_assert_eq(pthread_create(&training, NULL, train_on, farm), 0);
    for (int i = 0; i < 20; i++) {
        farm->ops->leave(farm->backend, 1);
        rig_lend_writable(farm);
        cr_assert_eq(farm->ops->join(farm->backend, 1, &farm->err), FARM_OK, "%s", farm->err.message);
        farm_lanes_end_writable(&farm->lanes);
    }
    farm_store_relaxed(&stop_asked, 1);
    pthread_join(inference, &failed[0]);
    pthread_join(training, &failed[1]);
    cr_assert(!failed[0] && !failed[1]);
    cr_assert_gt(farm->version, 0);
    cr_assert_eq(play_step(farm), FARM_OK, "%s", farm->err.message); // all lanes, also of the ring that joined again
}
