// Our own lanes in `farm bw`: hop latency by the nearness of two CPUs, and steps/s by payload, way of waiting and
// number of pairs. A pair is an actor's and a learner's thread with a ring on the actor's node: two lanes, as farms
// have, each 16 MiB or 4 steps. Each side maps the ring as its process would, and waits, publishes, answers and
// releases through the functions that actors and learners call. Every answer and every byte is checked. See job.h.
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "base/statistics.h"
#include "base/time.h"
#include "bw/clock.h"
#include "bw/job.h"
#include "bw/nearness.h"
#include "bw/team.h"
#include "ring/wait.h"
#include "shm/limits.h"

enum {
    SAMPLES = 5,
    TRIPS_MAX = 1 << 17, // in one sample of hops
    CLOCK_READS = 1001,
    LANES = 2,
    STEPS_MIN = 4,
    STEPS_MAX = 64,
    ACTIONS = 4,
    DESCRIPTORS_A_PAIR = 9, // four of segments, as many for each side's mappings, an eventfd
    DESCRIPTORS_BESIDES = 64,
    PAYLOAD_MIN = 16,
    ATARI_BYTES = 28224,
    PAIRS_MAX = FARM_CPUS_MAX / 2,
    SIDES = 2,
};
static const uint64_t TICK_NS = 10000000, LIMIT_NS = 20000000000u, RING_BYTES = 16u << 20;

struct pair {
    struct farm_ring made, actor, learner; // made: holds the segments
    struct farm_ring *bell_rings[1];
    struct farm_doorbells bells;
    int eventfd;
};

// One measurement: hops of one pair, or rates of several.
struct run {
    const struct farm_bw_setup *setup;
    const struct farm_bw_pair *at;
    size_t count; // pairs
    uint32_t lanes, payload_bytes;
    bool hops;
    uint64_t spin_ns, sample_ns;
    uint32_t samples, taken;
    struct farm_bw_conditions conditions;
    struct farm_bw_team *team; // members 2p and 2p + 1: actor and learner of pair p
    struct pair *pairs;
    _Atomic bool stop;       // all sides return
    _Atomic uint32_t failed; // the first to count itself here writes `err`
    struct farm_error err;
    // Hops.
    double *trip_ns; // [TRIPS_MAX] of a sample
    uint64_t trips;
    double p50[FARM_BW_SAMPLES_MAX], p99[FARM_BW_SAMPLES_MAX], p999[FARM_BW_SAMPLES_MAX];
    // Rates.
    double rate[FARM_BW_SAMPLES_MAX], cpu_s_per_step;
};

// ---- the sides ----

static bool is_over(const struct run *run) {
    return atomic_load_explicit(&run->stop, memory_order_relaxed);
}

__attribute__((format(printf, 3, 4))) static void fail_run(struct run *run, enum farm_status status, const char *format,
                                                           ...) {
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (atomic_fetch_add(&run->failed, 1) == 0) farm_fail(&run->err, status, "lane: %s", message);
    atomic_store(&run->stop, true);
}

// All bytes of step n of lane l depend on its mark; the first and the last word are the mark.
static uint64_t mark_of(uint64_t n, uint32_t l) {
    return n * FARM_LANES_MAX + l;
}
static uint8_t fill_of(uint64_t mark) {
    return (uint8_t)(mark % 255 + 1);
}

static void check_payload(struct run *run, const uint64_t *from, uint64_t mark) {
    const size_t words = run->payload_bytes / 8;
    const uint64_t word = fill_of(mark) * 0x0101010101010101u;
    uint64_t a = 0, b = 0, c = 0, d = 0; // four sums in registers, so that no addition waits for the one before
    size_t i = 0;
    for (; i + 4 <= words; i += 4) a += from[i], b += from[i + 1], c += from[i + 2], d += from[i + 3];
    for (; i < words; i++) a += from[i];
    if (from[0] != mark || from[words - 1] != mark || a + b + c + d != (words - 2) * word + 2 * mark)
        fail_run(run, FARM_E_FORMAT, "step %llu of lane %llu: the payload is not what the actor wrote",
                 (unsigned long long)(mark / FARM_LANES_MAX), (unsigned long long)(mark % FARM_LANES_MAX));
}

