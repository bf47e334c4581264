// See board.h.
#include "board/board.h"

#include <stdlib.h>
#include <string.h>

#include "shm/heap.h"

enum farm_status farm_board_make(size_t count, uint32_t buffers, int node, struct farm_board **out,
                                 struct farm_error *err) {
    if (!count || buffers < 3 || buffers > FARM_BOARD_BUFFERS_MAX)
        return farm_fail(err, FARM_E_INVALID, "a parameter board of %u buffers of %zu parameters", buffers, count);
    struct farm_board *board = calloc(1, sizeof *board);
    if (!board) return farm_fail(err, FARM_E_LIMIT, "no memory for a parameter board");
    board->count = count;
    board->buffers = buffers;
    enum farm_status status = farm_heap_open(node, &board->heap, err);
    for (uint32_t b = 0; b < buffers && !status; b++) {
        board->buffer[b] = farm_heap_alloc(board->heap, count * sizeof(float), FARM_CACHE_LINE);
        if (!board->buffer[b])
            status = farm_fail(err, FARM_E_LIMIT, "no memory for a parameter board: %u buffers of %zu bytes", buffers,
                               count * sizeof(float));
    }
    if (status)
        farm_board_free(board);
    else
        *out = board;
    return status;
}

void farm_board_free(struct farm_board *board) {
    if (!board) return;
    for (uint32_t b = 0; b < board->buffers && board->heap; b++)
        farm_heap_free(board->heap, board->buffer[b], board->count * sizeof(float), FARM_CACHE_LINE);
    farm_heap_close(board->heap);
    free(board);
}

enum farm_status farm_board_attach(struct farm_board *board, struct farm_board_reader *reader, struct farm_error *err) {
    if (board->readers == FARM_BOARD_READERS_MAX)
        return farm_fail(err, FARM_E_LIMIT, "a parameter board has at most %d readers", FARM_BOARD_READERS_MAX);
    *reader = (struct farm_board_reader){.board = board};
    board->using[board->readers++] = &reader->using;
    return FARM_OK;
}

bool farm_board_publish(struct farm_board *board, const float *params, uint64_t version) {
    const int buffer = farm_board_begin(board);
    if (buffer < 0) return false;
    memcpy(board->buffer[buffer], params, board->count * sizeof *params);
    farm_board_commit(board, buffer, version);
    return true;
}
