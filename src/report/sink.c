// See sink.h.
#include "report/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    return farm_fail_errno(err, FARM_E_IO, "%s", sink->path);
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
    return farm_fail(err, FARM_E_LIMIT, "%s: no memory for a sample", sink->path);
}

static enum farm_status append(const struct farm_sink *sink, const char *text, size_t bytes, struct farm_error *err) {
    const ssize_t n = write(sink->fd, text, bytes);
    if (n < 0) return fail(sink, err);
    if ((size_t)n == bytes) return FARM_OK;
    return farm_fail(err, FARM_E_IO, "%s: only a part of a sample was written (disk full?)", sink->path);
}

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

off_t farm_lines_keep(int fd, bool resume) {
    const off_t keep = resume ? length_of_lines(fd) : 0;
    return keep < 0 || ftruncate(fd, keep) < 0 ? -1 : keep;
}

// Bytes of the file's first lines that have at most `frames`; -1: unreadable. *wall_s: of the last such line, or 0.
static off_t find_lines(const char *path, uint64_t frames, double *wall_s) {
    FILE *file = fopen(path, "re");
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
    const off_t keep = find_lines(path, frames, &wall_s);
    if (keep >= 0 && truncate(path, keep)) farm_log_warn("%s cannot be shortened: %s", path, strerror(errno));
}

// Compares the file's first line with ours.
static enum farm_status check_head(const struct farm_sink *sink, const char *head, size_t bytes,
                                   struct farm_error *err) {
    char *then = malloc(bytes);
    if (!then) return fail(sink, err);
    const ssize_t n = pread(sink->fd, then, bytes, 0);
    const bool equal = n == (ssize_t)bytes && memcmp(then, head, bytes) == 0;
    free(then);
    if (n < 0) return fail(sink, err);
    if (equal) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE,
                     "--resume: %s has other columns than this run, as after another algorithm or version. Move the "
                     "file away, or leave it out with --no-csv",
                     sink->path);
}

// Leaves the file with its head and, for --resume, its whole lines.
static enum farm_status begin(const struct farm_sink *sink, bool resume, const struct farm_sample *first,
                              struct farm_error *err) {
    const off_t keep = farm_lines_keep(sink->fd, resume);
    char *head;
    size_t bytes;
    if (keep < 0) return fail(sink, err);
    if (!sink->format->head) return FARM_OK;
    enum farm_status status = print_sample(sink, sink->format->head, first, &head, &bytes, err);
    if (status) return status;
    status = keep ? check_head(sink, head, bytes, err) : append(sink, head, bytes, err);
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
    *out = (struct farm_sink){.format = format};
    name_file(format, folder, out->path, sizeof out->path);
    out->fd = open(out->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (format->each_session ? O_EXCL : 0), 0666);
    if (out->fd < 0) return fail(out, err);
    enum farm_status status = begin(out, resume, first, err);
    if (status) farm_sink_close(out);
    return status;
}

enum farm_status farm_sink_write(struct farm_sink *sink, const struct farm_sample *sample, struct farm_error *err) {
    char *text;
    size_t bytes;
    enum farm_status status = print_sample(sink, sink->format->record, sample, &text, &bytes, err);
    if (status) return status;
    status = append(sink, text, bytes, err);
    free(text);
    return status;
}

void farm_sink_close(struct farm_sink *sink) {
    if (sink->fd >= 0) close(sink->fd);
    sink->fd = -1;
}
