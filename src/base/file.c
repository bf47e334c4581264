// See file.h.
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum farm_status farm_file_fail(const char *path, struct farm_error *err) {
    enum farm_status status = errno == ENOENT || errno == ENOTDIR                   ? FARM_E_NOT_FOUND
                              : errno == EACCES || errno == EPERM || errno == EROFS ? FARM_E_PERMISSION
                                                                                    : FARM_E_IO;
    return farm_fail_errno(err, status, "%s", path);
}

// Reads until the end or `bytes_max` + 1 bytes; -1 with errno on errors.
static ssize_t read_all(int fd, char *data, size_t capacity) {
    size_t total = 0;
    while (total < capacity) {
        ssize_t n = read(fd, data + total, capacity - total);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        total += (size_t)n;
    }
    return (ssize_t)total;
}

enum farm_status farm_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes,
                                struct farm_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return farm_file_fail(path, err);
    enum farm_status status = FARM_OK;
    struct stat info;
    char *buffer = NULL;
    if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
        status = farm_fail(err, FARM_E_FORMAT, "%s is not a regular file", path);
    } else if ((uintmax_t)info.st_size > bytes_max) {
        status = farm_fail(err, FARM_E_FORMAT, "%s has %jd bytes, more than the maximum of %zu", path,
                           (intmax_t)info.st_size, bytes_max);
    } else if (!(buffer = malloc((size_t)info.st_size + 1))) {
        status = farm_fail_errno(err, FARM_E_LIMIT, "%s", path);
    } else {
        ssize_t n = read_all(fd, buffer, (size_t)info.st_size);
        if (n < 0) {
            status = farm_fail_errno(err, FARM_E_IO, "%s", path);
        } else {
            buffer[n] = 0;
            *data = buffer;
            *bytes = (size_t)n;
            buffer = NULL;
        }
    }
    free(buffer);
    close(fd);
    return status;
}

const char *farm_file_root(const char *root) {
    return root && strcmp(root, "/") != 0 ? root : "";
}

__attribute__((format(printf, 3, 0))) static bool read_start(char *text, size_t size, const char *format,
                                                             va_list args) {
    char path[PATH_MAX];
    text[0] = 0;
    const int length = vsnprintf(path, sizeof path, format, args);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const size_t n = fread(text, 1, size - 1, file);
    text[n] = 0;
    fclose(file);
    return n > 0;
}

bool farm_file_text(char *text, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const bool any = read_start(text, size, format, args);
    va_end(args);
    return any;
}

bool farm_file_line(char *line, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const bool any = read_start(line, size, format, args);
    va_end(args);
    line[strcspn(line, "\n")] = 0;
    return any;
}

