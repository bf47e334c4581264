// What tests and benchmarks cannot go on without.
#ifndef TESTS_SUPPORT_MUST_H
#define TESTS_SUPPORT_MUST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/status.h"

// Fails the test, or ends the benchmark, unless it holds or the status is FARM_OK. The exit status is 77 if what the
// status names does not exist here (a GPU, a library), else 1.
static inline void must_hold(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static inline void must(enum farm_status status, const struct farm_error *err) {
    if (!status) return;
    fprintf(stderr, "%s\n", err->message);
    exit(status == FARM_E_UNSUPPORTED || status == FARM_E_NOT_FOUND ? 77 : 1);
}

// A child's exit status, or 256 + the signal that ended it.
static inline int wait_for(pid_t child) {
    int status;
    must_hold(waitpid(child, &status, 0) == child, "waitpid");
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Memory that this process and its children share; munmap releases it.
static inline void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must_hold(memory != MAP_FAILED, "no memory");
    return memory;
}

#endif
