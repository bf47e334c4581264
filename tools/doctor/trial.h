// How `farm doctor PLUGIN` tries an environment out: opens it, plays instances of it in memory that shows who touches
// what, and tells in shared memory how far it has come, so that the doctor can name the call that crashed or never
// returned. Runs in a child process of the doctor's, one for each check. One writer, the child; the doctor reads
// `calls` while it runs (relaxed: it only looks whether the number moves) and the rest when it has ended.
#ifndef FARM_TOOLS_DOCTOR_TRIAL_H
#define FARM_TOOLS_DOCTOR_TRIAL_H

#include <farm/env.h>
#include <stdbool.h>

#include "envs/plugin.h"

enum {
    TRIAL_TEXT_BYTES = 512,
    TRIAL_NAMES_MAX = 256,
    TRIAL_NAME_BYTES = 64,                      // as struct farm_env has them
    TRIAL_FIELDS_MAX = FARM_OBS_FIELDS_MAX + 2, // observations, then reward, then action
    TRIAL_SLOTS_MAX = 3,
    TRIAL_FAULTS_FROM = 4, // memories that a fault is looked up in
};

enum trial_grade { TRIAL_GOOD, TRIAL_NOTE, TRIAL_BROKEN };

enum trial_call { TRIAL_OPEN, TRIAL_AT, TRIAL_SPEC, TRIAL_CREATE, TRIAL_RESET, TRIAL_STEP, TRIAL_DESTROY };

enum trial_fault {
    TRIAL_NO_FAULT,
    TRIAL_SIGNAL,        // somewhere in its own memory
    TRIAL_PAST_FIELD,    // behind a field
    TRIAL_BEFORE_FIELD,  // before a field
    TRIAL_OLD_FIELD,     // in the memory of an earlier call
    TRIAL_WRITES_ACTION, // which an actor holds read-only
};

// What the doctor asks for.
struct trial_request {
    const char *path; // a shared object; NULL: built in
    const char *name; // of the environment
    struct farm_env_option options[33];
    size_t option_count;
    uint64_t steps;     // calls a pass, at most
    uint64_t budget_ns; // time a pass, about
    bool untidy;        // it is known to touch memory that is not its own: do not look at that again
};

// What checks leave for later ones and for the doctor.
struct trial_figures {
    uint64_t trace_hash, trace_calls;                          // of the episodes of one seed
    double step_ns, reset_ns, many_step_ns, agent_steps_per_s; // 0: not measured
};

// What the child tells, in memory that both share.
struct trial_report {
    uint64_t calls;        // that have returned
    enum trial_call doing; // the call it is in, or was in last
    uint64_t number;       // of that call in its instance
    char action[64];       // of that call, where the check says which; else ""
    enum trial_fault fault;
    int fault_signal;
    bool fault_writes, fault_reads; // neither: the machine does not say
    uint32_t fault_field;
    int64_t fault_bytes; // past or before
    uint64_t fault_pc;   // offset in the shared object, 0: elsewhere
    char field_names[TRIAL_FIELDS_MAX][FARM_FIELD_NAME_MAX];
    uint64_t field_bytes[TRIAL_FIELDS_MAX];
    bool done;
    enum trial_grade grade;
    char found[TRIAL_TEXT_BYTES], mend[TRIAL_TEXT_BYTES];
    struct trial_figures figures;
    size_t name_count; // of doctor_list
    char names[TRIAL_NAMES_MAX][TRIAL_NAME_BYTES];
};

struct trial {
    const struct trial_request *request;
    struct trial_report *report;
    struct farm_plugin plugin; // handle NULL: built in
    struct farm_env_spec spec;
    size_t bytes[TRIAL_FIELDS_MAX];
    uint32_t field_count, reward, action; // indices of the last two
};

// Opens request->path (or finds request->name) and asks for the spec. False: the report says why.
bool trial_open(struct trial *trial, const struct trial_request *request, struct trial_report *report);

// What was found, and what to do (NULL: nothing). Ends the check's word: the last one counts.
void trial_say(struct trial *trial, enum trial_grade grade, const char *mend, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Catches faults, names their place in *report and ends the process.
void trial_watch_faults(struct trial_report *report);

// Before and after every call of the environment's functions.
void trial_enter(struct trial *trial, enum trial_call call, uint64_t number);
void trial_leave(struct trial *trial);

// One field in memory of its own.
struct trial_area {
    uint8_t *map, *data;
    size_t map_bytes, inner_bytes, bytes;
};

enum trial_memory {
    TRIAL_PLAIN,        // with room on both sides: a stray write does not hurt this check
    TRIAL_GUARD_BEHIND, // forbidden memory directly behind each field; the action cannot be written
    TRIAL_GUARD_BEFORE, // the same, before each field
    TRIAL_MOVING,       // TRIAL_GUARD_BEHIND, elsewhere at each call; where it was before is forbidden
};

// One instance that is played with random actions.
struct trial_player {
    struct trial *trial;
    void *env;
    enum trial_memory kind;
    struct trial_area area[TRIAL_SLOTS_MAX][TRIAL_FIELDS_MAX];
    uint32_t slots, slot;
    int fill;                      // -1, or the byte that observations and reward are filled with before each call
    uint64_t draws;                // state of the random actions
    uint64_t calls;                // of this instance
    bool fresh;                    // the next call is reset
    bool chosen;                   // the next action lies in place
    bool was_reset;                // the last call
    uint32_t answer;               // of the last step; 0 after a reset
    float reward;                  // the same
    uint64_t in_episode, episodes; // steps since the last reset; ends so far
};

// An instance of that seed, actions drawn from action_seed. False: the report says why.
bool trial_player_make(struct trial_player *player, struct trial *trial, enum trial_memory kind, uint64_t seed,
                       uint64_t action_seed);
// Another instance in its place, in the same memory. False: the report says why; the player has none.
bool trial_player_renew(struct trial_player *player, uint64_t seed);
void trial_player_free(struct trial_player *player);

// The next call: a reset where the episode is over, else a step.
void trial_player_call(struct trial_player *player);
uint8_t *trial_player_field(struct trial_player *player, uint32_t field); // of the last call

// A random action, in place for the next step. Or one of choice: dimension `dim` at `value` of 0..trial_choices-1, the
// others random. Not in moving memory.
void trial_player_draw(struct trial_player *player);
uint32_t trial_choices(const struct farm_action_spec *action, uint32_t dim);
void trial_player_choose(struct trial_player *player, uint32_t dim, uint32_t value);

// Whether the answer to a step is one that farm/env.h has.
bool trial_answer_legal(uint32_t answer);

const char *trial_call_name(enum trial_call call);

#endif
