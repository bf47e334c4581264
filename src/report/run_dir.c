// See run_dir.h.
#include "report/run_dir.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

enum { RUNS_A_DAY_MAX = 100000 };

char *farm_run_dir_file(const char *run_path, const char *name, char *file, size_t file_bytes) {
    int n = snprintf(file, file_bytes, "%s/%s", run_path, name);
    assert(n > 0 && (size_t)n < file_bytes);
    return file;
}

// ---- checkpoints ----

static int is_checkpoint(const struct dirent *entry) {
    const size_t digits = strspn(entry->d_name, "0123456789");
    return digits > 0 && strcmp(entry->d_name + digits, ".safetensors") == 0;
}

// By frames, most first: longer numbers are larger ones, equal lengths compare as text.
static int newest_first(const struct dirent **a, const struct dirent **b) {
    size_t la = strlen((*a)->d_name), lb = strlen((*b)->d_name);
    if (la != lb) return la > lb ? -1 : 1;
    return strcmp((*b)->d_name, (*a)->d_name);
}

bool farm_run_dir_checkpoint(const char *run_path, size_t i, char *file, size_t file_bytes) {
    char folder[FARM_RUN_PATH_MAX + 16];
    struct dirent **entries;
    int count = scandir(farm_run_dir_file(run_path, "checkpoints", folder, sizeof folder), &entries, is_checkpoint,
                        newest_first);
    if (count < 0) return false;
    bool found = i < (size_t)count;
    if (found) farm_run_dir_file(folder, entries[i]->d_name, file, file_bytes);
    for (int k = 0; k < count; k++) free(entries[k]);
    free(entries);
    return found;
}

bool farm_run_dir_of_checkpoint(const char *checkpoint, char *run_path, size_t run_path_bytes) {
    static const char folder[] = "/checkpoints";
    const char *name = strrchr(checkpoint, '/');
    const size_t length = name ? (size_t)(name - checkpoint) : 0, ending = sizeof folder - 1;
    if (length <= ending || strncmp(name - ending, folder, ending) != 0 || length - ending >= run_path_bytes)
        return false;
    snprintf(run_path, run_path_bytes, "%.*s", (int)(length - ending), checkpoint);
    return true;
}

// ---- the folder ----

enum farm_status farm_run_dir_make(const char *env, char *path, size_t path_bytes, struct farm_error *err) {
    enum farm_status status = farm_folder_make("runs", err);
    if (status) return status;
    char name[64], date[16];
    snprintf(name, sizeof name, "%s", env);
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '-' && *at != '.') *at = '_';
    time_t now = time(NULL);
    struct tm local;
    strftime(date, sizeof date, "%Y%m%d", localtime_r(&now, &local));
    for (int n = 1; n <= RUNS_A_DAY_MAX; n++) {
        snprintf(path, path_bytes, "runs/%s-%s-%d", name, date, n);
        if (mkdir(path, 0755) == 0) return FARM_OK;
        if (errno != EEXIST) return farm_fail_errno(err, FARM_E_IO, "%s", path);
    }
    return farm_fail(err, FARM_E_BUSY, "runs/ holds %d runs of today: name a folder with --run", RUNS_A_DAY_MAX);
}

static enum farm_status check_path(const char *path, bool resume, struct farm_error *err) {
    struct stat info;
    if (!path[0] || strlen(path) > FARM_RUN_PATH_MAX - 64)
        return farm_fail(err, FARM_E_USAGE, "--run: '%.80s' is empty or too long", path);
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "--run: %s is a file, not a folder", path);
    }
    if (resume) return farm_fail(err, FARM_E_NOT_FOUND, "--resume: there is no folder %s", path);
    return farm_folder_make(path, err);
}

// errno of a lock that was refused: because another process holds it, or else the file system may have no locks.
static bool is_held(int reason) {
    return reason == EAGAIN || reason == EACCES;
}
static bool has_no_locks(int reason) {
    return reason == ENOSYS || reason == ENOLCK || reason == EOPNOTSUPP || reason == EINVAL;
}

// The file holds the owner's pid for the error message only; the kernel keeps the lock itself.
static enum farm_status lock(struct farm_run_dir *dir, struct farm_error *err) {
    char file[FARM_RUN_PATH_MAX + 16], owner[32] = "";
    farm_run_dir_file(dir->path, "lock", file, sizeof file);
    int fd;
    enum farm_status status = farm_file_open_own(file, O_RDWR | O_CREAT, &fd, err);
    if (status) return status;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const int reason = fcntl(fd, F_OFD_SETLK, &whole) < 0 ? errno : 0;
    if (has_no_locks(reason)) {
        farm_log_warn("cannot lock %s (%s): its file system has no locks. Make sure yourself that no other farm works "
                      "in this folder",
                      file, strerror(reason));
    } else if (is_held(reason) && pread(fd, owner, sizeof owner - 1, 0) >= 0) {
        owner[strcspn(owner, "\n")] = 0;
        status = farm_fail(err, FARM_E_BUSY,
                           "another farm (process %s) works in %s: stop it, or choose another folder with --run",
                           owner[0] ? owner : "unknown", dir->path);
    } else if (reason) {
        errno = reason;
        status = farm_fail_errno(err, FARM_E_IO, "cannot lock %s", file);
    }
    int n = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
    if (!status && (ftruncate(fd, 0) < 0 || pwrite(fd, owner, (size_t)n, 0) != n))
        status = farm_fail_errno(err, FARM_E_IO, "%s", file);
    if (status)
        close(fd);
    else
        dir->lock_fd = fd;
    return status;
}

enum farm_status farm_run_dir_open(const char *path, const char *env, bool resume, struct farm_run_dir *out,
                                   struct farm_error *err) {
    *out = (struct farm_run_dir){.lock_fd = -1};
    if (!path && resume) return farm_fail(err, FARM_E_USAGE, "--resume needs --run DIR: which run shall go on?");
    enum farm_status status =
        path ? check_path(path, resume, err) : farm_run_dir_make(env, out->path, sizeof out->path, err);
    if (status) return status;
    if (path) snprintf(out->path, sizeof out->path, "%s", path);
    if ((status = farm_folder_check_own(out->path, true, err)) || (status = lock(out, err))) return status;

    char file[FARM_RUN_PATH_MAX + 64];
    if (!resume && farm_run_dir_checkpoint(out->path, 0, file, sizeof file))
        status = farm_fail(err, FARM_E_USAGE,
                           "%s holds a run already (%s): add --resume to go on with it, or choose another folder",
                           out->path, strrchr(file, '/') + 1);
    if (!status) status = farm_folder_make(farm_run_dir_file(out->path, "checkpoints", file, sizeof file), err);
    if (!status) status = farm_folder_check_own(file, false, err);
    struct farm_error note;
    if (!status && farm_file_sync_folder(file, &note) == FARM_E_UNSUPPORTED)
        farm_log_warn("%s: a power cut may lose the newest files of this run", note.message);
    if (status) farm_run_dir_close(out);
    return status;
}

void farm_run_dir_close(struct farm_run_dir *dir) {
    if (dir->lock_fd >= 0) close(dir->lock_fd);
    dir->lock_fd = -1;
}
