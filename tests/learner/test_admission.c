// Rings that join and leave while the learner answers and trains. The learner is a forked process; this test is the
// supervisor and every actor. Parameters stay as they are (a learning rate of 0), so each answer can be checked against
// a forward pass.
#include "../support/test_farm.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "intake/admission.h"

static struct test_farm farm;
static int admission, learners_end;
static uint32_t checked; // answers
static bool idle;        // no actor steps

static void set_up(uint32_t rings, uint32_t batch) {
    struct farm_error err = {0};
    test_farm_open(&farm, rings, FARM_ANSWERS_CENTRAL);
    cr_assert_eq(farm_admission_make(&admission, &learners_end, &err), FARM_OK, "%s", err.message);
    farm.config.rings.admission = learners_end;
    farm.config.rings.spec = &farm.spec;
    farm.config.algo.batch = batch;
    farm.config.algo.lr = farm.config.algo.lr_end = 0;
    farm.config.inference.batch_max = 2 * WIDTH + 1; // lanes are answered in parts
}

static void tear_down(void) {
    test_farm_close(&farm);
    close(admission);
    close(learners_end);
}

TestSuite(admission, .fini = tear_down, .timeout = 60);

// ---- the actors ----

static void step_actors(void) {
    char name[32];
    for (uint32_t i = 0; i < PLACES * LANES && !idle; i++) {
        const uint32_t r = i / LANES, l = i % LANES;
        if (!farm.there[r]) continue;
        struct farm_lane *lane = &farm.views[r].lanes[l];
        const uint64_t n = farm_lane_actor_next(lane);
        if (farm_lane_acted(lane) != n || !farm_lane_actor_can_write(lane)) continue;
        if (n % 16 == 1) {
            snprintf(name, sizeof name, "actor %u lane %u", r, l);
            test_expect_lane_answers(&farm.config, NULL, lane, n - 1, name);
            checked++;
        }
        test_actor_step(&farm.actors[r], l);
        cr_assert(!farm.actors[r].wrong[0], "actor %u: %s", r, farm.actors[r].wrong);
    }
}

static uint64_t least_acted(uint32_t r) {
    const uint64_t first = farm_lane_acted(&farm.views[r].lanes[0]), second = farm_lane_acted(&farm.views[r].lanes[1]);
    return first < second ? first : second;
}

// Until all lanes of every present actor have `more` further answers. For more than STEPS of them training must
// release windows.
static void act_until_answered(uint64_t more) {
    uint64_t goal[PLACES];
    const uint64_t start = farm_now_ns();
    for (uint32_t r = 0; r < PLACES; r++) goal[r] = farm.there[r] ? least_acted(r) + more : 0;
    for (uint32_t r = 0; r < PLACES; r++)
        while (farm.there[r] && least_acted(r) < goal[r]) {
            step_actors();
            cr_assert_lt(farm_now_ns() - start, TEST_LIMIT_NS, "actor %u has %lu of %lu answers", r, least_acted(r),
                         goal[r]);
        }
}

// These rings and their learner, after `steps` answers of each.
static void start_farm(uint32_t rings, uint32_t batch, uint64_t steps) {
    set_up(rings, batch);
    test_farm_launch(&farm);
    act_until_answered(steps);
}

// ---- the supervisor ----

static struct farm_admission_reply receive_reply(uint32_t r) {
    struct farm_admission_reply reply;
    for (const uint64_t start = farm_now_ns(); !farm_admission_receive_reply(admission, &reply);) {
        cr_assert_lt(farm_now_ns() - start, TEST_LIMIT_NS, "no reply about actor %u", r);
        step_actors();
    }
    cr_assert_eq(reply.ring, r);
    return reply;
}

// `wake`: of a bridge in the actor's place; -1: none.
static struct farm_admission_reply send_request(enum farm_admission_kind kind, uint32_t r, int wake) {
    struct farm_admission_request request = {.kind = kind, .ring = r, .up_writable = -1, .wake = wake};
    struct farm_error err = {0};
    if (kind == FARM_ADMISSION_JOIN) {
        request.fds[0] = farm.made[r % PLACES].up.fd_readonly;
        request.fds[1] = farm.made[r % PLACES].down.fd;
    }
    cr_assert_eq(farm_admission_send_request(admission, &request, &err), FARM_OK, "%s", err.message);
    return receive_reply(r);
}

