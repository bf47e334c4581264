// For `make coverage`: gcov writes its counts at exit(3). Linked with --wrap, these functions write them before _exit,
// exec and abort too. A process that a signal ends loses its counts.
#include <stdlib.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);
void farm_faults_end(void) __attribute__((weak)); // gcov's own calls must not fail (faults.h)

_Noreturn void __real__exit(int status);
_Noreturn void __real_abort(void);
int __real_execv(const char *path, char *const *argv);
int __real_execve(const char *path, char *const *argv, char *const *environment);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap_abort(void);
int __wrap_execv(const char *path, char *const *argv);
int __wrap_execve(const char *path, char *const *argv, char *const *environment);

static void write_counts(void) {
    if (farm_faults_end) farm_faults_end();
    __gcov_dump();
}

void __wrap__exit(int status) {
    write_counts();
    __real__exit(status);
}

void __wrap_abort(void) {
    write_counts();
    __real_abort();
}

int __wrap_execv(const char *path, char *const *argv) {
    write_counts();
    int failed = __real_execv(path, argv);
    __gcov_reset(); // already written
    return failed;
}

int __wrap_execve(const char *path, char *const *argv, char *const *environment) {
    write_counts();
    int failed = __real_execve(path, argv, environment);
    __gcov_reset();
    return failed;
}
