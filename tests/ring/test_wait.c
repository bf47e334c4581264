// Sleeping and waking: nobody sleeps through what it waits for, nobody is woken who does not sleep.
#include "fixture.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include "base/time.h"
#include "ring/wait.h"

TestSuite(ring, .timeout = 30);

static const uint64_t MS = 1000000, LONG_NS = 3600 * 1000000000ull; // the suite's time-out comes first

// Somebody who waits in a thread, and what came of it.
struct waiter {
    struct farm_ring *ring;
    struct farm_lane *lane; // NULL: any
    struct farm_doorbells *bells;
    uint64_t spin_ns, timeout_ns;
    bool result;
    uint32_t ready;
    pthread_t thread;
};

static void *actor_waits(void *argument) {
    struct waiter *waiter = argument;
    waiter->result = farm_actor_wait(waiter->ring, waiter->lane, waiter->spin_ns, waiter->timeout_ns, &waiter->ready);
    return NULL;
}

static void *learner_waits(void *argument) {
    struct waiter *waiter = argument;
    waiter->result = farm_doorbells_wait(waiter->bells, waiter->spin_ns, waiter->timeout_ns);
    return NULL;
}

static void start(struct waiter *waiter, void *(*body)(void *)) {
    cr_assert_eq(pthread_create(&waiter->thread, NULL, body, waiter), 0);
}

static bool finish(struct waiter *waiter) {
    pthread_join(waiter->thread, NULL);
    return waiter->result;
}

// Until the word says that its writer sleeps, or is about to.
static void until_asleep(const uint64_t *asleep) {
    while (!farm_load_acquire(asleep)) sched_yield();
    usleep(2000); // let it get there
}

// A ring whose lane 0 waits for an answer, and lane 1 for a slot.
static struct views waiting_views(void) {
    struct views v = views_of(spec_of(2, 1, 2));
    publish_step(&v.actor.lanes[0], true);
    publish_step(&v.actor.lanes[1], true);
    answer_step(&v.learner.lanes[1]);
    publish_step(&v.actor.lanes[1], false);
    answer_step(&v.learner.lanes[1]);
    return v;
}

Test(ring, an_answer_wakes_a_sleeping_actor) {
    with_views v = waiting_views();
    struct waiter waiter = {.ring = &v.actor, .lane = &v.actor.lanes[0], .timeout_ns = LONG_NS};
    start(&waiter, actor_waits);
    until_asleep(&v.learner.up_control->asleep);
    answer_step(&v.learner.lanes[0]);
    farm_learner_notify(&v.learner);
    cr_assert(finish(&waiter));
    cr_assert_eq(farm_load_acquire(&v.learner.up_control->asleep), 0, "awake again");
}

Test(ring, a_release_wakes_an_actor_that_waits_for_a_slot) {
    with_views v = waiting_views();
    struct waiter waiter = {.ring = &v.actor, .lane = &v.actor.lanes[1], .timeout_ns = LONG_NS};
    start(&waiter, actor_waits);
    until_asleep(&v.learner.up_control->asleep);
    farm_lane_release(&v.learner.lanes[1], 1);
    farm_learner_notify(&v.learner);
    cr_assert(finish(&waiter));
}

static bool is_rung(int eventfd) {
    uint64_t count;
    return read(eventfd, &count, sizeof count) == sizeof count;
}

Test(ring, an_answer_wakes_the_bridge_in_an_actors_place_by_its_eventfd) {
    with_views v = waiting_views();
    v.learner.wake_fd = eventfd(0, EFD_NONBLOCK);
    farm_learner_notify(&v.learner);
    cr_assert_not(is_rung(v.learner.wake_fd), "it is awake");
    farm_actor_announce(&v.actor, true);
    farm_learner_notify(&v.learner);
    farm_learner_notify(&v.learner);
    cr_assert(is_rung(v.learner.wake_fd));
    cr_assert_eq(farm_load32_acquire(&v.learner.down_control->wake), 0, "the futex is another actor's way");
    farm_actor_announce(&v.actor, false);
    farm_learner_notify(&v.learner);
    cr_assert_not(is_rung(v.learner.wake_fd));
    close(v.learner.wake_fd);
}

