// See lane.h.
#include "bw/lane.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "shm/limits.h"

enum {
    SAMPLES = 5,
    TRIPS_MAX = 1 << 17, // of one sample of hops
    CLOCK_READS = 1001,
    LANES = 2,
    STEPS_MIN = 4,
    STEPS_MAX = 64,
    ACTIONS = 4,
    SIDES = 2,
    DESCRIPTORS_A_PAIR = 5, // four of segments, a bell
    DESCRIPTORS_BESIDES = 64,
};
static const uint64_t MS = 1000000, TICK_NS = 10000000, LIMIT_NS = 20000000000u, RING_BYTES = 16u << 20;
static const double SECONDS = 0.5;

// What caller and sides share. The sides' words are written once each, but for the hops of a sample.
struct board {
    uint64_t ready;    // sides that are set up
    uint64_t unpinned; // sides that run where they like
    uint64_t failed;   // sides that have something to say: only the first one's process ends, its message complete
    char message[256];
    uint64_t clock_ns; // what one reading of the clock costs
    uint64_t go;       // samples of hops that the actor may take
    uint64_t done;     // that it has taken
    uint32_t trips[FARM_BW_SAMPLES_MAX];
    uint32_t trip_ns[]; // [samples][TRIPS_MAX]
};

struct pair {
    struct farm_bw_pair at;
    struct farm_ring made;
    int eventfd;
    pid_t pids[SIDES];
};

struct run {
    struct farm_bw_lane_config config;
    uint32_t lanes; // of a pair
    const struct farm_bw_control *control;
    uint32_t samples;
    uint64_t sample_ns;
    uint64_t spin_ns;
    bool hops;
    struct board *board;
    size_t board_bytes;
    struct pair *pairs;
    size_t count;
};

// One side's process.
struct side {
    const struct run *run;
    struct farm_ring ring;
    int eventfd;
    size_t words; // of a payload
};

// ---- placements ----

static struct farm_bw_pair pair_of(const struct farm_machine *machine, const struct farm_cpu *actor,
                                   const struct farm_cpu *learner) {
    return (struct farm_bw_pair){.actor_cpu = actor->cpu,
                                 .learner_cpu = learner->cpu,
                                 .node = machine->node_count > 1 ? farm_machine_memory_node(machine, actor->node) : -1,
                                 .nearness = farm_bw_nearness_of(machine, actor->cpu, learner->cpu)};
}

size_t farm_bw_pairs_by_nearness(const struct farm_machine *machine, struct farm_bw_pair pairs[FARM_BW_NEARNESSES]) {
    const struct farm_cpu *first = NULL, *partner[FARM_BW_NEARNESSES] = {NULL};
    for (int i = 0; i < machine->cpu_count; i++) {
        const struct farm_cpu *cpu = &machine->cpu[i];
        if (!farm_bitmap_has(&machine->allowed, cpu->cpu)) continue;
        if (!first) {
            first = cpu;
            continue;
        }
        const enum farm_bw_nearness near = farm_bw_nearness_of(machine, first->cpu, cpu->cpu);
        if (!partner[near]) partner[near] = cpu;
    }
    size_t count = 0;
    for (int near = 0; near < FARM_BW_NEARNESSES; near++)
        if (partner[near]) pairs[count++] = pair_of(machine, first, partner[near]);
    return count;
}

size_t farm_bw_pairs_apart(const struct farm_machine *machine, struct farm_bw_pair *pairs, size_t most) {
    const struct farm_cpu *waiting = NULL, *before = NULL;
    size_t count = 0;
    for (int i = 0; i < machine->cpu_count && count < most; i++) {
        const struct farm_cpu *cpu = &machine->cpu[i];
        if (!farm_bitmap_has(&machine->allowed, cpu->cpu)) continue;
        if (before && before->core == cpu->core) continue;
        before = cpu;
        if (waiting) pairs[count++] = pair_of(machine, waiting, cpu);
        waiting = waiting ? NULL : cpu;
    }
    return count;
}

// ---- a side's process ----

