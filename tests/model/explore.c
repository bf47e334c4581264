// See explore.h. The whole state (words, cells, threads with their stacks, what the program allocated) lies in `world`
// and `stacks`, so that a state is saved and restored by copying bytes, and equal states are recognised by their hash:
// the search is over states, not over paths, and paths are counted on the way back.
#include "explore.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

enum { WORDS = 20, STORES = 40, CELLS = 24, THREADS = 4, PROCESSES = 4, STACK = 16384, USER = 12288, CHOICES = 176 };

// ---- the machine ----

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
struct cell {
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
    K_UNTIL,
    K_FUTEX_WAIT,
    K_FUTEX_WAKE,
    K_RING,
    K_POLL,
    K_CLEAR
};
static const char *const KINDS[] = {"loads",
                                    "stores",
                                    "adds",
                                    "fence",
                                    "goes on",
                                    "awaits",
                                    "looks again when there is more in",
                                    "futex wait",
                                    "futex wake",
                                    "writes eventfd",
                                    "polls eventfd",
                                    "reads eventfd"};
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
    struct view acquirable, released; // of relaxed loads before a fence, and of relaxed stores behind one
};
struct process {
    uint64_t life, may_crash;
};

static struct world {
    uint64_t word_count, cell_count, thread_count, process_count, user_used;
    uint64_t crashes_left, spurious_left, event;
    struct word words[WORDS];
    struct cell cells[CELLS];
    struct thread threads[THREADS];
    struct process processes[PROCESSES];
    struct view fences;
    struct view futexes, eventfd; // what the kernel's locks hand on
    _Alignas(64) uint8_t user[USER];
} world;
static _Alignas(64) uint8_t stacks[THREADS][STACK];

