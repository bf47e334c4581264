// See sink.h.
#include "report/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

typedef void print_function(FILE *out, const struct farm_sample *sample);

static void print_json(FILE *out, const struct farm_sample *sample) {
    json_t *object = farm_sample_json(sample);
    size_t bytes;
    char *line = farm_json_line(object, &bytes);
    fwrite(line, 1, bytes, out);
    free(line);
    json_decref(object);
}

const struct farm_sink_format farm_sink_jsonl = {.name = "metrics.jsonl", .record = print_json};

static enum farm_status fail(const struct farm_sink *sink, struct farm_error *err) {
    return farm_fail_errno(err, FARM_E_IO, "%s", sink->file.path);
}

// What `print` prints (malloc'd, the caller frees).
static enum farm_status print_sample(const struct farm_sink *sink, print_function *print,
                                     const struct farm_sample *sample, char **text, size_t *bytes,
                                     struct farm_error *err) {
    FILE *out = open_memstream(text, bytes);
    if (!out) return fail(sink, err);
    print(out, sample);
    const bool incomplete = ferror(out);
    if (!fclose(out) && !incomplete) return FARM_OK;
    free(*text);
    return farm_fail(err, FARM_E_LIMIT, "%s: no memory for a sample", sink->file.path);
}

// ---- whole records ----

static off_t length_of_lines(int fd) {
    off_t end = lseek(fd, 0, SEEK_END);
    while (end > 0) {
        char block[4096];
        size_t want = end < (off_t)sizeof block ? (size_t)end : sizeof block;
        ssize_t n = pread(fd, block, want, end - (off_t)want);
        if (n != (ssize_t)want) return -1;
        for (size_t i = want; i > 0; i--)
            if (block[i - 1] == '\n') return end - (off_t)(want - i);
        end -= (off_t)want;
    }
    return end;
}

off_t farm_appended_keep(struct farm_appended *file, bool resume) {
    const off_t keep = resume ? length_of_lines(file->fd) : 0;
    return keep < 0 || ftruncate(file->fd, keep) < 0 ? -1 : keep;
}

// Returns 0, or errno; a part of the record may then be in the file.
static int write_whole(int fd, const char *record, size_t bytes) {
    while (bytes) {
        const ssize_t n = write(fd, record, bytes);
        if (n < 0 && errno != EINTR) return errno;
        if (n < 0) continue;
        record += n;
        bytes -= (size_t)n;
    }
    return 0;
}

// Returns 0 if the file ends with a whole record, or errno. Another process may have emptied it to make room.
static int cut_torn(struct farm_appended *file) {
    struct stat info;
    if (fstat(file->fd, &info)) return errno;
    if (!file->losing) file->whole = info.st_size;
    return info.st_size > file->whole && ftruncate(file->fd, file->whole) ? errno : 0;
}

bool farm_appended_write(struct farm_appended *file, const char *record, size_t bytes, struct farm_error *note) {
    const bool before = file->losing;
    int why = cut_torn(file);
    if (!why) why = write_whole(file->fd, record, bytes);
    file->losing = why;
    *(why ? &file->missing : &file->written) += 1;
    if (why) {
        file->why = why;
        (void)cut_torn(file); // refused now, it is tried again
    }
    if (file->losing == before) return false;
    if (why)
        farm_fail(note, FARM_E_IO, "%s: %s: its records are lost from now on; each new one is tried", file->path,
                  strerror(why));
    else
        farm_fail(note, FARM_E_IO, "%s goes on; it lacks %llu records of this session", file->path,
                  (unsigned long long)file->missing);
    return true;
}

// ---- lines of metrics ----

