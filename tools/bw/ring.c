// Lanes in `farm bw`, and what an environment's observations could be carried at. See farm_bw.h.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algo/registry.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "bw/env.h"
#include "bw/lane.h"
#include "bw/memory.h"
#include "envs/registry.h"
#include "tools/bw/bw.h"
#include "tools/shared/recipe_flags.h"
#include "tools/shared/spawn.h"

enum { ATARI_BYTES = 28224, FPS_JSON_BYTES_MAX = 1 << 20, START_LIMIT_S = 60 };

// ---- hops ----

static void tell_hop(struct farm_bw_job *job, json_t *rows, const struct farm_bw_pair *pair,
                     const struct farm_bw_lane_hop *hop) {
    char key[48];
    const char *nearness = farm_bw_nearness_name(pair->nearness);
    json_t *object = farm_json_object(false);
    farm_bw_key(nearness, key, sizeof key);
    farm_json_set_text(object, "nearness", nearness);
    farm_json_set_int(object, "actor_cpu", (uint64_t)pair->actor_cpu);
    farm_json_set_int(object, "learner_cpu", (uint64_t)pair->learner_cpu);
    fprintf(job->out, "  %-24s", nearness);
    farm_bw_tell(job, 10, object, "p50_ns", &hop->p50_ns, &farm_bw_ns, "ring.hop_p50.%s", key);
    farm_bw_tell(job, 10, object, "p99_ns", &hop->p99_ns, &farm_bw_ns, "ring.hop_p99.%s", key);
    farm_bw_tell(job, 10, object, "p999_ns", &hop->p999_ns, &farm_bw_ns, "ring.hop_p999.%s", key);
    fprintf(job->out, "   CPUs %d and %d\n", pair->actor_cpu, pair->learner_cpu);
    farm_json_set_int(object, "trips", hop->trips);
    farm_bw_tell_conditions(job, object, &hop->conditions);
    json_array_append_new(rows, object);
}

static enum farm_status hops(struct farm_bw_job *job, json_t *section, double share, struct farm_error *err) {
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    const size_t count = farm_bw_pairs_by_nearness(job->machine, pairs);
    json_t *rows = json_array();
    enum farm_status status = FARM_OK;
    farm_json_set(section, "hops", rows);
    if (count)
        fprintf(job->out, "Hop of a step through a lane, ns\n  %-24s %10s %10s %10s\n", "", "p50", "p99", "p99.9");
    for (size_t i = 0; i < count && !status && !farm_bw_stop(job); i++) {
        const struct farm_bw_setup setup = farm_bw_setup_for(job, share / (double)count);
        const struct farm_bw_lane_config config = {.pairs = &pairs[i], .pair_count = 1, .wait = FARM_WAIT_SPIN};
        struct farm_bw_lane_hop hop;
        status = farm_bw_lane_hop(&setup, &config, &hop, err);
        if (!status) tell_hop(job, rows, &pairs[i], &hop);
    }
    return status;
}

// ---- rates ----

struct rate_plan {
    uint32_t payload_bytes;
    enum farm_wait_mode wait;
    bool all_pairs;
};

static void tell_rate(struct farm_bw_job *job, json_t *rows, const struct rate_plan *plan, size_t pairs,
                      const struct farm_bw_lane_rate *rate) {
    const char *wait = plan->wait == FARM_WAIT_SPIN ? "spin" : "sleep";
    const double steps_per_s = farm_bw_figure_is(&rate->steps_per_s) ? rate->steps_per_s.median : (double)NAN;
    char bytes[32];
    fprintf(job->out, "  %12u %7zu %8s %10s %10s %12.3g\n", plan->payload_bytes, pairs, wait,
            farm_format_count(steps_per_s).text, farm_bw_cell(&rate->payload_per_s, 1e-9, bytes, sizeof bytes),
            1e6 * rate->cpu_s_per_step);
    static const struct farm_bw_unit steps_unit = {1, "steps/s", true};
    farm_bw_add(job, &rate->steps_per_s, &steps_unit, "ring.steps.%uB.%s.%s", plan->payload_bytes, wait,
                plan->all_pairs ? "all_pairs" : "one_pair");
    json_t *object = farm_json_object(false);
    farm_json_set_int(object, "payload_bytes", plan->payload_bytes);
    farm_json_set_int(object, "pairs", pairs);
    farm_json_set_text(object, "wait", wait);
    farm_json_set(object, "steps_per_s", farm_bw_figure_json(&rate->steps_per_s));
    farm_json_set(object, "payload_bytes_per_s", farm_bw_figure_json(&rate->payload_per_s));
    farm_json_set_real(object, "cpu_s_per_million_steps", 1e6 * rate->cpu_s_per_step);
    farm_json_set_int(object, "ring_bytes", rate->ring_bytes);
    farm_bw_tell_conditions(job, object, &rate->conditions);
    json_array_append_new(rows, object);
}