// What never changes during a search, and what is not part of a state.
static struct {
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

// Saves the callee's registers and its stack pointer, continues on another stack.
void model_switch(void **save, void *load);
__asm__(".text\n.globl model_switch\n.type model_switch, @function\nmodel_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size model_switch, .-model_switch\n");

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail(const char *format, ...) {
    if (host.failure[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(host.failure, sizeof host.failure, format, args);
    va_end(args);
}

static void join_view(struct view *to, const struct view *from) {
    for (unsigned w = 0; w < WORDS; w++)
        if (from->oldest[w] > to->oldest[w]) to->oldest[w] = from->oldest[w];
}
static void join(struct knowledge *to, const struct knowledge *from) {
    join_view(&to->view, &from->view);
    for (unsigned t = 0; t < THREADS; t++)
        if (from->clock.at[t] > to->clock.at[t]) to->clock.at[t] = from->clock.at[t];
}

static unsigned find_word(const void *address) {
    for (unsigned w = 0; w < world.word_count; w++)
        if (world.words[w].address == address) return w;
    fprintf(stderr, "model: an access to a word that the scenario did not name\n");
    abort();
}

// ---- threads: called on their stacks ----

static struct thread *self(void) {
    assert(host.inside);
    return &world.threads[host.running];
}

static void to_scheduler(void) {
    struct thread *thread = self();
    model_switch(&thread->stack_pointer, host.scheduler);
}

static uint64_t step_to(enum kind kind, unsigned word, uint64_t value, enum model_order order) {
    struct thread *thread = self();
    thread->next = (struct operation){.kind = kind, .order = order, .word = word, .value = value};
    to_scheduler();
    return thread->result;
}

uint64_t model_load(const void *word, enum model_order order) {
    unsigned w = find_word(word);
    return world.words[w].count ? step_to(K_LOAD, w, 0, order) : world.words[w].stores[0].value;
}
void model_store(void *word, uint64_t value, enum model_order order) {
    step_to(K_STORE, find_word(word), value, order);
}
void model_add(void *word, uint64_t more, enum model_order order) {
    step_to(K_ADD, find_word(word), more, order);
}
void model_fence(void) {
    step_to(K_FENCE, 0, 0, MODEL_RELAXED);
}
void model_yield(void) {
    step_to(K_YIELD, 0, 0, MODEL_RELAXED);
}
void model_await(const void *word, uint64_t value) {
    step_to(K_AWAIT, find_word(word), value, MODEL_ACQUIRE);
}
void model_until(const void *word, uint64_t value) {
    step_to(K_UNTIL, find_word(word), value, MODEL_RELAXED);
}

void model_check(bool condition, const char *text) {
    if (condition) return;
    fail("%s", text);
    if (host.inside) to_scheduler(); // never comes back: the search ends here
}

unsigned model_life(void) {
    return (unsigned)world.processes[self()->process].life;
}

static struct cell *find_cell(const uint64_t *address) {
    for (unsigned c = 0; c < world.cell_count; c++)
        if (world.cells[c].address == address) return &world.cells[c];
    fprintf(stderr, "model: an access to a cell that the scenario did not name\n");
    abort();
}

static void no_race(const struct cell *cell, unsigned other, uint8_t at, const char *what) {
    if (at <= self()->now.clock.at[other]) return;
    fail("race on %s: %s %s that of %s, which nothing orders before it", cell->name, host.threads[host.running].name,
         what, host.threads[other].name);
    to_scheduler();
}

uint64_t model_read(const uint64_t *address) {
    struct cell *cell = find_cell(address);
    no_race(cell, cell->writer, cell->write_at, "reads behind a write,");
    cell->read_at[host.running] = self()->now.clock.at[host.running];
    return cell->value;
}
void model_write(uint64_t *address, uint64_t value) {
    struct cell *cell = find_cell(address);
    no_race(cell, cell->writer, cell->write_at, "writes over a write,");
    for (unsigned t = 0; t < world.thread_count; t++) no_race(cell, t, cell->read_at[t], "writes under a read,");
    cell->writer = (uint8_t)host.running;
    cell->write_at = self()->now.clock.at[host.running];
    cell->value = value;
}

// System calls of src/ring, by way of --wrap.
long __wrap_syscall(long number, ...);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const void *mask);
void *__wrap_calloc(size_t count, size_t bytes);
void __wrap_free(void *memory);
void *__real_calloc(size_t count, size_t bytes);
void __real_free(void *memory);

long __wrap_syscall(long number, ...) {
    va_list args;
    va_start(args, number);
    const void *word = va_arg(args, const void *);
    int operation = va_arg(args, int);
    uint32_t value = va_arg(args, uint32_t);
    va_end(args);
    assert(number == SYS_futex);
    if (operation == FUTEX_WAIT) return (long)step_to(K_FUTEX_WAIT, find_word(word), value, MODEL_RELAXED);
    assert(operation == FUTEX_WAKE);
    return (long)step_to(K_FUTEX_WAKE, find_word(word), value, MODEL_RELAXED);
}
ssize_t __wrap_write(int fd, const void *bytes, size_t count) {
    step_to(K_RING, 0, 0, MODEL_RELAXED);
    return (ssize_t)count;
}
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const void *mask) {
    return (int)step_to(K_POLL, 0, 0, MODEL_RELAXED);
}
ssize_t __wrap_preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    if (step_to(K_CLEAR, 0, 0, MODEL_RELAXED)) return (ssize_t)parts->iov_len;
    errno = EAGAIN;
    return -1;
}
void *__wrap_calloc(size_t count, size_t bytes) {
    return model_allocate(count * bytes);
}
void __wrap_free(void *memory) {}

static void enter(void) {
    host.threads[host.running].body(host.threads[host.running].context);
    self()->status = S_ENDED;
    to_scheduler();
}

// ---- set-up ----

void *model_allocate(size_t bytes) {
    void *memory = world.user + world.user_used;
    world.user_used += (bytes + 15) / 16 * 16;
    assert(world.user_used <= USER);
    return memory;
}

void model_word(void *address, const char *name, uint64_t initial, bool one_writer) {
    assert(world.word_count < WORDS);
    struct word *word = &world.words[world.word_count++];
    *word = (struct word){.address = address, .name = name, .count = 1, .one_writer = one_writer};
    word->stores[0].value = initial;
}

