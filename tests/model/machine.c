// See machine.h and explore.h: RC11 memory, threads with their own stacks, and the system calls of src/ring.
#include "machine.h"

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

struct world world;
_Alignas(64) uint8_t stacks[THREADS][STACK];
struct host host;

// Saves the callee's registers and its stack pointer, continues on another stack.
void model_switch(void **save, void *load);
__asm__(".text\n.globl model_switch\n.type model_switch, @function\nmodel_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size model_switch, .-model_switch\n");

void fail(const char *format, ...) {
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

// ---- operations, called on the threads' stacks ----

static struct thread *running_thread(void) {
    assert(host.inside);
    return &world.threads[host.running];
}

static void return_to_scheduler(void) {
    struct thread *thread = running_thread();
    model_switch(&thread->stack_pointer, host.scheduler);
}

static uint64_t step_to(enum kind kind, unsigned word, uint64_t value, enum model_order order) {
    struct thread *thread = running_thread();
    thread->next = (struct operation){.kind = kind, .order = order, .word = word, .value = value};
    return_to_scheduler();
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
void model_lock(void *word) {
    step_to(K_LOCK, find_word(word), 1, MODEL_ACQUIRE);
}
void model_unlock(void *word) {
    model_add(word, 1, MODEL_RELEASE); // odd while it is held
}
void model_until(const void *word, uint64_t value) {
    step_to(K_UNTIL, find_word(word), value, MODEL_RELAXED);
}

void model_check(bool condition, const char *text) {
    if (condition) return;
    fail("%s", text);
    if (host.inside) return_to_scheduler(); // does not return: the search ends
}

unsigned model_life(void) {
    return (unsigned)world.processes[running_thread()->process].life;
}

static struct variable *find_variable(const uint64_t *address) {
    for (unsigned c = 0; c < world.variable_count; c++)
        if (world.variables[c].address == address) return &world.variables[c];
    fprintf(stderr, "model: an access to a variable that the scenario did not name\n");
    abort();
}

static void check_race(const struct variable *variable, unsigned other, uint8_t at, const char *what) {
    if (at <= running_thread()->now.clock.at[other]) return;
    fail("race on %s: %s %s that of %s, which nothing orders before it", variable->name,
         host.threads[host.running].name, what, host.threads[other].name);
    return_to_scheduler();
}

uint64_t model_read(const uint64_t *address) {
    struct variable *variable = find_variable(address);
    check_race(variable, variable->writer, variable->write_at, "reads behind a write,");
    variable->read_at[host.running] = running_thread()->now.clock.at[host.running];
    return variable->value;
}
void model_write(uint64_t *address, uint64_t value) {
    struct variable *variable = find_variable(address);
    check_race(variable, variable->writer, variable->write_at, "writes over a write,");
    for (unsigned t = 0; t < world.thread_count; t++)
        check_race(variable, t, variable->read_at[t], "writes under a read,");
    variable->writer = (uint8_t)host.running;
    variable->write_at = running_thread()->now.clock.at[host.running];
    variable->value = value;
}

// System calls of src/ring, through --wrap.
long __wrap_syscall(long number, ...);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const void *mask);
void *__wrap_calloc(size_t count, size_t bytes);
void __wrap_free(void *memory);

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

static void enter_thread(void) {
    host.threads[host.running].body(host.threads[host.running].context);
    running_thread()->status = S_ENDED;
    return_to_scheduler();
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

void model_variable(uint64_t *address, const char *name, uint64_t initial) {
    assert(world.variable_count < VARIABLES);
    world.variables[world.variable_count++] = (struct variable){.address = address, .name = name, .value = initial};
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

// A new stack that returns into enter_thread(), which knows its thread.
static void start_thread(unsigned t) {
    memset(stacks[t], 0, STACK);
    void (*entry)(void) = enter_thread;
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

// ---- steps of the scheduler ----

static void change_views(void (*change)(struct view *view, unsigned word, unsigned by), unsigned word, unsigned by) {
    for (unsigned t = 0; t < world.thread_count; t++) {
        change(&world.threads[t].now.view, word, by);
        change(&world.threads[t].acquirable, word, by);
        change(&world.threads[t].released, word, by);
    }
    for (unsigned w = 0; w < world.word_count; w++)
        for (unsigned i = 0; i < world.words[w].count; i++) change(&world.words[w].stores[i].known.view, word, by);
    change(&world.fences, word, by);
    change(&world.futexes, word, by);
    change(&world.eventfd, word, by);
}

static void drop_oldest(struct view *view, unsigned word, unsigned count) {
    view->oldest[word] = (uint8_t)(view->oldest[word] > count ? view->oldest[word] - count : 0);
}
static void shift_from(struct view *view, unsigned word, unsigned at) {
    if (view->oldest[word] >= at) view->oldest[word]++;
}

void forget_stores(void) {
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
        change_views(drop_oldest, w, oldest);
    }
}

enum { TIMES = 64 };
static void renumber_clock(struct clock *clock, const uint8_t (*rank)[TIMES]) {
    for (unsigned t = 0; t < world.thread_count; t++) clock->at[t] = rank[t][clock->at[t]];
}
void renumber_clocks(void) {
    uint8_t rank[THREADS][TIMES] = {
        0}; // first: whether a variable was accessed then; later: the new number of this time
    for (unsigned c = 0; c < world.variable_count; c++) {
        rank[world.variables[c].writer][world.variables[c].write_at] = 1;
        for (unsigned t = 0; t < world.thread_count; t++) rank[t][world.variables[c].read_at[t]] = 1;
    }
    for (unsigned t = 0; t < world.thread_count; t++) {
        uint8_t own = world.threads[t].now.clock.at[t];
        assert(own < TIMES - 1);
        bool touched = rank[t][own];
        rank[t][0] = 0;
        for (unsigned i = 1; i < TIMES; i++) rank[t][i] += rank[t][i - 1];
        if (!touched) rank[t][own] = (uint8_t)(rank[t][TIMES - 1] + 1); // only the thread itself has reached this time
    }
    for (unsigned c = 0; c < world.variable_count; c++) {
        struct variable *variable = &world.variables[c];
        variable->write_at = rank[variable->writer][variable->write_at];
        for (unsigned t = 0; t < world.thread_count; t++) variable->read_at[t] = rank[t][variable->read_at[t]];
    }
    for (unsigned t = 0; t < world.thread_count; t++) {
        renumber_clock(&world.threads[t].now.clock, rank);
    }
    for (unsigned w = 0; w < world.word_count; w++)
        for (unsigned i = 0; i < world.words[w].count; i++) renumber_clock(&world.words[w].stores[i].known.clock, rank);
}

// Makes room for a store at place `at` of a word; views of later stores move on.
static void insert_store(unsigned w, unsigned at) {
    struct word *word = &world.words[w];
    if (word->count == STORES) {
        fprintf(stderr, "model: more than %d stores to %s\n", STORES, word->name);
        abort();
    }
    memmove(&word->stores[at + 1], &word->stores[at], (word->count - at) * sizeof *word->stores);
    word->count++;
    if (at < word->count - 1) change_views(shift_from, w, at);
}

static void apply_store(unsigned t, unsigned w, unsigned at, uint64_t value, bool release) {
    struct thread *thread = &world.threads[t];
    insert_store(w, at);
    world.words[w].writer = t + 1;
    struct store *store = &world.words[w].stores[at];
    thread->now.view.oldest[w] = (uint8_t)at;
    join_view(&thread->acquirable, &thread->now.view);
    *store = (struct store){.value = value, .known = {.view = thread->released}};
    if (release) store->known = thread->now;
    store->known.view.oldest[w] = (uint8_t)at;
    if (release) thread->now.clock.at[t]++;
}

static void apply_load(unsigned t, unsigned w, unsigned at, bool acquire) {
    struct thread *thread = &world.threads[t];
    const struct store *store = &world.words[w].stores[at];
    thread->now.view.oldest[w] = (uint8_t)at;
    if (acquire) join(&thread->now, &store->known);
    join_view(&thread->acquirable, &thread->now.view);
    join_view(&thread->acquirable, &store->known.view);
    thread->result = store->value;
}

// A kernel lock, acquired and released. It orders words but not variables: no clock passes through it.
static void pass_lock(unsigned t, struct view *lock) {
    struct thread *thread = &world.threads[t];
    join_view(&thread->now.view, lock);
    join_view(&thread->acquirable, lock);
    join_view(lock, &thread->now.view);
}

static void apply_fence(unsigned t) {
    struct thread *thread = &world.threads[t];
    join_view(&thread->acquirable, &world.fences);
    world.fences = thread->now.view = thread->released = thread->acquirable;
}

static void wake_threads(unsigned w) {
    for (unsigned t = 0; t < world.thread_count; t++) {
        struct thread *thread = &world.threads[t];
        if (thread->status != S_ASLEEP || thread->next.word != w) continue;
        join_view(&thread->now.view, &world.futexes);
        join_view(&thread->acquirable, &world.futexes);
        thread->status = S_READY;
        thread->next = (struct operation){.kind = K_YIELD};
    }
}

static void run_thread(unsigned t) {
    host.running = t;
    host.inside = true;
    model_switch(&host.scheduler, world.threads[t].stack_pointer);
    host.inside = false;
}

static void crash_process(unsigned p) {
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
            apply_store(t, w, (unsigned)world.words[w].count, value, true);
        } else {
            world.threads[t].now.view.oldest[w] = (uint8_t)(world.words[w].count - 1);
        }
    }
}

void apply_choice(const struct choice *choice) {
    unsigned t = choice->thread;
    struct thread *thread = &world.threads[t];
    const struct operation next = thread->next;
    if (choice->crash) {
        crash_process((unsigned)thread->process);
        return;
    }
    if (choice->spurious) {
        world.spurious_left--;
        thread->status = S_READY;
        thread->result = 0;
        run_thread(t);
        return;
    }
    switch (next.kind) {
    case K_LOAD:
        apply_load(t, next.word, choice->store, next.order == MODEL_ACQUIRE);
        break;
    case K_STORE:
        apply_store(t, next.word, choice->store, next.value, next.order == MODEL_RELEASE);
        break;
    case K_ADD: {
        // A word with additions only: the newest store precedes in modification order. The additions are one release
        // sequence, so what they carry is joined.
        const struct word *word = &world.words[next.word];
        const struct store before = word->stores[word->count - 1];
        apply_store(t, next.word, (unsigned)word->count, before.value + next.value, next.order == MODEL_RELEASE);
        join(&world.words[next.word].stores[word->count - 1].known, &before.known);
        break;
    }
    case K_LOCK: {
        const struct word *word = &world.words[next.word];
        apply_load(t, next.word, (unsigned)word->count - 1, true);
        apply_store(t, next.word, (unsigned)word->count, thread->result + 1, false);
        break;
    }
    case K_FENCE:
        apply_fence(t);
        break;
    case K_YIELD:
    case K_UNTIL:
        break;
    case K_AWAIT:
        apply_load(t, next.word, choice->store, true);
        break;
    case K_FUTEX_WAIT:
        join_view(&thread->now.view, &world.futexes);
        apply_load(t, next.word, choice->store, false);
        pass_lock(t, &world.futexes);
        if (thread->result == next.value) {
            thread->status = S_ASLEEP;
            return;
        }
        break;
    case K_FUTEX_WAKE:
        pass_lock(t, &world.futexes);
        wake_threads(next.word);
        break;
    case K_RING:
        pass_lock(t, &world.eventfd);
        world.event = 1;
        break;
    case K_POLL:
        pass_lock(t, &world.eventfd);
        thread->result = 1;
        break;
    case K_CLEAR:
        pass_lock(t, &world.eventfd);
        thread->result = world.event;
        world.event = 0;
        break;
    }
    run_thread(t);
}

void find_stores(const struct thread *thread, unsigned *from, unsigned *to) {
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
    case K_LOCK:
        if (word->stores[word->count - 1].value % 2) *to = *from;
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
