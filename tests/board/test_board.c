// The parameter board with a writer and readers that run at the same time. Its interleavings:
// tests/model/board_model.c.
#include <criterion/criterion.h>
#include <pthread.h>

#include "board/board.h"

enum { COUNT = 1000, VERSIONS = 3000, READERS = 3 };

static struct farm_error err;

static void fill(float *params, uint64_t version) {
    for (int i = 0; i < COUNT; i++) params[i] = (float)version;
}

static struct farm_board *make(uint32_t buffers) {
    struct farm_board *board = NULL;
    cr_assert_eq(farm_board_make(COUNT, buffers, -1, &board, &err), FARM_OK, "%s", err.message);
    return board;
}

Test(board, refuses_two_buffers_and_no_parameters) {
    struct farm_board *board;
    cr_assert_eq(farm_board_make(COUNT, 2, -1, &board, &err), FARM_E_INVALID);
    cr_assert_eq(farm_board_make(0, 3, -1, &board, &err), FARM_E_INVALID);
}

Test(board, shows_the_newest_version_and_keeps_a_pinned_one) {
    struct farm_board *board = make(3);
    struct farm_board_reader reader;
    float params[COUNT];
    uint64_t version;
    cr_assert_eq(farm_board_attach(board, &reader, &err), FARM_OK);
    cr_assert_null(farm_board_pin(&reader, &version));
    cr_assert_eq(version, UINT64_MAX);
    farm_board_unpin(&reader);
    fill(params, 7);
    cr_assert(farm_board_publish(board, params, 7));
    const float *pinned = farm_board_pin(&reader, &version);
    for (uint64_t next = 8; next < 20; next++) {
        fill(params, next);
        cr_assert(farm_board_publish(board, params, next));
        cr_assert_eq(farm_board_version(&reader), next);
    }
    cr_assert(version == 7 && pinned[0] == 7 && pinned[COUNT - 1] == 7);
    farm_board_unpin(&reader);
    cr_assert_eq(farm_board_pin(&reader, &version)[0], 19);
    farm_board_unpin(&reader);
    farm_board_free(board);
}

Test(board, skips_and_counts_a_version_if_readers_hold_all_buffers) {
    struct farm_board *board = make(3);
    struct farm_board_reader readers[2];
    float params[COUNT] = {0};
    uint64_t version;
    for (uint64_t v = 0; v < 2; v++) {
        cr_assert_eq(farm_board_attach(board, &readers[v], &err), FARM_OK);
        cr_assert(farm_board_publish(board, params, v));
        farm_board_pin(&readers[v], &version);
    }
    cr_assert(farm_board_publish(board, params, 2));
    cr_assert_not(farm_board_publish(board, params, 3));
    cr_assert_eq(board->skipped, 1);
    cr_assert_eq(farm_board_version(&readers[0]), 2);
    farm_board_unpin(&readers[0]);
    cr_assert(farm_board_publish(board, params, 4));
    farm_board_free(board);
}

static void *read_all(void *argument) {
    struct farm_board_reader *reader = argument;
    uint64_t version = 0, last = 0, torn = 0;
    while (version != VERSIONS - 1) {
        const float *params = farm_board_pin(reader, &version);
        for (int i = 0; i < COUNT && params; i++) torn += params[i] != (float)version;
        torn += params && version < last;
        last = params ? version : last;
        farm_board_unpin(reader);
    }
    return (void *)torn;
}

Test(board, is_never_torn_and_never_skips_with_two_buffers_more_than_readers, .timeout = 60) {
    struct farm_board *board = make(READERS + 2);
    struct farm_board_reader readers[READERS];
    pthread_t threads[READERS];
    float params[COUNT];
    for (int r = 0; r < READERS; r++) {
        cr_assert_eq(farm_board_attach(board, &readers[r], &err), FARM_OK);
        cr_assert_eq(pthread_create(&threads[r], NULL, read_all, &readers[r]), 0);
    }
    for (uint64_t v = 0; v < VERSIONS; v++) {
        fill(params, v);
        cr_assert(farm_board_publish(board, params, v));
    }
    for (int r = 0; r < READERS; r++) {
        void *torn;
        pthread_join(threads[r], &torn);
        cr_assert_null(torn);
    }
    farm_board_free(board);
}
