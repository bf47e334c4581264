// What a killed actor costs: how soon its death is noticed and its lanes are taken over, how soon a new one publishes,
// and what the other actors lose meanwhile. The real supervisor with real actors of native/breakout in rings of the
// size of an Atari run (2 lanes x 8 environments x 64 steps of 84x84 B). A responder in the learner's place answers
// every step with a random action; a director, one more process, sends the signals and times the periods.
//
// Placement: the supervisor, the director and the actor that is killed share the first CPU, the learner has the
// second; the other actors have the remaining CPUs or, with two CPUs, share the learner's, and then
// all processes sleep instead of spinning. The references are the bare system calls (pidfd, poll, waitid, fork) on the
// first CPU, in the same run, alternating with ours. All times are CLOCK_MONOTONIC, which all CPUs share.
//
//   killed -> noticed   the director's time before kill(2) to the supervisor's after it has bumped the generations
//   born   -> taken     first line of the new process's body (farm_actor_run follows) to the learner's hearing the bell
//   killed -> first     to the learner's seeing the first FIRST step of the new actor
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tests/support/rings.h"
#include "actor/actor.h"
#include "base/bitmap.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/statistics.h"
#include "base/time.h"
#include "common.h"
#include "envs/native/native.h"
#include "envs/plugin.h"
#include "kernels/random.h"
#include "supervisor/supervisor.h"

static const double LEAST_S = 30;

enum {
    KILLS = 400,
    PAIRS = 10, // each one period with kills and one without
    PERIOD_MS = 1000,
    KILL_EVERY_MS = 100,
    OTHERS_MAX = 3,
    ACTORS_MAX = 1 + OTHERS_MAX,
    VICTIM = 0,
    LANES = 2,
    WIDTH = 8,
    STEPS = 64,
    ACTIONS_MAX = 32,
};
static const uint64_t MS = 1000000, LIMIT_NS = 5000000000;

// One kill of each kind; 0: not yet.
struct record {
    uint64_t killed, noticed, born, taken, first;
    uint64_t bell, produced[LANES]; // the dead actor's, as the supervisor found them
    uint64_t bare_killed, bare_noticed, bare_born;
};

struct page {
    pid_t pids[ACTORS_MAX], bare;
    uint64_t current; // record that is being filled, from 1; 0: none
    uint64_t bare_current;
    uint64_t stop_learner;
    struct record records[KILLS + 1];
    double with_kills[PAIRS], without[PAIRS]; // steps/s of the other actors
    uint64_t kills;                           // in the periods
};

struct farm {
    struct page *page;
    uint32_t actors;
    struct farm_ring made[ACTORS_MAX];
    struct farm_actor_config actor[ACTORS_MAX];
    struct farm_bitmap cpus[ACTORS_MAX], learner_cpus, own_cpus;
    int keep[ACTORS_MAX][3], all[3 * ACTORS_MAX + 1];
    size_t all_count;
    int bell;
    uint64_t spin_ns;
    bool periods; // the director measures periods; else single kills
};

// ---- the actors ----

struct actor_context {
    struct farm *farm;
    uint32_t actor;
};

static int actor_body(void *context, struct farm_error *err) {
    const struct actor_context *self = context;
    struct page *page = self->farm->page;
    if (self->actor == VICTIM)
        farm_store_release(&page->records[farm_load_acquire(&page->current)].born, farm_now_ns());
    page->pids[self->actor] = getpid();
    return farm_actor_run(&self->farm->actor[self->actor], err);
}

// ---- the responder ----

struct learner {
    struct farm *farm;
    struct farm_ring rings[ACTORS_MAX], *pointers[ACTORS_MAX];
    struct farm_doorbells bells;
    bool ended[ACTORS_MAX][LANES][WIDTH]; // LAST was seen: FIRST must follow
    uint64_t generation[ACTORS_MAX][LANES];
    uint64_t draws;
};

