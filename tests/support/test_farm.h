// A farm whose supervisor and actors are the test: rings of a small environment, test actors that check every answer,
// and the learner as a forked process. Used by the tests of src/learner and src/algo.
#ifndef TESTS_SUPPORT_TEST_FARM_H
#define TESTS_SUPPORT_TEST_FARM_H

#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/time.h"
#include "kernels/head.h"
#include "kernels/random.h"
#include "learner.h"
#include "ring/wait.h"
#include "run/player.h"

enum {
    PLACES = 4, // for rings
    LANES = 2,
    WIDTH = 4,
    STEPS = 64,
    FLAT = 4,
    ACTIONS = 4,
    UNROLL = 8,
    OBS_BYTES_MAX = 256,
    STEP_BYTES_MAX = WIDTH * (OBS_BYTES_MAX + 16 + 4 * ACTIONS) + 8,
};
static const uint64_t TEST_LIMIT_NS = 20000000000u; // for anything that a test waits for

// ---- a test actor ----

struct test_counts {
    uint64_t transitions, games, bad; // bad: values that make no sense
};

// A test actor's side of one lane.
struct test_seat {
    uint8_t steps[STEPS][2][STEP_BYTES_MAX]; // what the actor wrote; what it was answered
    uint32_t age[WIDTH];                     // transitions of the running game
    uint64_t start;                          // first step that this actor writes
    uint64_t version;                        // the newest answer's
    uint64_t checked;                        // steps whose answers were checked
    struct test_counts published, newest;    // in all steps; in the newest one
};

// Plays bandits with observations at random: an action is paid 1 if it names the largest number of the observation that
// it answers. In LOCAL mode its own policy names that number, and predicts 10^e in environment e.
struct test_actor {
    struct farm_ring *ring; // the actor's view
    uint32_t number;        // selects the observations
    int bell;               // the learner's
    uint32_t game;          // transitions of a game
    bool own_lengths;       // environment g of the ring plays games of 1 + g % 5 transitions that pay g at their ends
    bool spoil;             // writes a value that makes no sense now and then
    char wrong[256];        // the first check that failed
    struct test_seat seats[LANES];
};

static inline void test_actor_report(struct test_actor *actor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline void test_actor_report(struct test_actor *actor, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!actor->wrong[0]) vsnprintf(actor->wrong, sizeof actor->wrong, format, args);
    va_end(args);
}

// The arrays of step n, those that the actor writes or the answer fields, one after another. Returns their bytes.
static inline size_t test_copy_step(const struct farm_lane *lane, uint64_t n, bool answers, uint8_t *to) {
    size_t bytes = 0;
    for (uint32_t f = 0; f < lane->answer_count && answers; f++) {
        const size_t field = lane->answer[f].rows * lane->answer[f].bytes;
        memcpy(to + bytes, farm_lane_answer_at(lane, f, n, 0), field);
        bytes += field;
    }
    if (answers) return bytes;
    memcpy(to, farm_lane_obs(lane, 0, n, 0), lane->width * lane->obs_bytes[0]);
    bytes = lane->width * lane->obs_bytes[0];
    memcpy(to + bytes, farm_lane_reward(lane, n), lane->width * sizeof(float));
    memcpy(to + bytes + lane->width * sizeof(float), farm_lane_flags(lane, n), lane->width);
    return bytes + lane->width * (sizeof(float) + 1);
}

static inline void test_observation(uint32_t number, const struct farm_lane *lane, uint32_t l, uint64_t n, uint32_t env,
                                    void *out) {
    const bool frames = lane->obs_bytes[0] != FLAT * sizeof(float);
    const uint64_t key = farm_random_mix((n * LANES + l) * WIDTH + env) ^ number;
    for (size_t i = 0; i < lane->obs_bytes[0] && frames; i++) ((uint8_t *)out)[i] = (uint8_t)(key >> i % 48);
    for (uint32_t i = 0; i < FLAT && !frames; i++)
        ((float *)out)[i] = 2 * farm_random_uniform(5 + number, farm_random_stream(l, env), n * FLAT + i) - 1;
}

static inline int32_t test_best_action(const struct farm_lane *lane, uint64_t n, uint32_t env) {
    float numbers[FLAT];
    memcpy(numbers, farm_lane_obs(lane, 0, n, env), sizeof numbers); // in frames: some pixels
    return farm_categorical_greedy(numbers, FLAT);
}

