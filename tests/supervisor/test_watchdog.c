// The watchdog's judgement on made-up looks, on the lanes of a real ring, and on real processes' states.
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/rings.h"
#include "supervisor/watchdog.h"

static const uint64_t SECOND_NS = 1000000000u;

// One look a second with a limit of ten.
static enum farm_watch_state look(struct farm_watch *watch, uint64_t heartbeat, uint64_t lanes, bool stopped) {
    const struct farm_watch_look now = {
        .passed_ns = SECOND_NS, .published = heartbeat, .heartbeat = heartbeat, .lanes = lanes, .stopped = stopped};
    return farm_watch_judge(watch, &now, 10 * SECOND_NS);
}

static unsigned looks_until(struct farm_watch *watch, enum farm_watch_state wanted, uint64_t heartbeat, uint64_t lanes,
                            bool stopped) {
    for (unsigned i = 1; i <= 100; i++)
        if (look(watch, heartbeat, lanes, stopped) == wanted) return i;
    return 0;
}

Test(supervisor, names_an_actor_that_has_work_and_finishes_no_step) {
    struct farm_watch watch = {0};
    for (uint64_t beat = 5; beat < 50; beat++) cr_assert_eq(look(&watch, beat, 3, false), FARM_WATCH_WELL);
    cr_assert(watch.stepped);
    cr_assert_eq(looks_until(&watch, FARM_WATCH_HUNG, 49, 3, false), 10, "after the limit, neither before nor later");
    cr_assert_eq(look(&watch, 49, 3, false), FARM_WATCH_HUNG, "as long as it keeps still");
    cr_assert_eq(watch.quiet_ns, 11 * SECOND_NS);
    cr_assert_eq(look(&watch, 50, 3, false), FARM_WATCH_WELL, "it has come back");
    cr_assert_eq(looks_until(&watch, FARM_WATCH_HUNG, 50, 3, false), 10, "and is watched again");
}

Test(supervisor, names_an_actor_that_never_finishes_its_first_step) {
    struct farm_watch watch = {0};
    cr_assert_eq(looks_until(&watch, FARM_WATCH_HUNG, 0, 3, false), 11, "the first look only sets the start");
    cr_assert_not(watch.stepped);
    watch = (struct farm_watch){0}; // a new life, on the heartbeat of the one before
    cr_assert_eq(looks_until(&watch, FARM_WATCH_HUNG, 700, 3, false), 11);
    cr_assert_not(watch.stepped, "steps of the dead process do not count");
}

Test(supervisor, takes_each_environment_made_or_reset_for_progress_but_for_no_step) {
    struct farm_watch watch = {0};
    for (uint64_t made = 0; made < 50; made++) {
        const struct farm_watch_look now = {
            .passed_ns = 9 * SECOND_NS, .published = 7, .heartbeat = 100 + made, .lanes = 3};
        cr_assert_eq(farm_watch_judge(&watch, &now, 10 * SECOND_NS), FARM_WATCH_WELL);
    }
    cr_assert_not(watch.stepped);
}

Test(supervisor, reports_no_actor_that_waits_for_answers_or_for_room) {
    struct farm_watch watch = {0};
    cr_assert_eq(looks_until(&watch, FARM_WATCH_HUNG, 9, 0, false), 0);
    for (int i = 0; i < 50; i++) // work that comes and is done between two looks leaves the heartbeat moved
        cr_assert_eq(look(&watch, 9 + (uint64_t)i, i % 2 ? 3 : 0, false), FARM_WATCH_WELL);
    for (int i = 0; i < 9; i++) look(&watch, 100, 1, false);
    cr_assert_eq(look(&watch, 100, 0, false), FARM_WATCH_WELL);
    for (int i = 0; i < 9; i++) cr_assert_eq(look(&watch, 100, 1, false), FARM_WATCH_WELL, "the time starts anew");
}

Test(supervisor, calls_a_stopped_actor_stopped_and_not_hung) {
    struct farm_watch watch = {0};
    look(&watch, 7, 2, false);
    for (int i = 0; i < 4; i++) look(&watch, 7, 2, false);
    cr_assert_eq(looks_until(&watch, FARM_WATCH_STOPPED, 7, 2, true), 10);
    for (int i = 0; i < 90; i++) cr_assert_eq(look(&watch, 7, 2, true), FARM_WATCH_STOPPED);
    for (int i = 0; i < 5; i++) cr_assert_eq(look(&watch, 7, 2, false), FARM_WATCH_STOPPED, "not moved yet");
    cr_assert_eq(look(&watch, 7, 2, false), FARM_WATCH_HUNG, "time that it ran counts, before and after");
    cr_assert_eq(look(&watch, 7, 2, true), FARM_WATCH_HUNG, "a debugger at work on a hung one changes nothing");
    cr_assert_eq(look(&watch, 8, 2, false), FARM_WATCH_WELL);
}