// The flags of a step must follow from those of the step before it: nothing lost, torn or doubled.
static void check_step(struct learner *learner, uint32_t a, uint32_t l, uint64_t n) {
    struct farm_lane *lane = &learner->rings[a].lanes[l];
    const uint8_t *flags = farm_lane_flags(lane, n);
    const uint64_t generation = farm_load_acquire(&lane->down->generation);
    uint32_t firsts = 0;
    for (uint32_t e = 0; e < WIDTH; e++) firsts += flags[e] & FARM_STEP_FIRST;
    // A step of the dead actor may still arrive after its death was noticed; the new actor's first step is all FIRST.
    if (generation != learner->generation[a][l] && firsts == WIDTH) {
        learner->generation[a][l] = generation;
    } else {
        for (uint32_t e = 0; e < WIDTH; e++)
            must_hold((flags[e] & FARM_STEP_FIRST) == (n == 0 || learner->ended[a][l][e]), "FIRST after LAST");
    }
    for (uint32_t e = 0; e < WIDTH; e++) learner->ended[a][l][e] = flags[e] & FARM_STEP_LAST;
}

static void answer(struct learner *learner, uint32_t a) {
    for (uint32_t l = 0; l < LANES; l++) {
        struct farm_lane *lane = &learner->rings[a].lanes[l];
        const uint64_t n = farm_lane_acted(lane), published = farm_lane_produced(lane);
        if (published == n) continue;
        must_hold(published == n + 1, "an actor ran ahead of its answers");
        check_step(learner, a, l, n);
        for (uint32_t e = 0; e < WIDTH; e++) {
            const uint32_t bits = farm_random_block(1, 0, learner->draws++).word[0];
            const int32_t action = (int32_t)(bits % lane->answer[FARM_ANSWER_POLICY].values);
            memcpy(farm_lane_action(lane, n, e), &action, sizeof action);
        }
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n);
    }
    farm_learner_notify(&learner->rings[a]);
}

// The new actor's bell and its first step, each noted once; before they are answered.
static void note_new_actor(const struct learner *learner) {
    struct page *page = learner->farm->page;
    struct record *record = &page->records[farm_load_acquire(&page->current)];
    const struct farm_ring *ring = &learner->rings[VICTIM];
    if (!farm_load_acquire(&record->noticed) || record->first) return;
    if (!record->taken && farm_load_acquire(&ring->up_control->doorbell) != record->bell) record->taken = farm_now_ns();
    for (uint32_t l = 0; l < LANES && !record->first; l++) {
        if (farm_lane_produced(&ring->lanes[l]) == record->produced[l]) continue;
        const uint8_t *flags = farm_lane_flags(&ring->lanes[l], record->produced[l]);
        must_hold(flags[0] & flags[WIDTH - 1] & FARM_STEP_FIRST, "the new actor's first step is FIRST");
        farm_store_release(&record->first, farm_now_ns());
    }
}

static int learner_body(void *context, struct farm_error *err) {
    struct farm *farm = context;
    static struct learner learner;
    uint32_t rung[ACTORS_MAX];
    learner.farm = farm;
    for (uint32_t a = 0; a < farm->actors; a++) {
        learner.rings[a] = open_view(&farm->made[a], FARM_RING_LEARNER);
        learner.pointers[a] = &learner.rings[a];
    }
    must(farm_doorbells_make(&learner.bells, learner.pointers, farm->actors, farm->bell, err), err);
    while (!farm_load_relaxed(&farm->page->stop_learner)) {
        farm_doorbells_wait(&learner.bells, farm->spin_ns ? UINT64_MAX : 0, 10 * MS);
        const uint32_t count = farm_doorbells_poll(&learner.bells, rung);
        note_new_actor(&learner);
        for (uint32_t i = 0; i < count; i++) answer(&learner, rung[i]);
    }
    return 0;
}

// ---- the bare reference: a process that watches one child and forks it again ----