static void publish_step(struct run *run, struct pair *pair, uint32_t l) {
    struct farm_lane *lane = &pair->actor.lanes[l];
    const uint64_t n = farm_lane_actor_next(lane);
    if (n && *(const int32_t *)farm_lane_action(lane, n - 1, 0) != (int32_t)((n - 1) % ACTIONS))
        fail_run(run, FARM_E_FORMAT, "step %llu of lane %u: the action is not what the learner wrote",
                 (unsigned long long)(n - 1), l);
    uint64_t *payload = farm_lane_obs(lane, 0, n, 0);
    memset(payload, fill_of(mark_of(n, l)), run->payload_bytes);
    payload[0] = payload[run->payload_bytes / 8 - 1] = mark_of(n, l);
    *farm_lane_reward(lane, n) = 0;
    *farm_lane_flags(lane, n) = n ? 0 : FARM_STEP_FIRST;
    farm_lane_actor_publish(lane);
    farm_actor_notify(&pair->actor, pair->eventfd);
}

static void answer_steps(struct run *run, struct pair *pair) {
    for (uint32_t l = 0; l < run->lanes; l++) {
        struct farm_lane *lane = &pair->learner.lanes[l];
        const uint64_t n = farm_lane_acted(lane);
        if (farm_lane_produced(lane) == n) continue;
        if (!run->hops) {
            check_payload(run, farm_lane_obs(lane, 0, n, 0), mark_of(n, l));
            *(int32_t *)farm_lane_action(lane, n, 0) = (int32_t)(n % ACTIONS);
        }
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n);
    }
    farm_learner_notify(&pair->learner);
}

// What one reading of the clock costs.
static double clock_cost_ns(void) {
    double cost[CLOCK_READS];
    uint64_t before = farm_now_ns();
    for (int i = 0; i < CLOCK_READS; i++) {
        const uint64_t now = farm_now_ns();
        cost[i] = (double)(now - before);
        before = now;
    }
    return farm_median(cost, CLOCK_READS, NULL);
}

// Round trips until end_ns, each timed; returns how many.
static size_t time_trips(struct run *run, struct pair *pair, uint64_t end_ns) {
    struct farm_lane *lane = &pair->actor.lanes[0];
    uint64_t before = farm_now_ns();
    size_t trips = 0;
    while (trips < TRIPS_MAX && before < end_ns) {
        farm_lane_actor_publish(lane);
        farm_actor_notify(&pair->actor, pair->eventfd);
        while (!farm_actor_wait(&pair->actor, lane, run->spin_ns, TICK_NS, NULL)) {
            if (is_over(run)) return trips;
            if (farm_now_ns() - before > LIMIT_NS)
                fail_run(run, FARM_E_LIMIT, "no answer for %llu s: the CPUs are busy with other work",
                         (unsigned long long)(LIMIT_NS / 1000000000u));
        }
        const uint64_t now = farm_now_ns();
        run->trip_ns[trips++] = (double)(now - before);
        before = now;
    }
    return trips;
}

static double hop_ns(const struct run *run, size_t trips, double share, double clock_ns) {
    return fmax(farm_quantile(run->trip_ns, trips, share) - clock_ns, 0) / 2;
}

static void sample_hops(struct run *run, struct pair *pair) {
    const double clock_ns = clock_cost_ns();
    for (uint32_t s = 0; s < run->samples && !is_over(run); s++) {
        const size_t trips = time_trips(run, pair, farm_now_ns() + run->sample_ns);
        if (is_over(run)) return;
        farm_sort(run->trip_ns, trips);
        run->p50[s] = hop_ns(run, trips, 0.5, clock_ns);
        run->p99[s] = hop_ns(run, trips, 0.99, clock_ns);
        run->p999[s] = hop_ns(run, trips, 0.999, clock_ns);
        run->trips += trips;
        run->taken = s + 1;
    }
    atomic_store(&run->stop, true);
}

static void run_side(void *context, int member) {
    struct run *run = context;
    struct pair *pair = &run->pairs[member / SIDES];
    uint32_t ready;
    if (member % SIDES) {
        while (!is_over(run))
            if (farm_doorbells_wait(&pair->bells, run->spin_ns, TICK_NS) && farm_doorbells_poll(&pair->bells, &ready))
                answer_steps(run, pair);
    } else if (run->hops) {
        sample_hops(run, pair);
    } else {
        while (!is_over(run))
            if (farm_actor_wait(&pair->actor, NULL, run->spin_ns, TICK_NS, &ready)) publish_step(run, pair, ready);
    }
}

// ---- opening ----

