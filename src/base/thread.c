// See thread.h.
#include "base/thread.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/log.h"

enum { STACK_LEAST_KIB = 256, STACK_SOUND_KIB = 1024, STACK_USUAL_KIB = 8192, THREAD_STACK_BYTES = 2 << 20 };

sigset_t farm_ending_signals(void) {
    sigset_t signals;
    struct sigaction hangup;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
    return signals;
}

bool farm_ending_pending(void) {
    sigset_t ending = farm_ending_signals(), pending;
    return sigpending(&pending) == 0 && sigandset(&ending, &ending, &pending) == 0 && !sigisemptyset(&ending);
}

int farm_thread_start(pthread_t *thread, const char *name, uint32_t number, void *(*body)(void *), void *argument) {
    char shown[16]; // the kernel's TASK_COMM_LEN
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return error;
    if (number)
        snprintf(shown, sizeof shown, "%s %u", name, number);
    else
        snprintf(shown, sizeof shown, "%s", name);
    pthread_setname_np(*thread, shown);
    return 0;
}

static volatile sig_atomic_t sigterm_caught; // a handler has no context

static void on_sigterm(int number) {
    (void)number;
    sigterm_caught = 1;
}

// Not SIG_IGN, which programs that an environment starts would inherit.
static void on_nothing(int number) {
    (void)number;
}

// On a stack of their own: within a matrix product of oneDNN 2.6, %rsp points into the heap, where a signal's frame
// would overwrite what lies below.
static struct caught {
    int number, flags;
    void (*handler)(int);
    struct sigaction before; // when it was caught first
} caught[] = {{.number = SIGTERM, .handler = on_sigterm},
              {.number = SIGINT, .handler = on_nothing, .flags = SA_RESTART},
              {.number = SIGPIPE, .handler = on_nothing}};

static _Thread_local sigset_t mask_before_fork;

// Until the child has its handlers: one of ours would lose a signal that comes meanwhile.
static void before_fork(void) {
    sigset_t numbers;
    sigemptyset(&numbers);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaddset(&numbers, caught[i].number);
    pthread_sigmask(SIG_BLOCK, &numbers, &mask_before_fork);
}

static void after_fork(void) {
    pthread_sigmask(SIG_SETMASK, &mask_before_fork, NULL);
}

// A child that an environment forks gets what was before; a handler that the environment has set since is its own.
static void restore_in_child(void) {
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction now;
        if (sigaction(caught[i].number, NULL, &now) == 0 && now.sa_handler == caught[i].handler)
            sigaction(caught[i].number, &caught[i].before, NULL);
    }
    after_fork();
}

void farm_sigterm_catch(void) {
    static bool registered;
    if (!registered) pthread_atfork(before_fork, after_fork, restore_in_child);
    registered = true;
    sigterm_caught = 0;
    farm_thread_use_signal_stack();
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction now;
        if (sigaction(caught[i].number, NULL, &now) || now.sa_handler == caught[i].handler) continue;
        caught[i].before = now;
        sigaction(caught[i].number,
                  &(struct sigaction){.sa_handler = caught[i].handler, .sa_flags = caught[i].flags | SA_ONSTACK}, NULL);
    }
}

bool farm_sigterm_caught(void) {
    return sigterm_caught;
}

void farm_thread_use_signal_stack(void) {
    static _Thread_local _Alignas(64) char stack[64 << 10];
    stack_t before;
    if (sigaltstack(NULL, &before) == 0 && before.ss_flags & SS_DISABLE)
        sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
}

enum farm_status farm_thread_prepare_stacks(struct farm_error *err) {
    static const char remedy[] = "raise it with `ulimit -s 8192` (systemd: LimitSTACK=; docker: --ulimit stack=)";
    struct rlimit limit;
    pthread_attr_t threads;
    size_t bytes;
    if (pthread_getattr_default_np(&threads) == 0) {
        if (pthread_attr_getstacksize(&threads, &bytes) == 0 && bytes < THREAD_STACK_BYTES &&
            pthread_attr_setstacksize(&threads, THREAD_STACK_BYTES) == 0)
            pthread_setattr_default_np(&threads);
        pthread_attr_destroy(&threads);
    }
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= (rlim_t)STACK_USUAL_KIB << 10) return FARM_OK;
    limit.rlim_cur = (rlim_t)STACK_USUAL_KIB << 10;
    if (limit.rlim_cur > limit.rlim_max) limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_STACK, &limit);
    const unsigned long long kib = limit.rlim_cur >> 10;
    if (kib < STACK_LEAST_KIB)
        return farm_fail(err, FARM_E_LIMIT, "stacks may have %llu KiB (RLIMIT_STACK), at least %d are needed: %s", kib,
                         STACK_LEAST_KIB, remedy);
    if (kib < STACK_SOUND_KIB)
        farm_log_warn("stacks may have %llu KiB (RLIMIT_STACK): environments and libraries may crash; %s", kib, remedy);
    return FARM_OK;
}