// Which payloads, waits and numbers of pairs. Returns how many.
static size_t plan_rates(const struct farm_bw_job *job, size_t pairs, struct rate_plan *plans, size_t most) {
    static const uint32_t payloads[] = {16, 256, 4096, ATARI_BYTES, 256 << 10, 1 << 20};
    const bool full = job->depth == FARM_BW_FULL, quick = job->depth == FARM_BW_QUICK;
    size_t count = 0;
    for (int all = 0; all < (pairs > 1 && !quick ? 2 : 1); all++)
        for (int sleeps = 0; sleeps < (quick ? 1 : 2); sleeps++)
            for (size_t i = 0; i < sizeof payloads / sizeof *payloads && count < most; i++) {
                const bool wanted = full || payloads[i] == ATARI_BYTES || (!quick && !sleeps && !all);
                if (wanted)
                    plans[count++] = (struct rate_plan){payloads[i], sleeps ? FARM_WAIT_SLEEP : FARM_WAIT_SPIN, all};
            }
    return count;
}

static enum farm_status draw_rates(struct farm_bw_job *job, const struct rate_plan *plans, const double *bytes_per_s,
                                   size_t count, struct farm_error *err) {
    double x[32], y[32];
    size_t points = 0;
    for (size_t i = 0; i < count; i++) {
        if (plans[i].all_pairs || plans[i].wait != FARM_WAIT_SPIN) continue;
        x[points] = plans[i].payload_bytes;
        y[points++] = bytes_per_s[i] * 1e-9;
    }
    const struct farm_chart_series series = {"one pair, spinning", x, y, points};
    const struct farm_chart chart = {.title = "Steps through a lane by payload",
                                     .x_axis = "payload of a step",
                                     .y_axis = "payload, GB/s",
                                     .x_scale = FARM_CHART_BYTES,
                                     .series = &series,
                                     .series_count = 1};
    return farm_bw_give_chart(job, "ring", &chart, err);
}

static enum farm_status rates(struct farm_bw_job *job, json_t *section, double share, struct farm_error *err) {
    enum { PLANS = 32, PAIRS = FARM_CPUS_MAX / 2 };
    struct farm_bw_pair pairs[PAIRS];
    struct rate_plan plans[PLANS];
    double bytes_per_s[PLANS];
    const size_t pair_count = farm_bw_pairs_apart(job->machine, pairs, PAIRS);
    const size_t count = plan_rates(job, pair_count, plans, PLANS);
    json_t *rows = json_array();
    enum farm_status status = FARM_OK;
    farm_json_set(section, "rates", rows);
    if (!pair_count) {
        fprintf(job->out, "Lanes: not measured, they take two CPUs\n");
        return FARM_OK;
    }
    fprintf(job->out, "Steps through lanes, every byte read\n  %12s %7s %8s %10s %10s %12s\n", "payload B", "pairs",
            "wait", "steps/s", "GB/s", "CPU s/M");
    size_t done = 0;
    for (; done < count && !status && !farm_bw_stop(job); done++) {
        const struct rate_plan *plan = &plans[done];
        const struct farm_bw_setup setup = farm_bw_setup_for(job, share / (double)count);
        const struct farm_bw_lane_config config = {.pairs = pairs,
                                                   .pair_count = plan->all_pairs ? pair_count : 1,
                                                   .wait = plan->wait,
                                                   .payload_bytes = plan->payload_bytes};
        struct farm_bw_lane_rate rate;
        if ((status = farm_bw_lane_rate(&setup, &config, &rate, err))) break;
        tell_rate(job, rows, plan, config.pair_count, &rate);
        bytes_per_s[done] = farm_bw_figure_is(&rate.payload_per_s) ? rate.payload_per_s.median : (double)NAN;
    }
    return status ? status : draw_rates(job, plans, bytes_per_s, done, err);
}

enum farm_status farm_bw_part_ring(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    enum farm_status status = hops(job, section, 0.3, err);
    return status ? status : rates(job, section, 0.7, err);
}

// ---- what an environment could be carried at ----

