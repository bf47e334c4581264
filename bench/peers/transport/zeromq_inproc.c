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
    static const struct transport transport = {.name = "zeromq_inproc",
                                               .threads = true,
                                               .prepare = prepare,
                                               .open = open_side,
                                               .loan = zeromq_loan,
                                               .send = zeromq_send,
                                               .answered = zeromq_answered,
                                               .arrived = zeromq_arrived,
                                               .answer = zeromq_answer};
    return work_main(&transport, argc, argv);
}
