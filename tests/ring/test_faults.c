// Rings and doorbells on a machine that refuses: each call that can fail fails in turn.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "../support/rings.h"
#include "../support/sweep.h"
#include "ring/wait.h"

TestSuite(ring, .timeout = 60);

struct ring_trial {
    struct farm_ring_spec spec;
    const struct farm_ring *made;
    enum farm_ring_side side;
    int up, down;
    struct farm_ring ring;
    unsigned down_faults; // errors of the second segment
};

static enum farm_status create_ring(void *context, struct farm_error *err) {
    struct ring_trial *trial = context;
    return farm_ring_create(&trial->spec, 3, -1, false, &trial->ring, err);
}

static void finish_created(void *context, enum farm_status status, const struct farm_fault *fault,
                           const struct farm_error *err) {
    struct ring_trial *trial = context;
    if (status) {
        cr_assert(!trial->ring.lanes && trial->ring.up.fd == -1 && trial->ring.down.fd == -1);
        trial->down_faults += strstr(err->message, "'down' of actor 3") != NULL;
    } else {
        cr_assert_eq(trial->ring.lanes[2].steps, 9);
        farm_lane_flags(&trial->ring.lanes[2], 8)[1] = 1;
    }
    farm_ring_close(&trial->ring);
}

Test(ring, creating_survives_the_failure_of_every_call) {
    const struct farm_trial trial = {create_ring, finish_created, segment_outcomes, false};
    struct ring_trial context = {.spec = spec_rich(3, 2, 9)};
    cr_assert_gt(sweep_calls(&trial, &context), 30);
    cr_assert_gt(context.down_faults, 8, "the first segment existed then, and was released");
}

static enum farm_status open_ring(void *context, struct farm_error *err) {
    struct ring_trial *trial = context;
    trial->up = dup(trial->side == FARM_RING_ACTOR ? trial->made->up.fd : trial->made->up.fd_readonly);
    trial->down = dup(trial->side == FARM_RING_LEARNER ? trial->made->down.fd : trial->made->down.fd_readonly);
    return farm_ring_open(trial->up, trial->down, trial->side, &trial->ring, err);
}

static void finish_opened(void *context, enum farm_status status, const struct farm_fault *fault,
                          const struct farm_error *err) {
    struct ring_trial *trial = context;
    if (status) {
        cr_assert_null(trial->ring.lanes);
        cr_assert(!close(trial->up) && !close(trial->down), "the descriptors still belong to the caller");
    } else {
        cr_assert_eq(trial->ring.spec.width, 2);
        cr_assert_eq(farm_lane_produced(&trial->ring.lanes[1]), 0);
    }
    farm_ring_close(&trial->ring);
}

Test(ring, opening_survives_the_failure_of_every_call_on_every_side) {
    static const enum farm_ring_side sides[] = {FARM_RING_ACTOR, FARM_RING_LEARNER, FARM_RING_OBSERVER};
    const struct farm_trial trial = {open_ring, finish_opened, segment_outcomes, false};
    with_ring made = ring_of(spec_rich(2, 2, 5), 1);
    for (int i = 0; i < 3; i++)
        cr_assert_gt(sweep_calls(&trial, &(struct ring_trial){.made = &made, .side = sides[i]}), 20);
}

// ---- the learner's sleep, disturbed ----

struct sleeper {
    struct views views;
    struct farm_ring *rings[1];
    struct farm_doorbells bells;
};

static void open_sleeper(struct sleeper *s) {
    uint32_t rung[1];
    s->views = views_of(spec_of(1, 1, 4));
    s->rings[0] = &s->views.learner;
    const int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_eq(farm_doorbells_make(&s->bells, s->rings, 1, bell, NULL), FARM_OK);
    farm_doorbells_poll(&s->bells, rung);
}

Test(ring, doorbells_need_memory_but_no_ring) {
    struct farm_doorbells bells;
    struct farm_error err;
    farm_faults_fail("calloc", 1, 1, ENOMEM);
    cr_assert_eq(farm_doorbells_make(&bells, NULL, 1, -1, &err), FARM_E_LIMIT);
    cr_assert(strstr(err.message, "no memory for 1 doorbells"), "%s", err.message);
    cr_assert_eq(farm_doorbells_make(&bells, NULL, 0, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), NULL), FARM_OK);
    cr_assert_not(farm_doorbells_wait(&bells, 0, 1000000));
    cr_assert_eq(farm_doorbells_poll(&bells, NULL), 0);
    close(bells.eventfd);
    farm_doorbells_free(&bells);
}

Test(ring, a_sleep_that_a_signal_or_a_thief_interrupts_continues) {
    struct sleeper s;
    open_sleeper(&s);
    farm_faults_fail("ppoll", 1, 3, EINTR);
    cr_assert_not(farm_doorbells_wait(&s.bells, 0, 5000000));
    cr_assert_eq(farm_faults_made("ppoll"), 3);
    farm_faults_fail("preadv2", 1, 2, EAGAIN); // an actor has read the count that ppoll saw
    uint64_t one = 1;
    cr_assert_eq(write(s.bells.eventfd, &one, sizeof one), (ssize_t)sizeof one);
    cr_assert_not(farm_doorbells_wait(&s.bells, 0, 5000000), "no actor has rung");
    cr_assert_eq(farm_faults_made("preadv2"), 2);
    publish_step(&s.views.actor.lanes[0], true);
    cr_assert(farm_doorbells_wait(&s.bells, 0, 5000000));
    close(s.bells.eventfd);
    farm_doorbells_free(&s.bells);
    close_views(&s.views);
}

Test(ring, a_descriptor_that_is_not_an_eventfd_aborts_the_learner, .signal = SIGABRT) {
    struct sleeper s;
    open_sleeper(&s);
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    s.bells.eventfd = ends[0];
    close(ends[1]); // always readable
    farm_faults_fail("preadv2", 1, 1, EINVAL);
    farm_doorbells_wait(&s.bells, 0, 1000000000);
}
