// See caller.h.
#include "run/caller.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"

static void log_line(const struct farm_run_caller *caller, enum farm_log_level level, const char *format,
                     va_list args) {
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    if (caller && caller->clear_line) caller->clear_line(caller->context);
    farm_log(level, "%s", text);
}

void farm_run_warn(const struct farm_run_caller *caller, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(caller, FARM_LOG_WARN, format, args);
    va_end(args);
}

void farm_run_note(const struct farm_run_caller *caller, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(caller, FARM_LOG_INFO, format, args);
    va_end(args);
}
