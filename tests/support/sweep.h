// The engine of the tests named test_faults: it sweeps one operation (faults.h) and compares how each run ends with a
// table of the statuses that a failed call may cause. After each run nothing may be left behind.
#ifndef FARM_TESTS_SUPPORT_SWEEP_H
#define FARM_TESTS_SUPPORT_SWEEP_H

#include <criterion/criterion.h>
#include <string.h>

#include "base/status.h"
#include "faults.h"

enum { // a set of statuses
    ENDS_OK = 1 << FARM_OK,
    ENDS_LIMIT = 1 << FARM_E_LIMIT,
    ENDS_IO = 1 << FARM_E_IO,
    ENDS_FORMAT = 1 << FARM_E_FORMAT,
    ENDS_UNSUPPORTED = 1 << FARM_E_UNSUPPORTED,
    NO_ERRNO = 1 << 30, // such an error does not carry the call's errno
};

struct farm_outcome {
    const char *call; // NULL closes a table
    int error;        // errno, 0: any; the first row that matches counts
    unsigned ends;    // ENDS_*: how the operation may end
};

struct farm_trial {
    enum farm_status (*run)(void *context, struct farm_error *err);
    // Called when no call fails any more. Checks what the run made (or that it made nothing) and releases it.
    void (*finish)(void *context, enum farm_status status, const struct farm_fault *fault,
                   const struct farm_error *err);
    const struct farm_outcome *outcomes; // a call without a row must not matter
    bool has_spare;                      // a second way replaces one that failed, so every run may succeed
};

static inline bool fault_is(const struct farm_fault *fault, const char *call) {
    return fault->call && strcmp(fault->call, call) == 0;
}

static inline void check_outcome(const struct farm_trial *trial, const struct farm_fault *fault,
                                 enum farm_status status, const struct farm_error *err) {
    const struct farm_outcome *row = trial->outcomes;
    while (row->call && !(fault_is(fault, row->call) && (!row->error || row->error == fault->error))) row++;
    const unsigned ends = (row->call ? row->ends : ENDS_OK) | (trial->has_spare ? ENDS_OK : 0);
    cr_assert(ends >> status & 1, "process %u, call %u, %s with %s: status %d, %s", fault->process, fault->number,
              fault->call ? fault->call : "no fault", strerror(fault->error), (int)status, err->message);
    if (!status) return;
    cr_assert_eq(err->status, status);
    cr_assert_gt(strlen(err->message), 20);
    cr_assert(row->ends & NO_ERRNO || status == FARM_E_FORMAT || err->sys_errno == fault->error,
              "%s: errno %d became %d: %s", fault->call, fault->error, err->sys_errno, err->message);
}

// Runs the operation until every call has failed once with each of its errors; returns the number of faults.
static inline unsigned sweep_calls(const struct farm_trial *trial, void *context) {
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_error err = {0};
        const enum farm_status status = trial->run(context, &err);
        const struct farm_fault fault = farm_sweep_end(&sweep);
        check_outcome(trial, &fault, status, &err);
        trial->finish(context, status, &fault, &err);
        const char *left = farm_sweep_left(&sweep, &fault);
        cr_assert_null(left, "%s", left);
        cr_assert_lt(sweep.number, 400, "400 calls have failed, and the operation still does not succeed");
    }
    return sweep.faults;
}

// What the calls of src/shm and src/ring may end with.
static const struct farm_outcome segment_outcomes[] = {
    {"memfd_create", ENOSYS, ENDS_UNSUPPORTED},
    {"memfd_create", EINVAL, ENDS_IO},
    {"memfd_create", 0, ENDS_LIMIT},
    {"open", ENOENT, ENDS_IO},
    {"open", 0, ENDS_LIMIT},
    {"fcntl", EMFILE, ENDS_LIMIT | ENDS_IO | ENDS_FORMAT}, // F_GET_SEALS: the descriptor counts as unsealed
    {"fcntl", 0, ENDS_IO | ENDS_FORMAT},
    {"mmap", ENOMEM, ENDS_LIMIT},
    {"mmap", 0, ENDS_IO},
    {"ftruncate", ENOMEM, ENDS_LIMIT},
    {"ftruncate", 0, ENDS_IO},
    {"mbind", EPERM, ENDS_OK}, // first touch replaces it
    {"mbind", ENOSYS, ENDS_OK},
    {"mbind", 0, ENDS_LIMIT},
    {"madvise", ENOMEM, ENDS_OK | ENDS_IO | ENDS_LIMIT}, // large pages are optional; MADV_DONTFORK is not
    {"madvise", 0, ENDS_OK | ENDS_IO},
    {"fstat", 0, ENDS_IO},
    {"fchmod", 0, ENDS_IO},
    {"fallocate", EOPNOTSUPP, ENDS_OK}, // all pages are touched instead
    {"fallocate", 0, ENDS_LIMIT},
    {"calloc", 0, ENDS_LIMIT | NO_ERRNO},
    {NULL, 0, 0},
};

#endif
