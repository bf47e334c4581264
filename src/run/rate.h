// The rate of a recipe on this machine: makes its farm, runs it for a moment without a folder and ends it. For `farm
// fps` and for --inference auto. Limits of the recipe (frames, seconds) count. Runs in the supervisor's process. If
// SIGINT, SIGTERM and SIGHUP are blocked, a signal ends the present measurement, or the next one as it begins.
#ifndef FARM_RUN_RATE_H
#define FARM_RUN_RATE_H

#include "run/run.h"

// Rates are measured in the last two thirds of the time.
struct farm_run_rate {
    double agent_steps_per_s;                    // NAN: not measured
    double actor_wait_share, learner_wait_share; // report/metrics.h
    double actor_cpus, learner_cpus;             // CPU time in a second; the learner answers or takes in, and may train
    double step_latency_us;                      // mean from a step of an environment to its next one
    // What the bridge's format needs: a step of an environment, its answer, and a version to each node (CENTRAL: 0).
    double wire_up_bytes, wire_down_bytes, wire_version_bytes;
    uint32_t actors, lanes, width;
    bool interrupted;
};

// Measures the farm with a network that infers and, if `trains`, trains. Without training it has a training's plan and
// rings, and the parameters that the seed gives.
enum farm_status farm_run_measure(const struct farm_recipe *recipe, bool trains, double seconds,
                                  struct farm_run_rate *rate, struct farm_error *err);

// The same without training and limits of the recipe, with `inference` central or local.
enum farm_status farm_run_measure_inference(const struct farm_recipe *recipe, const char *way, double seconds,
                                            struct farm_run_rate *rate, struct farm_error *err);

// farm_run_execute; of a process's runs, the first one with invalid values alone reports one.
enum farm_status farm_run_execute_measured(struct farm_run *run, bool *interrupted, struct farm_error *err);

// `auto` becomes central or local and says why: what samples faster in a second, now or as ~/.cache/actorfarm has it
// (inference.txt). Not measured: GPU, deterministic (central), `listens` (local). FARM_E_INTERRUPTED: by a signal.
enum farm_status farm_run_choose_inference(struct farm_recipe *recipe, bool listens, struct farm_error *err);

#endif
