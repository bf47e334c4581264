// An environment under test by `farm doctor PLUGIN`: opens it and plays instances of it with random actions, in memory
// that detects stray accesses. Each check runs in a child process of the doctor. The child reports through shared
// memory, so that the doctor can name the call that crashed or never returned. One writer, the child; the doctor reads
// `calls` while the child runs (relaxed: it only compares values) and the rest after it has ended. A check frees
// nothing: its process ends with it.
#ifndef FARM_TOOLS_DOCTOR_TRIAL_H
#define FARM_TOOLS_DOCTOR_TRIAL_H

#include <farm/env.h>
#include <stdbool.h>

#include "actor/random_actions.h"
#include "envs/plugin.h"

enum {
    TRIAL_TEXT_BYTES = 512,
    TRIAL_NAMES_MAX = 256,
    TRIAL_NAME_BYTES = 64,
    TRIAL_OPTIONS_MAX = 33,                     // the user's, and one that no environment knows
    TRIAL_FIELDS_MAX = FARM_OBS_FIELDS_MAX + 2, // observations, then reward, then action
    TRIAL_SLOTS_MAX = 3,
};

enum trial_grade { TRIAL_GOOD, TRIAL_NOTE, TRIAL_BROKEN };

enum trial_call { TRIAL_LOAD, TRIAL_AT, TRIAL_SPEC, TRIAL_CREATE, TRIAL_RESET, TRIAL_STEP, TRIAL_DESTROY };

enum trial_fault {
    TRIAL_NO_FAULT,
    TRIAL_SIGNAL,        // an access elsewhere, or another signal
    TRIAL_PAST_FIELD,    // behind a field
    TRIAL_BEFORE_FIELD,  // before a field
    TRIAL_OLD_FIELD,     // in the memory of an earlier call
    TRIAL_WRITES_ACTION, // which an actor maps read-only
};

struct trial_request {
    const char *path; // the shared object's; NULL: built in, or in Python
    bool python;      // python.h
    const char *name; // the environment's
    struct farm_env_option options[TRIAL_OPTIONS_MAX];
    size_t option_count;
    uint64_t steps_max;  // calls of a pass
    uint64_t budget_ns;  // time of a pass, about
    bool writes_outside; // an earlier check found this: later checks do not report it again
};

// What checks leave for later checks and for the doctor. 0: not measured.
struct trial_figures {
    uint64_t trace_hash, trace_calls; // over the episodes of one seed
    double step_ns, reset_ns, many_step_ns, agent_steps_per_s;
    struct farm_env_spec spec; // obs_count 0: it could not be read
};

struct trial_report {
    uint64_t calls;       // that have returned
    enum trial_call call; // the present or last one
    uint64_t number;      // that call's number in its instance
    char action[64];      // that call's, if the check names it; else ""
    enum trial_fault fault;
    int fault_signal;
    char fault_access[8]; // "writes", "reads" or, if the machine does not distinguish them, "touches"
    uint32_t fault_field;
    int64_t fault_bytes; // distance from the field
    uint64_t fault_pc;   // offset in the shared object; 0: elsewhere
    char field_names[TRIAL_FIELDS_MAX][FARM_FIELD_NAME_MAX];
    uint64_t field_bytes[TRIAL_FIELDS_MAX];
    bool done;
    enum trial_grade grade;
    char found[TRIAL_TEXT_BYTES], mend[TRIAL_TEXT_BYTES];
    struct trial_figures figures;
    size_t name_count; // environments of the object: doctor_list
    char names[TRIAL_NAMES_MAX][TRIAL_NAME_BYTES];
};

struct trial {
    const struct trial_request *request;
    struct trial_report *report;
    struct farm_plugin plugin; // handle NULL: built in
    struct farm_env_spec spec;
    size_t bytes[TRIAL_FIELDS_MAX];
    uint32_t field_count, reward, action; // indices of the last two
    int mask;                             // field of action masks (kernels/head.h), or -1
};

// Opens request->path (or finds request->name) and gets the spec. False: the report has the reason.
bool trial_open(struct trial *trial, const struct trial_request *request, struct trial_report *report);

// Sets what the check found, and what the user can do (NULL: nothing). The last call counts.
void trial_report_finding(struct trial_report *report, enum trial_grade grade, const char *mend, const char *format,
                          ...) __attribute__((format(printf, 4, 5)));

// Catches the signals of faults: describes the fault in *report and ends the process.
void trial_catch_faults(struct trial_report *report);

// To be called before and after every call of the environment's functions.
void trial_enter(struct trial *trial, enum trial_call call, uint64_t number);
void trial_leave(struct trial *trial);

// The memory of one field.
struct trial_area {
    uint8_t *map, *data;
    size_t map_bytes, data_bytes; // data_bytes: whole pages around the field
};

enum trial_memory {
    TRIAL_PLAIN,        // writable on both sides: a stray write does not disturb this check
    TRIAL_GUARD_BEHIND, // inaccessible memory directly behind each field; the action is read-only
    TRIAL_GUARD_BEFORE, // the same before each field
    TRIAL_MOVING,       // another place at each call; the earlier places are inaccessible
};

// One instance, played with random actions.
struct trial_player {
    struct trial *trial;
    void *env;
    enum trial_memory kind;
    struct trial_area area[TRIAL_SLOTS_MAX][TRIAL_FIELDS_MAX];
    uint32_t slots, slot;
    int fill; // -1, or the byte that observations and reward are filled with before each call
    struct farm_random_actions actions;
    uint8_t *mask; // the last call's, a copy; NULL: the environment has no masks
    uint64_t begin_ns;
    uint64_t calls;                 // this instance's
    bool ended;                     // the next call is reset
    bool chosen;                    // the next action is in place
    bool was_reset;                 // the last call
    uint32_t answer;                // the last step's; 0 after a reset
    float rewards[FARM_AGENTS_MAX]; // the same
    bool left[FARM_AGENTS_MAX];     // agents that have left the episode
    uint64_t in_episode;            // steps since the last reset
};

// Makes an instance with that seed and the memory for it. False: the report has the reason.
bool trial_player_make(struct trial_player *player, struct trial *trial, enum trial_memory kind, uint64_t seed,
                       uint64_t action_seed);
// Replaces the instance by a new one in the same memory. False: the report has the reason.
bool trial_player_renew(struct trial_player *player, uint64_t seed);
void trial_player_destroy(struct trial_player *player); // the instance only

// Whether a pass is to be continued: limits of calls and time.
bool trial_player_continues(const struct trial_player *player);

// The next call: reset if the episode is over, else a step.
void trial_player_call(struct trial_player *player);
uint8_t *trial_player_field(struct trial_player *player, uint32_t field); // as the last call left it

// Prepares the next step's action: dimension `dim` takes `value` unless a mask forbids it, others are random.
uint32_t trial_choices(const struct farm_action_spec *action, uint32_t dim);
void trial_player_choose(struct trial_player *player, uint32_t dim, uint32_t value);

const char *trial_call_name(enum trial_call call);

#endif
