// A pair of ZeroMQ sockets over a Unix socket. The observation is written in the outgoing message and read in the
// incoming one.
#include <zmq.h>

#include "work.h"

struct side {
    void *socket;
    int receive_flags;
    zmq_msg_t out, in;
};

static char address[64];

static void prepare(const struct work *work) {
    snprintf(address, sizeof address, "ipc://@actorfarm-transport-%d", (int)getpid()); // abstract: leaves no file
}

static void *open_side(const struct work *work, bool actor) {
    struct side *side = calloc(1, sizeof *side);
    void *context = zmq_ctx_new();
    work_need(side && context, "ZeroMQ's context");
    side->receive_flags = work->spin ? ZMQ_DONTWAIT : 0;
    side->socket = zmq_socket(context, ZMQ_PAIR);
    work_need(side->socket != NULL, "zmq_socket");
    work_need((actor ? zmq_connect : zmq_bind)(side->socket, address) == 0, address);
    return side;
}

static void *loan(void *self) {
    struct side *side = self;
    work_need(zmq_msg_init_size(&side->out, WORK_OBS_BYTES) == 0, "zmq_msg_init_size");
    return zmq_msg_data(&side->out);
}
static void send_step(void *self, void *obs) {
    struct side *side = self;
    work_need(zmq_msg_send(&side->out, side->socket, 0) == WORK_OBS_BYTES, "zmq_msg_send");
}
static bool answered(void *self, int32_t *action) {
    const struct side *side = self;
    const int got = zmq_recv(side->socket, action, sizeof *action, side->receive_flags);
    work_need(got == sizeof *action || (got < 0 && errno == EAGAIN), "zmq_recv");
    return got > 0;
}
static const void *arrived(void *self) {
    struct side *side = self;
    zmq_msg_init(&side->in);
    const int got = zmq_msg_recv(&side->in, side->socket, side->receive_flags);
    work_need(got == WORK_OBS_BYTES || (got < 0 && errno == EAGAIN), "zmq_msg_recv");
    return got > 0 ? zmq_msg_data(&side->in) : NULL;
}
static void answer(void *self, const void *obs, int32_t action) {
    struct side *side = self;
    zmq_msg_close(&side->in);
    work_need(zmq_send(side->socket, &action, sizeof action, 0) == sizeof action, "zmq_send");
}

int main(int argc, char **argv) {
    const struct transport transport = {"zeromq_ipc", prepare, open_side, loan, send_step, answered, arrived, answer};
    return work_main(&transport, argc, argv);
}
