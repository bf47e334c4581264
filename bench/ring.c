// The lane compared with the machine's limits: a raw cache-line ping-pong, a raw futex, memcpy. Two processes on two
// cores are the actor's and the learner's side of one ring and call the same functions as actors and learners. Samples
// of the lane and of the reference alternate; every payload and every answer is checked.
#include <linux/futex.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tests/support/rings.h"
#include "base/statistics.h"
#include "base/time.h"
#include "common.h"
#include "ring/wait.h"

enum {
    SAMPLES = 15,
    TRIPS = 20000, // busy round trips a sample
    SLEEPS = 100,  // sleeping round trips a sample; few, because the cost of a wake-up changes with the load
    SLEEP_SAMPLES = 61,
    PAYLOADS = 1500,  // 28 KB steps a sample
    SINGLES = 100000, // round trips timed one by one
    STEPS = 1000000,  // busy steps under the system-call counter
    PAYLOAD = 28224,  // four 84x84 frames
    RELEASE_EVERY = 16,
    RING_STEPS = 64,
};

// Words of the raw references, each alone on two adjacent cache lines, which prefetchers load together.
struct raw {
    uint64_t ping, pad0[15], pong, pad1[15];
    uint32_t futex_ping, pad2[31], futex_pong, pad3[31];
    uint8_t slots[RING_STEPS][PAYLOAD];
};

struct side {
    bool actor;
    struct raw *raw;
    struct farm_ring small, large; // 16 B and 28 KB observations
    struct farm_doorbells small_bells;
    int eventfd;
    uint64_t raw_trip, futex_trip, raw_payload; // done so far; both sides have the same counts
    uint8_t *pattern;
};

// ---- raw references ----

static void raw_trips(struct side *side, uint32_t trips) {
    for (uint32_t i = 0; i < trips; i++) {
        uint64_t n = ++side->raw_trip;
        if (side->actor) farm_store_release(&side->raw->ping, n);
        const uint64_t *word = side->actor ? &side->raw->pong : &side->raw->ping;
        while (farm_load_acquire(word) != n) farm_cpu_relax();
        if (!side->actor) farm_store_release(&side->raw->pong, n);
    }
}

static void futex_post(uint32_t *word, uint32_t n) {
    farm_store32_release(word, n);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
static void futex_await(uint32_t *word, uint32_t n) {
    for (uint32_t seen; (seen = farm_load32_acquire(word)) != n;)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}
static void raw_sleeps(struct side *side, uint32_t trips) {
    for (uint32_t i = 0; i < trips; i++) {
        uint32_t n = (uint32_t)++side->futex_trip;
        if (side->actor) futex_post(&side->raw->futex_ping, n);
        futex_await(side->actor ? &side->raw->futex_pong : &side->raw->futex_ping, n);
        if (!side->actor) futex_post(&side->raw->futex_pong, n);
    }
}

static uint64_t sum_words(const uint8_t *data, size_t bytes) {
    uint64_t sum = 0, word;
    for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, data + i, sizeof word);
        sum += word;
    }
    return sum;
}
// Payload n is the pattern with n as its first word.
static void write_payload(struct side *side, uint8_t *to, uint64_t n) {
    memcpy(side->pattern, &n, sizeof n);
    memcpy(to, side->pattern, PAYLOAD);
}
static void check_payload(struct side *side, const uint8_t *from, uint64_t n) {
    uint64_t own;
    memcpy(&own, side->pattern, sizeof own);
    must_hold(sum_words(from, PAYLOAD) == sum_words(side->pattern, PAYLOAD) - own + n, "a payload's sum");
}
static void raw_payloads(struct side *side, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t n = side->raw_payload++;
        uint8_t *slot = side->raw->slots[n % RING_STEPS];
        if (side->actor) write_payload(side, slot, n);
        raw_trips(side, side->actor ? 1 : 0);
        if (side->actor) continue;
        uint64_t trip = ++side->raw_trip;
        while (farm_load_acquire(&side->raw->ping) != trip) farm_cpu_relax();
        check_payload(side, slot, n);
        farm_store_release(&side->raw->pong, trip);
    }
}

// ---- the lane ----

static void learner_answer(struct farm_lane *lane, uint64_t n) {
    farm_lane_answer(lane, n);
    if (n % RELEASE_EVERY == 0) farm_lane_release(lane, n);
}

