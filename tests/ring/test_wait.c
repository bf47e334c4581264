// Sleeping and waking: a sleeper wakes when its event happens, and a thread that is awake is never woken.
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include "../support/rings.h"
#include "base/time.h"
#include "ring/wait.h"

TestSuite(ring, .timeout = 30);

static const uint64_t MS = 1000000, LONG_NS = 3600 * 1000000000ull; // longer than the suite's time-out

// A wait in its own thread, and its result.
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

static void start_wait(struct waiter *waiter, void *(*body)(void *)) {
    cr_assert_eq(pthread_create(&waiter->thread, NULL, body, waiter), 0);
}

static bool join_wait(struct waiter *waiter) {
    pthread_join(waiter->thread, NULL);
    return waiter->result;
}

// Waits until the word shows that its writer sleeps, or is about to.
static void until_asleep(const uint64_t *asleep) {
    while (!farm_load_acquire(asleep)) sched_yield();
    usleep(2000); // until it is in the system call
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

Test(ring, what_an_actor_waits_for_wakes_it_and_nothing_else) {
    static const struct {
        int waits;     // for this lane; -1: for any
        bool releases; // the learner releases a step of lane 1; else it answers lane 0
        bool wakes;
    } cases[] = {{0, false, true}, {1, true, true}, {-1, false, true}, {-1, true, true}, {0, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        with_views v = waiting_views();
        struct waiter waiter = {.ring = &v.actor,
                                .lane = cases[i].waits < 0 ? NULL : &v.actor.lanes[cases[i].waits],
                                .timeout_ns = cases[i].wakes ? LONG_NS : 60 * MS,
                                .ready = 1};
        start_wait(&waiter, actor_waits);
        until_asleep(&v.learner.up_control->asleep);
        if (cases[i].releases)
            farm_lane_release(&v.learner.lanes[1], 1);
        else
            answer_step(&v.learner.lanes[0]);
        farm_learner_notify(&v.learner);
        cr_assert_eq(join_wait(&waiter), cases[i].wakes, "case %zu", i);
        if (cases[i].waits < 0) cr_assert_eq(waiter.ready, cases[i].releases);
        cr_assert_eq(farm_load_acquire(&v.learner.up_control->asleep), 0);
    }
}

static bool is_rung(int eventfd) {
    uint64_t count;
    return read(eventfd, &count, sizeof count) == sizeof count;
}

Test(ring, an_answer_wakes_a_remote_actors_bridge_by_its_eventfd) {
    with_views v = waiting_views();
    v.learner.wake_fd = eventfd(0, EFD_NONBLOCK);
    farm_learner_notify(&v.learner);
    cr_assert_not(is_rung(v.learner.wake_fd), "the bridge is awake");
    farm_actor_announce(&v.actor, true);
    farm_learner_notify(&v.learner);
    farm_learner_notify(&v.learner);
    cr_assert(is_rung(v.learner.wake_fd));
    cr_assert_eq(farm_load32_acquire(&v.learner.down_control->wake), 0, "the futex is for local actors");
    farm_actor_announce(&v.actor, false);
    farm_learner_notify(&v.learner);
    cr_assert_not(is_rung(v.learner.wake_fd));
    close(v.learner.wake_fd);
}

Test(ring, an_empty_bell_that_an_actor_has_set_to_block_does_not_block) {
    const int bell = eventfd(0, EFD_CLOEXEC); // without O_NONBLOCK, as after the actor's fcntl
    const uint64_t rings = 3;
    uint64_t count;
    const struct iovec into = {&count, sizeof count};
    if (preadv2(bell, &into, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP) cr_skip_test("reads of bells block here");
    cr_assert_eq(farm_bell_empty(bell), 0);
    cr_assert_eq(write(bell, &rings, sizeof rings), sizeof rings);
    cr_assert_eq(farm_bell_empty(bell), 3);
    cr_assert_eq(farm_bell_empty(bell), 0);
    close(bell);
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

Test(ring, stop_ends_every_kind_of_wait) {
    for (int spins = 0; spins < 2; spins++) {
        with_views v = waiting_views();
        struct waiter waiter = {.ring = &v.actor, .spin_ns = spins ? UINT64_MAX : 0, .timeout_ns = UINT64_MAX};
        start_wait(&waiter, actor_waits);
        if (!spins) until_asleep(&v.learner.up_control->asleep);
        farm_store_release(&v.made.down_control->stop, 1);
        farm_learner_notify(&v.made);
        cr_assert_not(join_wait(&waiter));
        answer_step(&v.learner.lanes[0]);
        cr_assert_not(farm_actor_wait(&v.actor, &v.actor.lanes[0], 0, LONG_NS, NULL), "even with an answer there");
    }
}

Test(ring, a_thread_that_is_awake_is_not_woken) {
    with_views v = waiting_views();
    int bell = eventfd(0, EFD_NONBLOCK);
    uint32_t word = farm_load32_acquire(&v.learner.down_control->wake);
    answer_step(&v.learner.lanes[0]);
    farm_learner_notify(&v.learner);
    cr_assert_eq(farm_load32_acquire(&v.learner.down_control->wake), word, "the actor is awake");
    publish_step(&v.actor.lanes[0], false);
    farm_actor_notify(&v.actor, bell);
    cr_assert_not(is_rung(bell), "the learner is awake");
    farm_store_release(&v.learner.down_control->asleep, 1);
    farm_actor_notify(&v.actor, bell);
    cr_assert(is_rung(bell), "the learner sleeps");
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
    cr_assert_eq(farm_doorbells_poll(&pair->bells, rung), 2, "a new learner checks every actor once");
}

static void close_bells(struct bell_pair *pair) {
    close(pair->bells.eventfd);
    farm_doorbells_free(&pair->bells);
    for (int i = 0; i < 2; i++) close_views(&pair->v[i]);
}

#define with_bells __attribute__((cleanup(close_bells))) struct bell_pair // closed at the end of its scope

static void publish_and_ring(struct bell_pair *pair, int i, bool first) {
    publish_step(&pair->v[i].actor.lanes[0], first);
    farm_actor_notify(&pair->v[i].actor, pair->bells.eventfd);
}

Test(ring, poll_returns_each_ring_that_rang_once) {
    with_bells pair;
    uint32_t rung[2];
    open_bells(&pair);
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 0);
    publish_and_ring(&pair, 1, true);
    cr_assert(farm_doorbells_wait(&pair.bells, 0, 0), "waiting does not consume the bell");
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 1);
    cr_assert_eq(rung[0], 1);
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 0);
    publish_and_ring(&pair, 1, false);
    publish_and_ring(&pair, 1, false);
    publish_and_ring(&pair, 0, true);
    cr_assert_eq(farm_doorbells_poll(&pair.bells, rung), 2);
}

Test(ring, any_actor_wakes_the_sleeping_learner) {
    for (int i = 0; i < 2; i++) {
        with_bells pair;
        open_bells(&pair);
        struct waiter waiter = {.bells = &pair.bells, .timeout_ns = LONG_NS};
        start_wait(&waiter, learner_waits);
        until_asleep(&pair.v[i].actor.down_control->asleep);
        publish_and_ring(&pair, i, true);
        cr_assert(join_wait(&waiter));
        for (int k = 0; k < 2; k++) cr_assert_eq(farm_load_acquire(&pair.v[k].actor.down_control->asleep), 0);
    }
}

Test(ring, a_call_wakes_a_learner_that_has_no_actor) {
    uint64_t call = 0;
    struct farm_doorbells bells;
    cr_assert_eq(farm_doorbells_make(&bells, NULL, 0, eventfd(0, EFD_NONBLOCK), NULL), FARM_OK);
    bells.call = &call;
    cr_assert_not(farm_doorbells_wait(&bells, 0, MS));
    struct waiter waiter = {.bells = &bells, .timeout_ns = LONG_NS};
    start_wait(&waiter, learner_waits);
    usleep(2000);
    farm_store_release(&call, 1);
    const uint64_t one = 1;
    cr_assert_eq(write(bells.eventfd, &one, sizeof one), sizeof one);
    cr_assert(join_wait(&waiter));
    close(bells.eventfd);
    farm_doorbells_free(&bells);
}

Test(ring, waits_end_at_their_time_out_and_not_before) {
    const uint64_t one = 1;
    with_views v = waiting_views();
    with_bells pair;
    open_bells(&pair);
    for (int i = 0; i < 3; i++) {
        const uint64_t spin_ns = i == 1 ? UINT64_MAX : 0;
        uint64_t begun = farm_now_ns();
        cr_assert_not(farm_actor_wait(&v.actor, NULL, spin_ns, 20 * MS, NULL));
        cr_assert_geq(farm_now_ns() - begun, 20 * MS);
        begun = farm_now_ns();
        // The last time an old wake-up is left: an actor wrote when the learner had seen the bell itself.
        if (i == 2) cr_assert_eq(write(pair.bells.eventfd, &one, sizeof one), (ssize_t)sizeof one);
        cr_assert_not(farm_doorbells_wait(&pair.bells, spin_ns, 20 * MS));
        cr_assert_geq(farm_now_ns() - begun, 20 * MS);
    }
    cr_assert_eq(farm_load_acquire(&v.learner.up_control->asleep), 0);
}

// ---- the fences ----

// Two threads that meet before each move, so that one falls asleep just when the other wakes it.
struct duel {
    struct views v;
    struct farm_doorbells bells;
    uint64_t met[2], last; // moves that each side has reached; the last turn, 0: not known yet
};

static void meet(struct duel *duel, int side, uint64_t move, uint64_t *state) {
    farm_store_release(&duel->met[side], move);
    while (farm_load_acquire(&duel->met[!side]) < move) sched_yield();
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

// Needs each of the four fences of wait.c, on x86-64 too. Without one, a store is still in its core's store buffer when
// the other side loads the word, and the sleeper sleeps until the suite's time-out.
Test(ring, no_wake_up_is_lost_when_sleeper_and_waker_meet) {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) cr_skip_test("one CPU: two threads never run at the same moment");
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
                 "more threads than cores: spinning would take the peer's core");
    uint64_t adaptive = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, false);
    cr_assert(adaptive > 1000 && adaptive < MS);
}
