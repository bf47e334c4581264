// A step over two byte streams, one a direction: what pipe and Unix socket share.
#ifndef STREAM_H
#define STREAM_H

#include <fcntl.h>

#include "work.h"

struct stream {
    int in, out;
    size_t got; // bytes of the observation that have come
    uint8_t obs[WORK_OBS_BYTES];
};

// One side's end. A spinning side asks without waiting.
static inline void *stream_open(const struct work *work, int in, int out) {
    struct stream *stream = (struct stream *)calloc(1, sizeof *stream);
    work_need(stream != NULL, "memory");
    stream->in = in;
    stream->out = out;
    if (work->spin) work_need(!fcntl(in, F_SETFL, O_NONBLOCK) && !fcntl(out, F_SETFL, O_NONBLOCK), "O_NONBLOCK");
    return stream;
}

// Read into `to`; 0: nothing there yet.
static inline size_t stream_read(const struct stream *stream, void *to, size_t bytes) {
    const ssize_t got = read(stream->in, to, bytes);
    work_need(got > 0 || (got < 0 && errno == EAGAIN), "read");
    return got > 0 ? (size_t)got : 0;
}

static inline void stream_write(const struct stream *stream, const void *from, size_t bytes) {
    for (size_t put = 0; put < bytes;) {
        const ssize_t more = write(stream->out, (const char *)from + put, bytes - put);
        work_need(more > 0 || errno == EAGAIN, "write");
        if (more > 0) put += (size_t)more;
    }
}

static inline void *stream_loan(void *self) {
    return ((struct stream *)self)->obs;
}
static inline void stream_send(void *self, void *obs) {
    stream_write((struct stream *)self, obs, WORK_OBS_BYTES);
}
// Four bytes are written and read whole.
static inline bool stream_answered(void *self, int32_t *action) {
    return stream_read((struct stream *)self, action, sizeof *action) == sizeof *action;
}
static inline const void *stream_arrived(void *self) {
    struct stream *stream = (struct stream *)self;
    stream->got += stream_read(stream, stream->obs + stream->got, WORK_OBS_BYTES - stream->got);
    if (stream->got < WORK_OBS_BYTES) return NULL;
    stream->got = 0;
    return stream->obs;
}
static inline void stream_answer(void *self, const void *obs, int32_t action) {
    (void)obs;
    stream_write((struct stream *)self, &action, sizeof action);
}

// The program of a transport that differs in how it begins alone.
static inline int stream_main(const char *name, void (*prepare)(const struct work *),
                              void *(*open)(const struct work *, bool), int argc, char **argv) {
    const struct transport transport = {.name = name,
                                        .threads = false,
                                        .prepare = prepare,
                                        .open = open,
                                        .loan = stream_loan,
                                        .send = stream_send,
                                        .answered = stream_answered,
                                        .arrived = stream_arrived,
                                        .answer = stream_answer};
    return work_main(&transport, argc, argv);
}

#endif
