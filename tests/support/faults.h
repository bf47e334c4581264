// Makes calls fail, so that what happens then is tested and not hoped. A test named test_faults is linked so that the
// calls of libfarm and of the test itself that faults.c lists (allocations and system calls) come by here first; those
// that the C library makes for itself do not. A sweep runs one operation again and again: the first call fails with
// each of its usual errors in turn, then the second call, and so on until the operation has come through undisturbed;
// then the calls of the first process that it forks, of the second, and so on. Each process counts its own calls: which
// call is the n-th does not hang on how the processes are scheduled. What is left behind is counted without any
// sanitizer: blocks, mapped bytes, descriptors, children.
#ifndef FARM_TESTS_SUPPORT_FAULTS_H
#define FARM_TESTS_SUPPORT_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

struct farm_fault {
    const char *call; // "mmap"; NULL: nothing has failed
    int error;        // errno
    unsigned process; // 0: the one that sweeps; 1..: in the order of their forks
    unsigned number;  // of the call within the operation and the process, from 1
};

struct farm_held {
    long blocks, mapped_bytes; // taken and not given back through the calls that come by here, in this process
    int descriptors, children;
};

struct farm_sweep {
    unsigned process, number, variant, faults; // faults: how many have been made in all
    bool over;
    struct farm_held before;
};

// for (struct farm_sweep sweep = {0}; farm_sweep_next(&sweep);) { operation; fault = farm_sweep_end(&sweep); check;
// give everything back; check farm_sweep_left(&sweep, &fault) }
bool farm_sweep_next(struct farm_sweep *sweep);
struct farm_fault farm_sweep_end(struct farm_sweep *sweep); // no call fails any more until the next turn
// What has been left behind, in words; NULL: nothing.
const char *farm_sweep_left(const struct farm_sweep *sweep, const struct farm_fault *fault);

// Apart from sweeps, and together with them: calls first..first+count-1 (from 1, counted from here) of one function
// fail with `error`; or the function is replaced. The replacement has the function's type and may call
// __real_<function>. Both last until farm_faults_clear.
void farm_faults_fail(const char *call, unsigned first, unsigned count, int error);
void farm_faults_replace(const char *call, void (*replacement)(void));
unsigned farm_faults_made(const char *call); // how often the rule for this function has struck
void farm_faults_clear(void);

// This process alone meets no fault any more.
void farm_faults_end(void);

struct farm_held farm_held_now(void);

#endif