void model_constant(const void *address, uint64_t value) {
    assert(world.word_count < WORDS);
    struct word *word = &world.words[world.word_count++];
    *word = (struct word){.address = address, .name = "a constant"};
    word->stores[0].value = value;
}

void model_cell(uint64_t *address, const char *name, uint64_t initial) {
    assert(world.cell_count < CELLS);
    world.cells[world.cell_count++] = (struct cell){.address = address, .name = name, .value = initial};
}

unsigned model_process(const char *name, bool may_crash, void (*on_crash)(void *), void *context) {
    assert(world.process_count < PROCESSES);
    unsigned p = (unsigned)world.process_count++;
    world.processes[p] = (struct process){.may_crash = may_crash};
    host.processes[p].name = name;
    host.processes[p].on_crash = on_crash;
    host.processes[p].context = context;
    return p;
}

// A fresh stack that returns into enter(), which finds its thread by itself.
static void start_thread(unsigned t) {
    memset(stacks[t], 0, STACK);
    void (*entry)(void) = enter;
    uint64_t *top = (uint64_t *)(stacks[t] + STACK) - 3; // 8 beyond a multiple of 16, as after a call
    memcpy(top - 1, &entry, sizeof entry);
    world.threads[t].stack_pointer = top - 7;
    world.threads[t].status = S_READY;
    world.threads[t].next = (struct operation){.kind = K_YIELD};
}

void model_thread(unsigned process, const char *name, void (*body)(void *), void *context) {
    assert(world.thread_count < THREADS);
    unsigned t = (unsigned)world.thread_count++;
    host.threads[t].name = name;
    host.threads[t].body = body;
    host.threads[t].context = context;
    world.threads[t] = (struct thread){.process = process};
    world.threads[t].now.clock.at[t] = 1;
    start_thread(t);
}

uint64_t model_newest(const void *address) {
    const struct word *word = &world.words[find_word(address)];
    return word->stores[word->count - 1].value;
}

// ---- steps: what the scheduler does to the machine ----

struct choice {
    uint8_t thread, store; // store: which one a load returns, or where a store goes in modification order
    bool crash, spurious;
};

// Forgets stores that no thread may read any more, so that a run may make more than there is room for, and states that
// differ in their past alone are one.
static void drop(struct view *view, unsigned word, unsigned count) {
    view->oldest[word] = (uint8_t)(view->oldest[word] > count ? view->oldest[word] - count : 0);
}
static void forget(void) {
    for (unsigned w = 0; w < world.word_count; w++) {
        struct word *word = &world.words[w];
        if (!word->count) continue;
        unsigned oldest = (unsigned)word->count - 1;
        for (unsigned t = 0; t < world.thread_count; t++)
            if (world.threads[t].status != S_ENDED && world.threads[t].now.view.oldest[w] < oldest)
                oldest = world.threads[t].now.view.oldest[w];
        if (!oldest) continue;
        word->count -= oldest;
        memmove(word->stores, word->stores + oldest, word->count * sizeof *word->stores);
        memset(word->stores + word->count, 0, oldest * sizeof *word->stores);
        for (unsigned t = 0; t < world.thread_count; t++) {
            drop(&world.threads[t].now.view, w, oldest);
            drop(&world.threads[t].acquirable, w, oldest);
            drop(&world.threads[t].released, w, oldest);
        }
        for (unsigned v = 0; v < world.word_count; v++)
            for (unsigned i = 0; i < world.words[v].count; i++) drop(&world.words[v].stores[i].known.view, w, oldest);
        drop(&world.fences, w, oldest);
        drop(&world.futexes, w, oldest);
        drop(&world.eventfd, w, oldest);
    }
}

