// Isolation: the learner as the supervisor runs it, two actors that play by the rules and one that does everything it
// can with what it holds. It stores over its whole segment, lies in its counters, publishes values that make no sense
// and changes them afterwards, punches holes, steals and floods the learner's bell. All are processes. The honest ones
// check every answer and every byte of their lanes. They must never stand still; the learner must train on, keep finite
// parameters and end when requested; a successor of the hostile actor must get its lanes back.
#include "../support/test_farm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>

enum {
    ACTORS = 3,
    HOSTILE = 1, // between the honest ones
    SIDE = 12,   // pixels of a frame
    STACK = 3,
    ROUNDS = 4,
    ROUND_STEPS = 10, // that every honest lane makes in a round, however long that takes
};
static const uint64_t LIMIT_NS = 8000000000u, ROUND_LEAST_NS = 60000000u;

TestSuite(hostile, .timeout = 90);

static struct test_farm farm;
static uint64_t *attack_count; // shared with the hostile actor
static char log_path[300];
static pid_t pids[ACTORS];

#define report_wrong(...) test_actor_report(&farm.actors[HOSTILE], __VA_ARGS__)

// ---- set-up ----

static void set_up(bool frames, bool local) {
    test_farm_open(&farm, 0, local ? FARM_ANSWERS_LOCAL : FARM_ANSWERS_CENTRAL);
    if (frames) {
        test_learner_frames(&farm.config, &farm.spec, SIDE, STACK);
        farm.config.arithmetic.precision = FARM_PRECISION_AUTO;
    }
    farm.config.algo.grad_norm_clip = 40; // rewards are not clipped: every one that passes reaches the gradient
    for (uint32_t a = 0; a < ACTORS; a++) test_farm_add(&farm, a);
    snprintf(log_path, sizeof log_path, "%s/log", farm.folder);
    attack_count = shared_memory(sizeof *attack_count);
    memset(pids, 0, sizeof pids);
}

