// See board.h.
#include "board/board.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { COUNT_MAX = 1 << 30, PAGE_BYTES = 4096, COPY_TRIES = 16, HASH = sizeof(struct farm_board_head) };
enum { FIRST_BUFFER = (FARM_SEGMENT_HEADER_BYTES + sizeof(struct farm_board_head) + PAGE_BYTES - 1) & -PAGE_BYTES };

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static uint64_t buffer_bytes(const struct farm_board_request *shape) {
    return round_up(round_up(shape->count * sizeof(float), FARM_CACHE_LINE) + shape->packed_max, PAGE_BYTES);
}

// Copies and checks the shape, and makes a view of the segment, which it owns on success.
static enum farm_status make_view(const struct farm_segment *segment, struct farm_board **out, struct farm_error *err) {
    char *start = (char *)segment->header;
    struct farm_board_request shape;
    memcpy(&shape, segment->header->user, sizeof shape);
    if (!shape.count || shape.count > COUNT_MAX || shape.buffers < 3 || shape.buffers > FARM_BOARD_BUFFERS_MAX ||
        shape.packed_max > segment->bytes || shape.packed_max % FARM_CACHE_LINE ||
        FIRST_BUFFER + shape.buffers * buffer_bytes(&shape) > segment->bytes)
        return farm_fail(err, FARM_E_FORMAT, "invalid parameter board: %u buffers of %llu parameters in %zu bytes",
                         shape.buffers, (unsigned long long)shape.count, segment->bytes);
    struct farm_board *board = calloc(1, sizeof *board);
    if (!board) return farm_fail(err, FARM_E_LIMIT, "no memory for a parameter board");
    board->segment = *segment;
    board->head = (struct farm_board_head *)(start + FARM_SEGMENT_HEADER_BYTES);
    board->count = shape.count;
    board->buffers = shape.buffers;
    board->packed_max = shape.packed_max;
    for (uint32_t b = 0; b < shape.buffers; b++)
        board->buffer[b] = (float *)(start + FIRST_BUFFER + b * buffer_bytes(&shape));
    pthread_mutex_init(&board->watching, NULL);
    *out = board;
    return FARM_OK;
}

enum farm_status farm_board_create(const struct farm_board_request *request, struct farm_board **out,
                                   struct farm_error *err) {
    struct farm_board_request shape = *request;
    shape.packed_max = round_up(request->packed_max, FARM_CACHE_LINE);
    if (shape.buffers > FARM_BOARD_BUFFERS_MAX) shape.buffers = FARM_BOARD_BUFFERS_MAX;
    const struct farm_segment_request wanted = {.kind = FARM_SEGMENT_BOARD,
                                                .bytes = FIRST_BUFFER + shape.buffers * buffer_bytes(&shape),
                                                .node = request->node,
                                                .layout_hash = HASH,
                                                .user = &shape,
                                                .user_bytes = sizeof shape,
                                                .huge = true};
    struct farm_segment segment;
    enum farm_status status = farm_segment_create(&wanted, &segment, err);
    if (status)
        return farm_fail_in(err, status, "parameter board of %u buffers, %zu bytes", shape.buffers, wanted.bytes);
    status = make_view(&segment, out, err);
    if (status) farm_segment_close(&segment);
    return status;
}

enum farm_status farm_board_open(int fd, bool writer, struct farm_board **out, struct farm_error *err) {
    struct farm_segment segment;
    enum farm_status status = farm_segment_open(fd, writer, FARM_SEGMENT_BOARD, HASH, &segment, err);
    if (status) return status;
    status = make_view(&segment, out, err);
    if (status) segment.fd = -1, farm_segment_close(&segment); // fd stays the caller's
    if (!status && writer) farm_segment_populate(&segment);
    return status;
}

struct farm_board *farm_board_near(struct farm_board *const *boards, uint32_t count,
                                   const struct farm_segment *segment) {
    uint32_t b = 0;
    while (b < count && boards[b]->segment.header->node != segment->header->node) b++;
    return !count ? NULL : boards[b < count ? b : 0];
}