// Each step has one answer, by a version that is not older than the one before, of numbers that make sense.
static inline void test_read_answer(struct test_actor *actor, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &actor->ring->lanes[l];
    struct test_seat *seat = &actor->seats[l];
    const uint64_t version = *farm_lane_version(lane, n), acted = farm_lane_acted(lane);
    if (acted != n + 1)
        test_actor_report(actor, "lane %u: %lu steps are answered, %lu were published", l, acted, n + 1);
    if (version < seat->version)
        test_actor_report(actor, "lane %u step %lu: version %lu after %lu", l, n, version, seat->version);
    seat->version = version;
    for (uint32_t e = 0; e < WIDTH; e++) {
        const int32_t action = *(int32_t *)farm_lane_action(lane, n, e);
        bool finite = isfinite(farm_lane_value(lane, n)[e]);
        for (uint32_t a = 0; a < ACTIONS; a++) finite = finite && isfinite(farm_lane_policy(lane, n, e)[a]);
        if (action < 0 || action >= ACTIONS || !finite)
            test_actor_report(actor, "lane %u step %lu: action %d, and the numbers are%s finite", l, n, action,
                              finite ? "" : " not");
    }
    test_copy_step(lane, n, true, seat->steps[n % STEPS][1]);
}

// Nothing has changed in step n, the oldest of the ring.
static inline void test_check_step(struct test_actor *actor, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &actor->ring->lanes[l];
    uint8_t now[STEP_BYTES_MAX];
    for (int answers = 0; answers < 2; answers++)
        if (memcmp(now, actor->seats[l].steps[n % STEPS][answers], test_copy_step(lane, n, answers, now)) != 0)
            test_actor_report(actor, "lane %u step %lu: its %s changed", l, n, answers ? "answers" : "arrays");
}

// Makes some steps senseless. Returns how many values of this one make no sense.
static inline unsigned test_spoil(struct farm_lane *lane, uint64_t n, uint32_t env) {
    const uint64_t turn = (n + 17 * env) % 97;
    if (turn == 11) ((float *)farm_lane_obs(lane, 0, n, env))[n % FLAT] = NAN;
    if (turn == 11 || turn == 50) farm_lane_reward(lane, n)[env] = turn == 11 ? NAN : INFINITY;
    if (turn == 60) farm_lane_flags(lane, n)[env] |= 0x40;
    if (turn == 70) ((float *)farm_lane_obs(lane, 0, n, env))[0] = -INFINITY;
    return turn == 11 ? 2 : turn == 50 || turn == 60 || turn == 70;
}

// LOCAL: the actor's own answer to step n.
static inline void test_answer(const struct farm_lane *lane, uint64_t n) {
    for (uint32_t env = 0; env < WIDTH; env++) {
        const int32_t action = test_best_action(lane, n, env);
        memcpy(farm_lane_action(lane, n, env), &action, sizeof action);
        memset(farm_lane_policy(lane, n, env), 0, ACTIONS * sizeof(float));
        farm_lane_value(lane, n)[env] = (float)pow(10, env);
    }
    *farm_lane_version(lane, n) = 0;
}

static inline void test_play(struct test_actor *actor, uint32_t l, uint64_t n, uint32_t env) {
    struct farm_lane *lane = &actor->ring->lanes[l];
    struct test_seat *seat = &actor->seats[l];
    const uint32_t g = l * WIDTH + env, length = actor->own_lengths ? 1 + g % 5 : actor->game;
    const bool first = n == seat->start || seat->age[env] == length;
    float reward = 0;
    seat->age[env] = first ? 0 : seat->age[env] + 1;
    const bool over = !first && seat->age[env] == length;
    if (!first) reward = *(int32_t *)farm_lane_action(lane, n - 1, env) == test_best_action(lane, n - 1, env);
    if (actor->own_lengths) reward = over ? (float)g : 0;
    test_observation(actor->number, lane, l, n, env, farm_lane_obs(lane, 0, n, env));
    farm_lane_reward(lane, n)[env] = reward;
    farm_lane_flags(lane, n)[env] = first  ? FARM_STEP_FIRST
                                    : over ? FARM_STEP_LAST | FARM_STEP_TERMINATED | FARM_STEP_GAME_END
                                           : 0;
    seat->newest.transitions += !first;
    seat->newest.games += over;
    seat->newest.bad += actor->spoil ? test_spoil(lane, n, env) : 0;
}

