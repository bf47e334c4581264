// The life of a job: its supervisor, its shared memory, its run and its end. See farm_job.h.
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "farm_job_parts.h"
#include "learner/gate.h"

enum farm_status farm_job_begin(struct farm_job *job, const struct farm_recipe *recipe, bool elastic,
                                struct farm_error *err) {
    *job = (struct farm_job){.recipe = *recipe, .elastic = elastic, .claim = {.fd = -1}};
    const struct farm_supervisor_config config = farm_job_events(job);
    job->machine = calloc(1, sizeof *job->machine);
    job->plan = calloc(1, sizeof *job->plan);
    if (!job->machine || !job->plan) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for the plan");
    return farm_supervisor_make(&config, &job->supervisor, err);
}

// ---- shared memory ----

static enum farm_status make_bells(struct farm_job *job, struct farm_error *err) {
    const uint32_t wanted = job->standin.body ? job->actors : job->learner.shard_count;
    job->bells = calloc(wanted, sizeof *job->bells);
    for (; job->bells && job->bell_count < wanted; job->bell_count++)
        if ((job->bells[job->bell_count] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) break;
    return job->bell_count == wanted ? FARM_OK : farm_fail_errno(err, FARM_E_LIMIT, "%u bells", wanted);
}

static enum farm_status make_board(struct farm_job *job, struct farm_error *err) {
    const struct farm_segment_request request = {.kind = FARM_SEGMENT_STATS,
                                                 .bytes = FARM_SEGMENT_HEADER_BYTES + sizeof(struct farm_stats),
                                                 .node = -1,
                                                 .layout_hash = sizeof(struct farm_stats)};
    enum farm_status status = farm_segment_create(&request, &job->stats_segment, err);
    if (!status) job->stats = farm_job_stats(&job->stats_segment);
    return status;
}

enum farm_status farm_job_make_ring(struct farm_job *job, uint32_t a, struct farm_error *err) {
    return farm_ring_create(&job->ring_spec, a, job->plan->actor[a].memory_node, job->recipe.huge_pages, &job->rings[a],
                            err);
}

static enum farm_status make_rings(struct farm_job *job, struct farm_error *err) {
    for (uint32_t a = 0; a < job->actors; a++) {
        enum farm_status status = farm_job_make_ring(job, a, err);
        if (status) return status;
        job->actor_jobs[a].there = true;
    }
    char text[512];
    farm_segment_describe(&job->rings[0].up, text, sizeof text);
    if (!job->quiet) farm_log_info("shared memory: %s", text);
    return FARM_OK;
}

enum farm_status farm_job_build(struct farm_job *job, struct farm_error *err) {
    job->rings = calloc(job->places, sizeof *job->rings);
    job->actor_jobs = calloc(job->places, sizeof *job->actor_jobs);
    job->ring_fds = calloc(job->places, sizeof *job->ring_fds);
    job->ring_shard = calloc(job->places, sizeof *job->ring_shard);
    job->watches = calloc(job->places, sizeof *job->watches);
    const bool gpu = !job->standin.body && job->learner.device != FARM_DEVICE_CPU;
    job->up_writable = gpu ? calloc(job->places, sizeof *job->up_writable) : NULL;
    job->watchdog = farm_watchdog_make(job->recipe.hang_seconds);
    enum farm_status status = make_bells(job, err);
    job->learner_keep = calloc(3 * (size_t)job->places + job->bell_count + 2, sizeof *job->learner_keep);
    if (!job->rings || !job->actor_jobs || !job->ring_fds || !job->ring_shard || !job->learner_keep || !job->watches ||
        (gpu && !job->up_writable))
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u actors", job->places);
    if (!status) status = make_board(job, err);
    if (!status && job->elastic) status = farm_gate_make(&job->gate, &job->learner.gate, err);
    if (!status) status = make_rings(job, err);
    return status ? status : farm_job_add_workers(job, err);
}

// ---- run and end ----

enum farm_status farm_job_run(struct farm_job *job, bool *interrupted, struct farm_error *err) {
    int number;
    job->tick_ns = farm_now_ns();
    job->sampler.time_ns = job->tick_ns;
    job->sampler.frames = job->learner.frames_start;
    enum farm_status status = farm_supervisor_run(job->supervisor, &number, err);
    if (!job->end_ns) job->end_ns = farm_now_ns();
    // A job that was done within one tick began with that tick.
    if (!job->start_ns && farm_load_relaxed(&job->stats->agent_steps)) job->start_ns = job->tick_ns;
    *interrupted = number != 0;
    // In place of the learner's last lines, which stand on stderr already; and where its end was asked for, but the
    // last checkpoint could not be written.
    if (job->learner_error[0]) status = farm_fail(err, status ? status : FARM_E_DEAD, "%s", job->learner_error);
    return status;
}

void farm_job_free(struct farm_job *job) {
    farm_supervisor_free(job->supervisor);
    for (uint32_t a = 0; job->rings && a < job->places; a++)
        if (job->rings[a].lanes) farm_ring_close(&job->rings[a]);
    for (uint32_t a = 0; job->actor_jobs && a < job->places; a++) farm_env_program_free(&job->actor_jobs[a].program);
    if (job->gate) close(job->gate);
    if (job->learner.gate) close(job->learner.gate);
    if (job->stats_segment.header) farm_segment_close(&job->stats_segment);
    for (uint32_t b = 0; b < job->bell_count; b++) close(job->bells[b]);
    free(job->bells);
    if (job->machine) farm_claim_close(&job->claim); // one that never began has none, and 0 is a descriptor
    free(job->rings);
    free(job->actor_jobs);
    free(job->ring_fds);
    free(job->ring_shard);
    free(job->up_writable);
    free(job->learner_keep);
    free(job->watches);
    free(job->machine);
    free(job->plan);
}
