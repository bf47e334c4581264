// See run.h.
#include "run/run.h"

#include "base/time.h"
#include "run/checkpoints.h"
#include "run/settings.h"

enum farm_status farm_run_make(struct farm_run *run, const struct farm_run_request *request, struct farm_error *err) {
    *run = (struct farm_run){
        .workers = {.plan = &run->plan, .rings = &run->rings, .caller = &run->caller, .video = -1},
        .watch = {.workers = &run->workers, .learners = &run->learners},
        .change = {.workers = &run->workers, .admission = -1},
        .learners = {.workers = &run->workers, .change = &run->change, .sample = {-1, -1}},
        .sessions = {.bridges = &run->bridges, .change = &run->change},
        .requests = {.change = &run->change},
        .evaluation = {.workers = &run->workers, .lines = {.fd = -1}, .document_fd = -1, .checkpoint_fd = -1},
        .events = {.workers = &run->workers,
                   .watch = &run->watch,
                   .change = &run->change,
                   .sessions = &run->sessions,
                   .requests = &run->requests,
                   .evaluation = &run->evaluation},
        .sampler = {.events = &run->events},
    };
    const struct farm_supervisor_config config = farm_run_events_config(&run->events);
    enum farm_status status = farm_supervisor_make(&config, &run->workers.supervisor, err);
    struct farm_run_request whole = *request;
    if (!status) status = farm_run_bridges_open(&run->bridges, &request->listen, request->recipe->env, err);
    whole.listen.network_node = run->bridges.network_node;
    whole.listen.bridges = run->bridges.count;
    if (!status) status = farm_run_plan_make(&run->plan, &whole, err);
    if (!status && run->bridges.count) status = farm_wire_check_step(&run->plan.ring_spec, err);
    if (!status) run->workers.learner = farm_run_learner_settings(&run->plan);
    return status;
}

enum farm_status farm_run_build(struct farm_run *run, struct farm_error *err) {
    // Before the process is large. A node still has a connection's secrets: its processes must not inherit them
    // (node.c).
    enum farm_status status =
        run->plan.responder.remote ? FARM_OK : farm_supervisor_fork_apart(run->workers.supervisor, err);
    const char *checkpoint = run->workers.learner.checkpoints.load;
    if (!status) status = farm_run_opponent_board(&run->plan, &run->workers.opponent, err);
    if (!status) status = farm_run_rings_make(&run->rings, &run->plan, err);
    if (!status && checkpoint) status = farm_run_read_replay(&run->plan, checkpoint, true, &run->rings, err);
    if (!status) status = farm_run_watch_make(&run->watch, err);
    if (!status) status = farm_run_workers_make(&run->workers, err);
    if (!status) status = farm_run_change_make(&run->change, err);
    if (!status) status = farm_run_workers_enlist(&run->workers, err);
    if (!status) status = farm_run_learners_make(&run->learners, err);
    if (!status) status = farm_run_bridges_make(&run->bridges, &run->workers, err);
    if (!status) status = farm_run_sessions_make(&run->sessions, err);
    if (!status) status = farm_run_evaluation_add(&run->evaluation, err);
    if (!status) farm_run_events_listen(&run->events);
    if (!status) farm_run_requests_make(&run->requests);
    return status;
}

// After farm_supervisor_run of a deterministic run: whether the learner has ended at a checkpoint before the end of the
// run.
static bool goes_on(const struct farm_run *run) {
    return run->plan.deterministic && !run->change.failure[0] && !run->events.standstill[0] &&
           !farm_load_acquire(&run->rings.stats->done);
}

// Makes the rings anew and enlists all processes, which start with the checkpoint exactly as `--resume` would start
// them.
static enum farm_status begin_again(struct farm_run *run, struct farm_error *err) {
    struct farm_run_workers *workers = &run->workers;
    struct farm_stats *stats = run->rings.stats;
    enum farm_status status = FARM_OK;
    const uint64_t saved = farm_load_acquire(&stats->checkpoint_frames); // 0: none yet in this session
    if (!saved || saved != farm_load_acquire(&stats->frames))
        return farm_fail(err, FARM_E_DEAD,
                         "the learner was stopped between two checkpoints; --resume repeats what came "
                         "after the last one");
    for (uint32_t a = 0; a < run->plan.actors && !status; a++) {
        struct farm_ring *ring = &run->rings.ring[a];
        run->change.abandoned += farm_load_relaxed(&ring->up_control->abandoned);
        farm_ring_close(ring);
        status = farm_run_rings_add(&run->rings, &run->plan, a, run->plan.placement->actor[a].memory_node, err);
    }
    if (!status) status = farm_run_rings_make_boards(&run->rings, &run->plan, err);
    if (status) return status;
    if (!farm_run_find_checkpoint(workers->run_path, &run->plan, &run->caller, workers->checkpoint,
                                  sizeof workers->checkpoint))
        return farm_fail(err, FARM_E_NOT_FOUND, "%s: the checkpoint that was written last is gone", workers->run_path);
    workers->learner.checkpoints.load = workers->checkpoint;
    if ((status = farm_run_read_replay(&run->plan, workers->checkpoint, true, &run->rings, err))) return status;
    workers->start_frames = farm_load_acquire(&stats->checkpoint_frames);
    farm_store_relaxed(&stats->ready, 0);
    farm_store_relaxed(&stats->publishes, 0); // versions count from the checkpoint's, as after --resume
    run->watch.ticks = 0;
    farm_run_events_again(&run->events);
    status = farm_run_workers_enlist(workers, err);
    return status ? status : farm_run_learners_enlist(&run->learners, err);
}

enum farm_status farm_run_execute(struct farm_run *run, bool *interrupted, struct farm_error *err) {
    int number;
    run->events.tick_ns = run->events.moved_ns = run->sampler.time_ns = farm_now_ns();
    run->sampler.frames = run->workers.learner.before.frames;
    run->sampler.agent_steps = run->workers.learner.before.agent_steps;
    run->sampler.inserted = farm_load_relaxed(&run->rings.stats->replay_inserted);
    run->sampler.sampled = farm_load_relaxed(&run->rings.stats->replay_sampled);
    enum farm_status status = farm_supervisor_run(run->workers.supervisor, &number, err);
    while (!status && !number && goes_on(run)) {
        status = begin_again(run, err);
        if (!status) status = farm_supervisor_run(run->workers.supervisor, &number, err);
    }
    *interrupted = number != 0;
    farm_run_events_end(&run->events, !*interrupted && !status);
    // Replaces the learner's last lines, which are on stderr already; also after a requested end whose last checkpoint
    // failed.
    const char *why = run->change.failure[0] ? run->change.failure : run->learners.error;
    if (!status && !why[0]) return FARM_OK;
    if (why[0]) farm_fail(err, FARM_E_DEAD, "%s", why);
    return err->status = FARM_E_DEAD;
}

void farm_run_free(struct farm_run *run) {
    if (!run->workers.plan) return;
    farm_supervisor_free(run->workers.supervisor);
    farm_run_requests_free(&run->requests);
    farm_run_evaluation_free(&run->evaluation);
    farm_run_sessions_free(&run->sessions);
    farm_run_bridges_free(&run->bridges);
    farm_run_learners_free(&run->learners);
    farm_run_workers_free(&run->workers);
    farm_run_change_free(&run->change);
    farm_run_watch_free(&run->watch);
    farm_run_rings_free(&run->rings);
    farm_run_plan_free(&run->plan);
}