static struct farm_ring_spec spec_of(const struct run *run) {
    const uint64_t room = RING_BYTES / ((uint64_t)run->lanes * run->payload_bytes);
    const uint64_t steps = room < STEPS_MIN ? STEPS_MIN : room < STEPS_MAX ? room : STEPS_MAX;
    return farm_ring_spec_plain(run->lanes, 1, (uint32_t)steps, FARM_U8, run->payload_bytes, ACTIONS);
}

static enum farm_status open_pair(struct run *run, size_t p, struct farm_error *err) {
    const struct farm_ring_spec spec = spec_of(run);
    struct pair *pair = &run->pairs[p];
    pair->bell_rings[0] = &pair->learner;
    pair->eventfd = -1;
    enum farm_status status = farm_ring_create(&spec, (uint32_t)p, run->at[p].node, true, &pair->made, err);
    if (!status) status = farm_ring_view(&pair->made, FARM_RING_ACTOR, &pair->actor, err);
    if (!status) status = farm_ring_view(&pair->made, FARM_RING_LEARNER, &pair->learner, err);
    if (status) return status;
    farm_ring_populate(&pair->actor);
    pair->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (pair->eventfd < 0) return farm_fail_errno(err, FARM_E_LIMIT, "eventfd");
    return farm_doorbells_make(&pair->bells, pair->bell_rings, 1, pair->eventfd, err);
}

static void close_run(struct run *run) {
    farm_bw_team_close(run->team);
    for (size_t p = 0; run->pairs && p < run->count; p++) {
        struct pair *pair = &run->pairs[p];
        farm_doorbells_free(&pair->bells);
        struct farm_ring *const rings[] = {&pair->learner, &pair->actor, &pair->made};
        for (int i = 0; i < 3; i++)
            if (rings[i]->lanes) farm_ring_close(rings[i]);
        if (pair->eventfd > 0) close(pair->eventfd);
    }
    free(run->pairs);
    free(run->trip_ns);
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

// `run` has setup, at, count, lanes and payload_bytes.
static enum farm_status open_run(struct run *run, enum farm_wait_mode wait, struct farm_error *err) {
    const struct farm_bw_setup *setup = run->setup;
    const struct farm_limits_request request = {.descriptors = DESCRIPTORS_BESIDES + DESCRIPTORS_A_PAIR * run->count,
                                                .root = setup->root};
    int cpus[SIDES * PAIRS_MAX];
    run->spin_ns = farm_wait_spin_ns(wait, false);
    run->samples = setup->samples ? (uint32_t)setup->samples : SAMPLES;
    run->sample_ns = (uint64_t)(setup->seconds * 1e9 / run->samples);
    run->conditions = farm_bw_conditions_start();
    run->conditions.verified = !run->hops; // a hop moves no payload
    run->conditions.pages = FARM_BW_PAGES_2M;
    enum farm_status status = farm_limits_check(&request, err);
    if (status) return status;
    run->pairs = calloc(run->count, sizeof *run->pairs);
    run->trip_ns = malloc(TRIPS_MAX * sizeof *run->trip_ns);
    if (!run->pairs || !run->trip_ns) return farm_fail(err, FARM_E_LIMIT, "lane: no memory");
    memset(run->trip_ns, 0, TRIPS_MAX * sizeof *run->trip_ns); // so that no sample takes page faults
    for (size_t p = 0; p < run->count && !status; p++) {
        cpus[SIDES * p] = run->at[p].actor_cpu, cpus[SIDES * p + 1] = run->at[p].learner_cpu;
        status = open_pair(run, p, err);
        if (!status) add_segment(&run->pairs[p].made.up, &run->conditions);
    }
    return status ? status : farm_bw_team_open(cpus, SIDES * (int)run->count, &run->team, &run->conditions, err);
}

// ---- measuring ----

// Sleeps until end_ns, or until a side or the caller's stop ends the run: false then.
static bool sleep_until(struct run *run, uint64_t end_ns) {
    for (uint64_t now; (now = farm_now_ns()) < end_ns && !is_over(run);) {
        const uint64_t rest = end_ns - now < TICK_NS ? end_ns - now : TICK_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)rest}, NULL);
        run->conditions.stopped |= farm_bw_is_stopped(run->setup);
        if (run->conditions.stopped) atomic_store(&run->stop, true);
    }
    return !is_over(run);
}