Test(ring, an_actor_that_waits_for_any_lane_learns_which) {
    with_views v = waiting_views();
    struct waiter waiter = {.ring = &v.actor, .timeout_ns = LONG_NS, .ready = 1};
    start(&waiter, actor_waits);
    until_asleep(&v.learner.up_control->asleep);
    farm_lane_release(&v.learner.lanes[1], 1);
    farm_learner_notify(&v.learner);
    cr_assert(finish(&waiter));
    cr_assert_eq(waiter.ready, 1);
}

Test(ring, ready_lanes_are_served_in_turn) {
    with_views v = views_of(spec_of(4, 1, 2)); // nothing published: every lane is ready
    publish_step(&v.actor.lanes[2], true);     // but this one
    uint32_t ready = UINT32_MAX, wanted[] = {0, 1, 3, 0, 1, 3};
    for (size_t i = 0; i < 6; i++) {
        cr_assert(farm_actor_wait(&v.actor, NULL, 0, LONG_NS, &ready));
        cr_assert_eq(ready, wanted[i]);
    }
}

Test(ring, a_wake_up_for_another_lane_leaves_the_actor_asleep) {
    with_views v = waiting_views();
    struct waiter waiter = {.ring = &v.actor, .lane = &v.actor.lanes[0], .timeout_ns = 60 * MS};
    start(&waiter, actor_waits);
    until_asleep(&v.learner.up_control->asleep);
    farm_lane_release(&v.learner.lanes[1], 1);
    farm_learner_notify(&v.learner);
    cr_assert_not(finish(&waiter), "lane 0 still has no answer");
}

Test(ring, stop_ends_every_kind_of_wait) {
    for (int spins = 0; spins < 2; spins++) {
        with_views v = waiting_views();
        struct waiter waiter = {.ring = &v.actor, .spin_ns = spins ? UINT64_MAX : 0, .timeout_ns = UINT64_MAX};
        start(&waiter, actor_waits);
        if (!spins) until_asleep(&v.learner.up_control->asleep);
        farm_store_release(&v.creator.down_control->stop, 1);
        farm_learner_notify(&v.creator);
        cr_assert_not(finish(&waiter));
        answer_step(&v.learner.lanes[0]);
        cr_assert_not(farm_actor_wait(&v.actor, &v.actor.lanes[0], 0, LONG_NS, NULL), "even with an answer there");
    }
}

Test(ring, an_actor_wait_ends_at_its_time_out) {
    with_views v = waiting_views();
    for (int spins = 0; spins < 2; spins++) {
        uint64_t begun = farm_now_ns();
        cr_assert_not(farm_actor_wait(&v.actor, NULL, spins ? UINT64_MAX : 0, 20 * MS, NULL));
        cr_assert_geq(farm_now_ns() - begun, 20 * MS);
    }
    cr_assert_eq(farm_load_acquire(&v.learner.up_control->asleep), 0);
}

Test(ring, nobody_is_woken_who_is_awake) {
    with_views v = waiting_views();
    int bell = eventfd(0, EFD_NONBLOCK);
    uint64_t count;
    uint32_t word = farm_load32_acquire(&v.learner.down_control->wake);
    answer_step(&v.learner.lanes[0]);
    farm_learner_notify(&v.learner);
    cr_assert_eq(farm_load32_acquire(&v.learner.down_control->wake), word, "the actor is awake");
    publish_step(&v.actor.lanes[0], false);
    farm_actor_notify(&v.actor, bell);
    cr_assert(read(bell, &count, sizeof count) == -1 && errno == EAGAIN, "the learner is awake");
    farm_store_release(&v.learner.down_control->asleep, 1);
    farm_actor_notify(&v.actor, bell);
    cr_assert_eq(read(bell, &count, sizeof count), (ssize_t)sizeof count, "and now it is not");
    close(bell);
}

