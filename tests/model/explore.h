// A model checker for the real code of src/ring: it runs C functions as threads of a small invented machine, takes
// every possible next step in turn, and so goes through all interleavings and all results that weak memory allows, with
// crashes of whole processes wherever asked. A program is compiled against shadow/base/atomics.h, so that its loads,
// stores and fences are steps of this machine, and linked with --wrap for the few system calls that src/ring makes.
//
// Of steps that commute with whatever the others may do, one order alone is taken: a store to a word with one writer
// may come at once, for whoever could have read the older value before it still can.
//
// Memory is RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer 2017: C11 repaired) in its operational form: each word keeps its
// stores in modification order; each thread has a view, the oldest store of each word that it may still read; release
// stores carry their writer's view and acquire loads take it over; sequentially consistent fences meet in one more
// view. A load may return any store that its view permits. Load buffering (out-of-thin-air) is not in RC11, and not in
// here. Cells hold plain data: each access checks with vector clocks that it races with no other (so a torn, early or
// late access is found whatever value it happens to see); only a release store that an acquire load has read orders
// them here, neither fences nor system calls: stricter than C11, and what src/ring promises.
//
// Time does not pass: nothing times out, so a lost wake-up is a deadlock, and a deadlock is reported. Deterministic;
// one process; x86-64 (it switches stacks itself). Not for code that keeps pointers to automatic variables of another
// thread.
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
void model_add(void *word, uint64_t more, enum model_order order); // atomic; nobody stores to this word otherwise
void model_fence(void);                                            // sequentially consistent

// Plain access to a cell that model_cell knows. No step of its own: it fails where it races.
uint64_t model_read(const uint64_t *cell);
void model_write(uint64_t *cell, uint64_t value);

// A step that does nothing: a place to crash between two plain accesses.
void model_yield(void);

// Blocks until the word is at least `value`, then acquires it: a condition variable's place.
void model_await(const void *word, uint64_t value);

// Reports `text` with the way that led here and ends the search where the condition is false.
void model_check(bool condition, const char *text);

// For loops that look again and again: blocks until the newest store is at least `value`, and learns nothing by it.
void model_until(const void *word, uint64_t value);

// How often the calling thread's process has crashed before.
unsigned model_life(void);

// ---- what a scenario sets up ----

// Zeroed memory that belongs to the explored state, never freed. (calloc of the program under test comes here too.)
void *model_allocate(size_t bytes);
// one_writer: no two threads that live at the same time ever store to it (which makes the search shorter).
void model_word(void *word, const char *name, uint64_t initial, bool one_writer);
void model_constant(const void *word, uint64_t value); // a word that nobody stores to: its loads are no steps
void model_cell(uint64_t *cell, const char *name, uint64_t initial);

// Threads of one process crash together. A process that may crash starts all its threads again afterwards, knowing what
// the dead one knew (whoever starts it has seen the death); on_crash (may be NULL) runs in between.
unsigned model_process(const char *name, bool may_crash, void (*on_crash)(void *context), void *context);
void model_thread(unsigned process, const char *name, void (*body)(void *context), void *context);

// ---- outside of the search: set-up, invariant and end ----

uint64_t model_newest(const void *word);                           // the word's newest store
void model_store_by(unsigned process, void *word, uint64_t value); // on_crash: a release by whoever starts it

struct model_scenario {
    const char *name;
    void (*set_up)(void);
    void (*invariant)(void); // after every step; may be NULL
    void (*end)(void);       // where all threads have ended; may be NULL
    unsigned crashes;        // at most, in one run
    unsigned spurious;       // sleeps that end for no reason, at most, in one run
    bool latest;             // every load reads the newest store: sequential consistency instead of RC11
};

struct model_result {
    uint64_t states, steps;
    double interleavings; // ways from start to end
    unsigned depth;
    bool failed; // told on stdout
};

struct model_result model_explore(const struct model_scenario *scenario);

#endif
