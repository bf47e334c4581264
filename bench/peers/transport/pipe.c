// Two pipes, as large as an unprivileged process may have them.
#include "stream.h"

static int there[2], back[2];

static void prepare(const struct work *work) {
    work_need(!pipe(there) && !pipe(back), "pipe");
    (void)fcntl(there[1], F_SETPIPE_SZ, 1 << 20); // smaller where it may not be
}

static void *open_side(const struct work *work, bool actor) {
    return actor ? stream_open(work, back[0], there[1]) : stream_open(work, there[0], back[1]);
}

int main(int argc, char **argv) {
    return stream_main("pipe", prepare, open_side, argc, argv);
}
