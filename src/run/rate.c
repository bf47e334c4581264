// See rate.h.
#include "run/rate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/time.h"
#include "bridge/step.h"
#include "bridge/wire.h"

static const uint64_t EPISODES_NEVER_REACHED = 1 << 30;
static const double SETTLING_SHARE = 1.0 / 3; // before the interval of the rate

enum farm_status farm_run_execute_measured(struct farm_run *run, bool *interrupted, struct farm_error *err) {
    static bool reported;
    run->events.rejected.reported = reported;
    const enum farm_status status = farm_run_execute(run, interrupted, err);
    reported = run->events.rejected.reported;
    return status;
}

// ---- one measurement ----

struct measurement {
    struct farm_run run;
    struct farm_run_rate *rate;
    double seconds;
    uint64_t settled_ns, actor_cpu_ns, answer_cpu_ns; // at the interval's start; 0: it has not begun
};

static uint64_t read_cpu_ns(const struct farm_run_workers *workers, size_t first, size_t count) {
    uint64_t sum = 0;
    for (size_t i = first; i < first + count; i++) {
        const pid_t pid = farm_supervisor_pid(workers->supervisor, i);
        clockid_t clock;
        if (pid && clock_getcpuclockid(pid, &clock) == 0) sum += farm_clock_ns(clock);
    }
    return sum;
}

// Starts the interval, or ends it.
static void record(struct measurement *m, uint64_t now_ns) {
    const struct farm_run_workers *workers = &m->run.workers;
    const uint64_t actors = read_cpu_ns(workers, 0, workers->plan->actors),
                   answer = read_cpu_ns(workers, workers->learner_number, 1);
    struct farm_sample sample;
    farm_run_sample(&m->run.sampler, now_ns, &sample); // starts the next sample's interval
    if (m->settled_ns) {
        const double ns = (double)(now_ns - m->settled_ns);
        m->rate->agent_steps_per_s = sample.agent_steps_per_s;
        m->rate->step_latency_us = 1e6 * m->rate->actors * m->rate->lanes * m->rate->width / sample.agent_steps_per_s;
        m->rate->actor_wait_share = sample.actor_wait_share;
        m->rate->learner_wait_share = sample.learner_wait_share;
        m->rate->actor_cpus = (double)(actors - m->actor_cpu_ns) / ns;
        m->rate->learner_cpus = (double)(answer - m->answer_cpu_ns) / ns;
    }
    m->settled_ns = now_ns;
    m->actor_cpu_ns = actors;
    m->answer_cpu_ns = answer;
}

static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    struct measurement *m = context;
    const double wall_s = farm_run_events_wall_s(&m->run.events);
    if (!m->settled_ns && wall_s >= SETTLING_SHARE * m->seconds) record(m, now_ns);
    if (wall_s < m->seconds) return FARM_TURN_ON;
    if (isnan(m->rate->agent_steps_per_s)) record(m, now_ns);
    return FARM_TURN_STOP;
}

// What a step takes on the wire: STEPS, and ANSWERS or CREDITS.
static void count_bytes(const struct farm_run_plan *plan, const struct farm_lane *lane, struct farm_run_rate *rate) {
    const size_t down = lane->local ? 0 : farm_answer_bytes(lane);
    rate->wire_up_bytes = (double)(farm_step_bytes(lane) + FARM_WIRE_ENTRY_BYTES) / lane->width;
    rate->wire_down_bytes = (double)(down + FARM_WIRE_ENTRY_BYTES) / lane->width;
    rate->wire_version_bytes = (double)(plan->board_parameters * sizeof(float));
}

static enum farm_status run_measurement(struct measurement *m, const struct farm_recipe *recipe, bool trains,
                                        struct farm_error *err) {
    struct farm_run *run = &m->run;
    const struct farm_run_request request = {
        .recipe = recipe, .play = {.games = trains ? 0 : EPISODES_NEVER_REACHED, .samples = !trains}, .quiet = true};
    enum farm_status status = farm_run_make(run, &request, err);
    if (!status) status = farm_run_build(run, err);
    if (status) return status;
    m->rate->actors = run->plan.actors;
    m->rate->lanes = run->plan.lanes;
    m->rate->width = run->plan.width;
    count_bytes(&run->plan, &run->rings.ring[0].lanes[0], m->rate);
    run->caller = (struct farm_run_caller){.context = m, .on_tick = on_tick};
    return farm_run_execute_measured(run, &m->rate->interrupted, err);
}

enum farm_status farm_run_measure(const struct farm_recipe *recipe, bool trains, double seconds,
                                  struct farm_run_rate *rate, struct farm_error *err) {
    *rate = (struct farm_run_rate){
        .agent_steps_per_s = (double)NAN, .actor_wait_share = (double)NAN, .learner_wait_share = (double)NAN};
    struct measurement *m = calloc(1, sizeof *m);
    if (!m) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for a measurement");
    m->rate = rate;
    m->seconds = seconds;
    enum farm_status status = run_measurement(m, recipe, trains, err);
    farm_run_free(&m->run);
    free(m);
    return status;
}

