// Rings and doorbells where the machine refuses: every call that can fail made to fail in turn.
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "../support/faults.h"
#include "ring/wait.h"

TestSuite(ring, .timeout = 60);

static void check_nothing_left(const struct farm_sweep *sweep, const struct farm_fault *fault) {
    const char *left = farm_sweep_left(sweep, fault);
    cr_assert_null(left, "%s", left);
}

static bool is(const struct farm_fault *fault, const char *call) {
    return fault->call && strcmp(fault->call, call) == 0;
}

static void check_error(const struct farm_fault *fault, enum farm_status status, const struct farm_error *err) {
    cr_assert(fault->call, "failed undisturbed: %s", err->message);
    cr_assert_eq(err->status, status);
    cr_assert(status == FARM_E_LIMIT || status == FARM_E_IO || status == FARM_E_UNSUPPORTED || is(fault, "fcntl"),
              "%s: %s, %s", fault->call, farm_status_name(status), err->message);
    if (fault->error == ENOMEM && !is(fault, "madvise")) cr_assert_eq(status, FARM_E_LIMIT, "%s", err->message);
    cr_assert_gt(strlen(err->message), 20);
}

Test(ring, creating_survives_the_failure_of_every_call) {
    struct farm_ring_spec spec = spec_rich(3, 2, 9);
    struct farm_sweep sweep = {0};
    unsigned down_faults = 0;
    while (farm_sweep_next(&sweep)) {
        struct farm_ring ring;
        struct farm_error err = {0};
        enum farm_status status = farm_ring_create(&spec, 3, -1, false, &ring, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            check_error(&fault, status, &err);
            cr_assert_null(ring.lanes);
            cr_assert(ring.up.fd == -1 && ring.down.fd == -1);
            down_faults += strstr(err.message, "'down' of actor 3") != NULL;
        } else {
            cr_assert_eq(ring.lanes[2].steps, 9);
            farm_lane_flags(&ring.lanes[2], 8)[1] = 1;
        }
        farm_ring_close(&ring);
        check_nothing_left(&sweep, &fault);
    }
    cr_assert_gt(sweep.faults, 30);
    cr_assert_gt(down_faults, 8, "the first segment was there already, and is gone");
}

static void sweep_open(const struct farm_ring *created, enum farm_ring_side side) {
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_ring ring;
        struct farm_error err = {0};
        int up = dup(side == FARM_RING_ACTOR ? created->up.fd : created->up.fd_readonly);
        int down = dup(side == FARM_RING_LEARNER ? created->down.fd : created->down.fd_readonly);
        enum farm_status status = farm_ring_open(up, down, side, &ring, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            check_error(&fault, status, &err);
            cr_assert_null(ring.lanes);
            cr_assert(fcntl(up, F_GETFD) >= 0 && fcntl(down, F_GETFD) >= 0, "the descriptors stay the caller's");
            close(up), close(down);
        } else {
            cr_assert_eq(ring.spec.width, 2);
            cr_assert_eq(farm_lane_produced(&ring.lanes[1]), 0);
        }
        farm_ring_close(&ring);
        check_nothing_left(&sweep, &fault);
    }
    cr_assert_gt(sweep.faults, 20);
}

Test(ring, opening_survives_the_failure_of_every_call_on_every_side) {
    with_ring created = ring_of(spec_rich(2, 2, 5), 1);
    sweep_open(&created, FARM_RING_ACTOR);
    sweep_open(&created, FARM_RING_LEARNER);
    sweep_open(&created, FARM_RING_OBSERVER);
}

Test(ring, doorbells_survive_want_of_memory) {
    with_ring ring = ring_of(spec_of(1, 1, 4), 1);
    struct farm_ring *rings[] = {&ring};
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_doorbells bells;
        struct farm_error err;
        enum farm_status status = farm_doorbells_make(&bells, rings, 1, -1, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            check_error(&fault, status, &err);
            cr_assert(strstr(err.message, "no memory for 1 doorbells"), "%s", err.message);
        }
        farm_doorbells_free(&bells);
        check_nothing_left(&sweep, &fault);
    }
    cr_assert_eq(sweep.faults, 1);
}

