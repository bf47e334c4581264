// Small files: read whole into memory with an upper bound, replaced so that a crash at any moment leaves either the old
// contents or the new ones; and the kernel's files, read into the caller's memory. Runs in the supervisor and in tools;
// the kernel's files are read in any process. Not for checkpoints: farm_file_replace holds the file in memory.
#ifndef FARM_BASE_FILE_H
#define FARM_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

// Reports that the file at `path` could not be opened or made, from errno: FARM_E_NOT_FOUND, FARM_E_PERMISSION or, for
// what the path is not to blame for, FARM_E_IO.
enum farm_status farm_file_fail(const char *path, struct farm_error *err);

// Reads the file into *data (malloc'd, the caller frees; a zero byte follows the contents) and its length into *bytes.
// FARM_E_FORMAT: longer than bytes_max, or no regular file; FARM_E_NOT_FOUND, _PERMISSION, _LIMIT (memory), _IO.
enum farm_status farm_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes, struct farm_error *err);

// Files of /proc and /sys are read below a root: a folder with recorded files, or "" (from NULL and "/"): the system's.
const char *farm_file_root(const char *root);

// The start of the file at the formatted path: at most size - 1 bytes, terminated. False, and "": missing or empty.
bool farm_file_text(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
// Its first line, without the newline.
bool farm_file_line(char *line, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
// The number after the first `key`, as in "MemFree:  12 kB"; 0: the key is missing.
uint64_t farm_file_number(const char *text, const char *key);
// Cuts "always [madvise] never" down to the word in brackets. NULL: no word is in brackets.
char *farm_file_choice(char *line);

// Files of lines "KEY<tab>VALUE", to which several processes append. `path` NULL or unreadable: an empty one. The
// newest value of all keys that begin with the first `length` characters of `key`; false: none.
bool farm_file_find_value(const char *path, const char *key, size_t length, char *value, size_t bytes);
// Appends a line. Errors are ignored.
void farm_file_append_value(const char *path, const char *key, const char *value);

// Replaces the file: temporary file beside it (removed on errors), fsync, rename, fsync of the folder. A link is
// replaced, not followed.
enum farm_status farm_file_replace(const char *path, const void *data, size_t bytes, struct farm_error *err);

// Whether farm_file_replace can write there, before the work whose result it will hold: makes the temporary file and
// removes it. FARM_E_USAGE: something is there that is no regular file.
enum farm_status farm_file_try_replace(const char *path, struct farm_error *err);

// Whether only this user can change what `fd` names, a file or a folder (O_PATH suffices). FARM_E_PERMISSION: another
// user owns it, or others can write it; the user's private group (it has the user's name, and no other member) may.
enum farm_status farm_file_check_own(int fd, const char *path, struct farm_error *err);

// For files of a run, which lie in a folder that only this user can change (where a file system decides on owners: a
// folder of the owner that it gives this process's files). Others cannot write what is made. FARM_E_PERMISSION: another
// folder. follow: the folder's name may be a link.
enum farm_status farm_folder_check_own(const char *path, bool follow, struct farm_error *err);
// open(2) of a regular file with one name, of the folder's owner; neither follows a link nor blocks. FARM_E_PERMISSION:
// another file.
enum farm_status farm_file_open_own(const char *path, int flags, int *fd, struct farm_error *err);
// farm_file_replace. lasting: with both fsyncs.
enum farm_status farm_file_replace_own(const char *path, const void *data, size_t bytes, bool lasting,
                                       struct farm_error *err);

// Whether output goes into what is there, instead of replacing it: a device, a fifo, or a link of /dev or /proc.
bool farm_file_is_stream(const char *path);

// Makes this new file, for writing, in place of one that a killed process has left. -1 with errno.
int farm_file_make_temporary(int folder, const char *name, mode_t mode);

// fsync. Returns 0 if it is done or the file system cannot (EINVAL, EOPNOTSUPP, ENOSYS), else -1 with errno.
int farm_file_sync(int fd);

// Makes the names in the folder of `path` durable (fsync of the folder). FARM_E_UNSUPPORTED: the file system cannot, or
// the folder is unreadable; farm_file_replace accepts this.
enum farm_status farm_file_sync_folder(const char *path, struct farm_error *err);

// Makes a folder and its parents, in which only this user can write; FARM_OK if it exists already.
enum farm_status farm_folder_make(const char *path, struct farm_error *err);

#endif
