// Answering the lanes of a farm from a program of your own (libfarm; examples/consumer.c is a whole program): your loop
// takes the learner's place. `farm serve` runs the actors, here and by --listen on other machines; a consumer maps
// their lanes, reads observations in place, writes actions and publishes the answers. Actors may die, join and leave
// meanwhile.
//
// A lane holds the last C steps of W environments (docs/ARCHITECTURE.md). Step n comes with the reward and the flags of
// the transition into it (farm/step.h) and is *waiting* until it is answered; then the actor takes step n + 1. Slots
// are reused oldest first: the actor stops before the oldest step that is held or waiting. Observations of u8 are the
// actor's memory, mapped read-only; rewards, flags and numbers are checked copies, as the learner has them. An
// environment's step with invalid values has reward 0, the flags FIRST and LAST with bit 128, and zeros for the values.
//
// Errors: open functions write one sentence to `error`; later ones keep it for farm_consumer_error. A consumer, and all
// that it returns, belongs to one thread at a time, except farm_consumer_drop, which any thread may call. It must not
// be used in a fork's child, which does not have the lanes' memory. C17 and C++; x86-64 and AArch64 Linux.
#ifndef FARM_CONSUMER_H
#define FARM_CONSUMER_H

#include <farm/farm.h>

#ifdef __cplusplus
extern "C" {
#endif

struct farm_consumer;

// Starts `farm serve` (as farm_start) with these words, NULL behind the last: {"--env", "ale/Pong", "--actors", "2",
// NULL}, and waits until its lanes are there. `pass`: descriptors that the farm's own actors inherit under the same
// numbers, `pass_count` of them, at most 4. The farm ends when the consumer is closed or its process ends, in any way.
// NULL: an error, or a signal ended the wait.
struct farm_consumer *farm_consumer_start(const char *const *words, const int *pass, unsigned pass_count, char *error,
                                          size_t error_bytes);
// Connects to a running `farm serve --socket PATH` of the same user. It outlives the consumer, and the next consumer
// continues at the lanes' counters. One at a time: NULL with an error while another one is connected.
struct farm_consumer *farm_consumer_connect(const char *path, char *error, size_t error_bytes);
// Frees the consumer and unmaps its lanes; ends and waits for a farm that farm_consumer_start started. NULL is allowed.
// Returns the farm's exit status (farm_wait), 0 of a connected one.
int farm_consumer_close(struct farm_consumer *consumer);
// Why the last call failed, or what the farm reported as it ended. "": nothing. Belongs to the consumer.
const char *farm_consumer_error(const struct farm_consumer *consumer);
pid_t farm_consumer_pid(const struct farm_consumer *consumer); // the supervisor's

// ---- lanes ----

// Numbers of lanes are below farm_consumer_places; a number may be vacant (its actor has not joined, or has left).
unsigned farm_consumer_places(const struct farm_consumer *consumer);
const struct farm_env_spec *farm_consumer_env(const struct farm_consumer *consumer);
// Shape that all lanes share.
struct farm_consumer_shape {
    uint32_t width, steps;   // W, C
    uint32_t policy_outputs; // floats of FARM_VIEW_POLICY for each environment
    bool same_step;        // a step may have FIRST and LAST: FARM_VIEW_LAST + i is then the episode's last observation
    bool controls;         // farm_consumer_control works
    uint32_t number_count; // its numbers, and their names
    char numbers[16][FARM_FIELD_NAME_MAX];
};
void farm_consumer_shape(const struct farm_consumer *consumer, struct farm_consumer_shape *shape);
// False: the number is vacant. `consumed`: the oldest step that is still readable; `produced`: the one behind the
// newest that recv has seen.
bool farm_consumer_state(const struct farm_consumer *consumer, unsigned lane, struct farm_lane_state *state);

// ---- a loop ----

struct farm_ready {
    uint32_t lane;
    uint64_t step; // waits for its answer
};

// Waits until `least` lanes have a waiting step that no earlier call has listed, at most timeout_ns (negative: for
// ever); then lists up to `most`, those that wait longest first. `least` is lowered to the number of lanes that could
// still become ready. Returns their number, 0 after the timeout or a signal, -1 if the farm has ended.
int farm_consumer_recv(struct farm_consumer *consumer, unsigned least, unsigned most, int64_t timeout_ns,
                       struct farm_ready *ready);

// A field (enum farm_view_field) of `steps` steps from `step` on, [steps][W][...] in place and read-only: of the
// waiting step or a held one and what follows it; answers (ACTION, POLICY, VALUE) of answered steps. NULL: no such
// field or step, or the steps are not neighbours in memory (they wrap: choose C as a multiple of `steps`).
const void *farm_consumer_field(const struct farm_consumer *consumer, unsigned lane, uint64_t step, unsigned steps,
                                unsigned field);
// Where the answer to the lane's waiting step is written: ACTION (as env.action says, [W]), POLICY, VALUE. Zeros until
// written.
void *farm_consumer_answer_field(struct farm_consumer *consumer, unsigned lane, unsigned field);
// With the next answer, environment `env` of the lane is reset instead of stepped (its step n + 1 has FIRST), with a
// seed (NULL: its own stream goes on) and numbers (NULL, or [number_count]; NAN: unchanged).
bool farm_consumer_control(struct farm_consumer *consumer, unsigned lane, uint32_t env, const uint64_t *seed,
                           const double *numbers);
// Publishes the answers of `count` lanes. False: an action is not one of its choices or not finite, or a lane has no
// waiting step; then none is published. Numbers beyond an action's bounds are clipped. Action masks are not enforced.
bool farm_consumer_answer(struct farm_consumer *consumer, const uint32_t *lanes, unsigned count);

// ---- steps that stay ----

// Holds the steps from `step` on, which is waiting or held: they are not overwritten before farm_consumer_drop of the
// same step, also after farm_consumer_close and the actor's end; holds are counted. Returns the lane's token for the
// drop, NULL: the step is overwritten, or the lane vacant.
void *farm_consumer_hold(struct farm_consumer *consumer, unsigned lane, uint64_t step);
void farm_consumer_drop(void *token, uint64_t step); // any thread
// Moves the held steps of the lane's actor, of all its lanes, to memory of their own, at the same addresses: they stop
// it no longer. Costs a copy of its rings; pointers of farm_consumer_answer_field are invalid afterwards. False: no
// memory or descriptors, and nothing has changed.
bool farm_consumer_detach(struct farm_consumer *consumer, unsigned lane);
// Steps that the lane's actor can still publish before held ones stop it.
unsigned farm_consumer_room(const struct farm_consumer *consumer, unsigned lane);
// Further steps before each waiting one that stay readable (frames to stack). At the start, before the first recv.
void farm_consumer_keep(struct farm_consumer *consumer, unsigned steps);

// ---- across lanes ----

// Copies an observation field of waiting or held steps to out[count * W][stack][bytes of one environment], oldest frame
// first; the first frame repeats in place of those before an episode's first, or before a consumer's first of a lane.
// stack - 1 <= farm_consumer_keep's steps, stack <= 64. False: as farm_consumer_field's NULL.
bool farm_consumer_gather(const struct farm_consumer *consumer, const struct farm_ready *ready, unsigned count,
                          unsigned field, unsigned stack, void *out);

// How the loop has spent its time since the last call: whether it waits for environments or environments for it. Waits
// are over the last 1024; 0: none.
struct farm_consumer_stats {
    uint64_t recvs, answers, agent_steps, bad_values;
    double recv_wait_p50_us, recv_wait_p95_us;     // a recv's wait for ready lanes
    double answer_wait_p50_us, answer_wait_p95_us; // from a step's recv to its answer: the policy's time
};
void farm_consumer_stats(struct farm_consumer *consumer, struct farm_consumer_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
