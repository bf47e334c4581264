// Makes calls fail. In a test named test_faults the linker redirects the calls that faults.c lists (allocations and
// system calls of libfarm and of the test) to wrappers. A sweep repeats one operation: the first call fails with each
// of its usual errors in turn, then the second call, and so on until the operation succeeds; then the calls of the
// first process that it forks, and so on. Each process counts its own calls, so scheduling does not matter. Blocks,
// mapped bytes, descriptors and children that are left behind are counted without a sanitizer.
#ifndef FARM_TESTS_SUPPORT_FAULTS_H
#define FARM_TESTS_SUPPORT_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

struct farm_fault {
    const char *call; // "mmap"; NULL: no call failed
    int error;        // errno
    unsigned process; // 0: the sweeping process; 1..: in the order of their forks
    unsigned number;  // the call's within the operation and the process, from 1
};

struct farm_held {
    long blocks, mapped_bytes; // acquired and not released through the wrappers, in this process
    int descriptors, children;
};

struct farm_sweep {
    unsigned process, number, variant, faults; // faults: so far
    bool one_error;                            // each call fails with its first error only
    bool over;
    struct farm_held before;
};

// for (struct farm_sweep sweep = {0}; farm_sweep_next(&sweep);) { operation; fault = farm_sweep_end(&sweep); check;
// release everything; check farm_sweep_left(&sweep, &fault) }. sweep.h has this loop.
bool farm_sweep_next(struct farm_sweep *sweep);
struct farm_fault farm_sweep_end(struct farm_sweep *sweep); // no call fails until the next farm_sweep_next
// Describes what was left behind; NULL: nothing.
const char *farm_sweep_left(const struct farm_sweep *sweep, const struct farm_fault *fault);

// Rules, with or without a sweep, until farm_faults_clear: calls first..first+count-1 (counted from 1, from now on) of
// a function fail with `error`; or the function is replaced by one of its type, which may call __real_<function>.
void farm_faults_fail(const char *call, unsigned first, unsigned count, int error);
void farm_faults_replace(const char *call, void (*replacement)(void));
unsigned farm_faults_made(const char *call); // faults by the rule for this function
void farm_faults_clear(void);

// Ends all faults in this process.
void farm_faults_end(void);

struct farm_held farm_held_now(void);

#endif