// The lane can go on (farm_actor_wait): checks the answer to the newest step and the oldest step, publishes another.
static inline void test_actor_step(struct test_actor *actor, uint32_t l) {
    struct farm_lane *lane = &actor->ring->lanes[l];
    struct test_seat *seat = &actor->seats[l];
    const uint64_t n = farm_lane_actor_next(lane);
    if (n > seat->start && !lane->local) test_read_answer(actor, l, n - 1);
    if (n && lane->local) test_answer(lane, n - 1);
    if (n > seat->start && lane->local) test_copy_step(lane, n - 1, true, seat->steps[(n - 1) % STEPS][1]);
    if (n >= seat->start + STEPS) test_check_step(actor, l, n - STEPS);
    seat->newest = (struct test_counts){0};
    const uint64_t answered = lane->local ? farm_lane_acted(lane) : n; // LOCAL: perhaps not up to `start` yet
    farm_store_relaxed(&seat->checked, answered > seat->start ? answered - seat->start : 0);
    for (uint32_t e = 0; e < WIDTH; e++) test_play(actor, l, n, e);
    seat->published.transitions += seat->newest.transitions;
    seat->published.games += seat->newest.games;
    seat->published.bad += seat->newest.bad;
    test_copy_step(lane, n, false, seat->steps[n % STEPS][0]);
    farm_lane_actor_publish(lane);
    farm_actor_notify(actor->ring, actor->bell);
}

// Takes the ring's lanes over, new ones too.
static inline void test_actor_start(struct test_actor *actor, struct farm_ring *ring, uint32_t number, int bell) {
    *actor = (struct test_actor){.ring = ring, .number = number, .bell = bell, .game = 8};
    for (uint32_t l = 0; l < LANES; l++) {
        farm_lane_actor_take_over(&ring->lanes[l]);
        actor->seats[l].start = farm_lane_actor_next(&ring->lanes[l]);
    }
    farm_actor_notify(ring, bell);
}

// ---- the farm ----

struct test_farm {
    struct farm_ring_spec spec;
    struct farm_ring made[PLACES], views[PLACES]; // the supervisor's and the actors'
    bool there[PLACES];
    struct test_actor *actors; // [PLACES] shared memory
    int fds[PLACES][2], bell;
    struct test_shared {
        struct farm_stats stats;
        struct farm_error err;
    } * shared; // with the learner
    struct farm_learner_config config;
    struct farm_run_play play; // games 0: training
    char folder[256];
    pid_t learner; // 0: none runs
    int status;    // the last learner's
};

static inline void test_farm_add(struct test_farm *farm, uint32_t r) {
    farm->made[r] = ring_of(farm->spec, r);
    farm->views[r] = open_view(&farm->made[r], FARM_RING_ACTOR);
    test_actor_start(&farm->actors[r], &farm->views[r], r, farm->bell);
    farm->there[r] = true;
}

static inline void test_farm_remove(struct test_farm *farm, uint32_t r) {
    farm_ring_close(&farm->views[r]);
    farm_ring_close(&farm->made[r]);
    farm->there[r] = false;
}

// What a learner of this farm is given, but for what the test changes.
static inline struct farm_learner_config test_farm_config(struct test_farm *farm) {
    struct farm_learner_config config = test_learner_config(FLAT, ACTIONS, UNROLL);
    config.rings.fds = farm->fds;
    config.rings.count = PLACES;
    config.shards[0].eventfd = farm->bell;
    config.stats = &farm->shared->stats;
    config.seed = 3;
    config.algo.batch = LANES * WIDTH;
    config.inference.batch_max = PLACES * LANES * WIDTH;
    config.inference.wait_ms = 0.2;
    config.checkpoints.dir = farm->folder;
    config.checkpoints.keep = 3;
    return config;
}

static inline void test_farm_open(struct test_farm *farm, uint32_t rings, enum farm_answers answers) {
    memset(farm, 0, sizeof *farm);
    farm->spec = farm_ring_spec_plain(LANES, WIDTH, STEPS, FARM_F32, FLAT, ACTIONS);
    farm->spec.answers = answers;
    farm->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    cr_assert_geq(farm->bell, 0);
    farm->shared = shared_memory(sizeof *farm->shared);
    farm->actors = shared_memory(PLACES * sizeof *farm->actors);
    test_folder_make(farm->folder, sizeof farm->folder);
    farm->config = test_farm_config(farm);
    for (uint32_t r = 0; r < rings; r++) test_farm_add(farm, r);
}

