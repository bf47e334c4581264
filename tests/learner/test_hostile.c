// Isolation: the learner as the supervisor runs it, two actors that play by the rules and one that does everything it
// can with what it holds: it stores over its whole segment, lies in its counters, publishes what makes no sense and
// changes it afterwards, punches holes, steals and floods the learner's bell. All are processes of their own. The
// honest ones check every answer and every byte of their lanes; they must never stand still, the learner must train on,
// keep finite parameters and end when asked; and a successor of the hostile one must get its lanes back.
#include "rings.h"

#include "../support/learner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/time.h"
#include "kernels/random.h"
#include "learner/checkpoint.h"
#include "learner/learner.h"
#include "learner/validator.h"
#include "ring/wait.h"

enum {
    ACTORS = 3,
    HOSTILE = 1, // between the honest ones
    LANES = 2,
    WIDTH = 4,
    STEPS = 64,
    FLAT = 4,
    SIDE = 12, // pixels of a frame
    STACK = 3,
    ACTIONS = 4,
    UNROLL = 8,
    GAME = 13,
    OBS_BYTES_MAX = SIDE * SIDE,
    ROUNDS = 6,
    ROUND_STEPS = 10, // that every honest lane must make in a round, however long that takes, but
};
static const uint64_t LIMIT_NS = 8000000000u, ROUND_LEAST_NS = 60000000u, END_NS = 8000000000u, NAP_NS = 20000000u;

TestSuite(hostile, .timeout = 90);

// What all processes see.
struct shared {
    struct farm_stats stats;
    struct farm_error err;
    uint64_t steps[ACTORS][LANES]; // of honest actors: answered and found right
    uint64_t stop;                 // honest actors end
    uint64_t attacks;
    char wrong[512]; // the first thing that was not as it must be
};

static struct table {
    bool frames, local;             // local: all actors answer themselves
    struct farm_ring rings[ACTORS]; // the supervisor's
    struct shared *shared;
    struct farm_learner_config config;
    struct farm_net_spec frame_net;
    int fds[ACTORS][2];
    int eventfd;
    char folder[256], log[300];
    pid_t learner, actors[ACTORS];
} table;

static void say_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say_wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!table.shared->wrong[0]) vsnprintf(table.shared->wrong, sizeof table.shared->wrong, format, args);
    va_end(args);
}

// ---- set-up ----

static struct farm_learner_config usual(void) {
    struct farm_learner_config config = test_learner_config(FLAT, ACTIONS, UNROLL);
    table.frame_net = (struct farm_net_spec){.name = "small",
                                             .about = "of this test",
                                             .layer_count = 2,
                                             .layers = {{FARM_LAYER_CONV, 8, 4, 2, FARM_ACTIVATION_RELU},
                                                        {FARM_LAYER_DENSE, 16, 0, 0, FARM_ACTIVATION_RELU}}};
    if (table.frames) {
        config.net = table.frame_net;
        config.io = (struct farm_net_io){
            .frame_channels = 1, .height = SIDE, .width = SIDE, .stack = STACK, .actions = ACTIONS};
        config.algo.stack = STACK;
        config.precision = FARM_PRECISION_AUTO;
    }
    config.ring_fds = table.fds;
    config.ring_count = ACTORS;
    config.shards[0].eventfd = table.eventfd;
    config.stats = &table.shared->stats;
    config.seed = 3;
    config.algo.batch = LANES * WIDTH;
    config.algo.grad_norm_clip = 40; // and rewards are not clipped: whatever passes for one reaches the gradient
    config.infer_batch_max = ACTORS * LANES * WIDTH;
    config.infer_wait_ms = 0.2;
    config.checkpoint_dir = table.folder;
    return config;
}

static void set_up(bool frames, bool local) {
    struct farm_error err = {0};
    struct farm_ring_spec spec = test_ring_spec(LANES, WIDTH, STEPS, FLAT, ACTIONS);
    if (frames)
        spec.env.obs[0] = (struct farm_field_spec){.name = "obs", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}};
    memset(&table, 0, sizeof table);
    table.frames = frames;
    table.local = local;
    if (local) spec.answers = FARM_ANSWERS_LOCAL;
    for (uint32_t a = 0; a < ACTORS; a++)
        cr_assert_eq(farm_ring_create(&spec, a, -1, false, &table.rings[a], &err), FARM_OK, "%s", err.message);
    test_folder_make(table.folder, sizeof table.folder);
    snprintf(table.log, sizeof table.log, "%s/said", table.folder);
    table.shared = mmap(NULL, sizeof *table.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    table.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    cr_assert(table.shared != MAP_FAILED && table.eventfd >= 0);
    table.config = usual();
}

