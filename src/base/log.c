// See log.h.
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static enum farm_log_level level_most = FARM_LOG_INFO;
static char role_name[32];

void farm_log_set_level(enum farm_log_level most) {
    level_most = most;
}

void farm_log_set_role(const char *role) {
    snprintf(role_name, sizeof role_name, "%s", role);
}

enum farm_log_level farm_log_level(void) {
    return level_most;
}

const char *farm_log_role(void) {
    return role_name;
}

void farm_log(enum farm_log_level level, const char *format, ...) {
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    if (level > level_most) return;
    char line[1024];
    int n = snprintf(line, sizeof line, "farm: %s%s%s", names[level], role_name, role_name[0] ? ": " : "");
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    if (m < 0) return;
    size_t length = (size_t)n + (size_t)m;
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}