// Descriptors of the present rings for a learner, which owns them.
static inline void test_farm_lend(struct test_farm *farm) {
    for (uint32_t r = 0; r < PLACES; r++) {
        farm->fds[r][0] = farm->fds[r][1] = -1;
        if (farm->there[r]) lend_ring(&farm->made[r], farm->fds[r]);
    }
}

static inline void test_farm_launch(struct test_farm *farm) {
    test_farm_lend(farm);
    farm->learner = fork();
    cr_assert_geq(farm->learner, 0);
    if (farm->learner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(farm->play.games ? farm_run_player(&farm->config, &farm->play, &farm->shared->err)
                               : farm_learner_run(&farm->config, &farm->shared->err));
    }
    for (uint32_t r = 0; r < PLACES; r++)
        if (farm->there[r]) close(farm->fds[r][0]), close(farm->fds[r][1]);
}

static inline bool test_farm_learner_ended(struct test_farm *farm) {
    if (farm->learner && waitpid(farm->learner, &farm->status, WNOHANG) == farm->learner) farm->learner = 0;
    return farm->learner == 0;
}

static inline void test_farm_expect_exit(struct test_farm *farm, int exit_status) {
    for (const uint64_t start = farm_now_ns(); !test_farm_learner_ended(farm); usleep(1000))
        cr_assert_lt(farm_now_ns() - start, TEST_LIMIT_NS, "the learner does not end");
    cr_assert(WIFEXITED(farm->status) && WEXITSTATUS(farm->status) == exit_status, "status 0x%x: %s",
              (unsigned)farm->status, farm->shared->err.message);
}

// Ends a learner that runs. After SIGTERM it must exit with 0.
static inline void test_farm_end(struct test_farm *farm, int signal_number) {
    cr_assert_not(test_farm_learner_ended(farm), "it ended before, 0x%x: %s", (unsigned)farm->status,
                  farm->shared->err.message);
    kill(farm->learner, signal_number);
    if (signal_number == SIGTERM) return test_farm_expect_exit(farm, 0);
    cr_assert_eq(waitpid(farm->learner, &farm->status, 0), farm->learner);
    farm->learner = 0;
}

static inline void test_farm_close(struct test_farm *farm) {
    if (farm->learner) test_farm_end(farm, SIGTERM);
    for (uint32_t r = 0; r < PLACES; r++)
        if (farm->there[r]) test_farm_remove(farm, r);
    test_folder_remove(farm->folder);
    munmap(farm->actors, PLACES * sizeof *farm->actors);
    munmap(farm->shared, sizeof *farm->shared);
    close(farm->bell);
}

// The test actor of a ring as a process, with its `game` and `own_lengths`, until the ring's stop word is set or a
// check has failed. The test may read its `wrong` and `checked`.
static inline pid_t test_actor_fork(struct test_farm *farm, uint32_t r, int bell) {
    struct test_actor *actor = &farm->actors[r];
    const struct test_actor options = {.game = actor->game, .own_lengths = actor->own_lengths};
    uint32_t l = 0;
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct farm_ring ring = open_view(&farm->made[r], FARM_RING_ACTOR);
    test_actor_start(actor, &ring, r, bell);
    actor->game = options.game;
    actor->own_lengths = options.own_lengths;
    while (!farm_load_acquire(&ring.down_control->stop) && !actor->wrong[0])
        if (farm_actor_wait(&ring, NULL, 0, 10000000, &l)) test_actor_step(actor, l);
    _exit(actor->wrong[0] != 0);
}

// Ends the process; its checks must have held.
static inline void test_actor_stop(struct test_farm *farm, uint32_t r, pid_t pid) {
    int status;
    farm_store_release(&farm->made[r].down_control->stop, 1);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0, "actor %u: status 0x%x, %s", r, (unsigned)status, farm->actors[r].wrong);
}

static inline uint64_t test_farm_updates(const struct test_farm *farm) {
    return farm_load_relaxed(&farm->shared->stats.updates);
}

#endif