static void launch_learner(void) {
    for (uint32_t a = 0; a < ACTORS; a++) {
        table.fds[a][0] = dup(table.rings[a].up.fd_readonly);
        table.fds[a][1] = dup(table.rings[a].down.fd);
    }
    table.learner = fork();
    cr_assert_geq(table.learner, 0);
    if (table.learner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open(table.log, O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
        _exit(farm_learner_run(&table.config, &table.shared->err));
    }
    for (uint32_t a = 0; a < ACTORS; a++) {
        close(table.fds[a][0]);
        close(table.fds[a][1]);
    }
}

// ---- honest actors ----

struct answer {
    int32_t action[WIDTH];
    float value[WIDTH], logits[WIDTH * ACTIONS];
    uint64_t version;
};

struct player {
    uint32_t actor;
    struct farm_ring ring;
    uint64_t start[LANES]; // first step that this process has written
    struct answer answers[LANES][STEPS];
};

static float reward_of(uint32_t actor, uint32_t l, uint64_t n, uint32_t env) {
    return farm_random_uniform(7 + actor, farm_random_stream(l, env), n);
}

static unsigned flags_of(uint64_t start, uint64_t n, uint32_t env) {
    const uint64_t phase = (n - start + (n == start ? 0 : env)) % GAME;
    if (n == start || phase == 1) return FARM_STEP_FIRST;
    return phase == 0 ? FARM_STEP_LAST | FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

static void observation_of(bool frames, uint32_t actor, uint32_t l, uint64_t n, uint32_t env, void *out) {
    const uint64_t key = farm_random_mix((n * LANES + l) * WIDTH + env) ^ actor;
    for (uint32_t i = 0; i < OBS_BYTES_MAX && frames; i++) ((uint8_t *)out)[i] = (uint8_t)(key >> i % 48);
    for (uint32_t i = 0; i < FLAT && !frames; i++)
        ((float *)out)[i] = 2 * farm_random_uniform(5 + actor, farm_random_stream(l, env), n * FLAT + i) - 1;
}

static void read_answer(const struct farm_lane *lane, uint64_t n, struct answer *answer) {
    memset(answer, 0, sizeof *answer);
    memcpy(answer->action, farm_lane_action(lane, n, 0), sizeof answer->action);
    memcpy(answer->value, farm_lane_value(lane, n), sizeof answer->value);
    memcpy(answer->logits, farm_lane_policy(lane, n, 0), sizeof answer->logits);
    answer->version = *farm_lane_version(lane, n);
}

static void check_new_answer(struct player *player, uint32_t l, uint64_t n) {
    struct answer *answer = &player->answers[l][n % STEPS];
    read_answer(&player->ring.lanes[l], n, answer);
    for (uint32_t e = 0; e < WIDTH; e++) {
        bool finite = isfinite(answer->value[e]);
        for (uint32_t a = 0; a < ACTIONS; a++) finite = finite && isfinite(answer->logits[e * ACTIONS + a]);
        if (answer->action[e] < 0 || answer->action[e] >= ACTIONS || !finite)
            say_wrong("actor %u lane %u step %lu: answered with action %d and numbers that are%s finite", player->actor,
                      l, n, answer->action[e], finite ? "" : " not");
    }
}

// Step n, C steps ago: what this process wrote and what was answered to it is still what it was.
static void check_old_step(const struct player *player, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &player->ring.lanes[l];
    struct answer now;
    read_answer(lane, n, &now);
    if (memcmp(&now, &player->answers[l][n % STEPS], sizeof now) != 0)
        say_wrong("actor %u lane %u step %lu was answered twice", player->actor, l, n);
    for (uint32_t e = 0; e < WIDTH; e++) {
        uint8_t wanted[OBS_BYTES_MAX];
        observation_of(table.frames, player->actor, l, n, e, wanted);
        const float reward = reward_of(player->actor, l, n, e);
        if (memcmp(farm_lane_obs(lane, 0, n, e), wanted, lane->obs_bytes[0]) != 0 ||
            memcmp(&farm_lane_reward(lane, n)[e], &reward, sizeof reward) != 0 ||
            farm_lane_flags(lane, n)[e] != flags_of(player->start[l], n, e))
            say_wrong("actor %u lane %u step %lu is not what its actor wrote", player->actor, l, n);
    }
}

// LOCAL: any answer that makes sense.
static void answer_itself(struct player *player, uint32_t l, uint64_t n) {
    struct farm_lane *lane = &player->ring.lanes[l];
    for (uint32_t e = 0; e < WIDTH; e++) {
        const int32_t action = (int32_t)((n + e) % ACTIONS);
        memcpy(farm_lane_action(lane, n, e), &action, sizeof action);
        memset(farm_lane_policy(lane, n, e), 0, ACTIONS * sizeof(float));
        farm_lane_value(lane, n)[e] = (float)action;
    }
    *farm_lane_version(lane, n) = 0;
    read_answer(lane, n, &player->answers[l][n % STEPS]);
}

static void play_step(struct player *player, uint32_t l) {
    struct farm_lane *lane = &player->ring.lanes[l];
    const uint64_t n = farm_lane_actor_next(lane);
    if (lane->local) {
        const uint64_t acted = farm_lane_acted(lane), start = player->start[l];
        farm_store_relaxed(&table.shared->steps[player->actor][l], acted > start ? acted - start : 0);
    } else if (n > player->start[l]) {
        check_new_answer(player, l, n - 1);
        farm_store_relaxed(&table.shared->steps[player->actor][l], n - player->start[l]);
    }
    if (n >= player->start[l] + STEPS) check_old_step(player, l, n - STEPS);
    for (uint32_t e = 0; e < WIDTH; e++) {
        observation_of(table.frames, player->actor, l, n, e, farm_lane_obs(lane, 0, n, e));
        farm_lane_reward(lane, n)[e] = reward_of(player->actor, l, n, e);
        farm_lane_flags(lane, n)[e] = (uint8_t)flags_of(player->start[l], n, e);
    }
    if (lane->local) answer_itself(player, l, n);
    farm_lane_actor_publish(lane);
    farm_actor_notify(&player->ring, table.eventfd);
}

static void play(uint32_t actor) {
    struct player *player = calloc(1, sizeof *player);
    struct farm_error err = {0};
    *player = (struct player){.actor = actor};
    if (farm_ring_open(dup(table.rings[actor].up.fd), dup(table.rings[actor].down.fd_readonly), FARM_RING_ACTOR,
                       &player->ring, &err)) {
        say_wrong("actor %u: %s", actor, err.message);
        return;
    }
    for (uint32_t l = 0; l < LANES; l++) {
        farm_lane_actor_take_over(&player->ring.lanes[l]);
        player->start[l] = farm_lane_actor_next(&player->ring.lanes[l]);
    }
    farm_actor_notify(&player->ring, table.eventfd);
    uint32_t lane = 0;
    while (!farm_load_relaxed(&table.shared->stop))
        if (farm_actor_wait(&player->ring, NULL, 0, NAP_NS, &lane)) play_step(player, lane);
}

// ---- the hostile actor ----

struct villain {
    struct farm_ring ring;
    uint64_t random;
};

typedef void deed(struct villain *villain);

static uint64_t next_random(struct villain *villain) {
    return farm_random_mix(villain->random++);
}

static uint64_t below(struct villain *villain, uint64_t bound) {
    return next_random(villain) % bound;
}

// A number of those that hurt, or any.
static uint64_t nasty(struct villain *villain) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       UINT64_MAX,
                                       UINT64_MAX - 1,
                                       1ull << 63,
                                       0x7fc000007fc00000 /* NaN, NaN */,
                                       0x7f8000007f800000 /* infinities */,
                                       0x7f7fffff7f7fffff /* 3.4e38 */,
                                       0x4e6e6b284e6e6b28 /* 1e9 */,
                                       0x0101010101010101,
                                       0x1f1f1f1f1f1f1f1f};
    const uint64_t i = below(villain, 2 * (sizeof numbers / sizeof *numbers));
    return i < sizeof numbers / sizeof *numbers ? numbers[i] : next_random(villain);
}

