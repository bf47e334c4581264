// Threads and signals of any process: which thread receives them, on which stack; how large stacks are.
#ifndef FARM_BASE_THREAD_H
#define FARM_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

// Starts a thread without signals, "NAME NUMBER" (0: "NAME") in `top -H` and perf. Returns 0 or an error number.
int farm_thread_start(pthread_t *thread, const char *name, uint32_t number, void *(*body)(void *), void *argument);

// Signals that request this program's end: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup.
sigset_t farm_ending_signals(void);
// Whether one of them is pending; the caller has blocked them.
bool farm_ending_pending(void);

// From here on SIGTERM sets farm_sigterm_caught, one for the process. Ctrl-C reaches the terminal's whole process
// group, but a supervisor decides when its workers end, and a closed stderr must not end one: SIGINT and SIGPIPE do
// nothing. Their handlers run on a stack of their own, the calling thread's. Processes that this one forks get back
// what was before, and programs that they become the default.
void farm_sigterm_catch(void);
bool farm_sigterm_caught(void);

// Gives this thread a stack for handlers with SA_ONSTACK, unless a sanitizer has given it one.
void farm_thread_use_signal_stack(void);

// At the start of a program: raises the soft limit of the main thread's stack to the usual 8 MiB, as far as the hard
// limit allows, and gives threads at least 2 MiB whatever the limit; both hold in children. Warns of less than 1 MiB,
// which libraries may exceed. FARM_E_LIMIT: less than 256 KiB, which the program itself needs.
enum farm_status farm_thread_prepare_stacks(struct farm_error *err);

#endif
