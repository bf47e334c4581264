// Threads and the signals of a process: which thread receives them, and on which stack. Runs in every process.
#ifndef FARM_BASE_THREAD_H
#define FARM_BASE_THREAD_H

#include <pthread.h>

// Starts a thread that receives no signals. Returns 0 or an error number.
int farm_thread_start(pthread_t *thread, void *(*body)(void *), void *argument);

// Gives this thread a stack for handlers with SA_ONSTACK, unless a sanitizer has given it one.
void farm_thread_use_signal_stack(void);

#endif