// By the rules where a lane lets it: so that what is in its arrays gets as far as it can.
static void publish_all(struct villain *villain) {
    for (uint32_t l = 0; l < LANES; l++) {
        struct farm_lane *lane = &villain->ring.lanes[l];
        lane->produced_local = farm_lane_acted(lane);
        lane->consumed_seen = farm_lane_consumed(lane);
        for (uint64_t most = below(villain, farm_lane_ahead_max(lane)) + 1; most; most--)
            if (farm_lane_actor_can_write(lane)) farm_lane_actor_publish(lane);
    }
    farm_actor_notify(&villain->ring, table.eventfd);
}

// Stores over the whole segment: header, counters, arrays.
static void scribble(struct villain *villain) {
    uint8_t *up = (uint8_t *)villain->ring.up.header;
    const struct farm_ring_layout *layout = &villain->ring.layout;
    for (int i = 0; i < 64; i++) {
        const uint64_t where = below(villain, 8), number = nasty(villain);
        size_t from = 0, bytes = villain->ring.up.bytes;
        if (where == 0) bytes = FARM_SEGMENT_HEADER_BYTES;
        if (where == 1) from = layout->up_control, bytes = layout->up_arrays - from;
        const size_t size = (size_t)1 << below(villain, 4), at = from + below(villain, bytes / size) * size;
        if (at + size <= villain->ring.up.bytes) memcpy(up + at, &number, size);
    }
    if (below(villain, 4) == 0) publish_all(villain);
}

