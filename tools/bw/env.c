// An environment's ceilings in `farm bw`: how many frames/s memory could carry for its observations, and what farm fps
// reaches of it. See bw.h and bw/env.h.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algo/registry.h"
#include "base/file.h"
#include "base/json.h"
#include "bw/env.h"
#include "bw/workers.h"
#include "envs/registry.h"
#include "tools/bw/bw.h"
#include "tools/shared/recipe_flags.h"
#include "tools/shared/spawn.h"

enum { FPS_JSON_BYTES_MAX = 1 << 20, START_LIMIT_S = 60 };

static double or_unknown(double value) {
    return value > 0 ? value : (double)NAN;
}

static enum farm_status measure_bandwidth(struct farm_bw_job *job, double share, struct farm_bw_env_bandwidth *out,
                                          json_t *section, struct farm_error *err) {
    static const struct farm_bw_kernel kernels[] = {{.op = FARM_BANDWIDTH_READ},
                                                    {FARM_BANDWIDTH_WRITE, FARM_BANDWIDTH_NONTEMPORAL, 0, 0},
                                                    {.op = FARM_BANDWIDTH_MIX11}};
    static const char *const names[] = {"read", "write", "half_reads_half_writes"};
    double *const places[] = {&out->read, &out->write, &out->mixed};
    const struct farm_bw_setup setup = farm_bw_setup_for(job, share / 3);
    int cpus[FARM_CPUS_MAX];
    const int cores = farm_bw_cpus(setup.machine, -1, cpus, FARM_CPUS_MAX);
    json_t *object = farm_json_object(false);
    farm_json_set(section, "all_cores_bytes_per_s", object);
    *out = (struct farm_bw_env_bandwidth){0};
    for (int i = 0; i < 3 && !farm_bw_is_stopped(&setup); i++) {
        struct farm_bw_conditions conditions = farm_bw_conditions_start();
        struct farm_bw_clock clock = farm_bw_clock_start(&setup, 5, 1, &conditions);
        struct farm_bw_figure figure = farm_bw_figure_of(NULL, 0);
        enum farm_status status =
            farm_bw_bandwidth(&clock, &kernels[i], cpus, cores, -1, job->size_bytes, &figure, err);
        if (status) return status;
        farm_json_set(object, names[i], farm_bw_figure_json(&figure));
        if (farm_bw_figure_is(&figure)) *places[i] = figure.median;
        if (i == 2) farm_bw_report_conditions(job, section, &conditions);
    }
    return FARM_OK;
}

// By farm fps; 0: not measured.
struct reached {
    double frames_per_s, ring_bytes;
};

// A document of another environment is refused.
static enum farm_status read_reached(const struct farm_bw_job *job, const json_t *document, struct reached *reached,
                                     struct farm_error *err) {
    const char *env = json_string_value(json_object_get(document, "env"));
    const json_t *rate = json_object_get(document, "frames_per_s");
    const char *where = job->fps_json ? job->fps_json : "its answer";
    if (!env || (!json_is_number(rate) && !json_is_null(rate)))
        return farm_fail(err, FARM_E_FORMAT, "%s is not a document of farm fps --json", where);
    if (strcmp(env, job->env) != 0)
        return farm_fail(err, FARM_E_USAGE, "--fps-json %s is about %.80s, --env is %s", where, env, job->env);
    reached->frames_per_s = json_number_value(rate);
    reached->ring_bytes = json_number_value(json_object_get(document, "ring_bytes"));
    return FARM_OK;
}

static enum farm_status read_fps_json(const struct farm_bw_job *job, struct reached *reached, struct farm_error *err) {
    char *text;
    size_t bytes;
    enum farm_status status = farm_file_read(job->fps_json, FPS_JSON_BYTES_MAX, &text, &bytes, err);
    if (status) return farm_fail_in(err, status, "--fps-json");
    json_t *fps = farm_json_parse(text, bytes, job->fps_json, err);
    free(text);
    if (!fps) return err->status;
    status = read_reached(job, fps, reached, err);
    json_decref(fps);
    return status;
}

