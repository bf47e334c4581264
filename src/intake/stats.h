// A farm's figures, in a small shared segment that outlives the learner, so that the next one goes on counting. Only
// the learner writes (start_ns: the supervisor), its threads with one relaxed atomic operation a word; readers
// (progress line, metrics.jsonl, farm top) may see words of two moments, never a torn word. Doubles are stored as bits.
#ifndef FARM_INTAKE_STATS_H
#define FARM_INTAKE_STATS_H

#include <stdint.h>
#include <string.h>

#include <farm/env.h>

#include "base/atomics.h"

enum { FARM_STATS_RETURNS = 100, FARM_STATS_ALGO_MAX = 8 };

// The first invalid value that was found (validator.h).
struct farm_bad_value {
    uint64_t known;                          // 1: a thread is writing the words below; 2: they are there (release)
    uint64_t field;                          // FARM_BAD_REWARD, FARM_BAD_FLAGS, FARM_BAD_OBS or _ANSWER + its number
    uint64_t actor, lane, environment, step; // lane of the actor, environment of the lane
    uint64_t element, value; // an observation's: index (a mask's: the action without a permitted choice), and the bits
                             // of a double. An answer has neither
};
enum { FARM_BAD_REWARD, FARM_BAD_FLAGS, FARM_BAD_OBS, FARM_BAD_ANSWER = FARM_BAD_OBS + FARM_OBS_FIELDS_MAX };

struct farm_stats {
    uint64_t start_ns;        // farm_now_ns at the first answered step, as the supervisor saw it; 0: none yet
    uint64_t ready;           // 1 once inference answers
    uint64_t done;            // 1 when the run's own target is reached
    uint64_t agent_steps;     // transitions answered so far (FIRST steps not counted), this session
    uint64_t frames;          // agent_steps * frames_per_step + those before this session
    uint64_t updates;         // iterations: windows taken, trained on, published
    uint64_t publishes;       // 1 + the newest version; never falls, also across learners
    uint64_t windows_dropped; // too old, or of a lane that an iteration went on without
    uint64_t windows;         // trained on
    uint64_t episodes;        // games ended
    uint64_t infer_calls;     // forward passes
    uint64_t infer_rows;      // observations in them
    uint64_t lag_sum;         // over trained windows: version at training minus version that acted (first step)
    uint64_t train_wait_ns;   // training thread waiting for windows
    uint64_t actor_wait_ns; // sum over lanes: published and not yet answered (their actor may be stepping another lane)
    uint64_t checkpoints;
    uint64_t checkpoint_frames;                        // frames at the last one
    uint64_t checkpoints_wanted, checkpoints_answered; // requests so far (SIGUSR1; writer: the supervisor), and those
                                                       // that a checkpoint has answered
    uint64_t bus_infer_bytes, bus_train_bytes;         // observations that crossed the bus to a GPU
    uint64_t trained_near, trained_far; // units of passes, by whether their ring is on the NUMA node of the thread that
                                        // trained on them; if that is unknown, neither
    uint64_t bad_values;                // invalid ones (validator.h): counted, not trained on
    uint64_t rejected_steps;            // an environment's steps with such a value; not in agent_steps
    struct farm_bad_value first_bad;
    // Replay, in windows of single environments. The next learner goes on with these counts and with the highest
    // priority.
    uint64_t replay_inserted, replay_sampled; // so far
    uint64_t replay_live;                     // in the rings, with a transition: may be sampled
    uint64_t replay_bad_priorities; // those of trained windows that are not >= 0: the highest took their place
    uint64_t replay_train_wait_ns;  // no iteration was due, and none was in training
    uint64_t replay_saved_bytes;    // written to the run's folder so far (replay/store.h)
    uint64_t replay_actor_wait_ns;  // the newest windows' lanes had to wait for iterations
    // bits of doubles
    uint64_t return_mean; // over the last FARM_STATS_RETURNS games, unclipped
    uint64_t return_std;
    uint64_t length_mean;
    uint64_t grad_norm, learning_rate;
    uint64_t replay_highest;            // priority so far; 0: none yet
    uint64_t algo[FARM_STATS_ALGO_MAX]; // the algorithm's statistics, in its order; means over the last iteration
    uint64_t games; // in the ring below so far: `episodes`, and those that a deterministic run's checkpoint held
    uint64_t returns[FARM_STATS_RETURNS], lengths[FARM_STATS_RETURNS]; // ring of the last games, index games % N
};

static inline void farm_stats_set(uint64_t *word, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    farm_store_relaxed(word, bits);
}
static inline double farm_stats_get(const uint64_t *word) {
    uint64_t bits = farm_load_relaxed(word);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline void farm_stats_add(uint64_t *word, uint64_t more) {
    farm_add_relaxed(word, more);
}

#endif