// ---- doorbells ----

struct bell_pair {
    struct views v[2];
    struct farm_ring *rings[2];
    struct farm_doorbells bells;
};

static void open_bells(struct bell_pair *pair) {
    for (int i = 0; i < 2; i++) {
        pair->v[i] = views_of(spec_of(1, 1, 8));
        pair->rings[i] = &pair->v[i].learner;
    }
    cr_assert_eq(farm_doorbells_make(&pair->bells, pair->rings, 2, eventfd(0, EFD_NONBLOCK), NULL), FARM_OK);
    uint32_t rung[2];
    cr_assert_eq(farm_doorbells_poll(&pair->bells, rung), 2, "a learner that begins looks at every actor once");
}

static void close_bells(struct bell_pair *pair) {
    close(pair->bells.eventfd);
    farm_doorbells_free(&pair->bells);
    for (int i = 0; i < 2; i++) close_views(&pair->v[i]);
}

static void ring_bell(struct bell_pair *pair, int i, bool first) {
    publish_step(&pair->v[i].actor.lanes[0], first);
    farm_actor_notify(&pair->v[i].actor, pair->bells.eventfd);
}

Test(ring, poll_names_each_actor_that_rang_once) {
    struct bell_pair pair;
    uint32_t rung[2];
    open_bells(&pair);
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 0);
    ring_bell(&pair, 1, true);
    cr_assert(farm_doorbells_wait(&pair.bells, 0, 0), "waiting does not take the ring");
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 1);
    cr_assert_eq(rung[0], 1);
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 0);
    ring_bell(&pair, 1, false);
    ring_bell(&pair, 1, false);
    ring_bell(&pair, 0, true);
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 2);
    close_bells(&pair);
}

Test(ring, any_actor_wakes_the_sleeping_learner) {
    for (int i = 0; i < 2; i++) {
        struct bell_pair pair;
        open_bells(&pair);
        struct waiter waiter = {.bells = &pair.bells, .timeout_ns = LONG_NS};
        start(&waiter, learner_waits);
        until_asleep(&pair.v[i].actor.down_control->asleep);
        ring_bell(&pair, i, true);
        cr_assert(finish(&waiter));
        for (int k = 0; k < 2; k++) cr_assert_eq(farm_load_acquire(&pair.v[k].actor.down_control->asleep), 0);
        close_bells(&pair);
    }
}

Test(ring, a_call_wakes_a_learner_that_has_no_actor) {
    uint64_t call = 0;
    struct farm_doorbells bells;
    cr_assert_eq(farm_doorbells_make(&bells, NULL, 0, eventfd(0, EFD_NONBLOCK), NULL), FARM_OK);
    bells.call = &call;
    cr_assert_not(farm_doorbells_wait(&bells, 0, MS));
    struct waiter waiter = {.bells = &bells, .timeout_ns = LONG_NS};
    start(&waiter, learner_waits);
    usleep(2000);
    farm_store_release(&call, 1);
    const uint64_t one = 1;
    cr_assert_eq(write(bells.eventfd, &one, sizeof one), sizeof one);
    cr_assert(finish(&waiter));
    close(bells.eventfd);
    farm_doorbells_free(&bells);
}

Test(ring, a_learner_wait_ends_at_its_time_out) {
    struct bell_pair pair;
    open_bells(&pair);
    for (int spins = 0; spins < 2; spins++) {
        uint64_t begun = farm_now_ns();
        cr_assert_not(farm_doorbells_wait(&pair.bells, spins ? UINT64_MAX : 0, 20 * MS));
        cr_assert_geq(farm_now_ns() - begun, 20 * MS);
    }
    close_bells(&pair);
}