static _Noreturn void side_fails(const struct side *side, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static _Noreturn void side_fails(const struct side *side, const char *format, ...) {
    struct board *board = side->run->board;
    while (__atomic_fetch_add(&board->failed, 1, __ATOMIC_ACQ_REL)) pause(); // until the caller kills us
    va_list args;
    va_start(args, format);
    vsnprintf(board->message, sizeof board->message, format, args);
    va_end(args);
    _exit(1);
}

// Step n of lane l: all its bytes depend on it, and the first and the last word are its mark.
static uint64_t mark_of(uint64_t n, uint32_t l) {
    return n * FARM_LANES_MAX + l;
}
static uint8_t colour_of(uint64_t mark) {
    return (uint8_t)(mark % 255 + 1);
}

static void write_payload(const struct side *side, uint64_t *to, uint64_t mark) {
    memset(to, colour_of(mark), side->words * sizeof *to);
    to[0] = to[side->words - 1] = mark;
}

// Four sums at once, so that the additions do not wait for one another.
static uint64_t sum_words(const uint64_t *from, size_t words) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    size_t i = 0;
    for (; i + 4 <= words; i += 4) a += from[i], b += from[i + 1], c += from[i + 2], d += from[i + 3];
    for (; i < words; i++) a += from[i];
    return a + b + c + d;
}

static void check_payload(const struct side *side, const uint64_t *from, uint64_t mark) {
    const uint64_t word = colour_of(mark) * 0x0101010101010101u;
    if (from[0] != mark || from[side->words - 1] != mark ||
        sum_words(from, side->words) != (side->words - 2) * word + 2 * mark)
        side_fails(side, "step %llu of lane %llu: not the payload that was written",
                   (unsigned long long)(mark / FARM_LANES_MAX), (unsigned long long)(mark % FARM_LANES_MAX));
}

static void act_one(struct side *side, uint32_t l) {
    struct farm_lane *lane = &side->ring.lanes[l];
    const uint64_t n = farm_lane_actor_next(lane);
    if (n && *(const int32_t *)farm_lane_action(lane, n - 1, 0) != (int32_t)((n - 1) % ACTIONS))
        side_fails(side, "step %llu of lane %u: not the action that was written", (unsigned long long)(n - 1), l);
    write_payload(side, farm_lane_obs(lane, 0, n, 0), mark_of(n, l));
    *farm_lane_reward(lane, n) = 0;
    *farm_lane_flags(lane, n) = n ? 0 : FARM_STEP_FIRST;
    farm_lane_actor_publish(lane);
    farm_actor_notify(&side->ring, side->eventfd);
}

static _Noreturn void act(struct side *side) {
    for (uint32_t ready = 0;;)
        if (farm_actor_wait(&side->ring, NULL, side->run->spin_ns, TICK_NS, &ready)) act_one(side, ready);
}

// Answers whatever is published.
static void answer(struct side *side) {
    for (uint32_t l = 0; l < side->run->lanes; l++) {
        struct farm_lane *lane = &side->ring.lanes[l];
        const uint64_t n = farm_lane_acted(lane);
        if (farm_lane_produced(lane) == n) continue;
        if (!side->run->hops) {
            check_payload(side, farm_lane_obs(lane, 0, n, 0), mark_of(n, l));
            *(int32_t *)farm_lane_action(lane, n, 0) = (int32_t)(n % ACTIONS);
        }
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n);
    }
    farm_learner_notify(&side->ring);
}

static _Noreturn void learn(struct side *side) {
    struct farm_doorbells bells;
    struct farm_error err;
    struct farm_ring *ring = &side->ring;
    uint32_t rung;
    if (farm_doorbells_make(&bells, &ring, 1, side->eventfd, &err)) side_fails(side, "%s", err.message);
    for (;;)
        if (farm_doorbells_wait(&bells, side->run->spin_ns, TICK_NS) && farm_doorbells_poll(&bells, &rung))
            answer(side);
}

