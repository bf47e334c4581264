// Kills, stops or delays a process from within, and notes violations. See chaos.h. Runs in every process; words of the
// shared mapping change by atomic additions, because several processes add to them.
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "chaos.h"

void chaos_hook(void);

static struct chaos_shared *mapping;
static int own_worker = -1;
static _Thread_local uint64_t jitter_state;

void chaos_hook_set(struct chaos_shared *shared, int worker) {
    mapping = shared;
    own_worker = worker;
    jitter_state = 0;
}

struct chaos_shared *chaos_shared_of_process(void) {
    return mapping;
}

int chaos_worker_of_process(void) {
    return own_worker;
}

void chaos_add(uint64_t *word, uint64_t more) {
    __atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}

uint64_t chaos_random_below(uint64_t *state, uint64_t n) {
    return random_next(state) % n;
}

void chaos_sample(struct chaos_samples *samples, uint64_t ns) {
    samples->ns[__atomic_fetch_add(&samples->count, 1, __ATOMIC_RELAXED) % CHAOS_SAMPLES] = ns;
}

void chaos_violation(struct chaos_shared *shared, const char *format, ...) {
    const uint64_t number = __atomic_fetch_add(&shared->totals.violations, 1, __ATOMIC_RELAXED);
    if (number >= CHAOS_SENTENCES) return;
    va_list args;
    va_start(args, format);
    vsnprintf(shared->totals.sentences[number], sizeof shared->totals.sentences[number], format, args);
    va_end(args);
}

void chaos_strike(enum chaos_kind kind) {
    struct chaos_worker *worker = &mapping->state.workers[own_worker];
    if (worker->stops) {
        raise(SIGSTOP);
        return;
    }
    __atomic_store_n(&worker->died_ns, farm_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&worker->kind, (uint64_t)kind, __ATOMIC_RELEASE);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

// Remembers the place from which the hook was called.
static void note_site(uint64_t address) {
    for (uint64_t i = 0, at = address; i < CHAOS_SITES; i++, at++) {
        uint64_t *site = &mapping->totals.sites[at % CHAOS_SITES], empty = 0;
        if (__atomic_compare_exchange_n(site, &empty, address, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
        if (empty == address) return;
    }
}

// Lets other processes get ahead now and then, between two adjacent stores: mostly by a little, sometimes by as much as
// a busy machine's scheduler would.
static void delay(uint32_t one_in) {
    if (!jitter_state) jitter_state = farm_now_ns() ^ (uint64_t)(uintptr_t)&jitter_state;
    const uint64_t bits = random_next(&jitter_state);
    if (bits % one_in) return;
    const uint64_t most_ns = mapping->shape.jitter_focus || (bits >> 32 & 7) == 0 ? 4000000 : 100000;
    const struct timespec nap = {.tv_nsec = (long)chaos_random_below(&jitter_state, most_ns)};
    nanosleep(&nap, NULL);
}

// Whether this farm delays its processes at this place.
static bool is_slow(uint64_t site) {
    const uint32_t focus = mapping->shape.jitter_focus;
    uint64_t state = site ^ mapping->shape.seed;
    return !focus || random_next(&state) % focus == 0;
}

__attribute__((noinline)) void chaos_hook(void) {
    if (own_worker < 0) return;
    const uint64_t site = (uint64_t)(uintptr_t)__builtin_return_address(0);
    if (mapping->shape.jitter && is_slow(site)) delay(mapping->shape.jitter);
    uint64_t *stores = &mapping->state.workers[own_worker].stores;
    if (!__atomic_load_n(stores, __ATOMIC_RELAXED)) return;
    if (__atomic_sub_fetch(stores, 1, __ATOMIC_RELAXED)) return;
    note_site(site);
    chaos_strike(CHAOS_HOOK);
}

size_t chaos_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}