// Round trips of one lane, with a payload or without.
static inline void exchange(struct side *side, struct farm_lane *lane, uint32_t count, bool payload) {
    for (uint32_t i = 0; i < count; i++) {
        if (side->actor) {
            uint64_t n = farm_lane_actor_next(lane);
            while (!farm_lane_actor_can_write(lane)) farm_cpu_relax();
            if (payload) write_payload(side, farm_lane_obs(lane, 0, n, 0), n);
            farm_lane_actor_publish(lane);
            while (!farm_lane_actor_answered(lane)) farm_cpu_relax();
        } else {
            uint64_t n = lane->produced_local++; // the learner's count of answered steps
            while (farm_lane_produced(lane) <= n) farm_cpu_relax();
            if (payload) check_payload(side, farm_lane_obs(lane, 0, n, 0), n);
            learner_answer(lane, n);
        }
    }
}

static void lane_trips(struct side *side, uint32_t trips) {
    exchange(side, &side->small.lanes[0], trips, false);
}
static void lane_payloads(struct side *side, uint32_t count) {
    exchange(side, &side->large.lanes[0], count, true);
}

// A whole step: 16 B written, doorbell, read, checked, answered, answer read, checked.
static void step_trips(struct side *side, uint32_t trips) {
    struct farm_lane *lane = &side->small.lanes[0];
    for (uint32_t i = 0; i < trips; i++) {
        uint64_t n = side->actor ? farm_lane_actor_next(lane) : lane->produced_local++;
        const uint64_t payload[2] = {n, ~n};
        if (side->actor) {
            while (!farm_lane_actor_can_write(lane)) farm_cpu_relax();
            memcpy(farm_lane_obs(lane, 0, n, 0), payload, sizeof payload);
            *farm_lane_reward(lane, n) = 0;
            *farm_lane_flags(lane, n) = 0;
            farm_lane_actor_publish(lane);
            farm_actor_notify(&side->small, side->eventfd);
            while (!farm_lane_actor_answered(lane)) farm_cpu_relax();
            must_hold(*(int32_t *)farm_lane_action(lane, n, 0) == (int32_t)n, "an answer");
        } else {
            uint32_t rung;
            do { // skips bells of steps that were answered without polling
                while (!farm_doorbells_poll(&side->small_bells, &rung)) farm_cpu_relax();
            } while (farm_lane_produced(lane) <= n);
            must_hold(memcmp(farm_lane_obs(lane, 0, n, 0), payload, sizeof payload) == 0, "a payload");
            *(int32_t *)farm_lane_action(lane, n, 0) = (int32_t)n;
            learner_answer(lane, n);
            farm_learner_notify(&side->small);
        }
    }
}

// Steps through the functions in which actors and learners wait.
static void wait_steps(struct side *side, uint32_t steps, uint64_t spin_ns) {
    struct farm_lane *lane = &side->small.lanes[0];
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t ready;
        if (side->actor) {
            farm_lane_actor_publish(lane);
            farm_actor_notify(&side->small, side->eventfd);
            while (!farm_actor_wait(&side->small, lane, spin_ns, UINT64_MAX, &ready)) {
            }
        } else {
            uint64_t n = lane->produced_local++;
            while (farm_lane_produced(lane) <= n) {
                while (!farm_doorbells_wait(&side->small_bells, spin_ns, UINT64_MAX)) {
                }
                farm_doorbells_poll(&side->small_bells, &ready);
            }
            learner_answer(lane, n);
            farm_learner_notify(&side->small);
        }
    }
}

static void lane_sleeps(struct side *side, uint32_t trips) {
    wait_steps(side, trips, 0);
}

// ---- set-up ----

// Opens one side of the ring `made`.
static void open_ring(const struct farm_ring *made, bool actor, struct farm_ring *ring) {
    *ring = open_view(made, actor ? FARM_RING_ACTOR : FARM_RING_LEARNER);
    if (actor) farm_ring_populate(ring);
}