// ---- --inference auto ----

enum { KEY_BYTES = 768, CHOICE_VERSION = 1 }; // raise it when what is measured changes
static const char *const ways[] = {"central", "local"};

// What the rates depend on. *gpu: the network may run on one.
static enum farm_status make_key(const struct farm_recipe *recipe, char key[KEY_BYTES], bool *gpu,
                                 struct farm_error *err) {
    struct farm_run_plan *plan = calloc(1, sizeof *plan);
    const struct farm_run_request request = {.recipe = recipe, .quiet = true};
    struct farm_net net;
    char cpu[128];
    if (!plan) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for the plan");
    enum farm_status status = farm_run_plan_make(plan, &request, err);
    if (!status) status = farm_net_make(&plan->net, &plan->io, &net, err);
    *gpu = plan->device != FARM_DEVICE_CPU;
    if (!status)
        snprintf(key, KEY_BYTES, "%s, %d CPUs, %.200s, %s of %zu parameters, %u x %u x %u, version %d",
                 farm_machine_cpu_name(NULL, cpu, sizeof cpu) ? cpu : "unknown CPU",
                 farm_bitmap_count(&plan->machine->allowed), plan->env.name, plan->net.text, net.parameter_count,
                 plan->actors, plan->lanes, plan->width, CHOICE_VERSION);
    farm_run_plan_free(plan);
    free(plan);
    return status;
}

static enum farm_status set_inference(struct farm_recipe *recipe, const char *way, struct farm_error *err) {
    return farm_recipe_set(recipe, recipe->layers[FARM_KEY_inference], "inference", way, err);
}

enum farm_status farm_run_measure_inference(const struct farm_recipe *recipe, const char *way, double seconds,
                                            struct farm_run_rate *rate, struct farm_error *err) {
    struct farm_recipe one = *recipe;
    one.frames = 0;
    one.seconds = 0;
    *rate = (struct farm_run_rate){.agent_steps_per_s = (double)NAN};
    const enum farm_status status = set_inference(&one, way, err);
    return status ? status : farm_run_measure(&one, false, seconds, rate, err);
}

// The rates, measured or from the file; or *why names the choice and its reason.
static enum farm_status find_rates(const struct farm_recipe *recipe, bool listens, double rates[2], const char **why,
                                   struct farm_error *err) {
    char key[KEY_BYTES], path[FARM_RUN_PATH_MAX], line[96];
    bool gpu = false;
    enum farm_status status = make_key(recipe, key, &gpu, err);
    const bool cached = farm_path_cache("inference.txt", path, sizeof path);
    *why = gpu                     ? "central, because the network may run on a GPU"
           : recipe->deterministic ? "central, because a deterministic run measures nothing"
           : listens               ? "local, because no step of another machine's actor then waits for the network"
                                   : NULL;
    if (status || *why) return status;
    if (cached && farm_file_find_value(path, key, strlen(key), line, sizeof line) &&
        sscanf(line, "central %lf local %lf", &rates[0], &rates[1]) == 2)
        return FARM_OK;
    for (int i = 0; i < 2 && !status; i++) {
        struct farm_run_rate rate;
        status = farm_run_measure_inference(recipe, ways[i], 1, &rate, err);
        if (!status && rate.interrupted) status = farm_fail(err, FARM_E_INTERRUPTED, "--inference auto: stopped");
        rates[i] = rate.agent_steps_per_s;
    }
    if (status && status != FARM_E_INTERRUPTED && isfinite(rates[0])) {
        *why = "central, because the actors cannot infer here (--inference local says why)";
        return FARM_OK;
    }
    snprintf(line, sizeof line, "central %.6g local %.6g", rates[0], rates[1]);
    if (!status && cached && isfinite(rates[0] + rates[1])) farm_file_append_value(path, key, line);
    return status;
}

enum farm_status farm_run_choose_inference(struct farm_recipe *recipe, bool listens, struct farm_error *err) {
    if (strcmp(recipe->inference, "auto") != 0) return FARM_OK;
    const enum farm_log_level level = farm_log_level();
    const uint64_t start_ns = farm_now_ns();
    const char *why;
    double rates[2] = {(double)NAN, (double)NAN};
    farm_log_set_level(FARM_LOG_ERROR); // the plan's warnings come with the run's plan
    const enum farm_status status = find_rates(recipe, listens, rates, &why, err);
    farm_log_set_level(level);
    if (status) return farm_fail_in(err, status, "--inference auto");
    const char *way = why ? ways[why[0] == 'l'] : ways[rates[1] > rates[0]];
    if (why)
        farm_log_info("inference: %s", why);
    else
        farm_log_info("inference: %s; actors that infer sample %s steps/s here, those that the learner answers %s "
                      "(known after %.1f s)",
                      way, farm_format_count(rates[1]).text, farm_format_count(rates[0]).text,
                      1e-9 * (double)(farm_now_ns() - start_ns));
    return set_inference(recipe, way, err);
}
