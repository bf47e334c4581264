// ZeroMQ between two threads of one process: messages change hands without a copy.
#include "zeromq.h"

static void *context;

static void prepare(const struct work *work) {
    context = zmq_ctx_new();
}

static void *open_side(const struct work *work, bool actor) {
    return zeromq_open(work, context, "inproc://steps", !actor);
}

int main(int argc, char **argv) {
    return zeromq_main("zeromq_inproc", true, prepare, open_side, argc, argv);
}