static pid_t bare_fork(struct page *page, struct record *record) {
    const pid_t pid = fork();
    if (pid) return pid;
    farm_store_release(&record->bare_born, farm_now_ns());
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

static _Noreturn void bare_supervisor(struct page *page) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (struct record *record = &page->records[0];;) {
        const pid_t pid = bare_fork(page, record);
        const int pidfd = farm_pidfd_open(pid);
        must_hold(pid > 0 && pidfd >= 0, "the reference's child");
        __atomic_store_n(&page->bare, pid, __ATOMIC_RELEASE);
        siginfo_t info;
        poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, -1);
        must_hold(waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED) == 0, "the reference's child");
        record = &page->records[farm_load_acquire(&page->bare_current)];
        record->bare_noticed = farm_now_ns();
        close(pidfd);
    }
}

// ---- the director ----

static void await(const uint64_t *word, const char *what) {
    const uint64_t start = farm_now_ns();
    while (!farm_load_acquire(word)) {
        must_hold(farm_now_ns() - start < LIMIT_NS, what);
        usleep(100);
    }
}

static uint64_t steps_of(const struct farm_ring *ring) {
    uint64_t sum = 0;
    for (uint32_t l = 0; l < LANES; l++) sum += farm_lane_produced(&ring->lanes[l]);
    return sum;
}

// Until the victim has stepped on: it is neither starting nor ending.
static void await_steps(const struct farm_ring *ring, uint64_t more) {
    const uint64_t start = farm_now_ns(), from = steps_of(ring);
    while (steps_of(ring) < from + more) {
        must_hold(farm_now_ns() - start < LIMIT_NS, "the actor that is killed steps on");
        usleep(200);
    }
}

static void kill_victim(struct page *page, uint64_t number) {
    struct record *record = &page->records[number];
    memset(record, 0, sizeof *record);
    farm_store_release(&page->current, number);
    record->killed = farm_now_ns();
    must_hold(kill(page->pids[VICTIM], SIGKILL) == 0, "the actor to kill lives");
}

static void kill_bare(struct page *page, uint64_t number) {
    struct record *record = &page->records[number];
    const pid_t pid = __atomic_load_n(&page->bare, __ATOMIC_ACQUIRE);
    farm_store_release(&page->bare_current, number);
    record->bare_killed = farm_now_ns();
    must_hold(kill(pid, SIGKILL) == 0, "the reference's child lives");
    await(&record->bare_born, "the reference's next child");
    while (__atomic_load_n(&page->bare, __ATOMIC_ACQUIRE) == pid) usleep(100);
}

static void kill_one_by_one(struct page *page, const struct farm_ring *rings) {
    const pid_t bare = fork();
    if (bare == 0) bare_supervisor(page);
    must_hold(bare > 0, "fork");
    while (!__atomic_load_n(&page->bare, __ATOMIC_ACQUIRE)) usleep(100);
    for (uint64_t k = 1; k <= KILLS; k++) {
        await_steps(&rings[VICTIM], 20);
        usleep(500 + farm_random_block(2, 0, k).word[0] % 1500); // at any moment of a step
        kill_victim(page, k);
        await(&page->records[k].first, "the new actor's first step");
        usleep(500);
        kill_bare(page, k);
    }
    kill(bare, SIGKILL);
    waitpid(bare, NULL, 0);
}

static uint64_t steps_of_others(const struct farm *farm, const struct farm_ring *rings) {
    uint64_t sum = 0;
    for (uint32_t a = 0; a < farm->actors; a++) sum += a == VICTIM ? 0 : steps_of(&rings[a]);
    return sum;
}

// Environment steps/s of the other actors over one period.
static double period(struct farm *farm, const struct farm_ring *rings, bool kills) {
    await_steps(&rings[VICTIM], 100);
    const uint64_t start = farm_now_ns(), end = start + PERIOD_MS * MS, from = steps_of_others(farm, rings);
    for (uint64_t next = start; next < end; next += KILL_EVERY_MS * MS) {
        if (kills) {
            kill_victim(farm->page, 1);
            farm->page->kills++;
        }
        while (farm_now_ns() < next + KILL_EVERY_MS * MS) usleep(1000);
        if (kills) await(&farm->page->records[1].first, "the new actor's first step");
    }
    const uint64_t steps = steps_of_others(farm, rings) - from;
    return (double)(steps * WIDTH) / ((double)(farm_now_ns() - start) * 1e-9);
}

