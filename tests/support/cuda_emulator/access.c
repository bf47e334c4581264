// Every load and store of a kernel through a pointer first calls a function of this file (-fsanitize=kernel-address).
// It must be in memory that the running GPU may access (farm_emulator_need), or in the kernel's own (stacks, shared
// memory, constants); be aligned; and, in shared memory, be separated by a barrier from another thread's access if one
// of them is a store. The compiler does not report places that it knows (a scalar, a constant index into an array of
// fixed size).
//
// Not compiled with AddressSanitizer, which defines the same functions.
#include "access.h"

#include <stdio.h>
#include <stdlib.h>

#include "emulator.h"
#include "grid.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const bool farm_emulator_sees_loads = false;
#else
const bool farm_emulator_sees_loads = true;
#endif

#ifdef __SANITIZE_ADDRESS__

void farm_emulator_release(uint64_t *word) {
    farm_emulator_need(word, sizeof *word, true, "a store for the host");
}

#else

static _Noreturn void abort_access(const char *what, const void *address, size_t bytes) {
    fprintf(stderr, "CUDA emulator: %s: %p, %zu bytes (thread %u)\n", what, address, bytes, farm_emulator_now().thread);
    abort();
}

// ---- order among the threads of a block ----

enum { WORDS = 1 << 14 };

// The last load and the last store of four bytes of shared memory. several: several threads have loaded them since the
// last barrier.
static struct word {
    uintptr_t number;
    struct farm_emulator_moment load, store;
    bool several;
} words[WORDS];

static bool in_order(const struct farm_emulator_moment *before, const struct farm_emulator_moment *now) {
    return before->of_block != now->of_block || before->thread == now->thread ||
           (before->warp == now->warp && before->of_warp != now->of_warp);
}

static void check_order(const char *at, size_t bytes, bool store) {
    const struct farm_emulator_moment now = farm_emulator_now();
    for (uintptr_t number = (uintptr_t)at / 4; number <= ((uintptr_t)at + bytes - 1) / 4; number++) {
        struct word *word = &words[number % WORDS];
        if (word->number != number) *word = (struct word){.number = number};
        if (!in_order(&word->store, &now)) abort_access("shared memory that another thread stores into", at, bytes);
        const bool loaded = !in_order(&word->load, &now) || (word->several && word->load.of_block == now.of_block);
        if (store && loaded) abort_access("shared memory that another thread reads", at, bytes);
        if (store) {
            word->store = now;
        } else {
            word->several = loaded;
            word->load = now;
        }
    }
}

// A store for the host covers only stores of the block that a barrier orders before it.
static struct farm_emulator_moment last_store, release;
static uint64_t stores_by_several; // of_block while more than one thread has stored

static void check_store_order(const void *address, size_t bytes) {
    const struct farm_emulator_moment now = farm_emulator_now();
    if (!in_order(&release, &now)) abort_access("a store that the one for the host does not cover", address, bytes);
    if (!in_order(&last_store, &now)) stores_by_several = now.of_block;
    last_store = now;
}

void farm_emulator_release(uint64_t *word) {
    const struct farm_emulator_moment now = farm_emulator_now();
    farm_emulator_need(word, sizeof *word, true, "a store for the host");
    if (!in_order(&last_store, &now) || stores_by_several == now.of_block)
        abort_access("a store for the host that does not cover another thread's", word, sizeof *word);
    release = now;
}

// ---- called by the compiler's instrumentation ----

// The program or shared object that contains this file: shared memory, constants.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool is_stack(const char *at, size_t bytes) {
    return at >= farm_emulator_stacks[0] && at + bytes <= farm_emulator_stacks[1];
}

static void check_access(const void *address, size_t bytes, bool aligned, bool store) {
    const char *at = address;
    if (!is_stack(__builtin_frame_address(0), 0)) return; // not a kernel: the host's side of a launch
    if (aligned && (uintptr_t)at % bytes) abort_access("an access that is not aligned", address, bytes);
    if (is_stack(at, bytes)) return;
    if (at >= __ehdr_start && at + bytes <= _end) {
        check_order(at, bytes, store);
        return;
    }
    const bool registered = farm_emulator_need(at, bytes, store, store ? "a kernel's store" : "a kernel's load");
    if (store)
        check_store_order(at, bytes);
    else if (registered)
        farm_emulator_count_read(FARM_EMULATOR_LOADS, bytes);
}

#define SIZED(n)                                                                                                       \
    void __asan_load##n##_noabort(const void *address);                                                                \
    void __asan_store##n##_noabort(const void *address);                                                               \
    void __asan_load##n##_noabort(const void *address) {                                                               \
        check_access(address, n, true, false);                                                                         \
    }                                                                                                                  \
    void __asan_store##n##_noabort(const void *address) {                                                              \
        check_access(address, n, true, true);                                                                          \
    }
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)

void __asan_loadN_noabort(const void *address, size_t bytes);
void __asan_storeN_noabort(const void *address, size_t bytes);
void __asan_handle_no_return(void);

void __asan_loadN_noabort(const void *address, size_t bytes) {
    check_access(address, bytes, false, false);
}
void __asan_storeN_noabort(const void *address, size_t bytes) {
    check_access(address, bytes, false, true);
}
void __asan_handle_no_return(void) {}

#endif