static void launch_learner(void) {
    const int before = dup(STDERR_FILENO), log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    cr_assert(log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    test_farm_launch(&farm);
    dup2(before, STDERR_FILENO);
    close(before);
    close(log);
}

static void launch_honest(uint32_t a) {
    farm.actors[a].own_lengths = true;
    pids[a] = test_actor_fork(&farm, a, farm.bell);
}

// ---- the hostile actor ----

struct enemy {
    struct farm_ring ring;
    uint64_t random;
};

typedef void attack_function(struct enemy *enemy);

static uint64_t next_random(struct enemy *enemy) {
    return farm_random_mix(enemy->random++);
}

static uint64_t random_below(struct enemy *enemy, uint64_t bound) {
    return next_random(enemy) % bound;
}

// Any number, or one that hurts: pairs of NaN, infinities, 3.4e38 and 1e9 in f32, small and large counters, flags.
static uint64_t nasty_number(struct enemy *enemy) {
    static const uint64_t large[] = {0x7fc000007fc00000, 0x7f8000007f800000, 0x7f7fffff7f7fffff,
                                     0x4e6e6b284e6e6b28, 0x0101010101010101, 0x1f1f1f1f1f1f1f1f,
                                     0x8000000000000000, 0xfffffffffffffffe, 0xffffffffffffffff};
    enum { LARGE = sizeof large / sizeof *large, NUMBERS = LARGE + 3 };
    const uint64_t i = random_below(enemy, 2 * NUMBERS);
    return i < LARGE ? large[i] : i < NUMBERS ? i - LARGE : next_random(enemy);
}

// Publishes by the rules, so that the contents of the arrays get as far as they can.
static void publish_steps(struct enemy *enemy) {
    for (uint32_t l = 0; l < LANES; l++) {
        struct farm_lane *lane = &enemy->ring.lanes[l];
        lane->produced_local = farm_lane_acted(lane);
        lane->consumed_seen = farm_lane_consumed(lane);
        for (uint64_t most = random_below(enemy, farm_lane_ahead_max(lane)) + 1; most; most--)
            if (farm_lane_actor_can_write(lane)) farm_lane_actor_publish(lane);
    }
    farm_actor_notify(&enemy->ring, farm.bell);
}

// Stores over the whole segment: header, counters, arrays.
static void store_anywhere(struct enemy *enemy) {
    uint8_t *up = (uint8_t *)enemy->ring.up.header;
    const struct farm_ring_layout *layout = &enemy->ring.layout;
    for (int i = 0; i < 64; i++) {
        const uint64_t where = random_below(enemy, 8), number = nasty_number(enemy);
        size_t from = 0, bytes = enemy->ring.up.bytes;
        if (where == 0) bytes = FARM_SEGMENT_HEADER_BYTES;
        if (where == 1) from = layout->up_control, bytes = layout->up_arrays - from;
        const size_t size = (size_t)1 << random_below(enemy, 4), at = from + random_below(enemy, bytes / size) * size;
        if (at + size <= enemy->ring.up.bytes) memcpy(up + at, &number, size);
    }
    if (random_below(enemy, 4) == 0) publish_steps(enemy);
}

// Impossible counters, a bell that never stops, and wake-ups without a reason.
static void store_counters(struct enemy *enemy) {
    struct farm_lane *lane = &enemy->ring.lanes[random_below(enemy, LANES)];
    const uint64_t acted = farm_lane_acted(lane);
    const uint64_t lies[] = {acted + 2,  acted - 1,      acted + STEPS, acted + 1000000, 0,
                             UINT64_MAX, UINT64_MAX - 1, 1ull << 63,    acted - STEPS,   nasty_number(enemy)};
    farm_store_release(&lane->up->produced, lies[random_below(enemy, sizeof lies / sizeof *lies)]);
    farm_store_relaxed(&enemy->ring.up_control->asleep, nasty_number(enemy));
    farm_store_relaxed(&enemy->ring.up_control->heartbeat, nasty_number(enemy));
    for (int i = 0; i < 200; i++) farm_store_release(&enemy->ring.up_control->doorbell, next_random(enemy));
    farm_actor_notify(&enemy->ring, farm.bell);
    if (random_below(enemy, 8) == 0) publish_steps(enemy);
}

// Writes one kind of value of a step for all environments, sane or not.
static void fill_values(struct enemy *enemy, struct farm_lane *lane, uint64_t n, uint64_t kind, bool sane) {
    const uint64_t number = sane ? 0x3f0000003f000000 /* 0.5 */ : nasty_number(enemy);
    uint8_t *obs = farm_lane_obs(lane, 0, n, 0);
    for (size_t i = 0; i + sizeof number <= WIDTH * lane->obs_bytes[0] && kind == 0; i += sizeof number)
        memcpy(obs + i, &number, sizeof number);
    for (uint32_t e = 0; e < WIDTH && kind == 1; e++) memcpy(&farm_lane_reward(lane, n)[e], &number, sizeof(float));
    for (uint32_t e = 0; e < WIDTH && kind == 2; e++) farm_lane_flags(lane, n)[e] = sane ? 0 : (uint8_t)number;
    for (uint32_t f = 0; f < lane->answer_count && lane->local && kind == 3; f++)
        for (size_t i = 0; i + sizeof number <= lane->answer[f].rows * lane->answer[f].bytes; i += sizeof number)
            memcpy((uint8_t *)farm_lane_answer_at(lane, f, n, 0) + i, sane ? (uint64_t[]){0} : &number, sizeof number);
}

// Publishes by the rules; then the step changes between sense and nonsense, while the learner checks it, infers from
// it, counts it and trains on it.
static void change_published_steps(struct enemy *enemy) {
    const uint64_t kind = random_below(enemy, 4);
    publish_steps(enemy);
    for (int turn = 0; turn < 40; turn++)
        for (uint32_t l = 0; l < LANES; l++) {
            struct farm_lane *lane = &enemy->ring.lanes[l];
            const uint64_t n = farm_lane_acted(lane);
            fill_values(enemy, lane, n, kind, turn % 2 == 0); // the step that inference answers
            fill_values(enemy, lane, n - random_below(enemy, STEPS), random_below(enemy, 4), turn % 2 == 0);
        }
    for (uint64_t k = 0; k < 4; k++)
        for (uint32_t l = 0; l < LANES; l++)
            fill_values(enemy, &enemy->ring.lanes[l], farm_lane_acted(&enemy->ring.lanes[l]), k, true);
}

// Takes pages away from under the learner. They come back as zeros.
static void punch_hole(struct enemy *enemy) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = enemy->ring.up.bytes / page;
    const size_t from = random_below(enemy, pages), count = 1 + random_below(enemy, pages - from);
    const bool all = random_below(enemy, 4) == 0;
    if (fallocate(enemy->ring.up.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, all ? 0 : (off_t)(from * page),
                  (off_t)((all ? pages : count) * page)))
        report_wrong("punching a hole failed: %s", strerror(errno));
    if (madvise((char *)enemy->ring.up.header + from * page, count * page, MADV_REMOVE))
        report_wrong("MADV_REMOVE failed: %s", strerror(errno));
    publish_steps(enemy);
}