// Clocks count accesses to cells alone: a time at which a thread touched none is as good as the one before.
enum { TIMES = 64 };
static void renumber_clock(struct clock *clock, const uint8_t (*rank)[TIMES]) {
    for (unsigned t = 0; t < world.thread_count; t++) clock->at[t] = rank[t][clock->at[t]];
}
static void renumber(void) {
    uint8_t rank[THREADS][TIMES] = {0}; // first: whether there was an access; then: how many times up to this one
    for (unsigned c = 0; c < world.cell_count; c++) {
        rank[world.cells[c].writer][world.cells[c].write_at] = 1;
        for (unsigned t = 0; t < world.thread_count; t++) rank[t][world.cells[c].read_at[t]] = 1;
    }
    for (unsigned t = 0; t < world.thread_count; t++) {
        uint8_t own = world.threads[t].now.clock.at[t];
        assert(own < TIMES - 1);
        bool touched = rank[t][own];
        rank[t][0] = 0;
        for (unsigned i = 1; i < TIMES; i++) rank[t][i] += rank[t][i - 1];
        if (!touched) rank[t][own] = (uint8_t)(rank[t][TIMES - 1] + 1); // only the thread itself has come so far
    }
    for (unsigned c = 0; c < world.cell_count; c++) {
        struct cell *cell = &world.cells[c];
        cell->write_at = rank[cell->writer][cell->write_at];
        for (unsigned t = 0; t < world.thread_count; t++) cell->read_at[t] = rank[t][cell->read_at[t]];
    }
    for (unsigned t = 0; t < world.thread_count; t++) {
        renumber_clock(&world.threads[t].now.clock, rank);
    }
    for (unsigned w = 0; w < world.word_count; w++)
        for (unsigned i = 0; i < world.words[w].count; i++) renumber_clock(&world.words[w].stores[i].known.clock, rank);
}

// Room for one more store at place `at` of a word: views of later stores move on.
static void shift(struct view *view, unsigned word, unsigned at) {
    if (view->oldest[word] >= at) view->oldest[word]++;
}
static void insert(unsigned w, unsigned at) {
    struct word *word = &world.words[w];
    if (word->count == STORES) {
        fprintf(stderr, "model: more than %d stores to %s\n", STORES, word->name);
        abort();
    }
    memmove(&word->stores[at + 1], &word->stores[at], (word->count - at) * sizeof *word->stores);
    word->count++;
    if (at == word->count - 1) return;
    for (unsigned t = 0; t < world.thread_count; t++) {
        shift(&world.threads[t].now.view, w, at);
        shift(&world.threads[t].acquirable, w, at);
        shift(&world.threads[t].released, w, at);
    }
    for (unsigned v = 0; v < world.word_count; v++)
        for (unsigned s = 0; s < world.words[v].count; s++)
            if (v != w || s != at) shift(&world.words[v].stores[s].known.view, w, at);
    shift(&world.fences, w, at);
    shift(&world.futexes, w, at);
    shift(&world.eventfd, w, at);
}

static void put(unsigned t, unsigned w, unsigned at, uint64_t value, bool release) {
    struct thread *thread = &world.threads[t];
    insert(w, at);
    world.words[w].writer = t + 1;
    struct store *store = &world.words[w].stores[at];
    thread->now.view.oldest[w] = (uint8_t)at;
    join_view(&thread->acquirable, &thread->now.view);
    *store = (struct store){.value = value, .known = {.view = thread->released}};
    if (release) store->known = thread->now;
    store->known.view.oldest[w] = (uint8_t)at;
    if (release) thread->now.clock.at[t]++;
}

static void take(unsigned t, unsigned w, unsigned at, bool acquire) {
    struct thread *thread = &world.threads[t];
    const struct store *store = &world.words[w].stores[at];
    thread->now.view.oldest[w] = (uint8_t)at;
    if (acquire) join(&thread->now, &store->known);
    join_view(&thread->acquirable, &thread->now.view);
    join_view(&thread->acquirable, &store->known.view);
    thread->result = store->value;
}

// One lock of the kernel, taken and let go. It orders words; cells it does not excuse: no clock goes through.
static void through(unsigned t, struct view *lock) {
    struct thread *thread = &world.threads[t];
    join_view(&thread->now.view, lock);
    join_view(&thread->acquirable, lock);
    join_view(lock, &thread->now.view);
}

