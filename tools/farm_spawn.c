// See farm_spawn.h.
#include "farm_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "report/json.h"

enum { ANSWER_BYTES_MAX = 1 << 20, WORDS_MAX = 32, LOOK_MS = 100, END_S = 10 };

struct asker {
    pid_t pid;
    bool (*stop)(void *context);
    void *context;
    bool told; // it was asked to end
};

// Reads fd to its end into text (a zero behind it). FARM_E_DEAD where that takes longer than the time limit.
static enum farm_status read_all(int fd, struct asker *asker, char *text, size_t bytes, double limit_s,
                                 struct farm_error *err) {
    const uint64_t deadline_ns = farm_now_ns() + (uint64_t)(limit_s * 1e9);
    size_t length = 0;
    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (farm_now_ns() >= deadline_ns) return farm_fail(err, FARM_E_DEAD, "no answer within %.0f s", limit_s);
        if (!asker->told && asker->stop && asker->stop(asker->context)) {
            kill(asker->pid, SIGTERM);
            asker->told = true;
        }
        const int ready = poll(&readable, 1, LOOK_MS);
        if (ready < 0 && errno != EINTR) return farm_fail_errno(err, FARM_E_IO, "waiting for its answer");
        if (ready <= 0) continue;
        if (length == bytes - 1) return farm_fail(err, FARM_E_FORMAT, "an answer of more than %zu bytes", bytes);
        const ssize_t n = read(fd, text + length, bytes - 1 - length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return farm_fail_errno(err, FARM_E_IO, "reading its answer");
        if (n == 0) break;
        length += (size_t)n;
    }
    text[length] = 0;
    return FARM_OK;
}

// The last line that says anything of what was written into the file.
static void last_line(int fd, char *line, size_t bytes) {
    char text[4096];
    const off_t end = lseek(fd, 0, SEEK_END), from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t length = pread(fd, text, sizeof text - 1, from);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
    text[length > 0 ? length : 0] = 0;
    const char *newline = strrchr(text, '\n');
    snprintf(line, bytes, "%.*s", (int)bytes - 1, newline ? newline + 1 : text);
}

static int start(const char *const *words, int output_fd, int error_fd, pid_t *pid) {
    char program[] = "/proc/self/exe", farm[] = "farm";
    char *argv[WORDS_MAX + 2] = {farm};
    for (int i = 0; i < WORDS_MAX && words[i]; i++) argv[i + 1] = (char *)words[i]; // posix_spawn leaves them alone
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, error_fd, STDERR_FILENO);
    const int failed = posix_spawn(pid, program, &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

// Asks it to end, which lets it end its workers, and makes it where it does not. Leaves it to be waited for.
static void end(pid_t pid) {
    const uint64_t deadline_ns = farm_now_ns() + (uint64_t)END_S * 1000000000u;
    siginfo_t state;
    kill(pid, SIGTERM);
    do {
        state.si_pid = 0;
        if (waitid(P_PID, (id_t)pid, &state, WEXITED | WNOHANG | WNOWAIT) == 0 && state.si_pid == pid) return;
        poll(NULL, 0, LOOK_MS);
    } while (farm_now_ns() < deadline_ns);
    kill(pid, SIGKILL);
}

// Waits for the program's end and says what was wrong with it.
static enum farm_status collect(pid_t pid, const char *word, enum farm_status answered, int error_fd,
                                struct farm_error *err) {
    int ended = 0;
    char said[512], name[64];
    if (answered) end(pid);
    while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) continue;
    last_line(error_fd, said, sizeof said);
    if (answered) return answered;
    if (WIFSIGNALED(ended)) return farm_fail(err, FARM_E_DEAD, "it died of %s", strsignal(WTERMSIG(ended)));
    if (WEXITSTATUS(ended) == 0) return FARM_OK;
    const int length = snprintf(name, sizeof name, "farm %s: ", word);
    const char *why = strncmp(said, name, (size_t)length) == 0 ? said + length : said;
    return farm_fail(err, FARM_E_NOT_FOUND, "%s", why[0] ? why : "it gave no reason");
}

enum farm_status farm_spawn_document(const char *const *words, double limit_s, bool (*stop)(void *context),
                                     void *context, json_t **document, struct farm_error *err) {
    int output[2] = {-1, -1}, errors = memfd_create("farm-spawn", MFD_CLOEXEC);
    char *text = malloc(ANSWER_BYTES_MAX), where[64];
    struct asker asker = {.stop = stop, .context = context};
    enum farm_status status = FARM_OK;
    if (!text || errors < 0 || pipe2(output, O_CLOEXEC)) status = farm_fail_errno(err, FARM_E_LIMIT, "farm");
    if (!status) {
        const int failed = start(words, output[1], errors, &asker.pid);
        close(output[1]);
        if (failed) {
            errno = failed;
            status = farm_fail_errno(err, FARM_E_LIMIT, "starting farm %s", words[0]);
        } else {
            status = read_all(output[0], &asker, text, ANSWER_BYTES_MAX, limit_s, err);
            status = collect(asker.pid, words[0], status, errors, err);
        }
        close(output[0]);
    }
    if (!status) {
        snprintf(where, sizeof where, "farm %s", words[0]);
        *document = farm_json_parse(text, strlen(text), where, err);
        status = *document ? FARM_OK : err->status;
    }
    if (errors >= 0) close(errors);
    free(text);
    return status;
}