// A short run of farm fps. Nothing is measured if a signal ends it.
static enum farm_status run_fps(struct farm_bw_job *job, struct reached *reached, struct farm_error *err) {
    const double seconds = fmax(0.5, 0.6 * job->setup.seconds);
    const struct farm_bw_control *control = job->setup.control;
    char number[32];
    json_t *fps = NULL;
    snprintf(number, sizeof number, "%.3f", seconds);
    const char *const words[] = {"fps",      "--env", job->env, "--seconds", number,
                                 "--ladder", "off",   "--json", "--quiet",   NULL};
    if (farm_bw_is_stopped(&job->setup)) return FARM_OK;
    control->progress(control->context, "farm fps", 0.5);
    enum farm_status status =
        farm_spawn_document(words, 4 * seconds + START_LIMIT_S, control->stop, control->context, &fps, err);
    if (status)
        farm_fail_in(err, status, "farm fps --env %s", job->env);
    else
        status = read_reached(job, fps, reached, err);
    json_decref(fps);
    return farm_bw_is_stopped(&job->setup) ? FARM_OK : status;
}

// How often the learner reads an observation. Farm fps reads none: its share is of the first ceiling.
static const struct {
    uint32_t host_reads;
    const char *what;
} kinds[] = {{0, "written and not read, as farm fps has it"},
             {1, "inference reads each observation once"},
             {2, "the CPU trains on it as well"}};

static json_t *report_ceiling(struct farm_bw_job *job, size_t kind, const struct farm_env_spec *spec,
                              const struct farm_bw_env_bandwidth *measured, const struct reached *reached) {
    const struct farm_bw_env_traffic traffic = farm_bw_env_traffic(spec);
    const uint32_t host_reads = kinds[kind].host_reads;
    struct farm_bw_env_bandwidth bandwidth = *measured;
    if (!host_reads) bandwidth.mixed = 0; // stores only
    const double steps_per_s = or_unknown(farm_bw_env_steps_per_s(&traffic, host_reads, &bandwidth)),
                 frames_per_s = steps_per_s * spec->frames_per_step,
                 share = host_reads ? (double)NAN : or_unknown(reached->frames_per_s) / frames_per_s;
    fprintf(job->out, "  %-52s %8s frames/s", kinds[kind].what, farm_format_count(frames_per_s).text);
    if (isfinite(share)) fprintf(job->out, "; farm fps reaches %.3g %% of it", 100 * share);
    fprintf(job->out, "\n");
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "what", kinds[kind].what);
    farm_json_set_int(object, "host_reads", host_reads);
    farm_json_set_real(object, "agent_steps_per_s", steps_per_s);
    farm_json_set_real(object, "frames_per_s", frames_per_s);
    farm_json_set_text(object, "limit", isnan(steps_per_s) ? "unknown" : "memory");
    farm_json_set_real(object, "farm_fps_share", share);
    return object;
}

static void report_ceilings(struct farm_bw_job *job, json_t *section, const struct farm_env_spec *spec,
                            const struct farm_bw_env_bandwidth *bandwidth, const struct reached *reached) {
    const struct farm_bw_env_traffic traffic = farm_bw_env_traffic(spec);
    json_t *ceilings = json_array();
    fprintf(job->out, "%s: %llu B an observation, %u frame%s a step; memory could carry\n", job->env,
            (unsigned long long)traffic.obs_bytes, spec->frames_per_step, spec->frames_per_step == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        farm_json_append(ceilings, report_ceiling(job, i, spec, bandwidth, reached));
    if (reached->frames_per_s > 0)
        fprintf(job->out,
                "  %-52s %8s frames/s (rings of %.1f MB; rings that fit the caches may pass memory's ceiling)\n",
                "farm fps, random actions", farm_format_count(reached->frames_per_s).text, reached->ring_bytes * 1e-6);
    fprintf(job->out, "  (memory only, without the cost of the simulator. Bus: %s)\n",
            job->setup.machine->gpu_count ? "not measured" : "no GPU here");
    farm_json_set_text(section, "env", job->env);
    farm_json_set_int(section, "obs_bytes", traffic.obs_bytes);
    farm_json_set_int(section, "other_bytes_per_step", traffic.other_bytes);
    farm_json_set_int(section, "frames_per_step", spec->frames_per_step);
    farm_json_set(section, "ceilings", ceilings);
    farm_json_set_real(section, "farm_fps_frames_per_s", or_unknown(reached->frames_per_s));
    farm_json_set_real(section, "farm_fps_ring_bytes", or_unknown(reached->ring_bytes));
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
    if (!status && job->fps_json) status = read_fps_json(job, &reached, err);
    if (!status) status = measure_bandwidth(job, 0.4, &bandwidth, section, err);
    if (!status && !job->fps_json) status = run_fps(job, &reached, err);
    if (!status) report_ceilings(job, section, &env->spec, &bandwidth, &reached);
    free(env);
    return status;
}