static enum farm_status measure_bandwidth(struct farm_bw_job *job, double share, struct farm_bw_env_bandwidth *out,
                                          json_t *section, struct farm_error *err) {
    static const struct {
        enum farm_bandwidth_op op;
        const char *name;
    } kinds[] = {{FARM_BANDWIDTH_READ, "read"},
                 {FARM_BANDWIDTH_WRITE, "write"},
                 {FARM_BANDWIDTH_MIX11, "half_reads_half_writes"}};
    double *const places[] = {&out->read, &out->write, &out->mixed};
    int cpus[FARM_CPUS_MAX];
    const int cores = farm_bw_cpus(job->machine, -1, false, cpus, FARM_CPUS_MAX);
    json_t *object = farm_json_object(false);
    farm_json_set(section, "all_cores_bytes_per_s", object);
    *out = (struct farm_bw_env_bandwidth){0};
    for (int i = 0; i < 3 && !farm_bw_stop(job); i++) {
        const struct farm_bw_setup setup = farm_bw_setup_for(job, share / 3);
        const struct farm_bw_memory_config config = {.op = kinds[i].op,
                                                     .stores =
                                                         i == 1 ? FARM_BANDWIDTH_NONTEMPORAL : FARM_BANDWIDTH_TEMPORAL,
                                                     .array_bytes = job->size_bytes,
                                                     .cpus = cpus,
                                                     .cpu_count = cores,
                                                     .node = -1};
        struct farm_bw_memory_result result;
        enum farm_status status = farm_bw_memory(&setup, &config, &result, err);
        if (status) return status;
        farm_json_set(object, kinds[i].name, farm_bw_figure_json(&result.bytes_per_s));
        if (farm_bw_figure_is(&result.bytes_per_s)) *places[i] = result.bytes_per_s.median;
        if (i == 2) farm_bw_tell_conditions(job, section, &result.conditions);
    }
    return FARM_OK;
}

// By farm fps; 0: not measured.
struct reached {
    double frames_per_s, ring_bytes;
};

static enum farm_status run_fps(struct farm_bw_job *job, double seconds, json_t **document, struct farm_error *err) {
    char number[32];
    snprintf(number, sizeof number, "%.3f", seconds);
    const char *const words[] = {"fps",      "--env", job->env, "--seconds", number,
                                 "--ladder", "off",   "--json", "--quiet",   NULL};
    farm_bw_show_progress(job, "farm fps", 0.5);
    enum farm_status status = farm_spawn_document(words, 4 * seconds + START_LIMIT_S, farm_bw_stop, job, document, err);
    return status ? farm_fail_in(err, status, "farm fps --env %s", job->env) : FARM_OK;
}

// A document of another environment is refused.
static enum farm_status take_fps(const struct farm_bw_job *job, const json_t *document, struct reached *reached,
                                 struct farm_error *err) {
    const char *env = json_string_value(json_object_get(document, "env"));
    const json_t *rate = json_object_get(document, "frames_per_s");
    const char *where = job->fps_json ? job->fps_json : "its answer";
    if (!env || (!json_is_number(rate) && !json_is_null(rate)))
        return farm_fail(err, FARM_E_FORMAT, "%s is no document of farm fps --json", where);
    if (strcmp(env, job->env) != 0)
        return farm_fail(err, FARM_E_USAGE, "--fps-json %s is about %.80s, --env asks for %s", where, env, job->env);
    reached->frames_per_s = json_number_value(rate);
    reached->ring_bytes = json_number_value(json_object_get(document, "ring_bytes"));
    return FARM_OK;
}

static enum farm_status read_fps(const struct farm_bw_job *job, struct reached *reached, struct farm_error *err) {
    char *text;
    size_t bytes;
    enum farm_status status = farm_file_read(job->fps_json, FPS_JSON_BYTES_MAX, &text, &bytes, err);
    if (status) return farm_fail_in(err, status, "--fps-json");
    json_t *fps = farm_json_parse(text, bytes, job->fps_json, err);
    free(text);
    if (!fps) return err->status;
    status = take_fps(job, fps, reached, err);
    json_decref(fps);
    return status;
}

static const char *limit_name(enum farm_bw_env_limit limit) {
    return limit == FARM_BW_ENV_MEMORY ? "memory" : limit == FARM_BW_ENV_BUS ? "bus" : "unknown";
}

// What an observation costs memory besides being written.
struct ceiling_kind {
    uint32_t host_reads;
    const char *what;
    bool as_fps; // the traffic of farm fps, whose stand-in for the learner reads no observation
};