static void fence(unsigned t) {
    struct thread *thread = &world.threads[t];
    join_view(&thread->acquirable, &world.fences);
    world.fences = thread->now.view = thread->released = thread->acquirable;
}

static void wake(unsigned w) {
    for (unsigned t = 0; t < world.thread_count; t++) {
        struct thread *thread = &world.threads[t];
        if (thread->status != S_ASLEEP || thread->next.word != w) continue;
        join_view(&thread->now.view, &world.futexes);
        join_view(&thread->acquirable, &world.futexes);
        thread->status = S_READY;
        thread->next = (struct operation){.kind = K_YIELD};
    }
}

static void run(unsigned t) {
    host.running = t;
    host.inside = true;
    model_switch(&host.scheduler, world.threads[t].stack_pointer);
    host.inside = false;
}

static void crash(unsigned p) {
    struct knowledge known = {0};
    for (unsigned t = 0; t < world.thread_count; t++)
        if (world.threads[t].process == p) join(&known, &world.threads[t].now);
    world.crashes_left--;
    world.processes[p].life++;
    for (unsigned t = 0; t < world.thread_count; t++) {
        struct thread *thread = &world.threads[t];
        if (thread->process != p) continue;
        *thread = (struct thread){.process = p, .now = known, .acquirable = known.view, .released = known.view};
        thread->now.clock.at[t]++;
        start_thread(t);
    }
    if (host.processes[p].on_crash) host.processes[p].on_crash(host.processes[p].context);
}

void model_store_by(unsigned process, void *address, uint64_t value) {
    unsigned w = find_word(address), first = THREADS;
    for (unsigned t = 0; t < world.thread_count; t++) {
        if (world.threads[t].process != process) continue;
        if (first == THREADS) {
            first = t;
            put(t, w, (unsigned)world.words[w].count, value, true);
        } else {
            world.threads[t].now.view.oldest[w] = (uint8_t)(world.words[w].count - 1);
        }
    }
}

static void apply(const struct choice *choice) {
    unsigned t = choice->thread;
    struct thread *thread = &world.threads[t];
    const struct operation next = thread->next;
    if (choice->crash) {
        crash((unsigned)thread->process);
        return;
    }
    if (choice->spurious) {
        world.spurious_left--;
        thread->status = S_READY;
        thread->result = 0;
        run(t);
        return;
    }
    switch (next.kind) {
    case K_LOAD:
        take(t, next.word, choice->store, next.order == MODEL_ACQUIRE);
        break;
    case K_STORE:
        put(t, next.word, choice->store, next.value, next.order == MODEL_RELEASE);
        break;
    case K_ADD: {
        // Of additions alone the newest store is the one before in modification order. What they carry adds up: they
        // are one release sequence.
        const struct word *word = &world.words[next.word];
        const struct store before = word->stores[word->count - 1];
        put(t, next.word, (unsigned)word->count, before.value + next.value, next.order == MODEL_RELEASE);
        join(&world.words[next.word].stores[word->count - 1].known, &before.known);
        break;
    }
    case K_FENCE:
        fence(t);
        break;
    case K_YIELD:
    case K_UNTIL:
        break;
    case K_AWAIT:
        take(t, next.word, choice->store, true);
        break;
    case K_FUTEX_WAIT:
        join_view(&thread->now.view, &world.futexes);
        take(t, next.word, choice->store, false);
        through(t, &world.futexes);
        if (thread->result == next.value) {
            thread->status = S_ASLEEP;
            return;
        }
        break;
    case K_FUTEX_WAKE:
        through(t, &world.futexes);
        wake(next.word);
        break;
    case K_RING:
        through(t, &world.eventfd);
        world.event = 1;
        break;
    case K_POLL:
        through(t, &world.eventfd);
        thread->result = 1;
        break;
    case K_CLEAR:
        through(t, &world.eventfd);
        thread->result = world.event;
        world.event = 0;
        break;
    }
    run(t);
}