static int ascending(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t clock_cost_ns(void) {
    uint32_t cost[CLOCK_READS];
    uint64_t before = farm_now_ns();
    for (int i = 0; i < CLOCK_READS; i++) {
        const uint64_t now = farm_now_ns();
        cost[i] = (uint32_t)(now - before);
        before = now;
    }
    qsort(cost, CLOCK_READS, sizeof *cost, ascending);
    return cost[CLOCK_READS / 2];
}

static uint32_t time_trips(struct side *side, uint32_t *trip_ns, uint64_t end_ns) {
    struct farm_lane *lane = &side->ring.lanes[0];
    uint64_t before = farm_now_ns();
    uint32_t trips = 0;
    while (trips < TRIPS_MAX && before < end_ns) {
        farm_lane_actor_publish(lane);
        farm_actor_notify(&side->ring, side->eventfd);
        while (!farm_actor_wait(&side->ring, lane, side->run->spin_ns, TICK_NS, NULL)) {
        }
        const uint64_t now = farm_now_ns(), taken = now - before;
        trip_ns[trips++] = taken < UINT32_MAX ? (uint32_t)taken : UINT32_MAX;
        before = now;
    }
    return trips;
}

static _Noreturn void act_hops(struct side *side) {
    struct board *board = side->run->board;
    board->clock_ns = clock_cost_ns();
    for (uint64_t s = 0;; s++) {
        while (farm_load_acquire(&board->go) <= s) usleep(100);
        board->trips[s] = time_trips(side, board->trip_ns + s * TRIPS_MAX, farm_now_ns() + side->run->sample_ns);
        farm_store_release(&board->done, s + 1);
    }
}

static _Noreturn void be_side(const struct run *run, const struct pair *pair, bool actor) {
    struct side side = {.run = run, .eventfd = pair->eventfd, .words = run->config.payload_bytes / sizeof(uint64_t)};
    struct farm_error err;
    const int up = actor ? pair->made.up.fd : pair->made.up.fd_readonly,
              down = actor ? pair->made.down.fd_readonly : pair->made.down.fd;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (farm_bitmap_pin_to(actor ? pair->at.actor_cpu : pair->at.learner_cpu, NULL))
        __atomic_fetch_add(&run->board->unpinned, 1, __ATOMIC_RELEASE);
    if (farm_ring_open(up, down, actor ? FARM_RING_ACTOR : FARM_RING_LEARNER, &side.ring, &err))
        side_fails(&side, "%s", err.message);
    if (actor) farm_ring_populate(&side.ring);
    __atomic_fetch_add(&run->board->ready, 1, __ATOMIC_RELEASE);
    if (!actor) learn(&side);
    if (run->hops) act_hops(&side);
    act(&side);
}

// ---- the caller's process ----

static uint32_t steps_of(const struct run *run) {
    const uint64_t fit = RING_BYTES / ((uint64_t)run->lanes * run->config.payload_bytes);
    return fit < STEPS_MIN ? STEPS_MIN : fit < STEPS_MAX ? (uint32_t)fit : STEPS_MAX;
}

static struct farm_ring_spec spec_of(const struct run *run) {
    struct farm_ring_spec spec = {.lanes = run->lanes, .width = 1, .steps = steps_of(run)};
    spec.env.obs_count = 1;
    spec.env.obs[0] =
        (struct farm_field_spec){.name = "obs", .dtype = FARM_U8, .rank = 1, .dims = {run->config.payload_bytes}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}};
    spec.env.frames_per_step = 1;
    farm_ring_spec_answers(&spec);
    return spec;
}

static enum farm_status fill_run(const struct farm_bw_setup *setup, const struct farm_bw_lane_config *config, bool hops,
                                 struct run *run, struct farm_error *err) {
    struct farm_bw_lane_config *own = &run->config;
    *own = *config;
    run->lanes = hops ? 1 : LANES;
    if (hops) own->payload_bytes = FARM_BW_LANE_PAYLOAD_MIN;
    run->hops = hops;
    run->spin_ns = farm_wait_spin_ns(own->wait, false);
    run->control = setup->control;
    run->samples = setup->samples ? (uint32_t)setup->samples : SAMPLES;
    run->sample_ns = (uint64_t)((setup->seconds > 0 ? setup->seconds : SECONDS) * 1e9 / run->samples);
    if (!own->pair_count || (hops && own->pair_count != 1))
        return farm_fail(err, FARM_E_INVALID, "lane: %zu pairs of CPUs (none where there is but one CPU)",
                         own->pair_count);
    if (own->payload_bytes < FARM_BW_LANE_PAYLOAD_MIN || own->payload_bytes > FARM_BW_LANE_PAYLOAD_MAX ||
        own->payload_bytes % 8)
        return farm_fail(err, FARM_E_INVALID, "lane: a payload of %u bytes: a multiple of 8 from %d to %d is wanted",
                         own->payload_bytes, FARM_BW_LANE_PAYLOAD_MIN, FARM_BW_LANE_PAYLOAD_MAX);
    if (run->samples > FARM_BW_SAMPLES_MAX)
        return farm_fail(err, FARM_E_INVALID, "lane: %u samples: at most %d", run->samples, FARM_BW_SAMPLES_MAX);
    return FARM_OK;
}

