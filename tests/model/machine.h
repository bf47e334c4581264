// The state of the model checker's machine and the steps that change it, shared by machine.c (memory, threads, system
// calls) and explore.c (the search). The whole state lies in `world` and `stacks`, so copying bytes saves a state.
#ifndef FARM_MODEL_MACHINE_H
#define FARM_MODEL_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "explore.h"

enum {
    WORDS = 20,
    STORES = 40,
    VARIABLES = 24,
    THREADS = 4,
    PROCESSES = 4,
    STACK = 16384,
    USER = 12288,
    CHOICES = 176
};

struct view {
    uint8_t oldest[WORDS];
};
struct clock {
    uint8_t at[THREADS];
};
struct knowledge {
    struct view view;
    struct clock clock;
};
struct store {
    uint64_t value;
    struct knowledge known;
};
struct word {
    const void *address;
    const char *name;
    uint64_t count;              // 0: a constant
    uint32_t one_writer, writer; // writer: thread + 1, once there was a store
    struct store stores[STORES]; // in modification order
};
struct variable {
    const uint64_t *address;
    const char *name;
    uint64_t value;
    uint8_t writer, write_at, read_at[THREADS];
};

enum kind {
    K_LOAD,
    K_STORE,
    K_ADD,
    K_FENCE,
    K_YIELD,
    K_AWAIT,
    K_LOCK,
    K_UNTIL,
    K_FUTEX_WAIT,
    K_FUTEX_WAKE,
    K_RING,
    K_POLL,
    K_CLEAR
};
enum status { S_NONE, S_READY, S_ASLEEP, S_ENDED };

// What a thread does next.
struct operation {
    uint32_t kind, order, word, unused;
    uint64_t value;
};
struct thread {
    void *stack_pointer;
    uint64_t status, process, result;
    struct operation next;
    struct knowledge now;
    struct view acquirable, released; // by relaxed loads before a fence, and by relaxed stores behind one
};
struct process {
    uint64_t life, may_crash;
};

extern struct world {
    uint64_t word_count, variable_count, thread_count, process_count, user_used;
    uint64_t crashes_left, spurious_left, event;
    struct word words[WORDS];
    struct variable variables[VARIABLES];
    struct thread threads[THREADS];
    struct process processes[PROCESSES];
    struct view fences;
    struct view futexes, eventfd; // what the kernel's locks hand on
    _Alignas(64) uint8_t user[USER];
} world;
extern _Alignas(64) uint8_t stacks[THREADS][STACK];

// What never changes during a search, and what is not part of a state.
extern struct host {
    const struct model_scenario *scenario;
    struct {
        const char *name;
        void (*body)(void *);
        void *context;
    } threads[THREADS];
    struct {
        const char *name;
        void (*on_crash)(void *);
        void *context;
    } processes[PROCESSES];
    unsigned running;
    bool inside; // a thread runs
    void *scheduler;
    char failure[256];
} host;

struct choice {
    uint8_t thread, store; // store: which one a load returns, or where a store goes in modification order
    bool crash, spurious;
};

// Records the first failure of a run.
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Does one choice and runs its thread to the next operation.
void apply_choice(const struct choice *choice);

// The stores [*from, *to) that a thread's next load may read, or places where its store may go. Empty: blocked.
void find_stores(const struct thread *thread, unsigned *from, unsigned *to);

// Both make equal what no thread can distinguish. forget_stores drops stores that no thread can read, which also bounds
// their number; renumber_clocks skips times at which a thread touched no variable.
void forget_stores(void);
void renumber_clocks(void);

void *__real_calloc(size_t count, size_t bytes);
void __real_free(void *memory);

#endif