static json_t *ceiling_json(struct farm_bw_job *job, const struct ceiling_kind *kind, const struct farm_env_spec *spec,
                            const struct farm_bw_env_bandwidth *measured, const struct reached *reached) {
    const struct farm_bw_env_traffic traffic = farm_bw_env_traffic(spec, kind->host_reads);
    struct farm_bw_env_bandwidth bandwidth = *measured;
    if (!kind->host_reads) bandwidth.mixed = 0; // stores alone
    const struct farm_bw_env_ceiling ceiling = farm_bw_env_ceiling(&traffic, &bandwidth);
    const bool comparable = kind->as_fps && reached->frames_per_s > 0 && ceiling.frames_per_s > 0;
    const double share = comparable ? reached->frames_per_s / ceiling.frames_per_s : (double)NAN;
    fprintf(job->out, "  %-52s %8s frames/s", kind->what,
            ceiling.frames_per_s > 0 ? farm_format_count(ceiling.frames_per_s).text : "-");
    if (isfinite(share)) fprintf(job->out, "; farm fps reaches %.3g %% of it", 100 * share);
    fprintf(job->out, "\n");
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "what", kind->what);
    farm_json_set_int(object, "host_reads", traffic.host_reads);
    farm_json_set_real(object, "agent_steps_per_s", ceiling.steps_per_s > 0 ? ceiling.steps_per_s : (double)NAN);
    farm_json_set_real(object, "frames_per_s", ceiling.frames_per_s > 0 ? ceiling.frames_per_s : (double)NAN);
    farm_json_set_text(object, "limit", limit_name(ceiling.limit));
    farm_json_set_real(object, "farm_fps_share", share);
    return object;
}

static void tell_ceilings(struct farm_bw_job *job, json_t *section, const struct farm_env_spec *spec,
                          const struct farm_bw_env_bandwidth *bandwidth, const struct reached *reached) {
    static const struct ceiling_kind kinds[] = {{0, "written and not read, as farm fps has it", true},
                                                {1, "inference reads each observation once", false},
                                                {2, "the CPU trains on it as well", false}};
    json_t *ceilings = json_array();
    const struct farm_bw_env_traffic traffic = farm_bw_env_traffic(spec, 0);
    fprintf(job->out, "%s: %llu B an observation, %u frame%s a step; memory could carry\n", job->env,
            (unsigned long long)traffic.obs_bytes, traffic.frames_per_step, traffic.frames_per_step == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        json_array_append_new(ceilings, ceiling_json(job, &kinds[i], spec, bandwidth, reached));
    if (reached->frames_per_s > 0) {
        fprintf(job->out,
                "  %-52s %8s frames/s (rings of %.1f MB; those that fit the caches may pass memory's ceiling)\n",
                "farm fps, random actions", farm_format_count(reached->frames_per_s).text, reached->ring_bytes * 1e-6);
    }
    fprintf(job->out, "  (memory alone: what the simulator itself costs is not in it. Bus: %s)\n",
            job->machine->gpu_count ? "not measured" : "no GPU here");
    farm_json_set_text(section, "env", job->env);
    farm_json_set_int(section, "obs_bytes", traffic.obs_bytes);
    farm_json_set_int(section, "other_bytes_per_step", traffic.other_bytes);
    farm_json_set_int(section, "frames_per_step", traffic.frames_per_step);
    farm_json_set(section, "ceilings", ceilings);
    farm_json_set_real(section, "farm_fps_frames_per_s",
                       reached->frames_per_s > 0 ? reached->frames_per_s : (double)NAN);
    farm_json_set_real(section, "farm_fps_ring_bytes", reached->ring_bytes > 0 ? reached->ring_bytes : (double)NAN);
}

// By a short run; one that a signal ended early has measured nothing.
static enum farm_status measure_reached(struct farm_bw_job *job, struct reached *reached, struct farm_error *err) {
    json_t *fps = NULL;
    if (farm_bw_stop(job)) return FARM_OK;
    enum farm_status status = run_fps(job, fmax(0.5, 0.6 * job->setup.seconds), &fps, err);
    if (!status) status = take_fps(job, fps, reached, err);
    json_decref(fps);
    return job->interrupted ? FARM_OK : status;
}

enum farm_status farm_bw_part_env(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    struct farm_recipe recipe;
    struct farm_bw_env_bandwidth bandwidth;
    struct reached reached = {0};
    struct farm_env *env = calloc(1, sizeof *env);
    if (!env) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    enum farm_status status = farm_recipe_set(&recipe, FARM_LAYER_FLAG, "env", job->env, err);
    if (!status) status = farm_recipe_flags_settle(&recipe, NULL, NULL, err);
    if (!status) status = farm_env_find(&recipe, env, err);
    if (!status && job->fps_json) status = read_fps(job, &reached, err);
    if (!status) status = measure_bandwidth(job, 0.4, &bandwidth, section, err);
    if (!status && !job->fps_json) status = measure_reached(job, &reached, err);
    if (!status) tell_ceilings(job, section, &env->spec, &bandwidth, &reached);
    free(env);
    return status;
}