// Which stores a thread's next step may read, or where its store may go: [*from, *to). Empty: blocked.
static void range(const struct thread *thread, unsigned *from, unsigned *to) {
    const struct operation *next = &thread->next;
    const struct word *word = &world.words[next->word];
    *from = thread->now.view.oldest[next->word];
    *to = *from + 1;
    switch (next->kind) {
    case K_STORE:
        *from += 1;
        *to = (unsigned)word->count + 1;
        break;
    case K_FUTEX_WAIT: // takes the kernel's lock first
        if (world.futexes.oldest[next->word] > *from) *from = world.futexes.oldest[next->word];
        *to = (unsigned)word->count;
        break;
    case K_AWAIT:
        *to = (unsigned)word->count;
        while (*from < *to && word->stores[*from].value < next->value) *from += 1;
        break;
    case K_LOAD:
        *to = (unsigned)word->count;
        if (host.scenario->latest) *from = *to - 1;
        break;
    case K_UNTIL:
        if (word->stores[word->count - 1].value < next->value) *to = *from;
        break;
    case K_POLL:
        if (!world.event) *to = *from;
        break;
    default:
        break;
    }
}

static unsigned list_steps(unsigned t, struct choice *choices) {
    unsigned from, to, count = 0;
    if (world.threads[t].status != S_READY) return 0;
    range(&world.threads[t], &from, &to);
    assert(to - from < CHOICES / THREADS - 2);
    for (unsigned s = from; s < to; s++) choices[count++] = (struct choice){.thread = (uint8_t)t, .store = (uint8_t)s};
    return count;
}

static unsigned list_crash(unsigned p, struct choice *choices) {
    if (!world.crashes_left || !world.processes[p].may_crash) return 0;
    for (unsigned t = 0; t < world.thread_count; t++) { // one that lives stands for its process
        if (world.threads[t].process != p || world.threads[t].status == S_ENDED) continue;
        *choices = (struct choice){.thread = (uint8_t)t, .crash = true};
        return 1;
    }
    return 0;
}

// Whether a thread's next step commutes with all steps of the others: then nothing else need be tried before it, but
// for the death of its own process. Its own word's loads and its stores to a word with one writer do.
static bool commutes(unsigned t) {
    const struct thread *thread = &world.threads[t];
    const struct word *word = &world.words[thread->next.word];
    if (thread->status != S_READY) return false;
    if (thread->next.kind == K_YIELD) return true;
    if (thread->next.kind == K_UNTIL) return word->stores[word->count - 1].value >= thread->next.value;
    if (thread->next.kind == K_STORE) return word->one_writer;
    return thread->next.kind == K_LOAD && word->one_writer && word->writer == t + 1;
}

// All that may happen next.
static unsigned list(struct choice *choices) {
    unsigned count = 0;
    for (unsigned t = 0; t < world.thread_count; t++) {
        if (!commutes(t)) continue;
        count = list_steps(t, choices);
        return count + list_crash((unsigned)world.threads[t].process, choices + count);
    }
    for (unsigned t = 0; t < world.thread_count; t++) {
        const struct thread *thread = &world.threads[t];
        unsigned steps = list_steps(t, choices + count);
        bool sleeps =
            thread->status == S_ASLEEP || (thread->status == S_READY && thread->next.kind == K_POLL && !steps);
        count += steps;
        if (sleeps && world.spurious_left) choices[count++] = (struct choice){.thread = (uint8_t)t, .spurious = true};
    }
    for (unsigned p = 0; p < world.process_count; p++) count += list_crash(p, choices + count);
    return count;
}

// ---- states ----

static size_t stack_used(unsigned t) {
    if (world.threads[t].status == S_ENDED) return 0;
    return (size_t)(stacks[t] + STACK - (uint8_t *)world.threads[t].stack_pointer);
}