static uint64_t count_steps(const struct run *run) {
    uint64_t sum = 0;
    for (size_t p = 0; p < run->count; p++)
        for (uint32_t l = 0; l < run->lanes; l++) sum += farm_lane_acted(&run->pairs[p].made.lanes[l]);
    return sum;
}

// The caller's samples of all pairs' steps. Only the sides use CPU time of this process meanwhile.
static void sample_rates(struct run *run) {
    if (!sleep_until(run, farm_now_ns() + run->sample_ns / 4)) return; // caches and clocks settle
    const uint64_t first = count_steps(run), first_cpu_ns = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t steps = first, before = farm_now_ns(), now = before;
    while (run->taken < run->samples && sleep_until(run, now + run->sample_ns)) {
        const uint64_t so_far = count_steps(run);
        now = farm_now_ns();
        if (so_far == steps && now - before < LIMIT_NS) continue; // others have the CPUs
        if (so_far == steps) {
            fail_run(run, FARM_E_LIMIT, "no step in %llu s: the CPUs are busy with other work",
                     (unsigned long long)(LIMIT_NS / 1000000000u));
            return;
        }
        run->rate[run->taken++] = (double)(so_far - steps) / ((double)(now - before) * 1e-9);
        before = now, steps = so_far;
    }
    if (steps > first)
        run->cpu_s_per_step =
            (double)(farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - first_cpu_ns) * 1e-9 / (double)(steps - first);
}

static enum farm_status measure_run(struct run *run, enum farm_wait_mode wait, struct farm_error *err) {
    enum farm_status status = open_run(run, wait, err);
    if (!status) {
        farm_bw_team_begin(run->team, run_side, run);
        if (run->hops)
            sleep_until(run, UINT64_MAX);
        else
            sample_rates(run);
        atomic_store(&run->stop, true);
        farm_bw_team_end(run->team);
        status = run->failed ? run->err.status : FARM_OK;
        if (status && err) *err = run->err;
    }
    close_run(run);
    return status;
}

// ---- hops ----

static json_t *report_hop(struct farm_bw_job *job, const struct run *run) {
    char key[48];
    const char *nearness = farm_bw_nearness_name(run->at->nearness);
    const struct {
        const char *name;
        const double *samples;
    } percentiles[] = {{"p50", run->p50}, {"p99", run->p99}, {"p999", run->p999}};
    json_t *object = farm_json_object(false);
    farm_bw_key(nearness, key, sizeof key);
    farm_json_set_text(object, "nearness", nearness);
    farm_json_set_int(object, "actor_cpu", (uint64_t)run->at->actor_cpu);
    farm_json_set_int(object, "learner_cpu", (uint64_t)run->at->learner_cpu);
    fprintf(job->out, "  %-24s", nearness);
    for (int i = 0; i < 3; i++) {
        const struct farm_bw_figure figure = farm_bw_figure_of(percentiles[i].samples, (int)run->taken);
        char name[16];
        snprintf(name, sizeof name, "%s_ns", percentiles[i].name);
        farm_bw_report(job, 10, object, name, &figure, &farm_bw_ns, "ring.hop_%s.%s", percentiles[i].name, key);
    }
    fprintf(job->out, "   CPUs %d and %d\n", run->at->actor_cpu, run->at->learner_cpu);
    farm_json_set_int(object, "trips", run->trips);
    farm_bw_report_conditions(job, object, &run->conditions);
    return object;
}

static enum farm_status measure_hops(struct farm_bw_job *job, json_t *section, double share, struct farm_error *err) {
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    const size_t count = farm_bw_pairs_by_nearness(job->setup.machine, pairs);
    const struct farm_bw_setup setup = farm_bw_setup_for(job, count ? share / (double)count : 0);
    json_t *rows = json_array();
    farm_json_set(section, "hops", rows);
    if (count)
        fprintf(job->out, "Hop of a step through a lane, ns\n  %-24s %10s %10s %10s\n", "", "p50", "p99", "p99.9");
    for (size_t i = 0; i < count && !farm_bw_is_stopped(&job->setup); i++) {
        struct run run = {
            .setup = &setup, .at = &pairs[i], .count = 1, .lanes = 1, .payload_bytes = PAYLOAD_MIN, .hops = true};
        enum farm_status status = measure_run(&run, FARM_WAIT_SPIN, err);
        if (status) return status;
        farm_json_append(rows, report_hop(job, &run));
    }
    return FARM_OK;
}

// ---- rates ----

