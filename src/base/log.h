// Diagnostics on stderr: "farm: <level>: <role>: message". One write(2) a line, so that lines of several processes
// do not mix. Runs in every process. The role ("actor 3", "learner") is set once after fork.
#ifndef FARM_BASE_LOG_H
#define FARM_BASE_LOG_H

enum farm_log_level { FARM_LOG_ERROR, FARM_LOG_WARN, FARM_LOG_INFO, FARM_LOG_DEBUG };

// Level and role are process-wide, as stderr is: the only global state of the project. A forked child inherits both.
void farm_log_set_level(enum farm_log_level most); // the default is FARM_LOG_INFO
void farm_log_set_role(const char *role);
// For a library that links its own copy of this file.
enum farm_log_level farm_log_level(void);
const char *farm_log_role(void);
void farm_log(enum farm_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define farm_log_error(...) farm_log(FARM_LOG_ERROR, __VA_ARGS__)
#define farm_log_warn(...)  farm_log(FARM_LOG_WARN, __VA_ARGS__)
#define farm_log_info(...)  farm_log(FARM_LOG_INFO, __VA_ARGS__)
#define farm_log_debug(...) farm_log(FARM_LOG_DEBUG, __VA_ARGS__)

#endif