static size_t state_bytes(void) {
    size_t bytes = offsetof(struct world, user) + world.user_used;
    for (unsigned t = 0; t < world.thread_count; t++) bytes += stack_used(t);
    return bytes;
}

static uint8_t *save(void) {
    uint8_t *memory = malloc(state_bytes()), *to = memory;
    if (!memory) abort();
    size_t fixed = offsetof(struct world, user) + world.user_used;
    memcpy(to, &world, fixed);
    to += fixed;
    for (unsigned t = 0; t < world.thread_count; t++) {
        memcpy(to, stacks[t] + STACK - stack_used(t), stack_used(t));
        to += stack_used(t);
    }
    return memory;
}

static void restore(const uint8_t *from) {
    memcpy(&world, from, offsetof(struct world, user));
    from += offsetof(struct world, user);
    memcpy(world.user, from, world.user_used);
    from += world.user_used;
    for (unsigned t = 0; t < world.thread_count; t++) {
        memcpy(stacks[t] + STACK - stack_used(t), from, stack_used(t));
        from += stack_used(t);
    }
}

struct key {
    uint64_t a, b;
};

static void mix(struct key *key, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        key->a = (key->a ^ word) * 0x9fb21c651e98df25u;
        key->a ^= key->a >> 29;
        key->b = (key->b + word) * 0xd6e8feb86659fd93u;
        key->b ^= key->b >> 32;
    }
    uint64_t rest = 0;
    memcpy(&rest, at, bytes);
    key->a = (key->a ^ rest ^ bytes) * 0x9fb21c651e98df25u;
    key->b = (key->b + rest) * 0xd6e8feb86659fd93u;
    key->a ^= key->a >> 31;
    key->b ^= key->b >> 30;
}

static struct key hash(void) {
    struct key key = {0x243f6a8885a308d3u, 0x13198a2e03707344u};
    mix(&key, &world, offsetof(struct world, words));
    for (unsigned w = 0; w < world.word_count; w++) {
        mix(&key, &world.words[w].count, sizeof world.words[w].count);
        mix(&key, world.words[w].stores, world.words[w].count * sizeof *world.words[w].stores);
    }
    mix(&key, world.cells, world.cell_count * sizeof *world.cells);
    mix(&key, world.threads, world.thread_count * sizeof *world.threads);
    mix(&key, world.processes, offsetof(struct world, user) - offsetof(struct world, processes));
    mix(&key, world.user, world.user_used);
    for (unsigned t = 0; t < world.thread_count; t++) mix(&key, stacks[t] + STACK - stack_used(t), stack_used(t));
    return key;
}

// States seen, with the number of ways from each to an end (-1 while it is being explored).
struct seen {
    struct key key;
    double ways;
};
static struct {
    struct seen *entries;
    uint64_t capacity, count;
} table;

static struct seen *look_up(struct key key) {
    if (table.count * 2 >= table.capacity) {
        struct seen *old = table.entries;
        uint64_t old_capacity = table.capacity;
        table.capacity = old_capacity ? old_capacity * 2 : 1u << 16;
        table.entries = __real_calloc(table.capacity, sizeof *table.entries);
        if (!table.entries) abort();
        for (uint64_t i = 0; i < old_capacity; i++)
            if (old[i].key.a | old[i].key.b) {
                uint64_t at = old[i].key.a & (table.capacity - 1);
                while (table.entries[at].key.a | table.entries[at].key.b) at = (at + 1) & (table.capacity - 1);
                table.entries[at] = old[i];
            }
        __real_free(old);
    }
    uint64_t at = key.a & (table.capacity - 1);
    while ((table.entries[at].key.a | table.entries[at].key.b) &&
           (table.entries[at].key.a != key.a || table.entries[at].key.b != key.b))
        at = (at + 1) & (table.capacity - 1);
    return &table.entries[at];
}

// ---- the search ----

struct frame {
    uint8_t *state;
    struct key key;
    double ways;
    unsigned count, next;
    struct choice choices[CHOICES];
};
enum { DEPTH = 4000 };
static struct frame frames[DEPTH];