void farm_board_free(struct farm_board *board) {
    if (!board) return;
    farm_segment_close(&board->segment);
    pthread_mutex_destroy(&board->watching);
    free(board->using);
    free(board);
}

bool farm_board_describe(struct farm_board *board, const char *text, size_t packed_bytes, uint64_t packed_layout) {
    struct farm_board_description new = {0};
    if (strlen(text) >= sizeof new.text) return false;
    strcpy(new.text, text);
    if (packed_bytes <= board->packed_max) new.packed_bytes = packed_bytes;
    if (new.packed_bytes) new.packed_layout = packed_layout;
    if (farm_load_acquire(&board->head->described)) return !memcmp(&board->head->description, &new, sizeof new);
    board->head->description = new;
    farm_store_release(&board->head->described, 1);
    return true;
}

bool farm_board_described(const struct farm_board *board, struct farm_board_description *out) {
    if (!farm_load_acquire(&board->head->described)) return false;
    *out = board->head->description;
    out->text[sizeof out->text - 1] = 0;
    if (out->packed_bytes > board->packed_max) out->packed_bytes = 0;
    return true;
}

enum farm_status farm_board_watch(struct farm_board *board, const uint64_t *using, struct farm_error *err) {
    pthread_mutex_lock(&board->watching);
    if (board->watched == board->watched_max) {
        const size_t most = 2 * board->watched_max + 64;
        const uint64_t **grown = realloc(board->using, most * sizeof *grown);
        if (grown) board->using = grown, board->watched_max = most;
    }
    const bool fits = board->watched < board->watched_max;
    if (fits) board->using[board->watched++] = using;
    pthread_mutex_unlock(&board->watching);
    return fits ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for another reader of a parameter board");
}

void farm_board_unwatch(struct farm_board *board, const uint64_t *using) {
    pthread_mutex_lock(&board->watching);
    for (size_t r = 0; r < board->watched; r++)
        if (board->using[r] == using) board->using[r] = board->using[--board->watched];
    pthread_mutex_unlock(&board->watching);
}

int farm_board_begin(struct farm_board *board) {
    pthread_mutex_lock(&board->watching);
    const int buffer = farm_board_choose(board);
    pthread_mutex_unlock(&board->watching);
    if (buffer >= 0) return buffer;
    if (!farm_load_relaxed(&board->head->skipped))
        farm_log_warn(
            "a version of the parameters is skipped: readers hold all %u buffers of a board, because actors are "
            "stopped or answer a step more slowly than training updates; further ones are only counted",
            board->buffers);
    farm_store_relaxed(&board->head->skipped, farm_load_relaxed(&board->head->skipped) + 1);
    return -1;
}

bool farm_board_publish(struct farm_board *board, const float *params, uint64_t version) {
    const int b = farm_board_begin(board);
    if (b < 0) return false;
    memcpy(board->buffer[b], params, board->count * sizeof *params);
    farm_board_commit(board, b, version);
    return true;
}

enum farm_status farm_board_attach(struct farm_board *board, struct farm_board_reader *reader, uint64_t *using,
                                   struct farm_error *err) {
    *reader = (struct farm_board_reader){
        .board = board, .newest = &board->head->newest, .using = using ? using : &reader->own};
    return using ? FARM_OK : farm_board_watch(board, &reader->own, err);
}

// If the writer changes the buffer during memcpy, farm_board_is_still returns false, and the copy is not used.
bool farm_board_copy(const struct farm_board *board, float *out, uint64_t *version) {
    for (int i = 0; i < COPY_TRIES; i++) {
        const uint64_t word = farm_load_acquire(&board->head->newest);
        const float *params = farm_board_buffer(board, word);
        if (!params) return false;
        memcpy(out, params, board->count * sizeof *out);
        *version = (word >> 8) - 1;
        if (farm_board_is_still(board, word)) return true;
    }
    return false;
}
