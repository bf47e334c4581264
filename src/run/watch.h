// Misbehaving workers: an actor that hangs or is stopped is reported once, and so is another worker that is stopped if
// its kind names what waits for it, as is an actor that infers and takes up no newer parameters; an actor that hangs
// for hang_kill seconds or publishes impossible counters is killed; an actor whose memory has grown is named when
// memory becomes tight. supervisor/watchdog.h judges what this file reads. Runs in the supervisor process.
#ifndef FARM_RUN_WATCH_H
#define FARM_RUN_WATCH_H

#include "run/learners.h"
#include "supervisor/watchdog.h"

struct farm_run_memory {
    uint64_t first_bytes, bytes; // in this life of the actor, at first and at last; 0: not yet read
    bool reported;
    bool stale;              // it has been reported for old parameters
    uint64_t steps_when_old; // when its newest parameters were found old; 0: they are not
};

enum { FARM_RUN_TICKS = 128 };
struct farm_run_tick {
    uint64_t ns, publishes;
};

struct farm_run_watch {
    struct farm_run_workers *workers;         // farm_run_make
    const struct farm_run_learners *learners; // farm_run_make
    struct farm_watchdog watchdog;
    struct farm_watch *actors;                 // [places]
    uint64_t hung;                             // hangs reported so far
    uint64_t looked_ns;                        // when stopped workers were looked for
    uint64_t ticks;                            // that looked for them so far
    struct farm_run_tick tick[FARM_RUN_TICKS]; // the newest ones, tick i at i % N
    uint32_t next_place;                       // whose counters are checked next
    struct farm_run_memory *memory;            // [places]
    uint32_t memory_next;                      // actor that is read next
    // Memory of their own (Pss_Anon: without the rings), at the last farm_run_watch_memory; 0: unknown.
    uint64_t actor_bytes_max, actor_bytes_sum, learner_bytes;
};

enum farm_status farm_run_watch_make(struct farm_run_watch *watch, struct farm_error *err);
void farm_run_watch_free(struct farm_run_watch *watch); // safe on a zeroed one

void farm_run_watch_start(struct farm_run_watch *watch, size_t worker);  // before each start of a worker
void farm_run_watch_tick(struct farm_run_watch *watch, uint64_t now_ns); // at every tick

// Reads how much memory local workers have, from a file of /proc for each: all learners, and up to 64 actors in turn.
void farm_run_watch_memory(struct farm_run_watch *watch);

// If actors infer: the age of the oldest parameters that one of them used in its newest step, seconds; NAN: none has.
// Reports an actor once if it takes up no newer ones.
double farm_run_watch_parameters(struct farm_run_watch *watch, uint64_t now_ns);

// Whether a learner is stopped now, and has been for a while.
bool farm_run_watch_learner_stopped(const struct farm_run_watch *watch);

// Names what keeps the farm from publishing steps now: a stopped learner, actors that have work and do not do it.
// False: nothing, the actors wait for answers or for room.
bool farm_run_watch_culprits(const struct farm_run_watch *watch, char *text, size_t bytes);

// Every actor hangs, as reported: none will publish a step. False without an actor.
bool farm_run_watch_all_hang(const struct farm_run_watch *watch);

#endif