static enum farm_status start_pair(struct run *run, struct pair *pair, struct farm_error *err) {
    const struct farm_ring_spec spec = spec_of(run);
    const enum farm_status status =
        farm_ring_create(&spec, (uint32_t)(pair - run->pairs), pair->at.node, true, &pair->made, err);
    if (status) return status;
    pair->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (pair->eventfd < 0) return farm_fail_errno(err, FARM_E_LIMIT, "eventfd");
    for (int side = 0; side < SIDES; side++) {
        pair->pids[side] = fork();
        if (pair->pids[side] == 0) be_side(run, pair, side != 0);
        if (pair->pids[side] < 0) return farm_fail_errno(err, FARM_E_LIMIT, "fork");
    }
    return FARM_OK;
}

static void end_run(struct run *run) {
    for (size_t p = 0; p < run->count; p++)
        for (int side = 0; side < SIDES; side++)
            if (run->pairs[p].pids[side] > 0) kill(run->pairs[p].pids[side], SIGKILL);
    for (size_t p = 0; run->pairs && p < run->count; p++) {
        struct pair *pair = &run->pairs[p];
        for (int side = 0; side < SIDES; side++)
            if (pair->pids[side] > 0) waitpid(pair->pids[side], NULL, 0);
        farm_ring_close(&pair->made);
        if (pair->eventfd >= 0) close(pair->eventfd);
    }
    free(run->pairs);
    if (run->board) munmap(run->board, run->board_bytes);
}

static bool stop_asked(const struct run *run) {
    return run->control && run->control->stop && run->control->stop(run->control->context);
}

// Whether every side is well; what one that failed has to say comes before the fact that it is gone.
static enum farm_status look_after(struct run *run, struct farm_error *err) {
    for (size_t p = 0; p < run->count; p++)
        for (int side = 0; side < SIDES; side++) {
            int status;
            pid_t *pid = &run->pairs[p].pids[side];
            if (waitpid(*pid, &status, WNOHANG) != *pid) continue;
            *pid = 0;
            if (farm_load_acquire(&run->board->failed))
                return farm_fail(err, FARM_E_FORMAT, "lane: %s", run->board->message);
            return farm_fail(err, FARM_E_DEAD, "lane: the %s's side of pair %zu ended (status 0x%x)",
                             side ? "actor" : "learner", p, (unsigned)status);
        }
    return stop_asked(run) ? farm_fail(err, FARM_E_INTERRUPTED, "stopped") : FARM_OK;
}

// Sleeps, looking after the sides, until `end_ns`, or until *word >= least where a word is given.
static enum farm_status attend(struct run *run, uint64_t end_ns, const uint64_t *word, uint64_t least,
                               struct farm_error *err) {
    for (;;) {
        const uint64_t now = farm_now_ns();
        if (word && farm_load_acquire(word) >= least) return FARM_OK;
        if (now >= end_ns && !word) return FARM_OK;
        if (now >= end_ns)
            return farm_fail(err, FARM_E_LIMIT, "lane: nothing moved for %llu s: the CPUs are busy with other work",
                             (unsigned long long)(LIMIT_NS / 1000000000u));
        const enum farm_status status = look_after(run, err);
        if (status) return status;
        const uint64_t rest = !word && end_ns - now < TICK_NS ? end_ns - now : word ? MS : TICK_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)rest}, NULL);
    }
}