static int director_body(void *context, struct farm_error *err) {
    struct farm *farm = context;
    struct page *page = farm->page;
    struct farm_ring rings[ACTORS_MAX];
    for (uint32_t a = 0; a < farm->actors; a++) rings[a] = open_view(&farm->made[a], FARM_RING_OBSERVER);
    for (uint32_t a = 0; a < farm->actors; a++) await_steps(&rings[a], 100);
    if (!farm->periods) kill_one_by_one(page, rings);
    for (int p = 0; farm->periods && p < PAIRS; p++) {
        if (p % 2) page->without[p] = period(farm, rings, false);
        page->with_kills[p] = period(farm, rings, true);
        if (p % 2 == 0) page->without[p] = period(farm, rings, false);
    }
    farm_store_release(&page->stop_learner, 1);
    return 0;
}

// ---- the supervisor: this process ----

static void before_start(void *context, size_t worker, uint64_t starts) {
    struct farm *farm = context;
    if (worker != VICTIM || !starts) return;
    struct farm_ring *ring = &farm->made[VICTIM];
    struct record *record = &farm->page->records[farm_load_acquire(&farm->page->current)];
    must_hold(!farm_ring_restore(ring), "a killed actor leaves its header and counters sound");
    for (uint32_t l = 0; l < LANES; l++) {
        record->produced[l] = farm_lane_produced(&ring->lanes[l]);
        farm_store_release(&ring->lanes[l].down->generation, starts);
    }
    record->bell = farm_load_acquire(&ring->up_control->doorbell);
    farm_store_release(&record->noticed, farm_now_ns());
}

static void before_stop(void *context, int phase) {
    struct farm *farm = context;
    farm_store_release(&farm->page->stop_learner, 1);
    for (uint32_t a = 0; a < farm->actors; a++) farm_store_release(&farm->made[a].down_control->stop, 1);
}

static void one_cpu(struct farm_bitmap *cpus, const struct farm_bitmap *all, int index) {
    int cpu = farm_bitmap_next(all, 0);
    while (index-- > 0) cpu = farm_bitmap_next(all, cpu + 1);
    *cpus = (struct farm_bitmap){0};
    farm_bitmap_set(cpus, cpu);
}

// Chooses a CPU for each process and pins this one; *all: CPUs that it was allowed before.
static void place(struct farm *farm, struct farm_bitmap *all) {
    struct farm_error err;
    must(farm_bitmap_pinned(all, &err), &err);
    const int count = farm_bitmap_count(all);
    if (count < 2) {
        fprintf(stderr, "chaos: this benchmark needs two CPUs\n");
        exit(1);
    }
    one_cpu(&farm->own_cpus, all, 0);
    one_cpu(&farm->learner_cpus, all, 1);
    for (int a = 0; a < ACTORS_MAX; a++) one_cpu(&farm->cpus[a], all, a == VICTIM ? 0 : count == 2 ? 1 : 1 + a);
    must(farm_bitmap_pin(&farm->own_cpus, &err), &err);
}

