// See run.h.
#include "run/run.h"

#include "base/time.h"
#include "run/deterministic.h"
#include "run/settings.h"

enum farm_status farm_run_make(struct farm_run *run, const struct farm_run_request *request, struct farm_error *err) {
    *run = (struct farm_run){
        .workers = {.plan = &run->plan, .rings = &run->rings, .caller = &run->caller},
        .watch = {.workers = &run->workers, .bridges = &run->bridges},
        .change = {.workers = &run->workers},
        .sessions = {.bridges = &run->bridges, .change = &run->change},
        .evaluation = {.workers = &run->workers},
        .events = {.workers = &run->workers,
                   .watch = &run->watch,
                   .change = &run->change,
                   .sessions = &run->sessions,
                   .evaluation = &run->evaluation},
        .sampler = {.events = &run->events},
    };
    const struct farm_supervisor_config config = farm_run_events_config(&run->events, request->elastic);
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
    enum farm_status status = farm_run_rings_make(&run->rings, &run->plan, err);
    if (!status) status = farm_run_watch_make(&run->watch, err);
    if (!status) status = farm_run_change_make(&run->change, err);
    if (!status) status = farm_run_bridges_make(&run->bridges, &run->workers, err);
    if (!status) status = farm_run_workers_add(&run->workers, err);
    if (!status) status = farm_run_bridges_add(&run->bridges, err);
    if (!status)
        status = farm_run_evaluation_add(&run->evaluation, (size_t)run->plan.places + 1 + run->bridges.count, err);
    if (!status) status = farm_run_sessions_make(&run->sessions, err);
    if (!status) farm_run_events_listen(&run->events);
    return status;
}

enum farm_status farm_run_execute(struct farm_run *run, bool *interrupted, struct farm_error *err) {
    int number;
    run->events.tick_ns = run->events.moved_ns = run->sampler.time_ns = farm_now_ns();
    run->sampler.frames = run->workers.learner.before.frames;
    run->sampler.agent_steps = run->workers.learner.before.agent_steps;
    enum farm_status status = farm_supervisor_run(run->workers.supervisor, &number, err);
    while (!status && !number && farm_run_deterministic_goes_on(run)) {
        status = farm_run_deterministic_again(run, err);
        if (!status) status = farm_supervisor_run(run->workers.supervisor, &number, err);
    }
    *interrupted = number != 0;
    farm_run_events_end(&run->events, !*interrupted && !status);
    // Replaces the learner's last lines, which are on stderr already; also after a requested end whose last checkpoint
    // failed.
    const char *why = run->change.failure[0] ? run->change.failure : run->events.learner_error;
    if (!status && !why[0]) return FARM_OK;
    if (why[0]) farm_fail(err, FARM_E_DEAD, "%s", why);
    return err->status = FARM_E_DEAD;
}

void farm_run_free(struct farm_run *run) {
    farm_supervisor_free(run->workers.supervisor);
    farm_run_evaluation_free(&run->evaluation);
    farm_run_sessions_free(&run->sessions);
    farm_run_bridges_free(&run->bridges);
    farm_run_workers_free(&run->workers);
    farm_run_change_free(&run->change);
    farm_run_watch_free(&run->watch);
    farm_run_rings_free(&run->rings);
    farm_run_plan_free(&run->plan);
}
