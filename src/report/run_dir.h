// A run's folder: recipe.yaml (the effective recipe), the samples' files (sink.h), checkpoints/ and a lock that
// admits one farm at a time. Runs in the supervisor and in tools. The lock is an open file description lock: the kernel
// releases it when the process ends in any way. Lists checkpoints, but does not read them.
#ifndef FARM_REPORT_RUN_DIR_H
#define FARM_REPORT_RUN_DIR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { FARM_RUN_PATH_MAX = 1024 };

struct farm_run_dir {
    char path[FARM_RUN_PATH_MAX]; // as given, or runs/<env>-<date>-<n>
    int lock_fd;                  // -1: not locked
};

// Makes (resume: finds) the folder and locks it. `path` NULL: a new runs/<env>-<date>-<n> below the working directory.
// Errors: FARM_E_BUSY another farm uses it (its pid is named); FARM_E_NOT_FOUND resume without a folder; FARM_E_USAGE
// resume without a path, path not a folder, or the folder holds a run with checkpoints and resume is false;
// FARM_E_PERMISSION, for a folder that others can change too (base/file.h); FARM_E_IO. On errors an existing folder is
// left untouched.
enum farm_status farm_run_dir_open(const char *path, const char *env, bool resume, struct farm_run_dir *out,
                                   struct farm_error *err);

// Makes a new folder runs/<env>-<date>-<n> below the working directory, and names it.
enum farm_status farm_run_dir_make(const char *env, char *path, size_t path_bytes, struct farm_error *err);

// Unlocks; the folder stays. Safe on a zeroed-and-closed one (lock_fd -1).
void farm_run_dir_close(struct farm_run_dir *dir);

// "PATH/name" into file; returns file. The name must fit.
char *farm_run_dir_file(const char *run_path, const char *name, char *file, size_t file_bytes);

// Name of the i-th newest checkpoint of a run (0: most frames) into file, as a path. False: there is none.
bool farm_run_dir_checkpoint(const char *run_path, size_t i, char *file, size_t file_bytes);

// The run of a checkpoint, RUN/checkpoints/NAME, by its path alone. False: another form, or RUN does not fit.
bool farm_run_dir_of_checkpoint(const char *checkpoint, char *run_path, size_t run_path_bytes);

#endif