uint64_t farm_file_number(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

char *farm_file_choice(char *line) {
    char *open = strchr(line, '[');
    if (open) open[strcspn(open, "]")] = 0;
    return open ? open + 1 : NULL;
}

// As Debian's OpenSSH judges it. A list of access rights may name further users, whatever the mode shows of it.
static bool is_private_group(int fd, const struct stat *info) {
    char link[32];
    const struct group *group = getgrgid(info->st_gid);
    const struct passwd *user = getpwuid(info->st_uid);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (getxattr(link, "system.posix_acl_access", NULL, 0) > 0) return false;
    if (!group || !user) return !group && info->st_gid == info->st_uid && info->st_gid == getegid(); // no such names
    if (strcmp(group->gr_name, user->pw_name) != 0) return false;
    for (char **member = group->gr_mem; *member; member++)
        if (strcmp(*member, user->pw_name) != 0) return false;
    return true;
}

// Whether files that this process makes in the folder get its owner, as a mount option or a server may have it.
static bool makes_owner(int folder, uid_t owner) {
    char name[40];
    struct stat made;
    snprintf(name, sizeof name, ".farm-owner.%ld", (long)getpid());
    const int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    const bool equal = !fstat(fd, &made) && made.st_uid == owner;
    close(fd);
    unlinkat(folder, name, 0);
    return equal;
}

// writer: of files in this folder.
static enum farm_status check_own(int fd, const char *path, bool writer, struct farm_error *err) {
    struct stat info;
    if (fstat(fd, &info)) return farm_file_fail(path, err);
    const char *kind = S_ISDIR(info.st_mode) ? "folder" : "file";
    const bool all = info.st_mode & S_IWOTH, group = info.st_mode & S_IWGRP && !is_private_group(fd, &info);
    if (all && info.st_mode & S_ISVTX && S_ISDIR(info.st_mode))
        return farm_fail(err, FARM_E_PERMISSION, "%s is for every user's files (mode %04o): name a folder in it", path,
                         info.st_mode & 07777);
    if (info.st_uid != geteuid() && !(writer && !all && !group && makes_owner(fd, info.st_uid))) {
        const struct passwd *owner = getpwuid(info.st_uid);
        return farm_fail(err, FARM_E_PERMISSION,
                         "%s belongs to another user (%s, uid %ju; this is uid %ju), who can change it: name another "
                         "%s, or copy it with cp -r",
                         path, owner ? owner->pw_name : "without a name", (uintmax_t)info.st_uid, (uintmax_t)geteuid(),
                         kind);
    }
    if (!group && !all) return FARM_OK;
    return farm_fail(err, FARM_E_PERMISSION, "%s is writable by %s (mode %04o): run chmod go-w %s, or name another %s",
                     path, all ? "every user" : "its group", info.st_mode & 07777, path, kind);
}

enum farm_status farm_file_check_own(int fd, const char *path, struct farm_error *err) {
    return check_own(fd, path, false, err);
}

enum farm_status farm_folder_check_own(const char *path, bool follow, struct farm_error *err) {
    const int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
    if (fd < 0 && errno == ENOTDIR) return farm_fail(err, FARM_E_PERMISSION, "%s is a link, or no folder", path);
    if (fd < 0) return farm_file_fail(path, err);
    const enum farm_status status = check_own(fd, path, true, err);
    close(fd);
    return status;
}

// Opens the folder of `path`; *name is the file's in it.
static enum farm_status open_folder(const char *path, bool own, int *fd, const char **name, struct farm_error *err) {
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    *fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return farm_file_fail(path, err);
    const enum farm_status status = own ? check_own(*fd, folder, true, err) : FARM_OK;
    if (status) close(*fd);
    return status;
}

// What makes the open file another than a plain one of the folder's owner alone. NULL: nothing.
static const char *oddity(int fd, int folder) {
    struct stat info, about;
    if (fd < 0 || fstat(fd, &info) || fstat(folder, &about)) return "a link"; // with ELOOP
    return !S_ISREG(info.st_mode)        ? "not a regular file"
           : info.st_uid != about.st_uid ? "another user's file"
           : info.st_nlink > 1           ? "a file with further names (hard links)"
                                         : NULL;
}

enum farm_status farm_file_open_own(const char *path, int flags, int *fd, struct farm_error *err) {
    int folder;
    const char *name, *odd;
    *fd = -1;
    enum farm_status status = open_folder(path, true, &folder, &name, err);
    if (status) return status;
    *fd = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (*fd < 0 && errno != ELOOP)
        status = farm_file_fail(path, err);
    else if ((odd = oddity(*fd, folder)))
        status = farm_fail(err, FARM_E_PERMISSION, "%s is %s: remove it, or name another folder", path, odd);
    if (status && *fd >= 0) close(*fd), *fd = -1;
    close(folder);
    return status;
}

bool farm_file_is_stream(const char *path) {
    struct stat info;
    if (!stat(path, &info) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return true;
    return !lstat(path, &info) && S_ISLNK(info.st_mode) && strncmp(path, "/dev/shm/", 9) != 0 &&
           (!strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6));
}

static int write_all(int fd, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int farm_file_sync(int fd) {
    return fsync(fd) && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS ? -1 : 0;
}

enum farm_status farm_file_sync_folder(const char *path, struct farm_error *err) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = fd >= 0 && !fsync(fd), refused = errno == EINVAL || errno == EBADF || errno == EOPNOTSUPP ||
                                                         errno == ENOSYS || errno == EACCES || errno == EPERM;
    enum farm_status status = FARM_OK;
    if (!synced)
        status = farm_fail_errno(err, refused ? FARM_E_UNSUPPORTED : FARM_E_IO, "fsync of the folder of %s", path);
    if (fd >= 0) close(fd);
    return status;
}

int farm_file_make_temporary(int folder, const char *name, mode_t mode) {
    unlinkat(folder, name, 0);
    return openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

static enum farm_status name_temporary(const char *path, char temporary[PATH_MAX], struct farm_error *err) {
    const int n = snprintf(temporary, PATH_MAX, "%s.tmp.%ld", path, (long)getpid());
    if (n < 0 || n >= PATH_MAX) return farm_fail(err, FARM_E_INVALID, "%.80s...: path too long", path);
    return FARM_OK;
}

enum farm_status farm_file_try_replace(const char *path, struct farm_error *err) {
    char temporary[PATH_MAX];
    struct stat info;
    enum farm_status status = name_temporary(path, temporary, err);
    if (status) return status;
    if (farm_file_is_stream(path) || (!stat(path, &info) && !S_ISREG(info.st_mode)))
        return farm_fail(err, FARM_E_USAGE, "%s: not a regular file", path);
    const int fd = farm_file_make_temporary(AT_FDCWD, temporary, 0666);
    if (fd < 0) return farm_file_fail(path, err);
    close(fd);
    unlink(temporary);
    return FARM_OK;
}

static enum farm_status replace(const char *path, const void *data, size_t bytes, bool own, bool lasting,
                                struct farm_error *err) {
    char temporary[PATH_MAX];
    const char *name, *slash;
    int folder;
    enum farm_status status = name_temporary(path, temporary, err);
    if (!status) status = open_folder(temporary, own, &folder, &name, err);
    if (status) return status;
    const int fd = farm_file_make_temporary(folder, name, own ? 0644 : 0666);
    if (fd < 0) {
        status = farm_file_fail(temporary, err);
    } else {
        slash = strrchr(path, '/');
        if (write_all(fd, data, bytes) || (lasting && farm_file_sync(fd)))
            status = farm_fail_errno(err, FARM_E_IO, "writing %s", temporary);
        close(fd);
        if (!status && renameat(folder, name, folder, slash ? slash + 1 : path) < 0)
            status = farm_fail_errno(err, FARM_E_IO, "renaming %s to %s", temporary, path);
        if (status) unlinkat(folder, name, 0);
    }
    close(folder);
    if (status || !lasting) return status;
    status = farm_file_sync_folder(path, err);
    return status == FARM_E_UNSUPPORTED ? FARM_OK : status;
}

enum { LINE_MAX_BYTES = 2048 };

bool farm_file_find_value(const char *path, const char *key, size_t length, char *value, size_t bytes) {
    const int fd = path ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1; // a fifo is empty
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    char line[LINE_MAX_BYTES];
    bool found = false;
    if (!file) return false;
    while (fgets(line, sizeof line, file)) {
        const char *tab = strchr(line, '\n') ? strchr(line, '\t') : NULL; // a torn line has no value
        if (tab && strncmp(line, key, length) == 0 && (line + length == tab || line[length] == ','))
            found = snprintf(value, bytes, "%s", tab + 1) > 0;
    }
    fclose(file);
    return found;
}

// One write at the end, so that lines of several processes stay whole. A full disk may have torn the line before.
void farm_file_append_value(const char *path, const char *key, const char *value) {
    int fd;
    const bool ours = path && !farm_file_open_own(path, O_RDWR | O_CREAT | O_APPEND, &fd, NULL);
    FILE *file = ours ? fdopen(fd, "a+") : NULL;
    if (!file) return;
    const bool torn = fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
    fseek(file, 0, SEEK_END);
    fprintf(file, "%s%s\t%s\n", torn ? "\n" : "", key, value);
    fclose(file);
}

enum farm_status farm_file_replace(const char *path, const void *data, size_t bytes, struct farm_error *err) {
    return replace(path, data, bytes, false, true, err);
}

enum farm_status farm_file_replace_own(const char *path, const void *data, size_t bytes, bool lasting,
                                       struct farm_error *err) {
    return replace(path, data, bytes, true, lasting, err);
}

enum farm_status farm_folder_make(const char *path, struct farm_error *err) {
    char part[PATH_MAX];
    int n = snprintf(part, sizeof part, "%s", path);
    if (n <= 0 || (size_t)n >= sizeof part) return farm_fail(err, FARM_E_INVALID, "invalid folder name: '%.80s'", path);
    for (char *at = part + 1;; at++) {
        char ended = *at;
        if (ended && ended != '/') continue;
        *at = 0;
        if (mkdir(part, 0755) < 0 && errno != EEXIST) return farm_file_fail(part, err);
        *at = ended;
        if (!ended) break;
    }
    struct stat info;
    if (stat(path, &info) < 0) return farm_file_fail(path, err);
    if (!S_ISDIR(info.st_mode)) return farm_fail(err, FARM_E_INVALID, "%s exists and is not a folder", path);
    return FARM_OK;
}
