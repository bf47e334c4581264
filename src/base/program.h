// Runs a program, or a function in a child, with a time limit. For the supervisor before any worker, and for tools.
#ifndef FARM_BASE_PROGRAM_H
#define FARM_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct farm_program {
    const char *path; // without a slash: farm_path_program finds it
    char *const *argv, *const *environment;
    const char *label; // prefix of its messages on stderr; removed
    // In a new process group, out of Ctrl-C's reach. SIGINT, SIGTERM or SIGHUP killed it: started again, at most twice.
    bool apart;
    bool confined; // by farm_confine_environment
    double limit_s;
    uint64_t memory_bytes; // most that it can map; 0: no limit
    const char *remedy;    // follows the message that limit_s is over; NULL: nothing
    // NULL: a pending signal that ends this process ends the program. Else called ten times a second: true ends the
    // program (if apart, its process group) by SIGTERM, and what it prints then, within a minute, counts.
    bool (*stop)(void *context);
    void *context;
};

// *text receives the program's stdout (malloc'd, zero-terminated). stdin is /dev/null. Errors: FARM_E_USAGE exit
// status 2, FARM_E_NOT_FOUND any other but 0, both with its last line on stderr, or it could not be started;
// FARM_E_DEAD it died, or did not end its output within limit_s (ended by SIGTERM, at last by SIGKILL);
// FARM_E_INTERRUPTED a signal of farm_ending_signals came, which is blocked meanwhile and acts at the return unless the
// caller blocks it; FARM_E_FORMAT more than 1 MiB; FARM_E_LIMIT no memory or descriptors. Once its output has ended,
// the answer counts: a program that does not end then is killed, and what stays of its process group.
enum farm_status farm_program_read(const struct farm_program *program, char **text, struct farm_error *err);

// Calls body(context, result) in a child of this process, which ends with it; *result, of `bytes` bytes and zero at
// first, is copied back. quiet: what the child prints is discarded. Errors, which begin with `what`: FARM_E_DEAD no
// result within limit_s, or the child died, or body returned false; FARM_E_INTERRUPTED as above; FARM_E_LIMIT.
enum farm_status farm_program_call(const char *what, bool (*body)(const void *context, void *result),
                                   const void *context, bool quiet, double limit_s, void *result, size_t bytes,
                                   struct farm_error *err);

// In a child: closes descriptors first to last, both included.
void farm_program_close(unsigned first, unsigned last);

// Waits for the end of a child of this process, at most until limit_s are over; kills it then, and what is left of its
// process group. *ended as of waitpid(2). FARM_E_DEAD: it had not ended in time. FARM_E_INTERRUPTED as above.
enum farm_status farm_program_await(pid_t pid, double limit_s, int *ended);

// Whether a child of this process ends within limit_s; the caller still has to wait for it.
bool farm_program_ended(pid_t pid, double limit_s);

// Where an address of an object lies in its source, as addr2line(1) finds out: "FUNCTION at FILE:LINE
// (OBJECT+0xOFFSET)", and a line for each function that it is inlined in. If addr2line is missing or fails: the command
// to call.
void farm_program_place(const char *object, uint64_t offset, char *text, size_t bytes);

// The last line that is not blank of a file, cut from its end.
void farm_program_last_line(int fd, char *line, size_t bytes);

#endif
