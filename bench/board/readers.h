// A board of actors with READERS announcements in PROCESSES reading processes. They read whole versions in place,
// pinned as an actor's passes are, and check them; the benchmark lets them read or pause.
#ifndef BENCH_BOARD_READERS_H
#define BENCH_BOARD_READERS_H

#include <sys/types.h>

#include "board/board.h"

enum { READERS = 512, PROCESSES = 16 };

enum readers_mode { READERS_PAUSE, READERS_READ, READERS_READ_COPY, READERS_STOP };

// What the processes share.
struct readers_shared {
    uint64_t mode;                               // enum readers_mode
    uint64_t pins, wrong;                        // so far: versions; numbers that belonged to another version
    _Alignas(4096) uint8_t using[READERS][4096]; // an announcement a page, as in actors' rings
};

struct readers {
    struct farm_board *board; // the writer's view
    struct readers_shared *shared;
    float *copy; // [board->count], theirs too
    pid_t processes[PROCESSES];
};

// Every number of version v is readers_number(v).
static inline float readers_number(uint64_t version) {
    return (float)(version % 1000) + 1;
}

// checks: whether versions are made of readers_number. The processes run on the first CPU, the caller on the last.
void readers_start(struct readers *readers, size_t count, size_t packed_max, bool checks);
// Returns when no version is pinned, unless they shall read.
void readers_set(struct readers *readers, enum readers_mode mode);
void readers_stop(struct readers *readers); // and checks what they found

#endif
