// The parameter board: parameters go from one writer (training) to any number of readers (whatever acts), in its
// process and in others, which use them where they lie, without a lock and without a copy. A segment on one NUMA node
// holds struct farm_board_head and buffers: [count] f32, then the same weights packed for an executor. The writer never
// waits and never writes into a buffer that is the newest or that a reader announces; without a free one it skips and
// counts the version, which cannot happen with readers + 2 buffers. Bridges copy without an announcement. The writer is
// one thread, as is each reader; a restarted writer continues. The announcement of a killed reader stays until the
// process that has reaped it stores 0; that of a stopped reader must not be cleared. Pairs U and N, fences F1 to F3:
// docs/MEMORY_MODEL.md; tests/model/board_model.c runs this code through every interleaving, with deaths on both sides.
#ifndef FARM_BOARD_BOARD_H
#define FARM_BOARD_BOARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomics.h"
#include "base/status.h"
#include "shm/segment.h"

// BUFFERS: of a board of actors; MAX: of 32 readers that miss no version.
enum { FARM_BOARD_BUFFERS = 4, FARM_BOARD_BUFFERS_MAX = 34, FARM_BOARD_TEXT_BYTES = 4096 };

// How readers understand the versions.
struct farm_board_description {
    uint64_t packed_bytes, packed_layout; // 0: the versions are not packed; layouts that are equal are exchangeable
    char text[FARM_BOARD_TEXT_BYTES];     // terminated
};

// What a board consists of, in its segment's header; packed_max there is a multiple of 64.
struct farm_board_request {
    uint64_t count, packed_max; // f32 of a buffer, and most bytes of its packed weights
    uint32_t buffers;           // at least 3; not more than FARM_BOARD_BUFFERS_MAX are made
    int32_t node;               // NUMA node, -1: any
};

// Behind the segment's header; docs/shm-layout.md.
struct farm_board_head {
    uint64_t newest, pad0[15]; // 0: none; else (version + 1) << 8 | buffer
    uint64_t skipped;          // versions for which no buffer was free
    uint64_t described, pad1[14];
    struct farm_board_description description; // valid if described
};

// One process's view of a board.
struct farm_board {
    struct farm_board_head *head;
    float *buffer[FARM_BOARD_BUFFERS_MAX]; // [buffers][count]
    uint32_t buffers;
    uint64_t count, packed_max; // checked copies
    struct farm_segment segment;
    // writer
    void (*pack)(void *context, const float *params, void *packed); // NULL: versions are not packed
    void *pack_context;
    pthread_mutex_t watching; // over the array
    const uint64_t **using;   // [watched] announcements
    size_t watched, watched_max;
};

// One reader, in memory that its thread owns.
struct farm_board_reader {
    struct farm_board *board;
    const uint64_t *newest;
    uint64_t *using;                            // 1 + the buffer in use; 0: none
    _Alignas(2 * FARM_CACHE_LINE) uint64_t own; // `using` of a reader in the writer's process
};

// Open checks the header and owns fd on success only. FARM_E_FORMAT; FARM_E_LIMIT names the sum of the buffers.
enum farm_status farm_board_create(const struct farm_board_request *request, struct farm_board **out,
                                   struct farm_error *err);
enum farm_status farm_board_open(int fd, bool writer, struct farm_board **out, struct farm_error *err);
// The board on this segment's NUMA node, else the first one; NULL: count is 0.
struct farm_board *farm_board_near(struct farm_board *const *boards, uint32_t count,
                                   const struct farm_segment *segment);
void farm_board_free(struct farm_board *board); // after its readers' last use; NULL is permitted

// Writer, before the first commit of its life. packed_bytes 0 or above packed_max: the versions are not packed. Readers
// rely on it, so a later writer must describe the board alike. False: it does not, or the text is too long.
bool farm_board_describe(struct farm_board *board, const char *text, size_t packed_bytes, uint64_t packed_layout);
bool farm_board_described(const struct farm_board *board, struct farm_board_description *out); // false: not yet