static void open_side(struct side *side, const struct farm_ring *small, const struct farm_ring *large) {
    struct farm_error err;
    open_ring(small, side->actor, &side->small);
    open_ring(large, side->actor, &side->large);
    static struct farm_ring *rings[1];
    rings[0] = &side->small;
    if (!side->actor) must(farm_doorbells_make(&side->small_bells, rings, 1, side->eventfd, &err), &err);
    side->pattern = malloc(PAYLOAD);
    must_hold(side->pattern != NULL, "no memory");
    for (int i = 0; i < PAYLOAD; i++) side->pattern[i] = (uint8_t)(i * 31 + 7);
    must_hold(farm_bench_pin(side->actor ? 0 : 1), "this benchmark needs two CPUs");
}

// ---- samples: the actor's side measures, the learner's side runs the same sequence ----

typedef void pair_function(struct side *side, uint32_t count);

// Seconds per piece of `count` pieces.
static double time_pieces(pair_function *function, struct side *side, uint32_t count) {
    uint64_t start = farm_now_ns();
    function(side, count);
    return (double)(farm_now_ns() - start) / (double)count;
}

static void sample_alternately(pair_function *ours, pair_function *theirs, struct side *side, int samples,
                               uint32_t count, double *our_ns, double *their_ns) {
    for (int s = 0; s < samples; s++) {
        their_ns[s] = time_pieces(theirs, side, count);
        our_ns[s] = time_pieces(ours, side, count);
    }
}

static void time_singles(pair_function *function, struct side *side, double *ns) {
    for (uint32_t i = 0; i < SINGLES; i++) ns[i] = time_pieces(function, side, 1);
}

static void run_all(struct side *side, struct farm_bench *bench) {
    double ours[SLEEP_SAMPLES], theirs[SLEEP_SAMPLES];
    double *single = malloc(2 * SINGLES * sizeof *single);
    must_hold(single != NULL, "no memory");
    sample_alternately(lane_trips, raw_trips, side, SAMPLES, TRIPS, ours, theirs);
    farm_bench_add(bench, "round_trip", "ns", "lower", ours, SAMPLES, "raw cache-line ping-pong", theirs, SAMPLES, 1.2);
    sample_alternately(step_trips, raw_trips, side, SAMPLES, TRIPS, ours, theirs);
    farm_bench_add(bench, "step_round_trip", "ns", "lower", ours, SAMPLES,
                   "raw cache-line ping-pong: 2 lines; a step moves 5: doorbell, produced, payload, acted, action",
                   theirs, SAMPLES, NAN);
    time_singles(raw_trips, side, single);
    time_singles(lane_trips, side, single + SINGLES);
    farm_sort(single, SINGLES);
    farm_sort(single + SINGLES, SINGLES);
    double raw_p99 = farm_quantile(single, SINGLES, 0.99) / 2, p99 = farm_quantile(single + SINGLES, SINGLES, 0.99) / 2;
    farm_bench_add(bench, "hop_p99", "ns", "lower", &p99, 1, "raw cache-line ping-pong, half, p99", &raw_p99, 1, NAN);
    sample_alternately(lane_payloads, raw_payloads, side, SAMPLES, PAYLOADS, ours, theirs);
    for (int s = 0; s < SAMPLES; s++) ours[s] = PAYLOAD / ours[s], theirs[s] = PAYLOAD / theirs[s];
    farm_bench_add(bench, "payload_28k", "GB/s", "higher", ours, SAMPLES, "memcpy, bare flag, sum", theirs, SAMPLES,
                   0.95);
    sample_alternately(lane_sleeps, raw_sleeps, side, SLEEP_SAMPLES, SLEEPS, ours, theirs);
    farm_bench_add(bench, "wakeup", "ns", "lower", ours, SLEEP_SAMPLES, "futex round trip", theirs, SLEEP_SAMPLES,
                   1.15);
    free(single);
}