Test(ring, an_old_wake_up_does_not_end_a_later_wait) {
    struct bell_pair pair;
    open_bells(&pair);
    uint64_t one = 1, begun = farm_now_ns();
    // An actor saw the learner asleep and wrote, but the learner had found the bell itself.
    cr_assert_eq(write(pair.bells.eventfd, &one, sizeof one), (ssize_t)sizeof one);
    cr_assert_not(farm_doorbells_wait(&pair.bells, 0, 20 * MS));
    cr_assert_geq(farm_now_ns() - begun, 20 * MS, "it came back without a bell and before its time");
    close_bells(&pair);
}

// ---- the fences ----

// Two threads that meet before each move, so that one goes to sleep just when the other wakes it.
struct duel {
    struct views v;
    struct farm_doorbells bells;
    uint64_t met[2], last; // moves that each has come to; the last turn, 0 while it goes on
};

static void meet(struct duel *duel, int who, uint64_t move, uint64_t *state) {
    farm_store_release(&duel->met[who], move);
    while (farm_load_acquire(&duel->met[!who]) < move) sched_yield();
    for (volatile uint64_t i = random_next(state) % 300; i > 0; i--) {
    }
}

static void *duel_actor(void *argument) {
    struct duel *duel = argument;
    uint64_t state = 1;
    for (uint64_t turn = 1, last = 0; !last || turn <= last; turn++) {
        meet(duel, 0, 2 * turn, &state); // the learner goes to sleep
        last = farm_load_acquire(&duel->last);
        publish_step(&duel->v.actor.lanes[0], turn == 1);
        farm_actor_notify(&duel->v.actor, duel->bells.eventfd);
        meet(duel, 0, 2 * turn + 1, &state); // the actor goes to sleep
        farm_actor_wait(&duel->v.actor, &duel->v.actor.lanes[0], 0, LONG_NS, NULL);
    }
    return NULL;
}

// Without one of the four fences of wait.c, on x86-64 too: the bell or the answer still lies in the waker's store
// buffer when the sleeper looks, or `asleep` in the sleeper's when the waker looks, and the sleeper sleeps until the
// suite's time-out.
Test(ring, no_wake_up_is_lost_when_sleeper_and_waker_meet) {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) cr_skip_test("one CPU: two threads never look at the same moment");
    struct duel duel = {.v = views_of(spec_of(1, 1, 4))};
    struct farm_ring *rings[] = {&duel.v.learner};
    cr_assert_eq(farm_doorbells_make(&duel.bells, rings, 1, eventfd(0, EFD_NONBLOCK), NULL), FARM_OK);
    uint32_t rung;
    farm_doorbells_poll(&duel.bells, &rung);
    pthread_t actor;
    uint64_t state = 2, started = farm_now_ns();
    cr_assert_eq(pthread_create(&actor, NULL, duel_actor, &duel), 0);
    for (uint64_t turn = 1; !duel.last; turn++) {
        bool enough = turn == 200000 || farm_now_ns() - started > 1500 * MS;
        if (enough) farm_store_release(&duel.last, turn);
        meet(&duel, 1, 2 * turn, &state);
        farm_doorbells_wait(&duel.bells, 0, LONG_NS);
        farm_doorbells_poll(&duel.bells, &rung);
        meet(&duel, 1, 2 * turn + 1, &state);
        answer_step(&duel.v.learner.lanes[0]);
        farm_lane_release(&duel.v.learner.lanes[0], turn);
        farm_learner_notify(&duel.v.learner);
    }
    pthread_join(actor, NULL);
    close(duel.bells.eventfd);
    farm_doorbells_free(&duel.bells);
    close_views(&duel.v);
}

Test(ring, spin_time_follows_the_mode) {
    cr_assert_eq(farm_wait_spin_ns(FARM_WAIT_SPIN, true), UINT64_MAX);
    cr_assert_eq(farm_wait_spin_ns(FARM_WAIT_SLEEP, false), 0);
    cr_assert_eq(farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, true), 0,
                 "more threads than cores: spinning takes the peer's core");
    uint64_t adaptive = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, false);
    cr_assert(adaptive > 1000 && adaptive < MS);
}