// Writer: watches an announcement from before its reader's first pin (actors wait for `granted`) until its memory goes.
// Any thread of the writer's process. Values above the number of buffers are ignored. FARM_E_LIMIT: no memory.
enum farm_status farm_board_watch(struct farm_board *board, const uint64_t *using, struct farm_error *err);
void farm_board_unwatch(struct farm_board *board, const uint64_t *using);

// Writer: the index of a buffer to write; -1: none is free, which counts as a skipped version. Without a commit the
// buffer stays free.
int farm_board_begin(struct farm_board *board);
// Writer: begins, copies `params` [count] and commits. False: the version is skipped.
bool farm_board_publish(struct farm_board *board, const float *params, uint64_t version);

// `using`: an announcement that the writer watches; NULL: the reader's own, watched from here until farm_board_unwatch,
// in the writer's process. FARM_E_LIMIT: no memory.
enum farm_status farm_board_attach(struct farm_board *board, struct farm_board_reader *reader, uint64_t *using,
                                   struct farm_error *err);

// Copies the newest parameters, without an announcement. False: none yet, or the writer overtook every try.
bool farm_board_copy(const struct farm_board *board, float *out, uint64_t *version);

// The buffer of a word; NULL: none, or none of this board.
static inline float *farm_board_buffer(const struct farm_board *board, uint64_t word) {
    return word && (word & 0xff) < board->buffers ? board->buffer[word & 0xff] : NULL;
}

// A buffer's packed weights, 64-byte aligned; NULL: it has no room for them.
static inline void *farm_board_packed(const struct farm_board *board, const float *flat) {
    const size_t line = FARM_CACHE_LINE / sizeof *flat;
    return board->packed_max ? (void *)(flat + (board->count + line - 1) / line * line) : NULL;
}

// Writer: packs the buffer of farm_board_begin, whose parameters are written, if board->pack is set, and makes it the
// newest. Versions that are copied rise.
static inline void farm_board_commit(struct farm_board *board, int buffer, uint64_t version) {
    const float *params = board->buffer[buffer];
    void *packed = farm_board_packed(board, params);
    if (board->pack && packed) board->pack(board->pack_context, params, packed);
    farm_store_release(&board->head->newest, (version + 1) << 8 | (uint64_t)buffer); // N
}

// Reader: the newest version; UINT64_MAX: none yet.
static inline uint64_t farm_board_version(const struct farm_board_reader *reader) {
    return (farm_load_acquire(reader->newest) >> 8) - 1;
}

// Reader: the newest parameters, fixed until farm_board_unpin. NULL: none yet. Lock-free: retries after a publication.
static inline const float *farm_board_pin(struct farm_board_reader *reader, uint64_t *version) {
    uint64_t word = farm_load_relaxed(reader->newest), seen = 0;
    while (word && word != seen) {
        farm_store_release(reader->using, 1 + (word & 0xff)); // U: the reads of the buffer before this one
        farm_fence_full();                                    // F1: `using` before the second look
        seen = word;
        word = farm_load_acquire(reader->newest);
    }
    *version = (word >> 8) - 1;
    return farm_board_buffer(reader->board, word);
}

static inline void farm_board_unpin(struct farm_board_reader *reader) {
    farm_store_release(reader->using, 0); // U: the reads before
}

// ---- parts of farm_board_begin and _copy ----

static inline int farm_board_choose(const struct farm_board *board) {
    const uint64_t newest = farm_load_acquire(&board->head->newest); // acquire: of a writer that died
    uint64_t used = newest ? 1ull << (newest & 0x3f) : 0;
    farm_fence_full(); // F2: `newest` before the looks at `using`
    for (size_t r = 0; r < board->watched; r++) {
        const uint64_t at = farm_load_acquire(board->using[r]) - 1; // U
        used |= (uint64_t)(at < board->buffers) << (at & 0x3f);     // no branch: it would be mispredicted
    }
    for (uint32_t b = 0; b < board->buffers; b++)
        if (!(used >> b & 1)) return (int)b;
    return -1;
}

// Whether a copy of the buffer of `word`, loaded (acquire) before, is whole.
static inline bool farm_board_is_still(const struct farm_board *board, uint64_t word) {
    farm_fence_full(); // F3: the copy before the second look
    return farm_load_relaxed(&board->head->newest) == word;
}

#endif