// Counters that cannot be, a bell that never stops, and waking calls for nothing.
static void lie(struct villain *villain) {
    struct farm_lane *lane = &villain->ring.lanes[below(villain, LANES)];
    const uint64_t acted = farm_lane_acted(lane);
    const uint64_t lies[] = {acted + 2,  acted - 1,      acted + STEPS, acted + 1000000, 0,
                             UINT64_MAX, UINT64_MAX - 1, 1ull << 63,    acted - STEPS,   nasty(villain)};
    farm_store_release(&lane->up->produced, lies[below(villain, sizeof lies / sizeof *lies)]);
    farm_store_relaxed(&villain->ring.up_control->asleep, nasty(villain));
    farm_store_relaxed(&villain->ring.up_control->heartbeat, nasty(villain));
    for (int i = 0; i < 200; i++) farm_store_release(&villain->ring.up_control->doorbell, next_random(villain));
    farm_actor_notify(&villain->ring, table.eventfd);
    if (below(villain, 8) == 0) publish_all(villain);
}

// One kind of value of a step, of all its environments: as they should be, or not.
static void fill_values(struct villain *villain, struct farm_lane *lane, uint64_t n, uint64_t kind, bool sane) {
    const uint64_t number = sane ? 0x3f0000003f000000 /* 0.5 */ : nasty(villain);
    uint8_t *obs = farm_lane_obs(lane, 0, n, 0);
    for (size_t i = 0; i + sizeof number <= WIDTH * lane->obs_bytes[0] && kind == 0; i += sizeof number)
        memcpy(obs + i, &number, sizeof number);
    for (uint32_t e = 0; e < WIDTH && kind == 1; e++) memcpy(&farm_lane_reward(lane, n)[e], &number, sizeof(float));
    for (uint32_t e = 0; e < WIDTH && kind == 2; e++) farm_lane_flags(lane, n)[e] = sane ? 0 : (uint8_t)number;
    for (uint32_t f = 0; f < lane->answer_count && lane->local && kind == 3; f++)
        for (size_t i = 0; i + sizeof number <= lane->answer[f].rows * lane->answer[f].bytes; i += sizeof number)
            memcpy((uint8_t *)farm_lane_answer_at(lane, f, n, 0) + i, sane ? (uint64_t[]){0} : &number, sizeof number);
}

// By the rules, but as soon as a step is published it changes, between sense and nonsense, while the learner checks it,
// infers from it, counts it and trains on it.
static void change_its_mind(struct villain *villain) {
    const uint64_t kind = below(villain, 4);
    publish_all(villain);
    for (int turn = 0; turn < 40; turn++)
        for (uint32_t l = 0; l < LANES; l++) {
            struct farm_lane *lane = &villain->ring.lanes[l];
            const uint64_t n = farm_lane_acted(lane);
            fill_values(villain, lane, n, kind, turn % 2 == 0); // of the step that is being answered
            fill_values(villain, lane, n - below(villain, STEPS), below(villain, 4), turn % 2 == 0);
        }
    for (uint64_t k = 0; k < 4; k++)
        for (uint32_t l = 0; l < LANES; l++)
            fill_values(villain, &villain->ring.lanes[l], farm_lane_acted(&villain->ring.lanes[l]), k, true);
}

// Takes the pages away under the learner: they come back as zeros.
static void punch(struct villain *villain) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = villain->ring.up.bytes / page;
    const size_t from = below(villain, pages), count = 1 + below(villain, pages - from);
    const bool all = below(villain, 4) == 0;
    if (fallocate(villain->ring.up.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, all ? 0 : (off_t)(from * page),
                  (off_t)((all ? pages : count) * page)))
        say_wrong("punching a hole failed: %s", strerror(errno));
    if (madvise((char *)villain->ring.up.header + from * page, count * page, MADV_REMOVE))
        say_wrong("MADV_REMOVE failed: %s", strerror(errno));
    publish_all(villain);
}

