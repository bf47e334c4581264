// Evaluation during training (`eval_every`): at the first checkpoint at or after each multiple of that many frames,
// `farm eval` plays that checkpoint as one more worker of the supervisor, one at a time, and its result becomes a line
// of evals.jsonl in the run's folder and figures of the samples. Runs in the supervisor process.
//
// It leaves the run alone: nice 10, on any CPU of the process (its actor and its learner are not pinned and sleep when
// they wait), one actor with rings of a few steps, no GPU and no 2 MiB pages. It ends with the run, in the phase of the
// learner, and dies with the supervisor; so does every process of its own. What it plays is the open file, which
// `checkpoints_keep` may remove meanwhile. A failed one is a warning with the cause; the run goes on.
#ifndef FARM_RUN_EVALUATION_H
#define FARM_RUN_EVALUATION_H

#include "report/sink.h"
#include "run/workers.h"

struct farm_run_evaluation {
    struct farm_run_workers *workers; // farm_run_make

    // the newest evaluation's; frames 0: none yet
    uint64_t frames; // the run's, when its checkpoint was written
    double return_mean, return_std;

    // The rest is private.
    struct farm_appended lines;     // evals.jsonl
    int document_fd, checkpoint_fd; // memory for what `farm eval` prints; -1: closed
    size_t number;                  // the worker's
    bool running, skipped;          // skipped: a point, as reported
    uint64_t due_frames;            // the newest multiple that has been due
    struct {
        uint64_t due_frames, frames;
        double wall_s;
    } point;        // the present or last evaluation's: multiple, checkpoint, run's time
    char said[512]; // its last error
    char texts[3][48];
    char *argv[24];
};

// Opens evals.jsonl in workers->run_path, for appending (resume, without a torn line) or empty, if the recipe evaluates
// (else does nothing). FARM_E_IO, FARM_E_LIMIT.
enum farm_status farm_run_evaluation_open(struct farm_run_evaluation *evaluation, bool resume, struct farm_error *err);

// Registers the worker, if the recipe evaluates.
enum farm_status farm_run_evaluation_add(struct farm_run_evaluation *evaluation, struct farm_error *err);

// At every tick. wall_s: of the run, all sessions.
void farm_run_evaluation_tick(struct farm_run_evaluation *evaluation, double wall_s);

void farm_run_evaluation_free(struct farm_run_evaluation *evaluation);

#endif
