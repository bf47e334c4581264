// A step over a pair of ZeroMQ sockets: what ipc and inproc share. The observation is written in the message that is
// sent, and read in the message that came.
#ifndef ZEROMQ_H
#define ZEROMQ_H

#include <zmq.h>

#include "work.h"

struct zeromq {
    void *socket;
    int flags; // of receiving
    zmq_msg_t out, in;
};

static inline void *zeromq_open(const struct work *work, void *context, const char *address, bool bind) {
    struct zeromq *zeromq = (struct zeromq *)calloc(1, sizeof *zeromq);
    work_need(zeromq && context, "ZeroMQ's context");
    zeromq->flags = work->spin ? ZMQ_DONTWAIT : 0;
    zeromq->socket = zmq_socket(context, ZMQ_PAIR);
    work_need(zeromq->socket != NULL, "zmq_socket");
    work_need((bind ? zmq_bind : zmq_connect)(zeromq->socket, address) == 0, address);
    return zeromq;
}

static inline void *zeromq_loan(void *self) {
    struct zeromq *zeromq = (struct zeromq *)self;
    work_need(zmq_msg_init_size(&zeromq->out, WORK_OBS_BYTES) == 0, "zmq_msg_init_size");
    return zmq_msg_data(&zeromq->out);
}
static inline void zeromq_send(void *self, void *obs) {
    struct zeromq *zeromq = (struct zeromq *)self;
    work_need(zmq_msg_send(&zeromq->out, zeromq->socket, 0) == WORK_OBS_BYTES, "zmq_msg_send");
}
static inline bool zeromq_answered(void *self, int32_t *action) {
    const struct zeromq *zeromq = (const struct zeromq *)self;
    const int got = zmq_recv(zeromq->socket, action, sizeof *action, zeromq->flags);
    work_need(got == sizeof *action || (got < 0 && errno == EAGAIN), "zmq_recv");
    return got > 0;
}
static inline const void *zeromq_arrived(void *self) {
    struct zeromq *zeromq = (struct zeromq *)self;
    zmq_msg_init(&zeromq->in);
    const int got = zmq_msg_recv(&zeromq->in, zeromq->socket, zeromq->flags);
    work_need(got == WORK_OBS_BYTES || (got < 0 && errno == EAGAIN), "zmq_msg_recv");
    return got > 0 ? zmq_msg_data(&zeromq->in) : NULL;
}
static inline void zeromq_answer(void *self, const void *obs, int32_t action) {
    struct zeromq *zeromq = (struct zeromq *)self;
    zmq_msg_close(&zeromq->in);
    work_need(zmq_send(zeromq->socket, &action, sizeof action, 0) == sizeof action, "zmq_send");
}

// The program of a transport that differs in how it begins alone, and in whether its sides are threads.
static inline int zeromq_main(const char *name, bool threads, void (*prepare)(const struct work *),
                              void *(*open)(const struct work *, bool), int argc, char **argv) {
    const struct transport transport = {.name = name,
                                        .threads = threads,
                                        .prepare = prepare,
                                        .open = open,
                                        .loan = zeromq_loan,
                                        .send = zeromq_send,
                                        .answered = zeromq_answered,
                                        .arrived = zeromq_arrived,
                                        .answer = zeromq_answer};
    return work_main(&transport, argc, argv);
}

#endif
