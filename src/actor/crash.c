// See crash.h. The handler uses only what signal-safety(7) allows.
#include "actor/crash.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

enum { LINE_BYTES = 512 };

static const struct {
    int number;
    const char *name;
} caught[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};
enum { CAUGHT = sizeof caught / sizeof *caught };

// Global because a signal handler has no context.
static struct farm_call current;

struct line {
    char text[LINE_BYTES];
    size_t length;
};

static void add_text(struct line *line, const char *text) {
    while (*text && line->length < sizeof line->text - 1) line->text[line->length++] = *text++;
}

static void add_number(struct line *line, uint32_t number) {
    char digits[16];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    add_text(line, digits + at);
}

static void print_call(int number) {
    static const char *const calls[] = {"", "while it was loaded", "in its create", "in its reset", "in its step"};
    struct line line = {.length = 0};
    add_text(&line, "farm: error: actor ");
    add_number(&line, current.actor);
    add_text(&line, ": environment ");
    add_text(&line, current.name);
    add_text(&line, " died of signal ");
    add_number(&line, (uint32_t)number);
    add_text(&line, " (");
    for (size_t i = 0; i < CAUGHT; i++)
        if (caught[i].number == number) add_text(&line, caught[i].name);
    add_text(&line, ") ");
    add_text(&line, calls[current.call <= FARM_CALL_STEP ? current.call : 0]);
    if (current.call != FARM_CALL_LOAD) {
        add_text(&line, ": lane ");
        add_number(&line, current.lane);
        add_text(&line, ", number ");
        add_number(&line, current.env);
    }
    add_text(&line, "\n");
    (void)!write(STDERR_FILENO, line.text, line.length);
}

// SA_RESETHAND has restored the default action: the raised signal kills when the handler returns.
static void on_crash(int number) {
    if (current.name && current.call != FARM_CALL_NONE) print_call(number);
    raise(number);
}

struct farm_call *farm_crash_watch(void) {
    farm_thread_use_signal_stack();
    for (size_t i = 0; i < CAUGHT; i++) {
        struct sigaction now;
        if (sigaction(caught[i].number, NULL, &now) || now.sa_handler != SIG_DFL) continue;
        sigaction(caught[i].number,
                  &(struct sigaction){.sa_handler = on_crash, .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND)}, NULL);
    }
    return &current;
}
