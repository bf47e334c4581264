// Error contract of the whole project: a function that can fail returns an enum farm_status and, where the
// caller passes one, fills a struct farm_error with a sentence that names what failed, the value, and what
// to do about it. Ring operations (src/ring) return a bool or a count instead: full and empty are not errors.
// Runs in every process. Does not print, does not exit: only tools/ may do either.
#ifndef FARM_BASE_STATUS_H
#define FARM_BASE_STATUS_H

enum farm_status {
    FARM_OK = 0,
    FARM_E_USAGE,       // wrong flag, key or value given by the user
    FARM_E_INVALID,     // an invalid argument or spec
    FARM_E_NOT_FOUND,   // a missing file, environment, ROM or package
    FARM_E_LIMIT,       // a limit of the machine or of its configuration (rlimit, cgroup, memory)
    FARM_E_PERMISSION,  // permission denied
    FARM_E_FORMAT,      // corrupt, truncated or foreign data
    FARM_E_BUSY,        // another process holds it
    FARM_E_IO,          // a system call failed; see sys_errno
    FARM_E_UNSUPPORTED, // this build or this machine cannot do it
    FARM_E_DEAD,        // the process on the other side has ended
    FARM_E_INTERRUPTED, // a signal stopped it
};

struct farm_error {
    enum farm_status status;
    int sys_errno; // errno at the time; 0: none
    char message[768];
};

// Fills *err (may be NULL) and returns `status`, so that `return farm_fail(err, FARM_E_IO, "...")` is one line.
// farm_fail_errno appends ": <strerror(errno)>" and keeps errno in sys_errno.
enum farm_status farm_fail(struct farm_error *err, enum farm_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum farm_status farm_fail_errno(struct farm_error *err, enum farm_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "prefix: " before the message that is in *err (may be NULL); returns err's status.
enum farm_status farm_fail_in(struct farm_error *err, enum farm_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__ // shows it that their value is `status`, which is not FARM_OK
#define farm_fail(err, status, ...)       (farm_fail(err, status, __VA_ARGS__), (status))
#define farm_fail_errno(err, status, ...) (farm_fail_errno(err, status, __VA_ARGS__), (status))
#define farm_fail_in(err, status, ...)    (farm_fail_in(err, status, __VA_ARGS__), (status))
#endif

#endif
