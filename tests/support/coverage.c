// Keeps the counts of processes that end early, in `make coverage` alone: gcov writes them at exit(3), which a forked
// worker that ends by _exit, a program started by exec, or an abort(3) never comes to. Linked with --wrap of the four
// names. What SIGKILL or another signal ends loses its counts all the same.
#include <stdlib.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);
void farm_faults_end(void) __attribute__((weak)); // gcov's own calls shall not be made to fail (faults.h)

_Noreturn void __real__exit(int status);
_Noreturn void __real_abort(void);
int __real_execv(const char *path, char *const *argv);
int __real_execve(const char *path, char *const *argv, char *const *environment);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap_abort(void);
int __wrap_execv(const char *path, char *const *argv);
int __wrap_execve(const char *path, char *const *argv, char *const *environment);

static void dump(void) {
    if (farm_faults_end) farm_faults_end();
    __gcov_dump();
}

void __wrap__exit(int status) {
    dump();
    __real__exit(status);
}

void __wrap_abort(void) {
    dump();
    __real_abort();
}

int __wrap_execv(const char *path, char *const *argv) {
    dump();
    int failed = __real_execv(path, argv);
    __gcov_reset(); // what has been written shall not be written again
    return failed;
}

int __wrap_execve(const char *path, char *const *argv, char *const *environment) {
    dump();
    int failed = __real_execve(path, argv, environment);
    __gcov_reset();
    return failed;
}
