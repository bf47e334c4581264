// The chaos runner: farms of the real supervisor, actor program and learner, whose processes are killed all the time.
// Every step carries its writer and a checksum, and every process checks every step. This header describes what the
// runner, the farm's supervisor, its actors and its learner share, in one mapping that is made before any fork and
// outlives each of them. See farm.c (one farm), env.c and backend.c (checks), runner.c (many farms).
//
// Checked at each step:
//   - An observation reaches inference and training whole, and as the environment wrote it (checksum; payload.h).
//   - Step n+1 of an environment is the successor of step n in the same life of its actor, or the first step of a later
//     life (FIRST; without LAST before it, an abandoned episode), which lies exactly where the dead actor's last
//     published step ended. So none is lost, none doubled.
//   - Exactly once is in terms of `acted`: inference receives step n only while acted = n. One learner's life
//     answers a step once; a learner that dies between writing an answer and storing `acted` leaves the step to the
//     next life, which answers it again: the actor has seen neither.
//   - An environment gets the answer to its own newest observation (the answer is a function of that).
//   - In every third farm actors answer themselves (FARM_ANSWERS_LOCAL): inference receives no rows, counters keep
//     that mode's rules, and training finds the answer to each step but a window's last one, which waits for its grant.
//   - One learner's life trains on every window once and in order. Windows whose steps were not released when a
//     learner died are trained on again by the next; none is skipped,
//     except windows older than max_lag. In a third of the farms windows are replayed instead: any of them, in any
//     order, while their steps are in the ring.
//   - Versions never fall: neither in a learner's life, nor from one to the next, nor from one step of a lane to the
//   next.
//   - A checkpoint in the folder when a learner dies is whole: the next life starts from it.
//   - No slot is overwritten before training has released it; every counter only grows.
#ifndef TESTS_CHAOS_CHAOS_H
#define TESTS_CHAOS_CHAOS_H

#include <farm/env.h>
#include <stdbool.h>

#include "../support/rings.h"
#include "intake/stats.h"
#include "learner/backend.h"

enum {
    CHAOS_ACTORS_MAX = 8,
    CHAOS_LANES_MAX = 3,
    CHAOS_WIDTH_MAX = 4,
    CHAOS_ALL_LANES = CHAOS_ACTORS_MAX * CHAOS_LANES_MAX,
    CHAOS_WORKERS = CHAOS_ACTORS_MAX + 1,
    CHAOS_GENERATIONS = 64, // lives of an actor whose beginnings are remembered
    CHAOS_ACTIONS = 1021,   // a wrong answer is right by chance once in that many cases
    CHAOS_OBS_BYTES_MAX = 4096,
    CHAOS_WINDOWS_MAX = 2 * CHAOS_ALL_LANES * CHAOS_WIDTH_MAX, // in an iteration
    CHAOS_SITES = 1024,
    CHAOS_SAMPLES = 16384,
    CHAOS_SENTENCES = 8,
};

enum chaos_kind {
    CHAOS_NONE,
    CHAOS_TIME, // by the supervisor, at a random time
    CHAOS_STEP, // actor: by itself, at a random byte of an observation that it writes
    CHAOS_HOOK, // by itself, before or after a random atomic store; learner: also between the words of an answer
    CHAOS_KINDS
};

// One farm's shape, drawn by the runner.
struct chaos_shape {
    uint64_t seed;
    uint32_t actors, lanes, width, steps;
    uint32_t height, row_bytes; // an observation's
    uint32_t stack, unroll, batch, infer_batch_max;
    double infer_wait_ms;
    uint64_t spin_ns;
    bool rings_late;
    uint64_t nap_ns;  // longer than a standstill, so that the end of a sleep does not hide a lost wake-up
    bool evaluate;    // without training: inference releases the steps
    bool local;       // actors answer themselves
    bool sync;        // an iteration is one window of every lane
    bool replay;      // windows are handed out again and again, with random priorities
    uint32_t max_lag; // otherwise: older windows are dropped; 0: no limit
    uint64_t actor_kill_every_ns, learner_kill_every_ns; // on average; 0: none
    uint64_t actor_kills, learner_kills;                 // the farm ends after this many
    uint64_t standstill_ns;                              // a lane without progress for this time is stuck
    uint64_t ends_by_ns;                                 // latest end, CLOCK_MONOTONIC
    double checkpoint_every_s;                           // 0: none are written
    uint32_t jitter;                                     // one hook in N delays; 0: none
    uint32_t jitter_focus;                               // only at one place in N; 0: at all places
};

// One process of the farm, and the death or stop that its supervisor orders. Worker a is actor a, worker `actors` the
// learner.
struct chaos_worker {
    pid_t pid;                  // the newest life's
    bool stops;                 // what is ordered is a stop (SIGSTOP) instead of a death
    uint64_t stores, env_steps; // until it strikes itself; 0: not ordered. Counted down by the worker
    uint64_t kind;              // enum chaos_kind: what killed it, by the killer
    uint64_t died_ns;           // when, by the killer
    uint64_t began;             // the life that has reached its environments (actor) or inference (learner) + 1
};

