// See thread.h.
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

int farm_thread_start(pthread_t *thread, void *(*body)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void farm_thread_use_signal_stack(void) {
    static _Thread_local _Alignas(64) char stack[64 << 10];
    stack_t before;
    if (sigaltstack(NULL, &before) == 0 && before.ss_flags & SS_DISABLE)
        sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
}