// The cost of the functions alone: both sides in one thread, all lines in its cache, no observation written.
static void measure_step_cost(struct farm_bench *bench, const struct farm_ring *made, int eventfd) {
    struct farm_ring actor_ring, learner_ring;
    open_ring(made, true, &actor_ring);
    open_ring(made, false, &learner_ring);
    struct farm_lane *actor = &actor_ring.lanes[0], *learner = &learner_ring.lanes[0];
    uint64_t n = actor->produced_local;
    farm_lane_release(learner, n);
    double ns[SAMPLES];
    for (int s = 0; s < SAMPLES; s++) {
        uint64_t start = farm_now_ns();
        for (uint32_t i = 0; i < TRIPS; i++, n++) {
            must_hold(farm_lane_actor_can_write(actor), "a free slot");
            farm_lane_actor_publish(actor);
            farm_actor_notify(&actor_ring, eventfd);
            must_hold(farm_lane_produced(learner) == n + 1, "produced");
            farm_lane_answer(learner, n);
            farm_lane_release(learner, n + 1);
            farm_learner_notify(&learner_ring);
            must_hold(farm_lane_actor_answered(actor), "answered");
        }
        ns[s] = (double)(farm_now_ns() - start) / TRIPS;
    }
    double limit = 200;
    farm_bench_add(bench, "lane_step_cost", "ns", "lower", ns, SAMPLES, "limit of 200 ns, both sides' functions",
                   &limit, 1, 1.0);
    farm_ring_close(&actor_ring);
    farm_ring_close(&learner_ring);
}

// ---- system calls of a million busy steps, counted by ptrace ----

// The calls between two calls of getppid(2) are counted.
static void run_busy_child(struct side *side, const struct farm_ring *small, const struct farm_ring *large) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_side(side, small, large);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    syscall(SYS_getppid);
    wait_steps(side, STEPS, farm_wait_spin_ns(FARM_WAIT_SPIN, false));
    syscall(SYS_getppid);
    _exit(0);
}

static double count_syscalls(struct side *side, const struct farm_ring *small, const struct farm_ring *large) {
    uint64_t calls = 0;
    struct {
        pid_t pid;
        int marks;
    } children[2];
    for (int i = 0; i < 2; i++) {
        side->actor = i != 0;
        children[i].marks = 0;
        children[i].pid = fork();
        if (children[i].pid == 0) run_busy_child(side, small, large);
        must_hold(children[i].pid > 0, "fork");
    }
    int status;
    for (int running = 2; running;) {
        const pid_t pid = waitpid(-1, &status, 0);
        must_hold(pid > 0, "waitpid");
        const int i = pid == children[1].pid;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            must_hold(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a busy process failed");
            must_hold(children[i].marks == 2, "a busy process was not traced to its end");
            running--;
            continue;
        }
        struct __ptrace_syscall_info info = {0};
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD);
        } else if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0 &&
                   info.op == PTRACE_SYSCALL_INFO_ENTRY) {
            if (info.entry.nr == SYS_getppid)
                children[i].marks++;
            else if (children[i].marks == 1)
                calls++;
        }
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    }
    return (double)calls;
}

static void report_busy_machine(int signal_number) {
    static const char text[] = "ring: this machine is too busy: two cores must be free for some seconds\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    (void)signal_number;
    _exit(1); // PR_SET_PDEATHSIG ends the children
}

int main(int argc, char **argv) {
    struct farm_bench bench = {.name = "ring",
                               .about = "The lane's round trips, wake-ups, payload rate and system calls against raw "
                                        "cache lines, futexes and memcpy."};
    farm_bench_start(&bench, argc, argv, 45); // needs 3 s on idle cores
    signal(SIGALRM, report_busy_machine);
    alarm((unsigned)ceil(bench.seconds));
    const struct farm_ring_spec spec = farm_ring_spec_plain(1, 1, RING_STEPS, FARM_F32, 4, 4);
    struct farm_ring small = ring_of(spec, 0), counted = ring_of(spec, 2),
                     large = make_ring(farm_ring_spec_plain(1, 1, RING_STEPS, FARM_U8, PAYLOAD, 4), 1, true);
    struct side side = {.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    side.raw = mmap(NULL, sizeof *side.raw, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must_hold(side.raw != MAP_FAILED && side.eventfd >= 0, "set-up");

    double calls = count_syscalls(&side, &counted, &large);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        side.actor = false;
        open_side(&side, &small, &large);
        run_all(&side, NULL);
        _exit(0);
    }
    must_hold(child > 0, "fork");
    side.actor = true;
    open_side(&side, &small, &large);
    run_all(&side, &bench);
    int status;
    must_hold(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "the learner's side failed");
    measure_step_cost(&bench, &counted, side.eventfd);
    farm_bench_add(&bench, "busy_syscalls_per_million_steps", "calls", "lower", &calls, 1, NULL, NULL, 0, 1.0);
    farm_ring_close(&small);
    farm_ring_close(&large);
    farm_ring_close(&counted);
    return farm_bench_finish(&bench);
}