// Switches the bell's O_NONBLOCK off and reads it empty, for ever: a learner that trusted the flag would go to sleep in
// its own read, and only somebody who rings again could wake it.
static void steal_bell(struct villain *villain) {
    uint64_t count;
    fcntl(table.eventfd, F_SETFL, 0);
    if (read(table.eventfd, &count, sizeof count) < 0) say_wrong("the bell cannot be read: %s", strerror(errno));
}

static void flood_bell(struct villain *villain) {
    const int bell = table.eventfd;
    const uint64_t full = UINT64_MAX - 1;
    fcntl(bell, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 100; i++)
        if (write(bell, &full, sizeof full) < 0 && errno != EAGAIN)
            say_wrong("the bell cannot be rung: %s", strerror(errno));
    fcntl(bell, F_SETFL, 0);
    publish_all(villain);
}

// Whether a call failed as it must.
static void must_fail(const struct villain *villain, const char *what, bool failed, int wanted) {
    if (!failed || (errno != wanted && wanted)) say_wrong("%s: %s", what, failed ? strerror(errno) : "succeeded");
}

// Everything that a descriptor can be asked for and must refuse.
static void abuse_descriptors(struct villain *villain) {
    const int up = villain->ring.up.fd, down = villain->ring.down.fd;
    const off_t bytes = (off_t)villain->ring.up.bytes;
    const uint64_t number = 1;
    must_fail(villain, "up: ftruncate to nothing", ftruncate(up, 0) < 0, EPERM);
    must_fail(villain, "up: ftruncate beyond", ftruncate(up, 2 * bytes) < 0, EPERM);
    must_fail(villain, "up: fallocate beyond", fallocate(up, 0, bytes, bytes) < 0, EPERM);
    must_fail(villain, "up: write beyond", pwrite(up, &number, sizeof number, bytes) < 0, EPERM);
    must_fail(villain, "up: another seal", fcntl(up, F_ADD_SEALS, F_SEAL_WRITE) < 0, EPERM);
    must_fail(villain, "down: another seal", fcntl(down, F_ADD_SEALS, F_SEAL_WRITE) < 0, EPERM);
    must_fail(villain, "down: ftruncate", ftruncate(down, 0) < 0, 0);
    must_fail(villain, "down: hole", fallocate(down, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0, EBADF);
    must_fail(villain, "down: write", pwrite(down, &number, sizeof number, 0) < 0, EBADF);
    must_fail(villain, "down: writable mapping",
              mmap(NULL, villain->ring.down.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, down, 0) == MAP_FAILED, EACCES);
    void *view = villain->ring.down.header;
    must_fail(villain, "down: mprotect", mprotect(view, villain->ring.down.bytes, PROT_READ | PROT_WRITE) < 0, EACCES);
    must_fail(villain, "down: MADV_REMOVE", madvise(view, villain->ring.down.bytes, MADV_REMOVE) < 0, 0);
    lseek(up, (off_t)nasty(villain), SEEK_SET);
    lseek(down, (off_t)nasty(villain), SEEK_SET);
    fcntl(up, F_SETFL, O_APPEND | O_NONBLOCK);
    publish_all(villain);
}

static void do_everything(struct villain *villain) {
    static deed *const attacks[] = {scribble, scribble, lie, change_its_mind, punch, flood_bell, abuse_descriptors};
    attacks[below(villain, sizeof attacks / sizeof *attacks)](villain);
}

static void be_hostile(deed *attack, uint64_t seed) {
    struct villain villain = {.random = seed << 32};
    struct farm_error err = {0};
    if (farm_ring_open(dup(table.rings[HOSTILE].up.fd), dup(table.rings[HOSTILE].down.fd_readonly), FARM_RING_ACTOR,
                       &villain.ring, &err)) {
        say_wrong("the hostile actor: %s", err.message);
        return;
    }
    for (;;) {
        attack(&villain);
        farm_stats_add(&table.shared->attacks, 1);
    }
}

static void launch_actor(uint32_t actor, deed *attack, uint64_t seed) {
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (attack)
            be_hostile(attack, seed);
        else
            play(actor);
        _exit(0);
    }
    table.actors[actor] = pid;
}

// ---- what must hold ----

static void expect_well(void) {
    int status;
    const struct shared *shared = table.shared;
    cr_assert(!shared->wrong[0], "%s", shared->wrong);
    cr_assert_eq(waitpid(table.learner, &status, WNOHANG), 0, "the learner ended with 0x%x: %s", (unsigned)status,
                 shared->err.message);
    for (uint32_t a = 0; a < ACTORS; a++)
        if (table.actors[a]) cr_assert_eq(waitpid(table.actors[a], &status, WNOHANG), 0, "actor %u ended", a);
    cr_assert(isfinite(farm_stats_get(&shared->stats.grad_norm)) && isfinite(farm_stats_get(&shared->stats.algo[0])));
}

