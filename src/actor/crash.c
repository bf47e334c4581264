// Reports which environment an actor was calling when a signal kills it or exit() ends it: the actor records each call,
// and a signal handler prints the record and the stack's frames to stderr before the process dies. Runs in an actor
// process, one thread. The handler uses what signal-safety(7) allows, and backtrace(3), whose library is loaded
// beforehand and which finds objects by _dl_find_object(3), as this file does; glibc before 2.35 has no such function
// and no frame is printed.
#include "actor/group.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/thread.h"

enum { LINE_BYTES = 512, FRAMES_READ = 32, FRAMES_PRINTED = 8 };

static const struct {
    int number;
    const char *name;
} caught[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};
enum { CAUGHT = sizeof caught / sizeof *caught };

// Global because a signal handler has no context.
static struct farm_call current;
static char program[256]; // path of the main program, which the loader does not name
static char folder[256];  // in which objects were loaded by relative names
static __typeof__(_dl_find_object) *find_object;

struct line {
    char text[LINE_BYTES];
    size_t length;
};

static void add_text(struct line *line, const char *text) {
    while (*text && line->length < sizeof line->text - 1) line->text[line->length++] = *text++;
}

static void add_number(struct line *line, uint64_t number, uint32_t base) {
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do digits[--at] = "0123456789abcdef"[number % base];
    while ((number /= base) > 0);
    add_text(line, digits + at);
}

static void print_line(struct line *line) {
    line->text[line->length++] = '\n';
    (void)!write(STDERR_FILENO, line->text, line->length);
}

// what: "died of signal " or "called exit("; its number, and what follows it.
static void print_call(const char *what, uint32_t number, const char *name) {
    static const char *const calls[] = {
        "", "while it was loaded", "in its create", "in its reset", "in its step", "in its render"};
    struct line line = {.length = 0};
    add_text(&line, "farm: error: actor ");
    add_number(&line, current.actor, 10);
    add_text(&line, ": environment ");
    add_text(&line, current.name);
    add_text(&line, what);
    add_number(&line, number, 10);
    add_text(&line, name);
    add_text(&line, calls[current.call <= FARM_CALL_RENDER ? current.call : 0]);
    if (current.call != FARM_CALL_LOAD) {
        add_text(&line, ": lane ");
        add_number(&line, current.lane, 10);
        add_text(&line, ", number ");
        add_number(&line, current.env, 10);
    }
    add_text(&line, ", pid ");
    add_number(&line, (uint32_t)getpid(), 10);
    print_line(&line);
}

// ---- where it died ----

static uintptr_t counter_of(const void *context) {
#if defined(__x86_64__)
    return (uintptr_t)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)((const ucontext_t *)context)->uc_mcontext.pc;
#else
    return 0;
#endif
}

// Prints "farm: frame 0xOFFSET PATH", which the supervisor takes (supervisor/death.h). False: the frame is the farm's
// own code, which called an environment in another object, or it is in no object.
static bool print_frame(uintptr_t counter, bool first) {
    struct dl_find_object object;
    struct line line = {.length = 0};
    if (find_object((void *)counter, &object)) return first; // a wild jump: the caller says more
    const char *path = object.dlfo_link_map->l_name;
    if (!path[0] && !first) return false;
    add_text(&line, "farm: frame 0x");
    add_number(&line, counter - object.dlfo_link_map->l_addr, 16);
    add_text(&line, " ");
    if (path[0] != '/' && strchr(path, '/')) add_text(&line, folder), add_text(&line, "/");
    add_text(&line, path[0] ? path : program);
    print_line(&line);
    return true;
}

// From the place where the signal came to the farm's own code. A caller's counter is behind its call.
static void print_frames(uintptr_t counter) {
    void *frames[FRAMES_READ];
    const int count = backtrace(frames, FRAMES_READ);
    int from = 0;
    while (from < count && (uintptr_t)frames[from] != counter) from++;
    if (!print_frame(counter, true)) return;
    for (int i = from + 1; i < count && i < from + FRAMES_PRINTED; i++)
        if (!print_frame((uintptr_t)frames[i] - 1, false)) return;
}

// SA_RESETHAND has restored the default action: the raised signal kills when the handler returns, and a crash in the
// handler kills at once.
static void on_crash(int number, siginfo_t *info, void *context) {
    if (current.name && current.call != FARM_CALL_NONE) {
        const char *name = "";
        char after[16] = " (";
        for (size_t i = 0; i < CAUGHT; i++)
            if (caught[i].number == number) name = caught[i].name;
        strcat(strcat(after, name), ") ");
        print_call(" died of signal ", (uint32_t)number, after);
        if (find_object) print_frames(counter_of(context));
    }
    raise(number);
}

// Not for _exit(2), which ends the process without a handler.
static void on_own_exit(int status, void *context) {
    if (current.name && current.call != FARM_CALL_NONE) print_call(" called exit(", (uint32_t)status, ") ");
    current.call = FARM_CALL_NONE;
}

// A process that an environment has forked is no actor: nothing is reported of it.
static void forget_in_child(void) {
    current.name = NULL;
}

struct farm_call *farm_crash_watch(void) {
    void *frame;
    pthread_atfork(NULL, NULL, forget_in_child);
    farm_thread_use_signal_stack();
    backtrace(&frame, 1); // loads the unwinder
    find_object = (__typeof__(find_object))dlsym(RTLD_DEFAULT, "_dl_find_object");
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    if (!getcwd(folder, sizeof folder)) folder[0] = 0;
    for (size_t i = 0; i < CAUGHT; i++) {
        struct sigaction now;
        if (sigaction(caught[i].number, NULL, &now) || now.sa_handler != SIG_DFL) continue;
        sigaction(
            caught[i].number,
            &(struct sigaction){.sa_sigaction = on_crash, .sa_flags = (int)(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND)},
            NULL);
    }
    on_exit(on_own_exit, NULL);
    return &current;
}
