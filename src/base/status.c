// See status.h.
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum farm_status fill(struct farm_error *err, enum farm_status status, int sys_errno, const char *format,
                             va_list args) {
    if (!err) return status;
    err->status = status;
    err->sys_errno = sys_errno;
    int n = vsnprintf(err->message, sizeof err->message, format, args);
    if (sys_errno && n >= 0 && (size_t)n < sizeof err->message)
        snprintf(err->message + n, sizeof err->message - (size_t)n, ": %s", strerror(sys_errno));
    return status;
}

enum farm_status(farm_fail)(struct farm_error *err, enum farm_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, status, 0, format, args);
    va_end(args);
    return status;
}

enum farm_status(farm_fail_errno)(struct farm_error *err, enum farm_status status, const char *format, ...) {
    int saved = errno;
    va_list args;
    va_start(args, format);
    fill(err, status, saved, format, args);
    va_end(args);
    return status;
}

enum farm_status(farm_fail_in)(struct farm_error *err, enum farm_status status, const char *format, ...) {
    if (!err) return status;
    char inner[sizeof err->message];
    memcpy(inner, err->message, sizeof inner);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->message)
        snprintf(err->message + n, sizeof err->message - (size_t)n, ": %s", inner);
    err->status = status;
    return status;
}