// Each lane of these actors makes ROUND_STEPS steps more and training an update, and the round takes ROUND_LEAST_NS.
static void play_round(const bool actors[ACTORS]) {
    struct shared *shared = table.shared;
    uint64_t before[ACTORS][LANES];
    memcpy(before, shared->steps, sizeof before);
    const uint64_t start = farm_now_ns(), updates = farm_load_relaxed(&shared->stats.updates);
    for (bool done = false; !done; usleep(1000)) {
        const uint64_t spent = farm_now_ns() - start;
        done = spent >= ROUND_LEAST_NS;
        expect_well();
        if (!table.config.evaluate && farm_load_relaxed(&shared->stats.updates) == updates) done = false;
        cr_assert_lt(spent, 2 * LIMIT_NS, "training stands still");
        for (uint32_t a = 0; a < ACTORS; a++)
            for (uint32_t l = 0; l < LANES && actors[a]; l++) {
                const uint64_t made = farm_load_relaxed(&shared->steps[a][l]) - before[a][l];
                if (made < ROUND_STEPS) done = false;
                cr_assert_lt(spent, LIMIT_NS, "actor %u lane %u made %lu steps in %.1f s, training %lu updates", a, l,
                             made, (double)spent * 1e-9, farm_load_relaxed(&shared->stats.updates) - updates);
            }
    }
}

static void play_rounds(bool with_hostile, int rounds) {
    const bool actors[ACTORS] = {true, with_hostile, true};
    for (int round = 0; round < rounds; round++) play_round(actors);
}

static void expect_ends(pid_t pid, int signal_number, const char *who) {
    int status = 0;
    pid_t ended = 0;
    kill(pid, signal_number);
    for (const uint64_t start = farm_now_ns(); !ended && farm_now_ns() - start < END_NS; usleep(1000))
        ended = waitpid(pid, &status, WNOHANG);
    cr_assert_eq(ended, pid, "%s does not end", who);
    if (signal_number == SIGTERM)
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with 0x%x: %s", who, (unsigned)status,
                  table.shared->err.message);
}

// The checkpoint of the learner's end is one of finite numbers, and no update was lost to a gradient that was none.
static void expect_trained(void) {
    char path[600], text[8192] = "";
    struct farm_checkpoint_metadata metadata;
    free(test_newest_checkpoint(&table.config, path, sizeof path, &metadata));
    farm_checkpoint_metadata_free(&metadata);
    FILE *log = fopen(table.log, "r");
    if (log) text[fread(text, 1, sizeof text - 1, log)] = 0;
    if (log) fclose(log);
    cr_assert(strstr(text, "not finite") == NULL, "%s", text);
    cr_assert_lt(strlen(text), 4096, "a hostile actor fills the log: %s", text);
}

// After the hostile one, as the supervisor does: an honest actor on its lanes, which learns and is answered like
// others.
static void succeed(void) {
    kill(table.actors[HOSTILE], SIGKILL);
    waitpid(table.actors[HOSTILE], NULL, 0);
    table.actors[HOSTILE] = 0;
    farm_ring_restore(&table.rings[HOSTILE]);
    for (uint32_t l = 0; l < LANES; l++) farm_store_release(&table.rings[HOSTILE].lanes[l].down->generation, 1);
    launch_actor(HOSTILE, NULL, 0);
    play_rounds(true, 2);
}

static void tear_down(void) {
    farm_store_relaxed(&table.shared->stop, 1);
    for (uint32_t a = 0; a < ACTORS; a++)
        if (table.actors[a]) cr_assert_eq(waitpid(table.actors[a], NULL, 0), table.actors[a]);
    cr_assert(!table.shared->wrong[0], "%s", table.shared->wrong);
    for (uint32_t a = 0; a < ACTORS; a++) farm_ring_close(&table.rings[a]);
    test_folder_remove(table.folder);
    close(table.eventfd);
    munmap(table.shared, sizeof *table.shared);
}

static void start(deed *attack, uint64_t seed) {
    launch_learner();
    launch_actor(0, NULL, 0);
    launch_actor(2, NULL, 0);
    play_rounds(false, 1);
    launch_actor(HOSTILE, attack, seed);
}