static void join_with(uint32_t r, int wake) {
    test_farm_add(&farm, r);
    farm.there[r] = false; // it acts from the reply on
    const struct farm_admission_reply reply = send_request(FARM_ADMISSION_JOIN, r, wake);
    cr_assert_eq(reply.status, FARM_OK, "%s", reply.error.message);
    farm.there[r] = true;
}

static void join_ring(uint32_t r) {
    join_with(r, -1);
}

// The ring stays open.
static void leave_ring(uint32_t r) {
    const struct farm_admission_reply reply = send_request(FARM_ADMISSION_LEAVE, r, -1);
    cr_assert_eq(reply.status, FARM_OK, "%s", reply.error.message);
    farm.there[r] = false;
}

static void leave_and_close(uint32_t r) {
    leave_ring(r);
    test_farm_remove(&farm, r);
}

static void expect_refused(enum farm_admission_kind kind, uint32_t r, enum farm_status status, const char *why) {
    const struct farm_admission_reply reply = send_request(kind, r, -1);
    cr_assert_eq(reply.status, status, "%d: %s", reply.status, reply.error.message);
    cr_assert(strstr(reply.error.message, why) != NULL, "no '%s' in: %s", why, reply.error.message);
}

// ---- what the learner holds ----

static uint32_t descriptors_of(pid_t pid) {
    char path[64];
    uint32_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    cr_assert(folder != NULL);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static bool maps_file(pid_t pid, int fd) {
    char path[64], line[512], number[64];
    struct stat status;
    bool found = false;
    cr_assert_eq(fstat(fd, &status), 0);
    snprintf(number, sizeof number, " %lu ", (unsigned long)status.st_ino);
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL);
    while (fgets(line, sizeof line, file)) found |= strstr(line, number) != NULL && strstr(line, "memfd:") != NULL;
    fclose(file);
    return found;
}

static bool maps_ring(uint32_t r) {
    const bool up = maps_file(farm.learner, farm.made[r].up.fd);
    cr_assert_eq(up, maps_file(farm.learner, farm.made[r].down.fd));
    return up;
}

// ---- tests ----

Test(admission, actors_that_join_are_answered_and_trained_on) {
    start_farm(2, LANES * WIDTH, 2 * STEPS);
    join_ring(2);
    join_ring(3);
    const uint64_t updates = test_farm_updates(&farm);
    act_until_answered(3 * STEPS);
    cr_assert_gt(test_farm_updates(&farm), updates);
    cr_assert_gt(checked, 20);
}

Test(admission, the_learner_closes_the_ring_of_an_actor_that_leaves_and_the_others_go_on) {
    start_farm(3, LANES * WIDTH, 2 * STEPS);
    const uint32_t descriptors = descriptors_of(farm.learner);
    cr_assert(maps_ring(1));
    leave_ring(1);
    cr_assert_not(maps_ring(1));
    cr_assert_eq(descriptors_of(farm.learner), descriptors - 2);
    const uint64_t acted = farm_lane_acted(&farm.views[1].lanes[0]);
    act_until_answered(3 * STEPS);
    cr_assert_eq(farm_lane_acted(&farm.views[1].lanes[0]), acted, "answered after it left");
    test_farm_remove(&farm, 1);
    join_ring(1); // another actor in the same place
    act_until_answered(3 * STEPS);
    cr_assert_eq(descriptors_of(farm.learner), descriptors);
}

// An update is larger than the windows of one actor, so some of the one that leaves always wait.
Test(admission, windows_that_wait_leave_with_their_actor) {
    set_up(3, 3 * LANES * WIDTH + 1);
    test_farm_launch(&farm);
    for (int i = 0; i < 12; i++) {
        act_until_answered(UNROLL + 2);
        leave_and_close(2);
        act_until_answered(UNROLL + 2);
        join_ring(2);
    }
    act_until_answered(3 * STEPS);
    cr_assert_gt(test_farm_updates(&farm), 3);
    test_farm_end(&farm, SIGTERM);
    cr_assert_eq(farm.shared->stats.windows, farm.shared->stats.updates * farm.config.algo.batch);
}