Test(ring, no_doorbells_at_all_are_possible) {
    struct farm_doorbells bells;
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_eq(farm_doorbells_make(&bells, NULL, 0, bell, NULL), FARM_OK);
    cr_assert(!farm_doorbells_wait(&bells, 0, 1000000));
    cr_assert_eq(farm_doorbells_poll(&bells, NULL), 0);
    farm_doorbells_free(&bells);
    close(bell);
}

// ---- the learner's sleep, disturbed ----

struct sleeper {
    struct views views;
    struct farm_ring *rings[1];
    struct farm_doorbells bells;
    int bell;
};

static void open_sleeper(struct sleeper *s) {
    s->views = views_of(spec_of(1, 1, 4));
    s->rings[0] = &s->views.learner;
    s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_eq(farm_doorbells_make(&s->bells, s->rings, 1, s->bell, NULL), FARM_OK);
    uint32_t rung[1];
    farm_doorbells_poll(&s->bells, rung);
}

static void close_sleeper(struct sleeper *s) {
    farm_doorbells_free(&s->bells);
    close(s->bell);
    close_views(&s->views);
}

Test(ring, a_sleep_that_a_signal_or_a_thief_cuts_short_goes_on) {
    struct sleeper s;
    open_sleeper(&s);
    farm_faults_fail("ppoll", 1, 3, EINTR);
    cr_assert(!farm_doorbells_wait(&s.bells, 0, 5000000), "nobody has rung");
    cr_assert_eq(farm_faults_made("ppoll"), 3);
    // The bell's count is there, and gone when it is read: some actor has read it.
    farm_faults_fail("preadv2", 1, 2, EAGAIN);
    uint64_t one = 1;
    cr_assert_eq(write(s.bell, &one, sizeof one), (ssize_t)sizeof one);
    cr_assert(!farm_doorbells_wait(&s.bells, 0, 5000000), "rung without a bell");
    cr_assert_eq(farm_faults_made("preadv2"), 2);
    publish_step(&s.views.actor.lanes[0], true);
    cr_assert(farm_doorbells_wait(&s.bells, 0, 5000000));
    close_sleeper(&s);
}

Test(ring, a_bell_that_is_none_ends_the_learner, .signal = SIGABRT) {
    struct sleeper s;
    open_sleeper(&s);
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    s.bells.eventfd = ends[0];
    close(ends[1]); // readable for ever, and not a bell
    farm_faults_fail("preadv2", 1, 1, EINVAL);
    farm_doorbells_wait(&s.bells, 0, 1000000000);
}

Test(ring, an_actor_gives_up_spinning_at_its_time_and_when_it_is_told_to_stop) {
    with_views v = views_of(spec_of(1, 1, 4));
    publish_step(&v.actor.lanes[0], true);
    cr_assert(!farm_actor_wait(&v.actor, NULL, UINT64_MAX, 2000000, NULL), "no answer in time");
    answer_step(&v.learner.lanes[0]);
    cr_assert(farm_actor_wait(&v.actor, NULL, UINT64_MAX, 2000000, NULL), "which lane, it need not be told");
    publish_step(&v.actor.lanes[0], false);
    pid_t stopper = fork();
    if (stopper == 0) {
        struct farm_ring learner = open_view(&v.creator, FARM_RING_LEARNER);
        usleep(20000);
        farm_store_relaxed(&learner.down_control->stop, 1);
        _exit(0);
    }
    cr_assert(!farm_actor_wait(&v.actor, NULL, UINT64_MAX, UINT64_MAX, NULL), "it would spin for ever");
    cr_assert_eq(wait_for(stopper), 0);
}