// Bytes of the file's first lines that have at most `frames`; -1: unreadable. *wall_s: of the last such line, or 0.
static off_t find_lines(const char *path, uint64_t frames, double *wall_s) {
    int fd;
    FILE *file = farm_file_open_own(path, O_RDONLY, &fd, NULL) ? NULL : fdopen(fd, "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    off_t keep = 0;
    *wall_s = 0;
    if (!file) return -1;
    while ((length = getline(&line, &capacity, file)) > 0) {
        json_t *object = farm_json_parse(line, (size_t)length, path, NULL);
        const json_t *at = json_object_get(object, "frames");
        const bool kept = at && (uint64_t)json_integer_value(at) <= frames;
        if (kept) *wall_s = json_number_value(json_object_get(object, "wall_s"));
        json_decref(object);
        if (!kept) break;
        keep += length;
    }
    free(line);
    fclose(file);
    return keep;
}

double farm_sink_wall_s(const char *path, uint64_t frames) {
    double wall_s;
    (void)find_lines(path, frames, &wall_s);
    return wall_s;
}

void farm_sink_cut(const char *path, uint64_t frames) {
    double wall_s;
    int fd;
    const off_t keep = find_lines(path, frames, &wall_s);
    if (keep < 0 || farm_file_open_own(path, O_WRONLY, &fd, NULL)) return;
    if (ftruncate(fd, keep)) farm_log_warn("%s cannot be shortened: %s", path, strerror(errno));
    close(fd);
}

// ---- a format's file ----

// Compares the file's first line with ours.
static enum farm_status check_head(const struct farm_sink *sink, const char *head, size_t bytes,
                                   struct farm_error *err) {
    char *then = malloc(bytes);
    if (!then) return fail(sink, err);
    const ssize_t n = pread(sink->file.fd, then, bytes, 0);
    const bool equal = n == (ssize_t)bytes && memcmp(then, head, bytes) == 0;
    free(then);
    if (n < 0) return fail(sink, err);
    if (equal) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE,
                     "--resume: %s has other columns than this run, as after another algorithm or version. Move the "
                     "file away, or leave it out with --no-csv",
                     sink->file.path);
}

// Leaves the file with its head and, for --resume, its whole lines.
static enum farm_status begin(struct farm_sink *sink, bool resume, const struct farm_sample *first,
                              struct farm_error *err) {
    const off_t keep = farm_appended_keep(&sink->file, resume);
    char *head;
    size_t bytes;
    if (keep < 0) return fail(sink, err);
    if (!sink->format->head) return FARM_OK;
    enum farm_status status = print_sample(sink, sink->format->head, first, &head, &bytes, err);
    if (status) return status;
    if (keep)
        status = check_head(sink, head, bytes, err);
    else if ((errno = write_whole(sink->file.fd, head, bytes)))
        status = fail(sink, err);
    free(head);
    return status;
}

static void name_file(const struct farm_sink_format *format, const char *folder, char *path, size_t path_bytes) {
    char host[65] = "localhost";
    struct timespec now;
    if (!format->each_session) {
        snprintf(path, path_bytes, "%s/%s", folder, format->name);
        return;
    }
    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(path, path_bytes, "%s/%s.%010lld.%s.%d.%ld", folder, format->name, (long long)now.tv_sec, host,
             (int)getpid(), now.tv_nsec);
}

enum farm_status farm_sink_open(const struct farm_sink_format *format, const char *folder, bool resume,
                                const struct farm_sample *first, struct farm_sink *out, struct farm_error *err) {
    struct farm_appended *file = &out->file;
    *out = (struct farm_sink){.format = format};
    name_file(format, folder, file->path, sizeof file->path);
    const int flags = O_RDWR | O_CREAT | O_APPEND | (format->each_session ? O_EXCL : 0);
    enum farm_status status = farm_file_open_own(file->path, flags, &file->fd, err);
    if (status) return status;
    status = begin(out, resume, first, err);
    if (status) farm_sink_close(out);
    return status;
}

bool farm_sink_write(struct farm_sink *sink, const struct farm_sample *sample, struct farm_error *note) {
    char *text;
    size_t bytes;
    if (print_sample(sink, sink->format->record, sample, &text, &bytes, note)) {
        sink->file.missing++;
        sink->file.why = ENOMEM;
        return true;
    }
    const bool noted = farm_appended_write(&sink->file, text, bytes, note);
    free(text);
    return noted;
}

void farm_sink_close(struct farm_sink *sink) {
    if (sink->file.fd >= 0) close(sink->file.fd);
    sink->file.fd = -1;
}
