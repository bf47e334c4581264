// A model checker for the real code of src/ring. It runs C functions as threads of a small machine and tries every next
// step: all interleavings, all results that weak memory allows, and crashes of processes. The code is compiled against
// shadow/base/atomics.h, so that loads, stores and fences are steps of the machine, and linked with --wrap for its
// system calls. Steps that commute with all others are taken in one order: a store to a word with one writer may come
// at once, because readers can still read the older value.
//
// Memory is RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer 2017) in operational form. Each word keeps its stores in
// modification order. Each thread has a view: the oldest store of each word that it may read. Release stores carry
// their writer's view, and acquire loads join it; sequentially consistent fences join a global view. A load may return
// any store that its view permits. RC11 has no load buffering. Variables hold plain data; vector clocks find races.
// Only a release store read by an acquire load orders variables, not fences or system calls: stricter than C11, as
// src/ring promises.
//
// No time passes, so a lost wake-up is a deadlock, which is reported. Deterministic; one process; x86-64 (it switches
// stacks). Threads must not keep pointers to another thread's automatic variables.
#ifndef FARM_MODEL_EXPLORE_H
#define FARM_MODEL_EXPLORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum model_order { MODEL_RELAXED, MODEL_ACQUIRE, MODEL_RELEASE };

// ---- what a program under test calls ----

// Atomic access to a word that model_word knows.
uint64_t model_load(const void *word, enum model_order order);
void model_store(void *word, uint64_t value, enum model_order order);
void model_add(void *word, uint64_t more, enum model_order order); // atomic; no plain stores to this word
void model_fence(void);                                            // sequentially consistent

// Plain access to a variable that model_variable knows. Not a step; a race fails.
uint64_t model_read(const uint64_t *variable);
void model_write(uint64_t *variable, uint64_t value);

// A step without effect: a crash may happen between two plain accesses.
void model_yield(void);

// Blocks until the word is at least `value`, then acquires it (instead of a condition variable).
void model_await(const void *word, uint64_t value);

// If the condition is false, reports `text` with the steps that led here and ends the search.
void model_check(bool condition, const char *text);

// A mutex, of a word that only these two change.
void model_lock(void *word);
void model_unlock(void *word);

// For polling loops: blocks until the newest store is at least `value`, without reading it.
void model_until(const void *word, uint64_t value);

// Crashes of the calling thread's process so far.
unsigned model_life(void);

// ---- what a scenario sets up ----

// Zeroed memory within the state, never freed. calloc of the code under test returns it too.
void *model_allocate(size_t bytes);
// one_writer: no two threads that live at the same time ever store to it (which makes the search shorter).
void model_word(void *word, const char *name, uint64_t initial, bool one_writer);
void model_constant(const void *word, uint64_t value); // never stored to: its loads are not steps
void model_variable(uint64_t *variable, const char *name, uint64_t initial);

// Threads of one process crash together and then restart with the dead ones' views, because the supervisor has seen the
// death. on_crash (may be NULL) runs in between.
unsigned model_process(const char *name, bool may_crash, void (*on_crash)(void *context), void *context);
void model_thread(unsigned process, const char *name, void (*body)(void *context), void *context);

// ---- outside of the search: set-up, invariant and end ----

uint64_t model_newest(const void *word);                           // the word's newest store
void model_store_by(unsigned process, void *word, uint64_t value); // on_crash: a release store by the supervisor

struct model_scenario {
    const char *name;
    void (*set_up)(void);
    void (*invariant)(void); // after every step; may be NULL
    void (*end)(void);       // when all threads have ended; may be NULL
    unsigned crashes;        // at most, in one run
    unsigned spurious;       // sleeps that end for no reason, at most, in one run
    bool latest;             // every load reads the newest store: sequential consistency instead of RC11
};

struct model_result {
    uint64_t states, steps;
    double interleavings; // ways from start to end
    unsigned depth;
    bool failed; // reported on stdout
};

struct model_result model_explore(const struct model_scenario *scenario);

// main() of a model. Arguments: scenarios' names, `all`, or `list` (prints the names); none: the short tier. choose:
// fills in the i-th scenario of `count` and makes it the present one; true: it is extensive, not of the short tier.
int model_main(int argc, char **argv, unsigned count, bool (*choose)(unsigned i, struct model_scenario *scenario));

#endif
