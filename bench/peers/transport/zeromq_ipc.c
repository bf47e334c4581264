// ZeroMQ between two processes, over a Unix socket.
#include "zeromq.h"

static char address[64];

static void prepare(const struct work *work) {
    snprintf(address, sizeof address, "ipc://@actorfarm-transport-%d", (int)getpid()); // abstract: leaves no file
}

static void *open_side(const struct work *work, bool actor) {
    return zeromq_open(work, zmq_ctx_new(), address, !actor);
}

int main(int argc, char **argv) {
    return zeromq_main("zeromq_ipc", false, prepare, open_side, argc, argv);
}
