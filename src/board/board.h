// The parameter board: parameters go from one writer (training) to any number of readers (whatever acts), which use
// them where they lie, without a lock and without a copy. Buffers of [count] f32, all on one NUMA node; `newest` names
// the one to read. The writer never waits and never writes into a buffer that is the newest or that a reader announces.
//
//   reader                                    writer
//   load `newest`                             store `newest` (release), of the version before
//   store `using` = its buffer (release) U    full fence                                    F2
//   full fence                        F1      load each reader's `using` (acquire)          U
//   load `newest` again (acquire): the same   write a buffer that is neither newest nor used
//   read the buffer                           store `newest` = it (release)                 N
//   store `using` = 0 (release)       U
//
// If the reader's second load misses N of a later version, F1 comes before the F2 that follows that store, so the
// writer sees `using`. N pairs with the reader's second load, U with each of its stores. With readers + 2 buffers one
// is always free; with fewer (at least 3) a version may be skipped, which is counted. The announcement of a
// killed reader stays until the process that has reaped it stores 0; that of a stopped reader must not be cleared.
// tests/model/board_model.c runs this code through every interleaving, with deaths on both sides.
//
// Runs in the learner's process. The writer is one thread; each reader is one thread.
#ifndef FARM_BOARD_BOARD_H
#define FARM_BOARD_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomics.h"
#include "base/status.h"

enum { FARM_BOARD_READERS_MAX = 32, FARM_BOARD_BUFFERS_MAX = FARM_BOARD_READERS_MAX + 2 };

struct farm_board {
    uint64_t newest;                               // 0: none; else farm_board_word
    float *buffer[FARM_BOARD_BUFFERS_MAX];         // [buffers][count]
    const uint64_t *using[FARM_BOARD_READERS_MAX]; // [readers]
    uint32_t buffers, readers;
    uint64_t skipped; // the writer's count of versions for which no buffer was free
    size_t count;     // f32 in a buffer
    struct farm_heap *heap;
};

// One reader, in memory that its thread owns.
struct farm_board_reader {
    _Alignas(2 * FARM_CACHE_LINE) uint64_t using; // 1 + the buffer in use; 0: none
    const struct farm_board *board;
};

// `buffers` >= 3 of `count` f32, undefined, on `node` (-1: anywhere). FARM_E_INVALID, FARM_E_LIMIT.
enum farm_status farm_board_make(size_t count, uint32_t buffers, int node, struct farm_board **out,
                                 struct farm_error *err);
void farm_board_free(struct farm_board *board); // after its readers' last use; NULL is permitted

// Adds a reader between two calls of the writer; it stays put until the last. FARM_E_LIMIT: FARM_BOARD_READERS_MAX.
enum farm_status farm_board_attach(struct farm_board *board, struct farm_board_reader *reader, struct farm_error *err);

// Writer: copies `params` [count] into a free buffer and makes it version `version`, not below the one before. False:
// no buffer is free, and readers stay with the version before.
bool farm_board_publish(struct farm_board *board, const float *params, uint64_t version);

static inline uint64_t farm_board_word(uint64_t version, uint32_t buffer) {
    return (version + 1) << 8 | buffer;
}

// Reader: the newest version; UINT64_MAX: none yet.
static inline uint64_t farm_board_version(const struct farm_board_reader *reader) {
    return (farm_load_acquire(&reader->board->newest) >> 8) - 1;
}

// Reader: the newest parameters, fixed until farm_board_unpin. NULL: none yet. Lock-free: retries after a publication.
static inline const float *farm_board_pin(struct farm_board_reader *reader, uint64_t *version) {
    const struct farm_board *board = reader->board;
    uint64_t word = farm_load_relaxed(&board->newest), seen = 0;
    while (word && word != seen) {
        farm_store_release(&reader->using, 1 + (word & 0xff)); // U: the reads of the buffer before this one
        farm_fence_full();                                     // F1: `using` before the second look
        seen = word;
        word = farm_load_acquire(&board->newest);
    }
    *version = (word >> 8) - 1;
    return word ? board->buffer[word & 0xff] : NULL;
}

static inline void farm_board_unpin(struct farm_board_reader *reader) {
    farm_store_release(&reader->using, 0); // U: the reads before
}

// Writer: a buffer to write; -1: none is free, which counts as a skipped version.
static inline int farm_board_begin(struct farm_board *board) {
    const uint64_t newest = farm_load_acquire(&board->newest); // acquire: of a writer that died
    uint64_t used = newest ? 1ull << (newest & 0xff) : 0;
    farm_fence_full(); // F2: `newest` before the looks at `using`
    for (uint32_t r = 0; r < board->readers; r++) {
        const uint64_t using = farm_load_acquire(board->using[r]); // U
        if (using) used |= 1ull << (using - 1);
    }
    for (uint32_t b = 0; b < board->buffers; b++)
        if (!(used >> b & 1)) return (int)b;
    board->skipped++;
    return -1;
}

// Writer: the buffer of farm_board_begin, now written, becomes the newest.
static inline void farm_board_commit(struct farm_board *board, int buffer, uint64_t version) {
    farm_store_release(&board->newest, farm_board_word(version, (uint32_t)buffer)); // N
}

#endif