static void add_actor(struct farm *farm, struct farm_supervisor *supervisor, const struct farm_ring_spec *spec,
                      struct actor_context *context) {
    struct farm_error err;
    const uint32_t a = context->actor;
    const struct farm_ring *made = &farm->made[a];
    farm->made[a] = make_ring(*spec, a, true);
    const int keep[3] = {made->up.fd, made->down.fd_readonly, farm->bell};
    memcpy(farm->keep[a], keep, sizeof keep);
    farm->all[farm->all_count++] = made->up.fd_readonly;
    farm->all[farm->all_count++] = made->down.fd;
    farm->all[farm->all_count++] = made->down.fd_readonly;
    farm->actor[a] = (struct farm_actor_config){.actor = a,
                                                .up_fd = keep[0],
                                                .down_fd = keep[1],
                                                .learner_eventfd = farm->bell,
                                                .api = farm_native_env_find("native/breakout"),
                                                .seed = 1,
                                                .video = -1,
                                                .spin_ns = farm->spin_ns};
    struct farm_worker_spec worker = {.body = actor_body,
                                      .context = context,
                                      .keep = farm->keep[a],
                                      .keep_count = 3,
                                      .cpus = &farm->cpus[a],
                                      .memory_node = -1,
                                      .stop_phase = 1};
    snprintf(worker.name, sizeof worker.name, "actor %u", a);
    must(farm_supervisor_add(supervisor, &worker, &err), &err);
}

static void add_body(struct farm *farm, struct farm_supervisor *supervisor, const char *name,
                     int (*body)(void *, struct farm_error *), const struct farm_bitmap *cpus) {
    struct farm_error err;
    struct farm_worker_spec worker = {.body = body,
                                      .context = farm,
                                      .keep = farm->all,
                                      .keep_count = farm->all_count,
                                      .cpus = cpus,
                                      .memory_node = -1,
                                      .may_end = true,
                                      .errors_are_final = true};
    snprintf(worker.name, sizeof worker.name, "%s", name);
    must(farm_supervisor_add(supervisor, &worker, &err), &err);
}

