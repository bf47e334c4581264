// Samples of a run's figures, taken every few seconds, and the one list of these figures, from which metrics.jsonl and
// the files beside it are made (sink.h). Runs in the supervisor.
#ifndef FARM_REPORT_METRICS_H
#define FARM_REPORT_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/totals.h"

// One of the algorithm's figures, or of the replay's; NAN without an update.
struct farm_sample_statistic {
    const char *key, *word; // in metrics.jsonl; on the progress line, NULL: not shown
    double value;
};
enum { FARM_SAMPLE_ALGO_MAX = 8, FARM_SAMPLE_REPLAY_MAX = 12 };

// A remote node. Rates are over the last second, totals since it joined.
struct farm_sample_node {
    char name[64], key[64]; // key: name of its key; "": in the clear
    bool away;              // it is not connected now
    uint64_t actors, lanes, env_steps, bytes_in, bytes_out, reconnects;
    uint64_t copied_bytes; // within user space, on the learner's side
    double env_steps_per_s, bytes_in_per_s, bytes_out_per_s;
    double round_trip_ms; // NAN: unknown
    double away_s;        // 0: it is connected
    double present_s;     // since it joined
};

// Figures of one moment. Rates and shares are over the time since the previous sample. `total` counts since the run's
// first session, all other counts since this one began.
struct farm_sample {
    struct farm_totals total, before; // before: part of `total` from earlier sessions (--resume)
    uint64_t frames_target;           // limit of total.frames; 0: none
    double seconds_target;            // limit of total.wall_s; 0: none
    double frames_per_s, agent_steps_per_s;
    double return_mean, return_std, length_mean; // over the last games; NAN before the first
    double policy_lag_updates; // parameter versions between acting and training, mean; NAN without an update
    double parameters_age_s;   // since those were published of an actor's newest answer, the oldest; NAN: none infers
    double infer_batch_mean;   // observations of one inference pass; NAN without one
    double actor_wait_share;   // share of the lanes' time with a step published and not yet answered, 0..1
    double learner_wait_share; // share of the training threads' time spent waiting for windows, 0..1
    struct farm_sample_statistic algo[FARM_SAMPLE_ALGO_MAX], replay[FARM_SAMPLE_REPLAY_MAX]; // key NULL ends
    double grad_norm, learning_rate;                                                         // NAN without an update
    double eval_return_mean, eval_return_std; // the newest evaluation's; NAN before the first
    uint64_t eval_frames;                     // when its checkpoint was written; 0: none
    double training_remote_share;     // part of the windows' bytes, over the run, that training read from another NUMA
                                      // node than its thread's; NAN: nodes are unknown
    double bus_bytes_per_observation; // to a GPU, for inference and training, over the run; NAN without one
    uint64_t actors;                  // attached now
    uint64_t actor_restarts, learner_restarts, checkpoints, bad_values;
    uint64_t rejected_steps;   // not among agent_steps, because of an invalid value
    uint64_t windows_dropped;  // not trained on: too old, or of an idle actor
    uint64_t versions_skipped; // no buffer of a parameter board was free for them
    uint64_t actors_hung;      // hangs that the watchdog has reported
    uint64_t actors_stuck;     // actors that hang or are stopped now
    bool learner_stopped;      // by a signal or a debugger, now
    // Memory of their own, without the rings, at the last line of metrics.jsonl; 0: unknown.
    uint64_t actor_memory_bytes_max, actor_memory_bytes_sum, learner_memory_bytes;
    bool listens;                         // remote nodes may join
    const struct farm_sample_node *nodes; // [node_count] joined; borrowed
    uint32_t node_count, nodes_away;
};

// The part of the totals that belongs to this session.
struct farm_totals farm_sample_session(const struct farm_sample *sample);

// One number of a sample.
struct farm_figure {
    const char *group, *key; // TensorBoard's tag is GROUP/KEY
    double value;            // not finite: unknown
    bool whole;              // a count
};
enum { FARM_FIGURES_MAX = 64 };

// The sample's numbers in the order of metrics.jsonl, for a run always the same ones; returns how many. Those of a
// --resume are unknown before one. Keys are the sample's (FARM_SAMPLE_ALGO_MAX), or literals.
size_t farm_sample_figures(const struct farm_sample *sample, struct farm_figure figures[FARM_FIGURES_MAX]);

// The sample as a JSON object of metrics.jsonl (the caller owns it). Lengths of time in seconds (_s), shares 0..1.
json_t *farm_sample_json(const struct farm_sample *sample);

// Remote nodes as a list of objects (the caller owns it).
json_t *farm_sample_nodes_json(const struct farm_sample_node *nodes, uint32_t count);

#endif