Test(admission, actors_join_and_leave_at_any_moment) {
    start_farm(2, LANES * WIDTH - 1, 1);
    const uint32_t descriptors = descriptors_of(farm.learner);
    for (uint32_t i = 0; i < 60; i++) {
        const uint32_t r = 1 + (uint32_t)(farm_random_mix(i) % (PLACES - 1));
        if (farm.there[r])
            leave_and_close(r);
        else
            join_ring(r);
        for (uint64_t turns = farm_random_mix(i + 1000) % 30; turns > 0; turns--) step_actors();
    }
    for (uint32_t r = 1; r < PLACES; r++)
        if (farm.there[r]) leave_and_close(r);
    cr_assert_eq(descriptors_of(farm.learner), descriptors - 2);
    join_ring(1);
    act_until_answered(2 * STEPS);
}

Test(admission, what_cannot_be_done_is_refused_and_changes_nothing) {
    start_farm(2, LANES * WIDTH, STEPS);
    expect_refused(FARM_ADMISSION_JOIN, 1, FARM_E_INVALID, "no vacant place 1");
    expect_refused(FARM_ADMISSION_JOIN, 7 * PLACES, FARM_E_INVALID, "no vacant place 28");
    expect_refused(FARM_ADMISSION_LEAVE, 2, FARM_E_NOT_FOUND, "no actor 2");
    expect_refused(FARM_ADMISSION_LEAVE, 99, FARM_E_NOT_FOUND, "no actor 99");
    farm.spec.width++;
    test_farm_add(&farm, 2);
    farm.there[2] = false;
    const uint32_t descriptors = descriptors_of(farm.learner);
    expect_refused(FARM_ADMISSION_JOIN, 2, FARM_E_INVALID, "another shape");
    cr_assert_eq(descriptors_of(farm.learner), descriptors);
    test_farm_remove(&farm, 2);
    const uint32_t no_descriptors[4] = {FARM_ADMISSION_JOIN, 3, 0, 0}, unknown[4] = {77, 3, 0, 0};
    cr_assert_eq(send(admission, no_descriptors, sizeof no_descriptors, 0), sizeof no_descriptors);
    cr_assert_eq(receive_reply(3).status, FARM_E_LIMIT);
    cr_assert_eq(send(admission, unknown, sizeof unknown, 0), sizeof unknown);
    cr_assert_eq(send(admission, unknown, 5, 0), 5);
    act_until_answered(2 * STEPS);
}

// The learner can open no further descriptor.
Test(admission, a_ring_whose_descriptors_find_no_room_is_refused) {
    struct rlimit before, tight;
    start_farm(1, LANES * WIDTH, STEPS);
    const uint32_t descriptors = descriptors_of(farm.learner);
    test_farm_add(&farm, 1);
    farm.there[1] = false;
    for (rlim_t more = 0; more < 2; more++) {
        cr_assert_eq(prlimit(farm.learner, RLIMIT_NOFILE, NULL, &before), 0);
        tight = before;
        tight.rlim_cur = descriptors - 2 + more; // the count includes "." and ".."
        cr_assert_eq(prlimit(farm.learner, RLIMIT_NOFILE, &tight, NULL), 0);
        expect_refused(FARM_ADMISSION_JOIN, 1, FARM_E_LIMIT, "ulimit -n");
        cr_assert_eq(prlimit(farm.learner, RLIMIT_NOFILE, &before, NULL), 0);
        cr_assert_eq(descriptors_of(farm.learner), descriptors);
    }
    cr_assert_eq(send_request(FARM_ADMISSION_JOIN, 1, -1).status, FARM_OK);
    farm.there[1] = true;
    act_until_answered(2 * STEPS);
}

// The learner writes to the bridge's eventfd when it has answered, if the bridge has announced that it sleeps.
static void expect_woken(uint32_t r, int wake) {
    struct pollfd look = {.fd = wake, .events = POLLIN};
    uint64_t count;
    farm_actor_announce(&farm.views[r], true);
    act_until_answered(1);
    cr_assert_eq(poll(&look, 1, 10000), 1, "the bridge of actor %u is not woken", r);
    farm_actor_announce(&farm.views[r], false);
    cr_assert_eq(read(wake, &count, sizeof count), sizeof count);
}