Test(supervisor, knows_the_lane_that_could_go_on_all_the_time) {
    struct farm_watch watch = {0};
    look(&watch, 7, 2, false);
    look(&watch, 7, 6, false);
    look(&watch, 7, 7, false); // the learner has answered the others meanwhile
    cr_assert_eq(watch.lanes, 6, "lane 0 was not among them at first");
    look(&watch, 8, 1, false);
    look(&watch, 8, 1, false);
    cr_assert_eq(watch.lanes, 1);
}

Test(supervisor, a_look_after_a_long_sleep_covers_two_periods_at_most) {
    struct farm_watchdog dog = farm_watchdog_make(8);
    uint64_t now = 77 * SECOND_NS;
    cr_assert_eq(dog.period_ns, SECOND_NS / 2);
    cr_assert_eq(farm_watchdog_due(&dog, now), SECOND_NS / 2);
    cr_assert_eq(farm_watchdog_due(&dog, now + SECOND_NS / 4), 0, "not yet");
    cr_assert_eq(farm_watchdog_due(&dog, now + SECOND_NS / 2), SECOND_NS / 2);
    cr_assert_eq(farm_watchdog_due(&dog, now + 3600 * SECOND_NS), SECOND_NS, "it was stopped itself");
    dog = farm_watchdog_make(30);
    cr_assert_eq(dog.period_ns, SECOND_NS);
    dog = farm_watchdog_make(0.01);
    cr_assert_eq(dog.period_ns, SECOND_NS / 100);
    dog = farm_watchdog_make(0);
    cr_assert_eq(farm_watchdog_due(&dog, now), 0, "0 turns it off");
}

// ---- a ring and processes ----

enum { LANES = 3, STEPS = 4 };

static struct farm_ring watched_ring(uint32_t lanes, enum farm_answers answers) {
    struct farm_ring_spec spec = farm_ring_spec_plain(lanes, 1, STEPS, FARM_F32, 1, 2);
    spec.answers = answers;
    return ring_of(spec, 0);
}

Test(supervisor, a_lane_whose_actor_answers_itself_has_work_if_there_is_room_and_a_grant) {
    with_ring ring = watched_ring(1, FARM_ANSWERS_LOCAL);
    farm_store_release(&ring.lanes[0].up->produced, STEPS - 1);
    farm_lane_grant(&ring.lanes[0], STEPS - 2);
    cr_assert_eq(farm_watch_lanes(&ring), 0, "it may not answer the newest step");
    farm_lane_grant(&ring.lanes[0], UINT64_MAX);
    cr_assert_eq(farm_watch_lanes(&ring), 1);
    farm_store_release(&ring.lanes[0].up->produced, STEPS);
    cr_assert_eq(farm_watch_lanes(&ring), 0, "full");
}

Test(supervisor, a_lane_has_work_if_all_is_answered_and_there_is_room) {
    with_ring ring = watched_ring(LANES, FARM_ANSWERS_CENTRAL);
    cr_assert_eq(farm_watch_lanes(&ring), 7, "nothing published yet: all of them");
    farm_store_release(&ring.lanes[1].up->produced, 1);
    cr_assert_eq(farm_watch_lanes(&ring), 5, "lane 1 waits for its answer");
    farm_lane_answer(&ring.lanes[1], 0);
    cr_assert_eq(farm_watch_lanes(&ring), 7);
    farm_store_release(&ring.lanes[2].up->produced, STEPS);
    farm_lane_answer(&ring.lanes[2], STEPS - 1);
    cr_assert_eq(farm_watch_lanes(&ring), 3, "lane 2 is full");
    farm_lane_release(&ring.lanes[2], 1);
    cr_assert_eq(farm_watch_lanes(&ring), 7);
    farm_store_release(&ring.lanes[0].up->produced, UINT64_MAX); // the learner handles invalid counters
    cr_assert_eq(farm_watch_lanes(&ring), 6);
}

static bool becomes_stopped(pid_t pid, bool stopped) {
    for (int i = 0; i < 1000; i++) {
        if (farm_watch_stopped(pid) == stopped) return true;
        usleep(1000);
    }
    return false;
}

Test(supervisor, distinguishes_a_stopped_process_from_a_running_sleeping_or_ended_one) {
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "x) T 1 (");
        for (;;) pause();
    }
    cr_assert_gt(pid, 0);
    cr_assert_not(farm_watch_stopped(pid));
    cr_assert_not(farm_watch_stopped(getpid()));
    kill(pid, SIGSTOP);
    cr_assert(becomes_stopped(pid, true));
    kill(pid, SIGCONT);
    cr_assert(becomes_stopped(pid, false));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cr_assert_not(farm_watch_stopped(pid));
}