// Observations of inference of one environment. Two for each, step n in number n % 2, so that a learner that dies while
// it writes one leaves the other whole.
struct chaos_seen {
    uint64_t step; // n + 1, written last; 0: nothing or half written
    uint64_t life; // the learner's
    uint64_t generation, sequence, checksum;
    uint32_t flags;
    int32_t action; // answered
    // counts up to this step, it included
    uint64_t transitions, games, abandoned;
};

struct chaos_takeover {
    uint64_t generation; // + 1; written by the supervisor before the actor starts
    uint64_t step;       // that its first step must be
};

// Of the present farm; zero when it begins.
struct chaos_state {
    struct farm_stats stats;
    struct chaos_worker workers[CHAOS_WORKERS];
    uint64_t generation[CHAOS_ACTORS_MAX];
    uint64_t learner_life, learner_deaths;
    uint64_t version; // newest published
    uint64_t passes;  // so far, of all learners
    struct chaos_takeover takeovers[CHAOS_ALL_LANES][CHAOS_GENERATIONS];
    struct chaos_seen seen[CHAOS_ALL_LANES][CHAOS_WIDTH_MAX][2];
    uint64_t trained_to[CHAOS_ALL_LANES][CHAOS_WIDTH_MAX]; // start of the window after the newest trained on
    uint64_t files[2 * CHAOS_ACTORS_MAX];                  // inode numbers of its segments
    uint64_t device;                                       // all of them
};

struct chaos_samples {
    uint64_t count;
    uint64_t ns[CHAOS_SAMPLES];
};

// Of all farms.
struct chaos_totals {
    int64_t shmem_change_bytes; // the whole machine's, over the run; other processes count too

    uint64_t actor_kills[CHAOS_KINDS], learner_kills[CHAOS_KINDS], supervisor_kills, farms;
    uint64_t steps_checked, answers_checked, steps_again; // at inference; by environments; at inference after a death
    uint64_t windows_checked, window_steps_checked, windows_again;
    uint64_t abandoned, generations;
    uint64_t transitions, uncounted_transitions, games,
        uncounted_games; // uncounted: a learner died before it counted them
    uint64_t checkpoints, checkpoints_loaded;
    uint64_t rings_verified, counters_sampled;
    uint64_t sites[CHAOS_SITES]; // addresses of hooks that killed
    struct chaos_samples noticed, again;
    uint64_t violations;
    char sentences[CHAOS_SENTENCES][512];
};

struct chaos_shared {
    char folder[128]; // for checkpoints; empty at a farm's beginning
    struct chaos_shape shape;
    struct chaos_state state;
    struct chaos_totals totals;
};

// ---- hook.c: every process ----

// The mapping, made before the first fork, and this process's own number (-1: not a worker). Process-wide because hooks
// and environments are reached without a context.
void chaos_hook_set(struct chaos_shared *shared, int worker);
struct chaos_shared *chaos_shared_of_process(void);
int chaos_worker_of_process(void);

// Dies by SIGKILL after noting the kind, or stops and returns when it is continued (struct chaos_worker).
void chaos_strike(enum chaos_kind kind);

// Notes a violation; the first ones with their sentence.
void chaos_violation(struct chaos_shared *shared, const char *format, ...) __attribute__((format(printf, 2, 3)));

void chaos_add(uint64_t *word, uint64_t more);                 // by any process
size_t chaos_descriptors(void);                                // that this process has open
void chaos_sample(struct chaos_samples *samples, uint64_t ns); // by any process
uint64_t chaos_random_below(uint64_t *state, uint64_t n);

// ---- env.c, backend.c: who checks ----

// Writes the answers to step n of a LOCAL lane: struct farm_actor_config's `answer`.
void chaos_answer(void *context, struct farm_lane *lane, uint64_t n);

extern const struct farm_env_api chaos_env;
extern const struct farm_backend_ops chaos_backend;

// ---- farm.c: the process that is the supervisor ----

// Runs the farm of shared->shape until it has had its kills. Returns the exit status; violations are in shared.
int chaos_farm_run(struct chaos_shared *shared);

// ---- runner.c ----

struct chaos_request {
    uint64_t seed;
    uint64_t actor_kills, learner_kills, supervisor_kills; // at least
    double seconds;                                        // ends then, whatever was reached; 0: no limit
    double actor_kills_per_s;
    double standstill_s; // a lane without progress for this time is stuck
    bool progress;       // a line on stderr now and then
};

// Runs farms until the request is met, a violation is found or time is over. The caller becomes the subreaper of its
// descendants and must have no other children. True without violations; totals of all farms in *totals, a large struct.
bool chaos_run(const struct chaos_request *request, struct chaos_totals *totals);

uint64_t chaos_sum(const uint64_t kinds[CHAOS_KINDS]);
uint64_t chaos_sites(const struct chaos_totals *totals);
double chaos_percentile_ms(const struct chaos_samples *samples, double p); // NAN: no samples

#endif
