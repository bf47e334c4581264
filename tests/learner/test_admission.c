// Rings that come and go while the learner answers and trains: the learner is a forked process, this test the
// supervisor and every actor. Parameters stay as they are (a learning rate of 0), so that each answer can be worked out
// again.
#include "rings.h"

#include "../support/learner.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/time.h"
#include "kernels/random.h"
#include "learner/admission.h"
#include "ring/wait.h"

enum { PLACES = 4, LANES = 2, WIDTH = 4, STEPS = 40, FLAT = 3, ACTIONS = 3, UNROLL = 5, GAME = 7 };
static const uint64_t LIMIT_NS = 20000000000u;

struct shared {
    struct farm_stats stats;
    struct farm_error err;
};

static struct table {
    struct farm_ring made[PLACES], actors[PLACES];
    bool there[PLACES];
    int fds[PLACES][2], eventfd, admission, learners_end;
    int wake;         // of those that join
    bool idle;        // no actor steps
    uint32_t checked; // answers that were worked out again
    struct shared *shared;
    struct farm_learner_config config;
    pid_t learner;
} table;

// ---- set-up ----

static void make_ring(uint32_t r, uint32_t width) {
    const struct farm_ring_spec spec = test_ring_spec(LANES, width, STEPS, FLAT, ACTIONS);
    struct farm_error err = {0};
    cr_assert_eq(farm_ring_create(&spec, r, -1, false, &table.made[r], &err), FARM_OK, "%s", err.message);
    test_ring_view(&table.made[r], FARM_RING_ACTOR, &table.actors[r]);
}

static void close_ring(uint32_t r) {
    farm_ring_close(&table.actors[r]);
    farm_ring_close(&table.made[r]);
    table.there[r] = false;
}

static void set_up(uint32_t rings, uint32_t batch) {
    struct farm_error err = {0};
    memset(&table, 0, sizeof table);
    table.shared = mmap(NULL, sizeof *table.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    table.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    cr_assert(table.shared != MAP_FAILED && table.eventfd >= 0);
    cr_assert_eq(farm_admission_make(&table.admission, &table.learners_end, &err), FARM_OK, "%s", err.message);
    for (uint32_t r = 0; r < rings; r++) {
        make_ring(r, WIDTH);
        table.there[r] = true;
    }
    table.config = test_learner_config(FLAT, ACTIONS, UNROLL);
    table.config.ring_fds = table.fds;
    table.config.ring_count = PLACES;
    table.config.admission = table.learners_end;
    table.config.shards[0].eventfd = table.eventfd;
    table.config.stats = &table.shared->stats;
    table.config.seed = 11;
    table.config.algo.batch = batch;
    table.config.algo.lr = table.config.algo.lr_end = 0;
    table.config.infer_batch_max = 2 * WIDTH + 1; // lanes are answered in parts
    table.config.infer_wait_ms = 0.1;
}

static void launch(void) {
    for (uint32_t r = 0; r < PLACES; r++) {
        table.fds[r][0] = table.there[r] ? dup(table.made[r].up.fd_readonly) : -1;
        table.fds[r][1] = table.there[r] ? dup(table.made[r].down.fd) : -1;
    }
    table.learner = fork();
    cr_assert_geq(table.learner, 0);
    if (table.learner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(farm_learner_run(&table.config, &table.shared->err));
    }
    for (uint32_t r = 0; r < PLACES; r++)
        if (table.there[r]) close(table.fds[r][0]), close(table.fds[r][1]);
}

static void end(int signal_number) {
    int status;
    kill(table.learner, signal_number);
    cr_assert_eq(waitpid(table.learner, &status, 0), table.learner);
    table.learner = 0;
    if (signal_number == SIGTERM)
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x: %s", (unsigned)status,
                  table.shared->err.message);
}

static void tear_down(void) {
    if (table.learner) end(SIGTERM);
    for (uint32_t r = 0; r < PLACES; r++)
        if (table.there[r]) close_ring(r);
    munmap(table.shared, sizeof *table.shared);
    close(table.eventfd);
    close(table.admission);
    close(table.learners_end);
}