// The whole play; returns the values that made no sense.
static uint64_t suffer(bool frames, bool local, deed *attack, uint64_t seed) {
    set_up(frames, local);
    start(attack, seed);
    play_rounds(false, ROUNDS);
    cr_assert_gt(farm_load_relaxed(&table.shared->attacks), 0);
    succeed();
    const uint64_t bad = farm_load_relaxed(&table.shared->stats.bad_values);
    expect_ends(table.learner, SIGTERM, "the learner");
    expect_trained();
    tear_down();
    return bad;
}

Test(hostile, stores_over_the_whole_segment) {
    for (uint64_t seed = 1; seed <= 2; seed++) cr_assert_gt(suffer(false, false, scribble, seed), 0);
}

Test(hostile, stores_over_the_whole_segment_under_stacked_frames) {
    cr_assert_gt(suffer(true, false, scribble, 1), 0);
}

Test(hostile, counters_that_cannot_be_and_a_bell_that_never_stops) {
    cr_assert_gt(suffer(false, false, lie, 1), 0);
}

Test(hostile, steps_that_change_after_they_were_published) {
    cr_assert_gt(suffer(false, false, change_its_mind, 1), 0);
}

Test(hostile, frames_that_change_after_they_were_published) {
    cr_assert_gt(suffer(true, false, change_its_mind, 1), 0);
}

Test(hostile, holes_in_the_segment) {
    suffer(false, false, punch, 1);
}

Test(hostile, a_stolen_bell) {
    suffer(false, false, steal_bell, 1);
}

Test(hostile, a_flooded_bell) {
    suffer(false, false, flood_bell, 1);
}

Test(hostile, descriptors_refuse_what_would_hurt_others) {
    suffer(false, false, abuse_descriptors, 1);
}

Test(hostile, everything_at_once) {
    for (uint64_t seed = 1; seed <= 2; seed++) cr_assert_gt(suffer(seed == 2, false, do_everything, seed), 0);
}

// Where actors answer themselves, a hostile one may lie about its answers and its versions, too.
Test(hostile, everything_at_once_where_actors_answer_themselves) {
    for (uint64_t seed = 1; seed <= 2; seed++) cr_assert_gt(suffer(seed == 2, true, do_everything, seed), 0);
    cr_assert_gt(suffer(false, true, lie, 1), 0);
    cr_assert_gt(suffer(false, true, change_its_mind, 1), 0);
}

// The learner ends first, while the hostile one rages.
Test(hostile, cannot_hold_up_the_end) {
    set_up(false, false);
    start(do_everything, 9);
    play_rounds(false, 2);
    expect_ends(table.learner, SIGTERM, "the learner");
    expect_trained();
    kill(table.actors[HOSTILE], SIGKILL);
    tear_down();
}

// A learner that comes back onto rings that are being scribbled over, headers too, while it opens them.
Test(hostile, a_learner_comes_back_while_it_stores_over_the_whole_segment) {
    set_up(false, false);
    start(scribble, 4);
    for (int life = 0; life < 3; life++) {
        play_rounds(false, 1);
        expect_ends(table.learner, SIGKILL, "the learner");
        memset(table.rings[HOSTILE].up.header, 0xa5, FARM_SEGMENT_HEADER_BYTES); // this much for certain
        launch_learner();
    }
    play_rounds(false, 1);
    succeed();
    expect_ends(table.learner, SIGTERM, "the learner");
    tear_down();
}

// ---- answers ----

static void expect_answers(uint32_t actor, uint32_t l, uint64_t n) {
    float obs[WIDTH][FLAT];
    const void *rows[WIDTH];
    char who[64];
    for (uint32_t e = 0; e < WIDTH; e++) {
        observation_of(false, actor, l, n, e, obs[e]);
        rows[e] = obs[e];
    }
    snprintf(who, sizeof who, "actor %u lane %u", actor, l);
    test_expect_answers(&table.config, &table.rings[actor].lanes[l], n, rows, who);
}

// In one batch with NaNs, infinities and the largest of numbers: the others' answers are those of their observations.
Test(hostile, answers_to_the_others_are_what_they_would_be_without_it) {
    set_up(false, false);
    table.config.evaluate = table.config.greedy = true;
    table.config.episodes_target = UINT32_MAX;
    start(change_its_mind, 2);
    play_rounds(false, ROUNDS);
    expect_ends(table.learner, SIGTERM, "the learner");
    kill(table.actors[HOSTILE], SIGKILL);
    farm_store_relaxed(&table.shared->stop, 1);
    for (uint32_t a = 0; a < ACTORS; a += 2)
        for (uint32_t l = 0; l < LANES; l++) {
            const uint64_t acted = farm_lane_acted(&table.rings[a].lanes[l]);
            for (uint64_t n = acted - STEPS / 2; n < acted; n++) expect_answers(a, l, n);
        }
    tear_down();
}