// One life of the farm: single kills of a lone actor, or periods with other actors.
static void run(struct farm *farm) {
    struct farm_supervisor *supervisor;
    struct farm_error err = {0};
    struct actor_context contexts[ACTORS_MAX];
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    // A life of a millisecond counts as healthy, so that every restart is immediate.
    const struct farm_supervisor_config config = {
        .context = farm, .before_start = before_start, .before_stop = before_stop, .healthy_ms = 1};
    must(farm_plugin_spec(farm_native_env_find("native/breakout"), NULL, 0, &spec.env, &err), &err);
    farm_ring_spec_answers(&spec);
    farm->bell = farm->all[0] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    farm->all_count = 1;
    farm->page =
        mmap(NULL, sizeof *farm->page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must_hold(farm->bell >= 0 && farm->page != MAP_FAILED, "set-up");
    must(farm_supervisor_make(&config, &supervisor, &err), &err);
    for (uint32_t a = 0; a < farm->actors; a++) {
        contexts[a] = (struct actor_context){farm, a};
        add_actor(farm, supervisor, &spec, &contexts[a]);
    }
    add_body(farm, supervisor, "learner", learner_body, &farm->learner_cpus);
    add_body(farm, supervisor, "director", director_body, &farm->own_cpus);
    int signal_number;
    must(farm_supervisor_run(supervisor, &signal_number, &err), &err);
    if (signal_number) exit(128 + signal_number);
    farm_supervisor_free(supervisor);
    for (uint32_t a = 0; a < farm->actors; a++) farm_ring_close(&farm->made[a]);
    close(farm->bell);
}

// ---- results ----

// Microseconds between two moments (offsets in struct record) of every kill.
static void between(const struct page *page, size_t from, size_t to, double *us) {
    for (int k = 0; k < KILLS; k++) {
        uint64_t a, b;
        memcpy(&a, (const char *)&page->records[k + 1] + from, sizeof a);
        memcpy(&b, (const char *)&page->records[k + 1] + to, sizeof b);
        us[k] = (double)(b - a) * 1e-3;
    }
}

static void report_kills(struct farm_bench *bench, const struct page *page) {
    double notice[KILLS], take_over[KILLS], both[KILLS], start[KILLS], again[KILLS];
    double bare_notice[KILLS], bare_start[KILLS], bare_again[KILLS];
    between(page, offsetof(struct record, killed), offsetof(struct record, noticed), notice);
    between(page, offsetof(struct record, born), offsetof(struct record, taken), take_over);
    between(page, offsetof(struct record, noticed), offsetof(struct record, born), start);
    between(page, offsetof(struct record, killed), offsetof(struct record, first), again);
    between(page, offsetof(struct record, bare_killed), offsetof(struct record, bare_noticed), bare_notice);
    between(page, offsetof(struct record, bare_noticed), offsetof(struct record, bare_born), bare_start);
    between(page, offsetof(struct record, bare_killed), offsetof(struct record, bare_born), bare_again);
    for (int k = 0; k < KILLS; k++) both[k] = notice[k] + take_over[k];
    farm_sort(both, KILLS);
    farm_sort(bare_notice, KILLS);
    double limit_us = 1000, limit_ms = 50, p99 = farm_quantile(both, KILLS, 0.99), again_ms[KILLS];
    for (int k = 0; k < KILLS; k++) again_ms[k] = again[k] * 1e-3;
    farm_bench_add(bench, "notice_and_take_over", "us p99", "lower", &p99, 1, "limit of 1 ms", &limit_us, 1, 1.0);
    double bare_p99 = farm_quantile(bare_notice, KILLS, 0.99);
    farm_bench_add(bench, "bare_notice_p99", "us p99", "lower", &bare_p99, 1, NULL, NULL, 0, NAN);
    farm_bench_add(bench, "notice_and_take_over_p50", "us", "lower", both, KILLS, "bare pidfd, poll, waitid",
                   bare_notice, KILLS, NAN);
    farm_bench_add(bench, "death_notice", "us", "lower", notice, KILLS, "bare pidfd, poll, waitid", bare_notice, KILLS,
                   NAN);
    farm_bench_add(bench, "process_start", "us", "lower", start, KILLS, "bare fork to the child's first instruction",
                   bare_start, KILLS, NAN);
    farm_bench_add(bench, "take_over", "us", "lower", take_over, KILLS, NULL, NULL, 0, NAN);
    farm_bench_add(bench, "running_again", "ms", "lower", again_ms, KILLS, "limit of 50 ms", &limit_ms, 1, 1.0);
    farm_bench_add(bench, "running_again_bare", "us", "lower", again, KILLS,
                   "bare death notice and fork to the child's first instruction", bare_again, KILLS, NAN);
}

// The ratio is the median of the pairs' ratios, so that drift cancels.
static void report_others(struct farm_bench *bench, struct page *page) {
    double ratios[PAIRS];
    for (int p = 0; p < PAIRS; p++) ratios[p] = page->with_kills[p] / page->without[p];
    farm_bench_add(bench, "others_rate", "steps/s", "higher", page->with_kills, PAIRS, "the same actors undisturbed",
                   page->without, PAIRS, 0.98);
    bench->results[bench->count - 1].ratio = farm_median(ratios, PAIRS, NULL);
}

int main(int argc, char **argv) {
    struct farm_bench bench = {.name = "chaos",
                               .about =
                                   "What a killed actor costs: notice, take-over, running again, and what the other "
                                   "actors lose. Pins: killed actor, supervisor and director on the first CPU, the "
                                   "learner on the second, other actors on the rest (two CPUs: with the learner)."};
    static struct farm farm;
    struct farm_bitmap all = {0};
    struct farm_error err;
    farm_bench_start(&bench, argc, argv, 45);
    must_hold(bench.seconds >= LEAST_S, "--seconds: at least 30");
    alarm((unsigned)ceil(bench.seconds));
    farm_log_set_level(FARM_LOG_ERROR);
    const int cpus = farm_bench_cpus();
    place(&farm, &all);
    farm.actors = 1;
    farm.spin_ns = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, false);
    run(&farm);
    report_kills(&bench, farm.page);

    farm.actors = cpus == 2 ? 2 : cpus - 1 < ACTORS_MAX ? (uint32_t)cpus - 1 : ACTORS_MAX;
    farm.spin_ns = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, cpus == 2);
    farm.periods = true;
    run(&farm);
    report_others(&bench, farm.page);
    must(farm_bitmap_pin(&all, &err), &err); // the document says how many CPUs there are
    return farm_bench_finish(&bench);
}