// Clears the bell's O_NONBLOCK and reads it empty again and again: a learner that relies on the flag would block in its
// read until the next ring.
static void steal_bell(struct enemy *enemy) {
    uint64_t count;
    fcntl(farm.bell, F_SETFL, 0);
    if (read(farm.bell, &count, sizeof count) < 0) report_wrong("the bell cannot be read: %s", strerror(errno));
}

static void flood_bell(struct enemy *enemy) {
    const int bell = farm.bell;
    const uint64_t full = UINT64_MAX - 1;
    fcntl(bell, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 100; i++)
        if (write(bell, &full, sizeof full) < 0 && errno != EAGAIN)
            report_wrong("the bell cannot be rung: %s", strerror(errno));
    fcntl(bell, F_SETFL, 0);
    publish_steps(enemy);
}

// Reports a call that did not fail with this error (0: any).
static void must_fail(const char *what, bool failed, int wanted) {
    if (!failed || (errno != wanted && wanted)) report_wrong("%s: %s", what, failed ? strerror(errno) : "succeeded");
}

// All operations that the descriptors must refuse.
static void abuse_descriptors(struct enemy *enemy) {
    const int up = enemy->ring.up.fd, down = enemy->ring.down.fd;
    const off_t bytes = (off_t)enemy->ring.up.bytes;
    const uint64_t number = 1;
    must_fail("up: ftruncate to nothing", ftruncate(up, 0) < 0, EPERM);
    must_fail("up: ftruncate beyond", ftruncate(up, 2 * bytes) < 0, EPERM);
    must_fail("up: fallocate beyond", fallocate(up, 0, bytes, bytes) < 0, EPERM);
    must_fail("up: write beyond", pwrite(up, &number, sizeof number, bytes) < 0, EPERM);
    must_fail("up: another seal", fcntl(up, F_ADD_SEALS, F_SEAL_WRITE) < 0, EPERM);
    must_fail("down: another seal", fcntl(down, F_ADD_SEALS, F_SEAL_WRITE) < 0, EPERM);
    must_fail("down: ftruncate", ftruncate(down, 0) < 0, 0);
    must_fail("down: hole", fallocate(down, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0, EBADF);
    must_fail("down: write", pwrite(down, &number, sizeof number, 0) < 0, EBADF);
    must_fail("down: writable mapping",
              mmap(NULL, enemy->ring.down.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, down, 0) == MAP_FAILED, EACCES);
    void *view = enemy->ring.down.header;
    must_fail("down: mprotect", mprotect(view, enemy->ring.down.bytes, PROT_READ | PROT_WRITE) < 0, EACCES);
    must_fail("down: MADV_REMOVE", madvise(view, enemy->ring.down.bytes, MADV_REMOVE) < 0, 0);
    lseek(up, (off_t)nasty_number(enemy), SEEK_SET);
    lseek(down, (off_t)nasty_number(enemy), SEEK_SET);
    fcntl(up, F_SETFL, O_APPEND | O_NONBLOCK);
    publish_steps(enemy);
}

static void attack_at_random(struct enemy *enemy) {
    static attack_function *const attacks[] = {store_anywhere, store_anywhere, store_counters,   change_published_steps,
                                               punch_hole,     flood_bell,     abuse_descriptors};
    attacks[random_below(enemy, sizeof attacks / sizeof *attacks)](enemy);
}

static void launch_hostile(attack_function *attack, uint64_t seed) {
    struct enemy enemy = {.random = seed << 32};
    pids[HOSTILE] = fork();
    cr_assert_geq(pids[HOSTILE], 0);
    if (pids[HOSTILE] > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    enemy.ring = open_view(&farm.made[HOSTILE], FARM_RING_ACTOR);
    for (;;) {
        attack(&enemy);
        farm_stats_add(attack_count, 1);
    }
}

// ---- what must hold ----

static void expect_well(void) {
    const struct farm_stats *stats = &farm.shared->stats;
    int status;
    for (uint32_t a = 0; a < ACTORS; a++) cr_assert(!farm.actors[a].wrong[0], "actor %u: %s", a, farm.actors[a].wrong);
    cr_assert_not(test_farm_learner_ended(&farm), "the learner ended with 0x%x: %s", (unsigned)farm.status,
                  farm.shared->err.message);
    for (uint32_t a = 0; a < ACTORS; a++)
        if (pids[a]) cr_assert_eq(waitpid(pids[a], &status, WNOHANG), 0, "actor %u ended", a);
    cr_assert(isfinite(farm_stats_get(&stats->grad_norm)) && isfinite(farm_stats_get(&stats->algo[0])));
}

// Each lane of these actors makes ROUND_STEPS steps more and training an update, and the round takes ROUND_LEAST_NS.
static void play_round(const bool honest[ACTORS]) {
    uint64_t before[ACTORS][LANES];
    for (uint32_t i = 0; i < ACTORS * LANES; i++)
        before[i / LANES][i % LANES] = farm_load_relaxed(&farm.actors[i / LANES].seats[i % LANES].checked);
    const uint64_t start = farm_now_ns(), updates = test_farm_updates(&farm);
    for (bool done = false; !done; usleep(1000)) {
        const uint64_t spent = farm_now_ns() - start;
        expect_well();
        cr_assert_lt(spent, 2 * LIMIT_NS, "training stands still");
        done = spent >= ROUND_LEAST_NS && (farm.play.games || test_farm_updates(&farm) > updates);
        for (uint32_t a = 0; a < ACTORS; a++)
            for (uint32_t l = 0; l < LANES && honest[a]; l++) {
                const uint64_t made = farm_load_relaxed(&farm.actors[a].seats[l].checked) - before[a][l];
                if (made >= ROUND_STEPS) continue;
                done = false;
                cr_assert_lt(spent, LIMIT_NS, "actor %u lane %u made %lu steps in %.1f s, training %lu updates", a, l,
                             made, (double)spent * 1e-9, test_farm_updates(&farm) - updates);
            }
    }
}

static void play_rounds(bool with_hostile, int rounds) {
    const bool honest[ACTORS] = {true, with_hostile, true};
    for (int round = 0; round < rounds; round++) play_round(honest);
}

// The checkpoint of the learner's end holds finite numbers, and every gradient was finite.
static void expect_trained(void) {
    char path[600], text[8192] = "";
    struct farm_checkpoint_metadata metadata;
    free(test_newest_checkpoint(&farm.config, path, sizeof path, &metadata));
    farm_checkpoint_metadata_free(&metadata);
    FILE *log = fopen(log_path, "r");
    cr_assert(log != NULL);
    text[fread(text, 1, sizeof text - 1, log)] = 0;
    fclose(log);
    cr_assert(strstr(text, "not finite") == NULL, "%s", text);
    cr_assert_lt(strlen(text), 4096, "a hostile actor fills the log: %s", text);
}

static void kill_hostile(void) {
    kill(pids[HOSTILE], SIGKILL);
    waitpid(pids[HOSTILE], NULL, 0);
    pids[HOSTILE] = 0;
}

// As the supervisor does after the hostile actor: an honest one on its lanes, which is answered like the others.
static void succeed_hostile(void) {
    kill_hostile();
    farm_ring_restore(&farm.made[HOSTILE]);
    for (uint32_t l = 0; l < LANES; l++) farm_store_release(&farm.made[HOSTILE].lanes[l].down->generation, 1);
    launch_honest(HOSTILE);
    play_rounds(true, 2);
}

static void tear_down(void) {
    for (uint32_t a = 0; a < ACTORS; a++)
        if (pids[a]) test_actor_stop(&farm, a, pids[a]);
    cr_assert(!farm.actors[HOSTILE].wrong[0], "%s", farm.actors[HOSTILE].wrong);
    munmap(attack_count, sizeof *attack_count);
    test_farm_close(&farm);
}

static void start_attack(attack_function *attack, uint64_t seed) {
    launch_learner();
    launch_honest(0);
    launch_honest(2);
    play_rounds(false, 1);
    launch_hostile(attack, seed);
}

// A whole run. `bad`: the attack writes values that make no sense, and the learner counts some of them.
static void run_attack(bool frames, bool local, attack_function *attack, uint64_t seed, bool bad) {
    set_up(frames, local);
    start_attack(attack, seed);
    play_rounds(false, ROUNDS);
    for (int round = 0; round < 10 * ROUNDS && bad && !farm_load_relaxed(&farm.shared->stats.bad_values); round++)
        play_rounds(false, 1);
    cr_assert_gt(farm_load_relaxed(attack_count), 0);
    succeed_hostile();
    if (bad) cr_assert_gt(farm_load_relaxed(&farm.shared->stats.bad_values), 0);
    test_farm_end(&farm, SIGTERM);
    expect_trained();
    tear_down();
}

// A test of whole runs, with two seeds or in both modes.
#define ATTACK(name, runs, ...)                                                                                        \
    Test(hostile, name) {                                                                                              \
        for (uint64_t run = 1; run <= (runs); run++) run_attack(__VA_ARGS__);                                          \
    }
ATTACK(stores_over_the_whole_segment, 3, run == 3, false, store_anywhere, run == 2 ? 2 : 1, true)
ATTACK(stores_counters_that_cannot_be_and_rings_without_end, 2, false, run == 2, store_counters, 1, true)
ATTACK(changes_steps_after_it_has_published_them, 2, false, run == 2, change_published_steps, 1, true)
ATTACK(changes_frames_after_it_has_published_them, 1, true, false, change_published_steps, 1, true)
ATTACK(punches_holes_into_the_segment, 1, false, false, punch_hole, 1, false)
ATTACK(steals_and_floods_the_bell, 2, false, false, run == 1 ? steal_bell : flood_bell, 1, false)
ATTACK(is_refused_what_would_hurt_others_by_its_descriptors, 1, false, false, abuse_descriptors, 1, false)
ATTACK(does_everything_at_once, 2, run == 2, false, attack_at_random, run, true)
ATTACK(does_everything_at_once_where_actors_run_the_policy_themselves, 2, run == 2, true, attack_at_random, run, true)

// The learner ends while the hostile actor runs.
Test(hostile, cannot_hold_up_the_end) {
    set_up(false, false);
    start_attack(attack_at_random, 9);
    play_rounds(false, 2);
    test_farm_end(&farm, SIGTERM);
    expect_trained();
    kill_hostile();
    tear_down();
}

// A learner that comes back opens rings that are being stored over, headers too.
Test(hostile, a_learner_comes_back_while_it_stores_over_the_whole_segment) {
    set_up(false, false);
    start_attack(store_anywhere, 4);
    for (int life = 0; life < 3; life++) {
        play_rounds(false, 1);
        test_farm_end(&farm, SIGKILL);
        memset(farm.made[HOSTILE].up.header, 0xa5, FARM_SEGMENT_HEADER_BYTES); // at the least
        launch_learner();
    }
    play_rounds(false, 1);
    succeed_hostile();
    test_farm_end(&farm, SIGTERM);
    tear_down();
}

// In one batch with NaN, infinities and the largest numbers: the others' answers are those of their observations.
Test(hostile, answers_to_the_others_are_what_they_would_be_without_it) {
    set_up(false, false);
    farm.play = (struct farm_run_play){.games = UINT32_MAX, .greedy = true};
    start_attack(change_published_steps, 2);
    play_rounds(false, ROUNDS);
    test_farm_end(&farm, SIGTERM);
    kill_hostile();
    for (uint32_t a = 0; a < ACTORS; a += 2)
        for (uint32_t l = 0; l < LANES; l++) {
            const struct farm_lane *lane = &farm.made[a].lanes[l];
            const uint64_t acted = farm_lane_acted(lane);
            for (uint64_t n = acted - STEPS / 2; n < acted; n++)
                test_expect_lane_answers(&farm.config, NULL, lane, n, a ? "actor 2" : "actor 0");
        }
    tear_down();
}

// ---- descriptors ----

static void drop_privileges(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    if (syscall(SYS_capset, &header, none)) _exit(3);
}

// errno of opening a descriptor once more for writing, by way of /proc; 0 where that succeeds.
static int reopen_for_writing(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC) < 0 ? errno : 0;
}

// Root, or a process that may set permissions, can: docs/RELIABILITY.md excludes that.
Test(hostile, without_privileges_a_read_only_descriptor_does_not_become_a_writable_one) {
    set_up(false, false);
    const pid_t child = fork();
    if (child == 0) {
        drop_privileges();
        const bool refused = reopen_for_writing(farm.made[0].down.fd_readonly) == EACCES &&
                             reopen_for_writing(farm.made[0].up.fd_readonly) == EACCES;
        _exit(refused ? 0 : 1);
    }
    cr_assert_eq(wait_for(child), 0);
    tear_down();
}