Test(admission, a_bridge_in_an_actors_place_is_woken_by_its_eventfd) {
    const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), wake_fds[PLACES] = {-1, wake, -1, -1};
    set_up(2, LANES * WIDTH);
    farm.config.rings.wake_fds = wake_fds;
    test_farm_launch(&farm);
    act_until_answered(STEPS);
    const uint32_t descriptors = descriptors_of(farm.learner);
    expect_woken(1, wake);
    for (uint32_t r = 2; r < PLACES; r++) {
        join_with(r, wake);
        cr_assert_eq(descriptors_of(farm.learner), descriptors + 3);
        expect_woken(r, wake);
        leave_and_close(r);
        cr_assert_eq(descriptors_of(farm.learner), descriptors);
    }
    leave_and_close(1);
    cr_assert_eq(descriptors_of(farm.learner), descriptors - 3);
    close(wake);
}

// No actor rings, and inference sleeps for longer than the test may take.
Test(admission, rings_join_and_leave_while_inference_sleeps) {
    set_up(0, LANES * WIDTH);
    farm.config.inference.nap_ns = 100 * TEST_LIMIT_NS;
    idle = true;
    test_farm_launch(&farm);
    for (uint32_t i = 0; i < 20; i++) {
        join_ring(i % PLACES);
        leave_and_close(i % PLACES);
    }
    test_farm_end(&farm, SIGKILL); // it would see SIGTERM after its nap
}

// Without a ring, with too few for an update, with enough; and without again.
static void expect_waits_for_rings(enum farm_regime regime, uint32_t batch, uint32_t rings) {
    set_up(0, batch);
    farm.config.algo.regime = regime;
    test_farm_launch(&farm);
    for (int round = 0; round < 2; round++) {
        for (uint32_t r = 1; r < rings; r++) {
            join_ring(r);
            act_until_answered(UNROLL); // answered although no update can be filled
        }
        const uint64_t updates = test_farm_updates(&farm);
        join_ring(rings);
        act_until_answered(2 * STEPS);
        cr_assert_gt(test_farm_updates(&farm), updates);
        for (uint32_t r = 1; r <= rings; r++) leave_and_close(r);
    }
}

Test(admission, a_learner_waits_without_rings_and_with_too_few) {
    const uint32_t windows = (STEPS - UNROLL - 1) / UNROLL + 1; // in a lane
    expect_waits_for_rings(FARM_REGIME_ASYNC, 2 * LANES * WIDTH * windows - WIDTH, 2);
}

Test(admission, a_synchronous_learner_waits_without_rings) {
    expect_waits_for_rings(FARM_REGIME_SYNC, LANES * WIDTH, 1);
}

Test(admission, a_learner_that_comes_back_has_the_rings_that_are_there_and_gets_no_old_request) {
    start_farm(2, LANES * WIDTH, STEPS);
    join_ring(3);
    leave_ring(0);
    act_until_answered(STEPS);
    test_farm_end(&farm, SIGKILL);
    struct farm_error err;
    const struct farm_admission_request old = {.kind = FARM_ADMISSION_JOIN,
                                               .ring = 0,
                                               .fds = {farm.made[0].up.fd_readonly, farm.made[0].down.fd},
                                               .up_writable = -1,
                                               .wake = -1};
    const uint32_t descriptors = descriptors_of(getpid());
    cr_assert_eq(farm_admission_send_request(admission, &old, &err), FARM_OK);
    farm_admission_clear(admission, learners_end);
    cr_assert_eq(descriptors_of(getpid()), descriptors);
    test_farm_launch(&farm);
    act_until_answered(2 * STEPS);
    cr_assert_not(maps_ring(0));
    test_farm_remove(&farm, 0);
    join_ring(0);
    act_until_answered(2 * STEPS);
}

Test(admission, actors_cannot_join_an_evaluation) {
    struct farm_error err = {0};
    set_up(1, LANES * WIDTH);
    test_farm_lend(&farm);
    cr_assert_eq(farm_run_player(&farm.config, &(struct farm_run_play){.games = 1}, &err), 1);
    cr_assert(strstr(err.message, "evaluation") != NULL, "%s", err.message);
}