// ---- one step, read over and over while another process changes it ----

static void flicker(struct farm_lane *lane) {
    const float numbers[] = {0.5f, NAN, -1, INFINITY, 2, 3e38f};
    const uint8_t flags[] = {0, 0xff, FARM_STEP_FIRST, FARM_STEP_GAME_END};
    for (uint64_t i = 0;; i++)
        for (uint32_t e = 0; e < lane->width; e++) {
            *(volatile float *)farm_lane_obs(lane, 0, 0, e) = numbers[i % 6];
            *(volatile float *)&farm_lane_reward(lane, 0)[e] = numbers[(i / 3) % 6];
            *(volatile uint8_t *)&farm_lane_flags(lane, 0)[e] = flags[(i / 5) % 4];
            *(volatile int32_t *)farm_lane_action(lane, 0, e) = (int32_t)(i / 7 % 6) - 1;
            *(volatile float *)&farm_lane_policy(lane, 0, e)[i % ACTIONS] = numbers[(i / 11) % 6];
            *(volatile float *)&farm_lane_value(lane, 0)[e] = numbers[(i / 13) % 6];
            *(volatile uint64_t *)farm_lane_version(lane, 0) = i / 17 % 64 ? 0 : 8;
        }
}

static bool is_sound(const struct farm_lane *lane, uint32_t e) {
    const unsigned flags = farm_lane_flags(lane, 0)[e];
    const float reward = farm_lane_reward(lane, 0)[e], obs = *(float *)farm_lane_obs(lane, 0, 0, e);
    const int32_t action = *(int32_t *)farm_lane_action(lane, 0, e);
    const float value = farm_lane_value(lane, 0)[e];
    bool numbers = reward >= -1 && reward <= 2 && obs >= -1 && obs <= 2 && value >= -1 && value <= 2;
    for (uint32_t a = 0; a < ACTIONS; a++) numbers = numbers && fabsf(farm_lane_policy(lane, 0, e)[a]) <= 2;
    if (action < 0 || action >= ACTIONS || *farm_lane_version(lane, 0) > 7) return false;
    if (flags == (FARM_STEP_FIRST | FARM_STEP_LAST | FARM_STEP_SENSELESS)) return reward == 0 && numbers;
    return (flags == 0 || flags == FARM_STEP_FIRST) && numbers;
}

Test(hostile, what_is_taken_in_is_what_was_checked) {
    enum { WIDE = 64, TIMES = 100000 };
    struct farm_ring_spec spec = test_ring_spec(1, WIDE, 4, 1, ACTIONS);
    spec.answers = FARM_ANSWERS_LOCAL;
    struct farm_error err = {0};
    struct farm_validator validator;
    struct test_ring ring;
    test_ring_open(&spec, &ring);
    cr_assert_eq(farm_validator_open(&ring.learner, 0, &validator, &err), FARM_OK, "%s", err.message);
    const pid_t child = fork();
    if (child == 0) {
        struct farm_ring actor;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        test_ring_view(&ring.made, FARM_RING_ACTOR, &actor);
        flicker(&actor.lanes[0]);
    }
    uint64_t bad = 0, good = 0;
    const uint64_t start = farm_now_ns();
    for (uint64_t i = 0; i < TIMES || (good == 0 && farm_now_ns() - start < LIMIT_NS); i++) {
        bad += farm_validator_step(&validator, 0, 7);
        for (uint32_t e = 0; e < WIDE; e++) {
            cr_assert(is_sound(&validator.checked, e), "flags 0x%x reward %g after %lu", validator.checked.flags[e],
                      (double)validator.checked.reward[e], i);
            good += validator.checked.reward[e] > 0;
        }
    }
    cr_assert(bad > 0 && good > 0, "%lu bad values, %lu good rewards: nothing was at stake", bad, good);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    farm_validator_close(&validator);
    test_ring_close(&ring);
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

// Root and whoever may set permissions can: that is said in docs/RELIABILITY.md and not promised.
Test(hostile, without_privileges_a_read_only_descriptor_does_not_become_a_writable_one) {
    set_up(false, false);
    const pid_t child = fork();
    if (child == 0) {
        drop_privileges();
        const bool refused = reopen_for_writing(table.rings[0].down.fd_readonly) == EACCES &&
                             reopen_for_writing(table.rings[0].up.fd_readonly) == EACCES;
        _exit(refused ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x", (unsigned)status);
    tear_down();
}
