// The encoder of `farm eval --video`: a Python program (python/actorfarm/video.py) that reads an actor's film from a
// pipe and writes a file. Runs in the supervisor, which starts the encoder before the run and collects it later.
#ifndef FARM_TOOLS_SHARED_VIDEO_H
#define FARM_TOOLS_SHARED_VIDEO_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct farm_video_options {
    const char *path; // ends in .mp4 or .gif
    int64_t games;    // whole games
    double seconds;   // played time, at most
    int64_t rate_hz;  // pictures a second; 0: the environment's
};

struct farm_video {
    const struct farm_video_options *options;
    pid_t pid;
    int pipe;   // for the actor; -1: not started
    int output; // the encoder's stdout and stderr: memfds
    int errors;
    char part[4096]; // PATH.part until the film is complete
};

// FARM_E_USAGE: an option that cannot be.
enum farm_status farm_video_check(const struct farm_video_options *options, struct farm_error *err);

// Starts the encoder. FARM_E_NOT_FOUND: no Python environment; FARM_E_IO: the file cannot be written; FARM_E_LIMIT.
enum farm_status farm_video_start(const struct farm_video_options *options, struct farm_video *video,
                                  struct farm_error *err);

// Whether the encoder reads no more: it has all games, or has failed.
bool farm_video_ended(const struct farm_video *video);

// Closes the pipe, waits for the encoder and renames its file. *result: {"path", "frames", "seconds", "games"}; the
// caller owns it. FARM_E_IO with the encoder's reason; FARM_E_INTERRUPTED: SIGINT, SIGTERM or SIGHUP stopped it,
// blocked or not; nothing is left of the file then. Safe if it was not started (FARM_E_IO too).
enum farm_status farm_video_finish(struct farm_video *video, json_t **result, struct farm_error *err);

#endif
