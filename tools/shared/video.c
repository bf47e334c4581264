// See video.h.
#include "tools/shared/video.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/program.h"
#include "tools/shared/drawing.h"

enum { PIPE_BYTES = 1 << 20, GAMES_MAX = 1000, RATE_HZ_MAX = 240 };
enum { FILM_FD = 3 }; // the encoder's: the new file, whatever its name becomes meanwhile
static const char FILM[] = "/proc/self/fd/3";
static const double SECONDS_MAX = 24 * 3600;

// "mp4", "gif" or NULL.
static const char *kind_of(const char *path) {
    const size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".mp4") == 0) return "mp4";
    return length > 4 && strcmp(path + length - 4, ".gif") == 0 ? "gif" : NULL;
}

enum farm_status farm_video_check(const struct farm_video_options *options, struct farm_error *err) {
    if (!kind_of(options->path) || strlen(options->path) > PATH_MAX - 8)
        return farm_fail(err, FARM_E_USAGE, "--video: FILE must end in .mp4 or .gif (got %.200s)",
                         farm_format_word(options->path).text);
    if (options->games < 1 || options->games > GAMES_MAX)
        return farm_fail(err, FARM_E_USAGE, "--video-episodes: between 1 and %d", GAMES_MAX);
    if (!(options->seconds > 0 && options->seconds <= SECONDS_MAX))
        return farm_fail(err, FARM_E_USAGE, "--video-seconds: above 0, at most %g", SECONDS_MAX);
    if (options->rate_hz < 0 || options->rate_hz > RATE_HZ_MAX)
        return farm_fail(err, FARM_E_USAGE, "--video-fps: between 1 and %d, or 0: the environment's", RATE_HZ_MAX);
    return FARM_OK;
}

// In a process group of its own: Ctrl-C ends the game, and the encoder completes its file.
static int spawn(struct farm_video *video, char *const *argv, char *const *environment, int input, int film) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t nothing, pipe_signal;
    sigemptyset(&nothing);
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &nothing);
    posix_spawnattr_setsigdefault(&attributes, &pipe_signal);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, video->output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, video->errors, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&files, film, FILM_FD);
    const int failed = posix_spawn(&video->pid, argv[0], &files, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

static void close_all(struct farm_video *video) {
    const int fds[] = {video->pipe, video->output, video->errors};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    video->pipe = video->output = video->errors = -1;
}

enum farm_status farm_video_start(const struct farm_video_options *options, struct farm_video *video,
                                  struct farm_error *err) {
    struct farm_drawing found;
    char games[24], seconds[32], rate[24];
    *video = (struct farm_video){.options = options, .pipe = -1, .output = -1, .errors = -1};
    snprintf(video->part, sizeof video->part, "%s.part", options->path);
    enum farm_status status = farm_drawing_find("imageio-ffmpeg and pillow", &found, err);
    if (status) return farm_fail_in(err, status, "--video");
    const int file = farm_file_make_temporary(AT_FDCWD, video->part, 0666);
    if (file < 0) free(found.environment);
    if (file < 0) return farm_fail_errno(err, FARM_E_IO, "--video: %s", video->part);
    snprintf(games, sizeof games, "%lld", (long long)options->games);
    snprintf(seconds, sizeof seconds, "%.9g", options->seconds);
    snprintf(rate, sizeof rate, "%lld", (long long)options->rate_hz);
    char *const argv[] = {
        found.python, found.start, (char *)"video.py", (char *)FILM, (char *)kind_of(options->path), games, seconds,
        rate,         NULL};
    int ends[2];
    video->output = memfd_create("video", MFD_CLOEXEC);
    video->errors = memfd_create("errors", MFD_CLOEXEC);
    if (video->output < 0 || video->errors < 0 || pipe2(ends, O_CLOEXEC)) {
        status = farm_fail_errno(err, FARM_E_LIMIT, "--video: cannot run %s", found.python);
        free(found.environment);
        close(file);
        close_all(video);
        unlink(video->part);
        return status;
    }
    video->pipe = ends[1];
    (void)fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES); // pictures of Atari have 100 KB
    const int failed = spawn(video, argv, found.environment, ends[0], file);
    free(found.environment);
    close(ends[0]);
    close(file);
    if (!failed) return FARM_OK;
    close_all(video);
    unlink(video->part);
    return farm_fail(err, FARM_E_NOT_FOUND, "--video: cannot start %s: %s", found.python, strerror(failed));
}

bool farm_video_ended(const struct farm_video *video) {
    struct pollfd pipe = {.fd = video->pipe, .events = 0};
    return poll(&pipe, 1, 0) > 0 && pipe.revents & POLLERR; // there is no reader
}

// What the encoder printed.
static enum farm_status read_result(const struct farm_video *video, int ended, json_t **result,
                                    struct farm_error *err) {
    char text[1024];
    farm_program_last_line(WIFEXITED(ended) && !WEXITSTATUS(ended) ? video->output : video->errors, text, sizeof text);
    if (WIFSIGNALED(ended))
        return farm_fail(err, FARM_E_IO, "no %s: the encoder died of signal %d (%s)", video->options->path,
                         WTERMSIG(ended), strsignal(WTERMSIG(ended)));
    if (WEXITSTATUS(ended))
        return farm_fail(err, FARM_E_IO, "no %s: %s", video->options->path, text[0] ? text : "the encoder failed");
    *result = farm_json_parse(text, strlen(text), "video.py", err);
    if (!*result) return err->status;
    if (rename(video->part, video->options->path)) {
        json_decref(*result);
        *result = NULL;
        return farm_fail_errno(err, FARM_E_IO, "no %s", video->options->path);
    }
    farm_json_set_text(*result, "path", video->options->path);
    return FARM_OK;
}

// Waits for the encoder, which a signal that ends this process ends too: true.
static bool collect(pid_t pid, int *ended) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    const struct timespec turn = {.tv_nsec = 100000000}; // if SIGCHLD is ignored
    sigset_t signals, before;
    bool stopped = false;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&signals, numbers[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    while (waitpid(pid, ended, WNOHANG) == 0) {
        const int number = sigtimedwait(&signals, NULL, &turn);
        if (number < 0 || number == SIGCHLD) continue;
        stopped = true;
        kill(-pid, SIGKILL); // and ffmpeg; it leads its group
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return stopped;
}

enum farm_status farm_video_finish(struct farm_video *video, json_t **result, struct farm_error *err) {
    int ended = 1 << 8; // as after exit(1), if the supervisor has already reaped it
    *result = NULL;
    if (video->pipe < 0) return farm_fail(err, FARM_E_IO, "no %s: the encoder was not started", video->options->path);
    close(video->pipe);
    video->pipe = -1;
    const enum farm_status status =
        collect(video->pid, &ended)
            ? farm_fail(err, FARM_E_INTERRUPTED, "no %s: a signal stopped the encoder", video->options->path)
            : read_result(video, ended, result, err);
    if (status) unlink(video->part);
    close_all(video);
    return status;
}