static enum farm_status start_run(const struct farm_bw_setup *setup, const struct farm_bw_lane_config *config,
                                  bool hops, struct run *run, struct farm_error *err) {
    *run = (struct run){0};
    const struct farm_limits_request wanted = {
        .descriptors = DESCRIPTORS_BESIDES + DESCRIPTORS_A_PAIR * config->pair_count, .root = setup->root};
    enum farm_status status = fill_run(setup, config, hops, run, err);
    if (!status) status = farm_limits_check(&wanted, err);
    if (status) return status;
    run->board_bytes = sizeof *run->board;
    if (hops) run->board_bytes += (size_t)run->samples * TRIPS_MAX * sizeof *run->board->trip_ns;
    run->board = mmap(NULL, run->board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    run->pairs = calloc(config->pair_count, sizeof *run->pairs);
    if (run->board == MAP_FAILED) run->board = NULL;
    if (!run->board || !run->pairs) return farm_fail(err, FARM_E_LIMIT, "lane: no memory");
    run->count = config->pair_count;
    for (size_t p = 0; p < run->count; p++) {
        run->pairs[p] = (struct pair){.at = config->pairs[p], .eventfd = -1};
        run->pairs[p].made.up.fd = run->pairs[p].made.down.fd = -1;
        run->pairs[p].made.up.fd_readonly = run->pairs[p].made.down.fd_readonly = -1;
    }
    for (size_t p = 0; p < run->count && !status; p++) status = start_pair(run, &run->pairs[p], err);
    if (!status) status = attend(run, farm_now_ns() + LIMIT_NS, &run->board->ready, SIDES * run->count, err);
    return status;
}

static void add_segment(const struct farm_segment *segment, struct farm_bw_conditions *conditions) {
    static const enum farm_bw_pages pages[] = {[FARM_PAGES_SMALL] = FARM_BW_PAGES_SMALL,
                                               [FARM_PAGES_TRANSPARENT] = FARM_BW_PAGES_TRANSPARENT,
                                               [FARM_PAGES_HUGE] = FARM_BW_PAGES_2M};
    const bool any = segment->placement == FARM_PLACEMENT_NONE, bound = segment->placement == FARM_PLACEMENT_BOUND;
    conditions->bound &= any || bound;
    conditions->placed &= any || bound || segment->placement == FARM_PLACEMENT_FIRST_TOUCH;
    if (pages[segment->pages] < conditions->pages) conditions->pages = pages[segment->pages];
    if (segment->note[0]) farm_bw_conditions_note(conditions, "%s.", segment->note);
}

// How it was measured: asked before the run ends.
static struct farm_bw_conditions conditions_of(const struct run *run, bool stopped) {
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    conditions.pinned = !farm_load_acquire(&run->board->unpinned);
    conditions.verified = !run->hops;
    conditions.stopped = stopped;
    conditions.pages = FARM_BW_PAGES_2M;
    if (!conditions.pinned)
        farm_bw_conditions_note(&conditions, "The sides may not be pinned to CPUs and run where they like.");
    for (size_t p = 0; p < run->count; p++) add_segment(&run->pairs[p].made.up, &conditions);
    return conditions;
}

// ---- hops ----

static double percentile_ns(const struct board *board, const uint32_t *sorted, uint32_t count, double share) {
    const double trip = sorted[(uint32_t)(share * (double)(count - 1) + 0.5)];
    return trip > (double)board->clock_ns ? (trip - (double)board->clock_ns) / 2 : 0;
}

static void sum_up_hops(struct board *board, uint32_t samples, struct farm_bw_lane_hop *result) {
    double p50[FARM_BW_SAMPLES_MAX], p99[FARM_BW_SAMPLES_MAX], p999[FARM_BW_SAMPLES_MAX];
    for (uint32_t s = 0; s < samples; s++) {
        uint32_t *trip_ns = board->trip_ns + (size_t)s * TRIPS_MAX;
        const uint32_t count = board->trips[s];
        qsort(trip_ns, count, sizeof *trip_ns, ascending);
        p50[s] = percentile_ns(board, trip_ns, count, 0.5);
        p99[s] = percentile_ns(board, trip_ns, count, 0.99);
        p999[s] = percentile_ns(board, trip_ns, count, 0.999);
        result->trips += count;
    }
    result->p50_ns = farm_bw_figure_of(p50, (int)samples);
    result->p99_ns = farm_bw_figure_of(p99, (int)samples);
    result->p999_ns = farm_bw_figure_of(p999, (int)samples);
}

enum farm_status farm_bw_lane_hop(const struct farm_bw_setup *setup, const struct farm_bw_lane_config *config,
                                  struct farm_bw_lane_hop *result, struct farm_error *err) {
    struct run run;
    *result = (struct farm_bw_lane_hop){0};
    enum farm_status status = start_run(setup, config, true, &run, err);
    uint32_t samples = 0;
    while (!status && samples < run.samples) {
        farm_store_release(&run.board->go, samples + 1);
        status = attend(&run, farm_now_ns() + LIMIT_NS + run.sample_ns, &run.board->done, samples + 1, err);
        if (!status) samples++;
    }
    if (!status || status == FARM_E_INTERRUPTED) {
        sum_up_hops(run.board, samples, result);
        result->conditions = conditions_of(&run, status == FARM_E_INTERRUPTED);
        status = FARM_OK;
    }
    end_run(&run);
    return status;
}

// ---- rates ----

// The CPU time of all sides so far.
static double cpu_s(const struct run *run) {
    double sum = 0;
    for (size_t p = 0; p < run->count; p++)
        for (int side = 0; side < SIDES; side++) {
            clockid_t clock;
            struct timespec spent;
            if (clock_getcpuclockid(run->pairs[p].pids[side], &clock) || clock_gettime(clock, &spent)) continue;
            sum += (double)spent.tv_sec + 1e-9 * (double)spent.tv_nsec;
        }
    return sum;
}

static uint64_t steps_so_far(const struct run *run) {
    uint64_t sum = 0;
    for (size_t p = 0; p < run->count; p++)
        for (uint32_t l = 0; l < run->lanes; l++) sum += farm_lane_acted(&run->pairs[p].made.lanes[l]);
    return sum;
}

static void sum_up_rates(const struct run *run, const double *rates, uint32_t samples,
                         struct farm_bw_lane_rate *result) {
    double bytes[FARM_BW_SAMPLES_MAX];
    for (uint32_t s = 0; s < samples; s++) bytes[s] = rates[s] * run->config.payload_bytes;
    result->steps_per_s = farm_bw_figure_of(rates, (int)samples);
    result->payload_per_s = farm_bw_figure_of(bytes, (int)samples);
    result->ring_bytes = (uint64_t)steps_of(run) * run->lanes * run->config.payload_bytes;
}

enum farm_status farm_bw_lane_rate(const struct farm_bw_setup *setup, const struct farm_bw_lane_config *config,
                                   struct farm_bw_lane_rate *result, struct farm_error *err) {
    struct run run;
    double rates[FARM_BW_SAMPLES_MAX];
    *result = (struct farm_bw_lane_rate){0};
    enum farm_status status = start_run(setup, config, false, &run, err);
    if (!status) status = attend(&run, farm_now_ns() + run.sample_ns / 4, NULL, 0, err); // caches and clocks settle
    const uint64_t first = status ? 0 : steps_so_far(&run);
    const double cpu_first = status ? 0 : cpu_s(&run);
    uint64_t before = farm_now_ns(), now = before, steps = first;
    uint32_t samples = 0;
    while (!status && samples < run.samples) {
        status = attend(&run, now + run.sample_ns, NULL, 0, err);
        if (status) break;
        const uint64_t so_far = steps_so_far(&run);
        now = farm_now_ns();
        if (so_far == steps && now - before < LIMIT_NS) continue; // others have the CPUs: it goes on until a step
        rates[samples++] = (double)(so_far - steps) / ((double)(now - before) * 1e-9);
        before = now, steps = so_far;
    }
    if (!status && steps == first)
        status = farm_fail(err, FARM_E_LIMIT, "lane: no step in %llu s: the CPUs are busy with other work",
                           (unsigned long long)(LIMIT_NS / 1000000000u));
    if (!status || status == FARM_E_INTERRUPTED) {
        sum_up_rates(&run, rates, samples, result);
        if (steps > first) result->cpu_s_per_step = (cpu_s(&run) - cpu_first) / (double)(steps - first);
        result->conditions = conditions_of(&run, status == FARM_E_INTERRUPTED);
        status = FARM_OK;
    }
    end_run(&run);
    return status;
}