TestSuite(admission, .timeout = 60);

// ---- the actors ----

static void check_answers(uint32_t r, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &table.actors[r].lanes[l];
    const void *rows[WIDTH];
    char who[32];
    snprintf(who, sizeof who, "actor %u lane %u", r, l);
    for (uint32_t e = 0; e < WIDTH; e++) rows[e] = farm_lane_obs(lane, 0, n, e);
    test_expect_answers(&table.config, lane, n, rows, who);
    table.checked++;
}

static void step_lane(uint32_t r, uint32_t l) {
    struct farm_lane *lane = &table.actors[r].lanes[l];
    const uint64_t n = farm_lane_actor_next(lane);
    if (farm_lane_acted(lane) != n || !farm_lane_actor_can_write(lane)) return;
    if (n > 0 && n % 16 == 1) check_answers(r, l, n - 1);
    for (uint32_t e = 0; e < WIDTH; e++) {
        const bool last = n % GAME == GAME - 1;
        for (uint32_t i = 0; i < FLAT; i++)
            ((float *)farm_lane_obs(lane, 0, n, e))[i] =
                2 * farm_random_uniform(r, farm_random_stream(l, e), n * FLAT + i) - 1;
        farm_lane_reward(lane, n)[e] = n % GAME ? 1 : 0;
        farm_lane_flags(lane, n)[e] = (uint8_t)(n % GAME == 0 ? FARM_STEP_FIRST
                                                : last ? FARM_STEP_LAST | FARM_STEP_TERMINATED | FARM_STEP_GAME_END
                                                       : 0);
    }
    farm_lane_actor_publish(lane);
    farm_actor_notify(&table.actors[r], table.eventfd);
}

static void act(void) {
    for (uint32_t r = 0; r < PLACES && !table.idle; r++)
        for (uint32_t l = 0; l < LANES && table.there[r]; l++) step_lane(r, l);
}

static uint64_t least_acted(uint32_t r) {
    uint64_t least = UINT64_MAX;
    for (uint32_t l = 0; l < LANES; l++) {
        const uint64_t acted = farm_lane_acted(&table.actors[r].lanes[l]);
        if (acted < least) least = acted;
    }
    return least;
}

// Until all lanes of every actor that is there have `more` further answers. Beyond STEPS of them a lane needs training
// to let go of its windows.
static void act_on(uint64_t more) {
    uint64_t goal[PLACES];
    const uint64_t start = farm_now_ns();
    for (uint32_t r = 0; r < PLACES; r++) goal[r] = table.there[r] ? least_acted(r) + more : 0;
    for (uint32_t r = 0; r < PLACES; r++)
        while (table.there[r] && least_acted(r) < goal[r]) {
            act();
            cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "actor %u has %lu of %lu answers", r, least_acted(r),
                         goal[r]);
        }
}

// ---- the supervisor ----

static struct farm_admission_reply hear(uint32_t r) {
    struct farm_admission_reply answer;
    for (const uint64_t start = farm_now_ns(); !farm_admission_receive_reply(table.admission, &answer);) {
        cr_assert_lt(farm_now_ns() - start, LIMIT_NS, "no answer about actor %u", r);
        act();
    }
    cr_assert_eq(answer.ring, r);
    return answer;
}

static struct farm_admission_reply ask(enum farm_admission_kind kind, uint32_t r) {
    struct farm_admission_request question = {.kind = kind, .ring = r, .wake = table.wake};
    struct farm_error err = {0};
    if (kind == FARM_ADMISSION_JOIN) {
        question.fds[0] = table.made[r % PLACES].up.fd_readonly;
        question.fds[1] = table.made[r % PLACES].down.fd;
    }
    cr_assert_eq(farm_admission_send_request(table.admission, &question, &err), FARM_OK, "%s", err.message);
    return hear(r);
}

