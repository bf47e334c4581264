// See crash.h. The handler uses what signal-safety(7) allows, and nothing else.
#include "actor/crash.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

enum { LINE_BYTES = 512 };

static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// A signal handler can reach nothing else.
static struct farm_call current;

struct line {
    char text[LINE_BYTES];
    size_t length;
};

static void say(struct line *line, const char *text) {
    while (*text && line->length < sizeof line->text - 1) line->text[line->length++] = *text++;
}

static void say_number(struct line *line, uint32_t number) {
    char digits[16];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    say(line, digits + at);
}

static const char *name_of(int number) {
    switch (number) {
    case SIGSEGV:
        return "SIGSEGV";
    case SIGBUS:
        return "SIGBUS";
    case SIGFPE:
        return "SIGFPE";
    case SIGILL:
        return "SIGILL";
    default:
        return "SIGABRT";
    }
}

static void tell(int number) {
    static const char *const calls[] = {"", "while it was loaded", "in its create", "in its reset", "in its step"};
    struct line line = {.length = 0};
    say(&line, "farm: error: actor ");
    say_number(&line, current.actor);
    say(&line, ": environment ");
    say(&line, current.name);
    say(&line, " died of signal ");
    say_number(&line, (uint32_t)number);
    say(&line, " (");
    say(&line, name_of(number));
    say(&line, ") ");
    say(&line, calls[current.call <= FARM_CALL_STEP ? current.call : 0]);
    if (current.call != FARM_CALL_LOAD) {
        say(&line, ": lane ");
        say_number(&line, current.lane);
        say(&line, ", number ");
        say_number(&line, current.env);
    }
    say(&line, "\n");
    (void)!write(STDERR_FILENO, line.text, line.length);
}

// SA_RESETHAND has put the standard action back: the signal comes once more when this returns, and kills.
static void on_crash(int number) {
    if (current.name && current.call != FARM_CALL_NONE) tell(number);
    raise(number);
}

struct farm_call *farm_crash_watch(void) {
    farm_thread_use_signal_stack();
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction now;
        if (sigaction(caught[i], NULL, &now) || now.sa_handler != SIG_DFL) continue;
        sigaction(caught[i], &(struct sigaction){.sa_handler = on_crash, .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND)},
                  NULL);
    }
    return &current;
}