static void describe(const struct choice *choice) {
    const struct thread *thread = &world.threads[choice->thread];
    const struct operation *next = &thread->next;
    const char *name = host.threads[choice->thread].name;
    if (choice->crash) {
        printf("  %s is killed\n", host.processes[thread->process].name);
    } else if (choice->spurious) {
        printf("  %s: woken for no reason\n", name);
    } else {
        printf("  %s: %s", name, KINDS[next->kind]);
        const struct word *word = &world.words[next->word];
        if (next->kind == K_LOAD || next->kind == K_FUTEX_WAIT)
            printf(" %s: %llu%s", word->name, (unsigned long long)word->stores[choice->store].value,
                   choice->store + 1u < word->count ? " (not the newest)" : "");
        if (next->kind == K_AWAIT || next->kind == K_UNTIL) printf(" %s", word->name);
        if (next->kind == K_STORE) printf(" %s = %llu", word->name, (unsigned long long)next->value);
        if (next->kind == K_FUTEX_WAIT) printf(", expecting %llu", (unsigned long long)next->value);
        printf("\n");
    }
}

static void tell(unsigned depth) {
    printf("%s: FAILED: %s\nthe way there:\n", host.scenario->name, host.failure);
    for (unsigned i = 0; i < depth; i++) {
        restore(frames[i].state);
        describe(&frames[i].choices[frames[i].next - 1]);
    }
}

// Enters the present state: a new frame, unless it was seen. Returns the ways from it where they are known, else -1.
static double visit(unsigned depth, struct model_result *result) {
    struct key key = hash();
    struct seen *seen = look_up(key);
    if (seen->key.a | seen->key.b) return seen->ways > 0 ? seen->ways : 0; // 0 also: a circle
    struct frame *frame = &frames[depth];
    frame->count = list(frame->choices);
    frame->next = 0;
    frame->ways = 0;
    frame->key = key;
    if (!frame->count) {
        for (unsigned t = 0; t < world.thread_count; t++)
            if (world.threads[t].status != S_ENDED)
                fail("deadlock: %s %s for ever", host.threads[t].name,
                     world.threads[t].status == S_ASLEEP || world.threads[t].next.kind == K_POLL ? "sleeps" : "waits");
        if (!host.failure[0] && host.scenario->end) host.scenario->end();
        frame->ways = 1;
    }
    *seen = (struct seen){.key = key, .ways = -1};
    table.count++;
    result->states++;
    if (depth > result->depth) result->depth = depth;
    frame->state = save();
    return -1;
}

static void check_capacity(unsigned depth) {
    if (depth + 1 < DEPTH) return;
    fprintf(stderr, "model: deeper than %d steps\n", DEPTH);
    abort();
}

struct model_result model_explore(const struct model_scenario *scenario) {
    struct model_result result = {0};
    memset(&world, 0, sizeof world);
    memset(&host, 0, sizeof host);
    if (table.entries) memset(table.entries, 0, table.capacity * sizeof *table.entries);
    table.count = 0;
    host.scenario = scenario;
    world.crashes_left = scenario->crashes;
    world.spurious_left = scenario->spurious;
    scenario->set_up();
    unsigned depth = 0;
    visit(0, &result);
    for (;;) {
        struct frame *frame = &frames[depth];
        if (frame->next == frame->count) {
            look_up(frame->key)->ways = frame->ways;
            __real_free(frame->state);
            if (!depth) break;
            frames[--depth].ways += frame->ways;
            continue;
        }
        restore(frame->state);
        apply(&frame->choices[frame->next++]);
        forget();
        renumber();
        result.steps++;
        if (!host.failure[0] && scenario->invariant) scenario->invariant();
        check_capacity(depth);
        double ways = host.failure[0] ? 0 : visit(depth + 1, &result);
        if (host.failure[0]) {
            tell(depth + 1);
            result.failed = true;
            return result;
        }
        if (ways < 0)
            depth++;
        else
            frame->ways += ways;
    }
    result.interleavings = frames[0].ways;
    return result;
}