static void join(uint32_t r) {
    make_ring(r, WIDTH);
    const struct farm_admission_reply answer = ask(FARM_ADMISSION_JOIN, r);
    cr_assert_eq(answer.status, FARM_OK, "%s", answer.error.message);
    table.there[r] = true;
}

static void leave(uint32_t r) {
    const struct farm_admission_reply answer = ask(FARM_ADMISSION_LEAVE, r);
    cr_assert_eq(answer.status, FARM_OK, "%s", answer.error.message);
    table.there[r] = false;
}

static void expect_refused(enum farm_admission_kind kind, uint32_t r, enum farm_status status, const char *why) {
    const struct farm_admission_reply answer = ask(kind, r);
    cr_assert_eq(answer.status, status, "%d: %s", answer.status, answer.error.message);
    cr_assert(strstr(answer.error.message, why) != NULL, "no '%s' in: %s", why, answer.error.message);
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

static bool maps(pid_t pid, int fd) {
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

// ---- tests ----

// These rings and their learner, after `steps` answers of each.
static void start(uint32_t rings, uint32_t batch, uint64_t steps) {
    set_up(rings, batch);
    launch();
    act_on(steps);
}

Test(admission, actors_that_come_are_answered_and_trained_on) {
    start(2, LANES * WIDTH, 2 * STEPS);
    join(2);
    join(3);
    const uint64_t updates = farm_load_relaxed(&table.shared->stats.updates);
    act_on(3 * STEPS);
    cr_assert_gt(farm_load_relaxed(&table.shared->stats.updates), updates);
    cr_assert_gt(table.checked, 20);
    tear_down();
}

Test(admission, an_actor_that_goes_is_let_go_of_and_the_others_go_on) {
    start(3, LANES * WIDTH, 2 * STEPS);
    const uint32_t descriptors = descriptors_of(table.learner);
    cr_assert(maps(table.learner, table.made[1].up.fd) && maps(table.learner, table.made[1].down.fd));
    leave(1);
    cr_assert(!maps(table.learner, table.made[1].up.fd) && !maps(table.learner, table.made[1].down.fd));
    cr_assert_eq(descriptors_of(table.learner), descriptors - 2);
    const uint64_t acted = farm_lane_acted(&table.actors[1].lanes[0]);
    act_on(3 * STEPS);
    cr_assert_eq(farm_lane_acted(&table.actors[1].lanes[0]), acted, "answered after it went");
    close_ring(1);
    join(1); // another one, in the same place
    act_on(3 * STEPS);
    cr_assert_eq(descriptors_of(table.learner), descriptors);
    tear_down();
}

// An update is larger than what one actor's windows make, so some of the one that goes always wait.
Test(admission, windows_that_wait_go_with_their_actor) {
    set_up(3, 3 * LANES * WIDTH + 1);
    launch();
    for (int i = 0; i < 12; i++) {
        act_on(UNROLL + 2);
        leave(2);
        close_ring(2);
        act_on(UNROLL + 2);
        join(2);
    }
    act_on(3 * STEPS);
    const uint64_t updates = farm_load_relaxed(&table.shared->stats.updates);
    cr_assert_gt(updates, 3);
    end(SIGTERM);
    cr_assert_eq(table.shared->stats.windows, table.shared->stats.updates * table.config.algo.batch);
    tear_down();
}

Test(admission, actors_come_and_go_at_any_moment) {
    start(2, LANES * WIDTH - 1, 1);
    const uint32_t descriptors = descriptors_of(table.learner);
    for (uint32_t i = 0; i < 60; i++) {
        const uint32_t r = 1 + (uint32_t)(farm_random_mix(i) % (PLACES - 1));
        if (table.there[r]) {
            leave(r);
            close_ring(r);
        } else {
            join(r);
        }
        for (uint64_t turns = farm_random_mix(i + 1000) % 30; turns > 0; turns--) act();
    }
    for (uint32_t r = 1; r < PLACES; r++) {
        if (!table.there[r]) continue;
        leave(r);
        close_ring(r);
    }
    cr_assert_eq(descriptors_of(table.learner), descriptors - 2);
    join(1);
    act_on(2 * STEPS);
    tear_down();
}

Test(admission, what_cannot_be_done_is_refused_and_changes_nothing) {
    start(2, LANES * WIDTH, STEPS);
    expect_refused(FARM_ADMISSION_JOIN, 1, FARM_E_INVALID, "no vacant place 1");
    expect_refused(FARM_ADMISSION_JOIN, 7 * PLACES, FARM_E_INVALID, "no vacant place 28");
    expect_refused(FARM_ADMISSION_LEAVE, 2, FARM_E_NOT_FOUND, "no actor 2");
    expect_refused(FARM_ADMISSION_LEAVE, 99, FARM_E_NOT_FOUND, "no actor 99");
    make_ring(2, WIDTH + 1);
    const uint32_t descriptors = descriptors_of(table.learner);
    expect_refused(FARM_ADMISSION_JOIN, 2, FARM_E_INVALID, "another shape");
    cr_assert_eq(descriptors_of(table.learner), descriptors);
    close_ring(2);
    const uint32_t nonsense[4] = {FARM_ADMISSION_JOIN, 3, 0, 0}, unknown[4] = {77, 3, 0, 0};
    cr_assert_eq(send(table.admission, nonsense, sizeof nonsense, 0), sizeof nonsense); // no descriptors
    cr_assert_eq(hear(3).status, FARM_E_LIMIT);
    cr_assert_eq(send(table.admission, unknown, sizeof unknown, 0), sizeof unknown);
    cr_assert_eq(send(table.admission, unknown, 5, 0), 5);
    act_on(2 * STEPS);
    tear_down();
}

// The learner can take no further descriptor.
Test(admission, a_ring_whose_descriptors_find_no_room_is_refused) {
    struct rlimit before, none;
    start(1, LANES * WIDTH, STEPS);
    const uint32_t descriptors = descriptors_of(table.learner);
    make_ring(1, WIDTH);
    for (rlim_t more = 0; more < 2; more++) {
        cr_assert_eq(prlimit(table.learner, RLIMIT_NOFILE, NULL, &before), 0);
        none = before;
        none.rlim_cur = descriptors - 2 + more; // that the folder itself and what is above it are no descriptors
        cr_assert_eq(prlimit(table.learner, RLIMIT_NOFILE, &none, NULL), 0);
        expect_refused(FARM_ADMISSION_JOIN, 1, FARM_E_LIMIT, "ulimit -n");
        cr_assert_eq(prlimit(table.learner, RLIMIT_NOFILE, &before, NULL), 0);
        cr_assert_eq(descriptors_of(table.learner), descriptors);
    }
    cr_assert_eq(ask(FARM_ADMISSION_JOIN, 1).status, FARM_OK);
    table.there[1] = true;
    act_on(2 * STEPS);
    tear_down();
}

// Actors behind a bridge: the learner rings the bridge's eventfd when it has answered, if the bridge says it sleeps.
static void expect_rung(uint32_t r, int eventfd) {
    struct pollfd look = {.fd = eventfd, .events = POLLIN};
    uint64_t count;
    farm_actor_announce(&table.actors[r], true);
    act_on(1);
    cr_assert_eq(poll(&look, 1, 10000), 1, "nobody is woken for actor %u", r);
    farm_actor_announce(&table.actors[r], false);
    cr_assert_eq(read(eventfd, &count, sizeof count), sizeof count);
}

Test(admission, a_bridge_in_an_actors_place_is_woken_by_its_eventfd) {
    const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), wake_fds[PLACES] = {-1, wake, -1, -1};
    set_up(2, LANES * WIDTH);
    table.config.wake_fds = wake_fds;
    launch();
    act_on(STEPS);
    const uint32_t descriptors = descriptors_of(table.learner);
    expect_rung(1, wake);
    for (uint32_t r = 2; r < PLACES; r++) {
        table.wake = wake;
        join(r);
        cr_assert_eq(descriptors_of(table.learner), descriptors + 3);
        expect_rung(r, wake);
        leave(r);
        close_ring(r);
        cr_assert_eq(descriptors_of(table.learner), descriptors);
    }
    leave(1);
    close_ring(1);
    cr_assert_eq(descriptors_of(table.learner), descriptors - 3);
    tear_down();
    close(wake);
}

// Nobody acts: inference sleeps for longer than the test's patience.
Test(admission, rings_come_and_go_while_inference_sleeps) {
    const struct farm_ring_spec spec = test_ring_spec(LANES, WIDTH, STEPS, FLAT, ACTIONS);
    set_up(0, LANES * WIDTH);
    table.config.ring_spec = &spec;
    table.config.nap_ns = 100 * LIMIT_NS;
    launch();
    for (uint32_t i = 0; i < 20; i++) {
        table.idle = true;
        join(i % PLACES);
        leave(i % PLACES);
        close_ring(i % PLACES);
    }
    end(SIGKILL); // it would look for its end after its nap
    tear_down();
}

// Synchronous iterations without a ring, with one, and without one again.
Test(admission, a_synchronous_learner_waits_without_rings) {
    const struct farm_ring_spec spec = test_ring_spec(LANES, WIDTH, STEPS, FLAT, ACTIONS);
    set_up(0, LANES * WIDTH);
    table.config.ring_spec = &spec;
    table.config.algo.regime = FARM_REGIME_SYNC;
    launch();
    for (int round = 0; round < 2; round++) {
        const uint64_t updates = farm_load_relaxed(&table.shared->stats.updates);
        join(1);
        act_on(2 * STEPS);
        cr_assert_gt(farm_load_relaxed(&table.shared->stats.updates), updates);
        leave(1);
        close_ring(1);
    }
    tear_down();
}

// No rings, or too few for an update: the learner waits, and trains when there are enough.
Test(admission, a_learner_waits_without_rings_and_with_too_few) {
    const uint32_t windows = (STEPS - UNROLL - 1) / UNROLL + 1; // of a lane
    const struct farm_ring_spec spec = test_ring_spec(LANES, WIDTH, STEPS, FLAT, ACTIONS);
    set_up(0, 2 * LANES * WIDTH * windows - WIDTH);
    table.config.ring_spec = &spec;
    launch();
    for (int round = 0; round < 2; round++) {
        join(1);
        act_on(UNROLL); // answered, though no update can be filled
        const uint64_t updates = farm_load_relaxed(&table.shared->stats.updates);
        join(2);
        act_on(2 * STEPS);
        cr_assert_gt(farm_load_relaxed(&table.shared->stats.updates), updates);
        for (uint32_t r = 1; r <= 2; r++) {
            leave(r);
            close_ring(r);
        }
    }
    tear_down();
}

Test(admission, a_learner_that_comes_back_has_those_that_are_there_and_hears_no_old_questions) {
    start(2, LANES * WIDTH, STEPS);
    join(3);
    leave(0);
    act_on(STEPS);
    end(SIGKILL);
    struct farm_error err;
    const struct farm_admission_request old = {
        .kind = FARM_ADMISSION_JOIN, .ring = 0, .fds = {table.made[0].up.fd_readonly, table.made[0].down.fd}};
    const uint32_t descriptors = descriptors_of(getpid());
    cr_assert_eq(farm_admission_send_request(table.admission, &old, &err), FARM_OK);
    farm_admission_clear(table.admission, table.learners_end);
    cr_assert_eq(descriptors_of(getpid()), descriptors);
    launch();
    act_on(2 * STEPS);
    cr_assert_not(maps(table.learner, table.made[0].up.fd));
    close_ring(0);
    join(0);
    act_on(2 * STEPS);
    tear_down();
}

Test(admission, nobody_comes_to_an_evaluation) {
    set_up(1, LANES * WIDTH);
    table.config.evaluate = true;
    table.config.episodes_target = 1;
    struct farm_error err = {0};
    cr_assert_eq(farm_learner_run(&table.config, &err), 1);
    cr_assert(strstr(err.message, "evaluation") != NULL, "%s", err.message);
    tear_down();
}