static json_t *report_rate(struct farm_bw_job *job, const struct run *run, bool sleeps, bool all_pairs) {
    static const struct farm_bw_unit steps_unit = {1, "steps/s", true};
    const char *wait = sleeps ? "sleep" : "spin";
    double bytes_per_s[FARM_BW_SAMPLES_MAX];
    for (uint32_t i = 0; i < run->taken; i++) bytes_per_s[i] = run->rate[i] * run->payload_bytes;
    const struct farm_bw_figure steps = farm_bw_figure_of(run->rate, (int)run->taken),
                                payload = farm_bw_figure_of(bytes_per_s, (int)run->taken);
    json_t *object = farm_json_object(false);
    farm_json_set_int(object, "payload_bytes", run->payload_bytes);
    farm_json_set_int(object, "pairs", run->count);
    farm_json_set_text(object, "wait", wait);
    farm_json_set(object, "steps_per_s", farm_bw_figure_json(&steps));
    farm_json_set(object, "payload_bytes_per_s", farm_bw_figure_json(&payload));
    farm_json_set_real(object, "cpu_s_per_million_steps", 1e6 * run->cpu_s_per_step);
    farm_json_set_int(object, "ring_bytes", (uint64_t)spec_of(run).steps * run->lanes * run->payload_bytes);
    fprintf(job->out, "  %12u %7zu %8s %10s %10s %12.3g\n", run->payload_bytes, run->count, wait,
            farm_format_count(farm_bw_median(&steps, &steps_unit)).text,
            farm_bw_figure_text(&payload, farm_bw_gb_per_s.scale).text, 1e6 * run->cpu_s_per_step);
    farm_bw_add_result(job, &steps, &steps_unit, "ring.steps.%uB.%s.%s", run->payload_bytes, wait,
                       all_pairs ? "all_pairs" : "one_pair");
    farm_bw_report_conditions(job, object, &run->conditions);
    return object;
}

struct plan {
    uint32_t payload_bytes;
    bool sleeps, all_pairs;
};

// Returns how many.
static size_t plan_rates(enum farm_bw_depth depth, size_t pairs, struct plan plans[24]) {
    static const uint32_t payloads[] = {PAYLOAD_MIN, 256, 4096, ATARI_BYTES, 256 << 10, 1 << 20};
    const bool quick = depth == FARM_BW_QUICK;
    size_t count = 0;
    for (int all = 0; all < (pairs > 1 && !quick ? 2 : 1); all++)
        for (int sleeps = 0; sleeps < (quick ? 1 : 2); sleeps++)
            for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++)
                if (depth == FARM_BW_FULL || payloads[i] == ATARI_BYTES || (!quick && !sleeps && !all))
                    plans[count++] = (struct plan){payloads[i], sleeps, all};
    return count;
}

static enum farm_status measure_rates(struct farm_bw_job *job, json_t *section, double share, struct farm_error *err) {
    struct farm_bw_pair pairs[PAIRS_MAX];
    struct plan plans[24];
    const size_t pair_count = farm_bw_pairs_apart(job->setup.machine, pairs, PAIRS_MAX);
    const size_t count = plan_rates(job->depth, pair_count, plans);
    const struct farm_bw_setup setup = farm_bw_setup_for(job, share / (double)count);
    json_t *rows = json_array();
    farm_json_set(section, "rates", rows);
    if (!pair_count) {
        fprintf(job->out, "Lanes: not measured: they need two CPUs\n");
        return FARM_OK;
    }
    fprintf(job->out, "Steps through lanes, every byte read\n  %12s %7s %8s %10s %10s %12s\n", "payload B", "pairs",
            "wait", "steps/s", "GB/s", "CPU s/M");
    for (size_t i = 0; i < count && !farm_bw_is_stopped(&job->setup); i++) {
        const struct plan *plan = &plans[i];
        struct run run = {.setup = &setup,
                          .at = pairs,
                          .count = plan->all_pairs ? pair_count : 1,
                          .lanes = LANES,
                          .payload_bytes = plan->payload_bytes};
        enum farm_status status = measure_run(&run, plan->sleeps ? FARM_WAIT_SLEEP : FARM_WAIT_SPIN, err);
        if (status) return status;
        farm_json_append(rows, report_rate(job, &run, plan->sleeps, plan->all_pairs));
    }
    return FARM_OK;
}

enum farm_status farm_bw_part_ring(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    enum farm_status status = measure_hops(job, section, 0.3, err);
    return status ? status : measure_rates(job, section, 0.7, err);
}
