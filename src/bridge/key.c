// See key.h.
#include "bridge/key.h"

#include "base/file.h"
#include "base/format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char PREFIX[] = "actorfarm-key-1 ", DIGITS[] = "0123456789abcdef";
enum { PREFIX_BYTES = sizeof PREFIX - 1, LINE_BYTES = PREFIX_BYTES + 2 * FARM_KEY_BYTES };

static bool write_line(int fd) {
    struct farm_key key = {0};
    char line[LINE_BYTES + 1];
    memcpy(line, PREFIX, PREFIX_BYTES);
    bool ok = getrandom(key.bytes, sizeof key.bytes, 0) == sizeof key.bytes;
    for (size_t i = 0; i < sizeof key.bytes; i++) {
        line[PREFIX_BYTES + 2 * i] = DIGITS[key.bytes[i] >> 4];
        line[PREFIX_BYTES + 2 * i + 1] = DIGITS[key.bytes[i] & 15];
    }
    line[LINE_BYTES] = '\n';
    const ssize_t n = ok ? write(fd, line, sizeof line) : 0;
    if (n >= 0 && n < (ssize_t)sizeof line && ok) errno = ENOSPC;
    ok = ok && n == (ssize_t)sizeof line && farm_file_sync(fd) == 0;
    explicit_bzero(line, sizeof line);
    explicit_bzero(&key, sizeof key);
    return ok;
}

enum farm_status farm_key_make(const char *path, struct farm_error *err) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        return farm_fail(err, FARM_E_USAGE, "key file %s exists; remove it first if no run uses it", path);
    if (fd < 0) return farm_fail_in(err, farm_file_fail(path, err), "cannot make the key file");
    enum farm_status status = FARM_OK;
    if (!write_line(fd)) status = farm_fail_errno(err, FARM_E_IO, "cannot write the key file %s", path);
    close(fd);
    if (status) unlink(path);
    return status;
}

static enum farm_status check_owner(int fd, const char *path, struct farm_error *err) {
    struct stat info;
    if (fstat(fd, &info) < 0) return farm_fail_errno(err, FARM_E_IO, "key file %s", path);
    if (!S_ISREG(info.st_mode)) return farm_fail(err, FARM_E_FORMAT, "key file %s is not a regular file", path);
    if (info.st_uid != geteuid())
        return farm_fail(err, FARM_E_PERMISSION,
                         "key file %s belongs to user %u, but user %u runs this: copy it, then chmod 600 the copy",
                         path, (unsigned)info.st_uid, (unsigned)geteuid());
    if (info.st_mode & 077)
        return farm_fail(err, FARM_E_PERMISSION, "key file %s is open to other users (mode %03o): chmod 600 %s", path,
                         (unsigned)info.st_mode & 0777, farm_format_word(path).text);
    return FARM_OK;
}

static bool parse_line(const char *line, size_t bytes, struct farm_key *key) {
    if (bytes == LINE_BYTES + 1 && line[LINE_BYTES] == '\n') bytes--;
    if (bytes != LINE_BYTES || memcmp(line, PREFIX, PREFIX_BYTES) != 0) return false;
    memset(key, 0, sizeof *key);
    for (size_t i = 0; i < 2 * sizeof key->bytes; i++) {
        const char digit = line[PREFIX_BYTES + i];
        const char *found = digit ? strchr(DIGITS, digit >= 'A' && digit <= 'F' ? digit - 'A' + 'a' : digit) : NULL;
        if (!found) return false;
        key->bytes[i / 2] = (uint8_t)(key->bytes[i / 2] << 4 | (found - DIGITS));
    }
    return true;
}

enum farm_status farm_key_load(const char *path, struct farm_key *key, struct farm_error *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return farm_fail_errno(err,
                               errno == ENOENT || errno == ENOTDIR ? FARM_E_NOT_FOUND
                               : errno == EACCES || errno == EPERM ? FARM_E_PERMISSION
                                                                   : FARM_E_IO,
                               "cannot read the key file %s (farm bridge keygen makes one)", path);
    char line[LINE_BYTES + 2];
    enum farm_status status = check_owner(fd, path, err);
    const ssize_t n = status ? 0 : read(fd, line, sizeof line);
    if (!status && n < 0) status = farm_fail_errno(err, FARM_E_IO, "cannot read the key file %s", path);
    if (!status && !parse_line(line, (size_t)n, key))
        status =
            farm_fail(err, FARM_E_FORMAT, "%s is not a key file: expected one line, \"%s\" and %d hexadecimal digits",
                      path, PREFIX, 2 * FARM_KEY_BYTES);
    if (status) explicit_bzero(key, sizeof *key);
    explicit_bzero(line, sizeof line);
    close(fd);
    return status;
}
