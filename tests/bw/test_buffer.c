// Memory to measure on: its size of pages, its node, refusals before anything is allocated.
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "bw/buffer.h"
#include "shm/limits.h"

static struct farm_error err;

TestSuite(bw, .timeout = 60);

#define with_buffer __attribute__((cleanup(farm_bw_buffer_close))) struct farm_bw_buffer // closed where its scope ends

Test(bw, a_buffer_has_all_its_pages_where_they_were_asked_for) {
    with_buffer buffer = {0};
    enum farm_status status = farm_bw_buffer_open(NULL, (5 << 20) + 1, 0, FARM_BW_PAGES_SMALL, 0, &buffer, &err);
    cr_assert_eq(status, FARM_OK, "%s", err.message);
    cr_assert_geq(buffer.bytes, (5 << 20) + 1);
    cr_assert_eq(buffer.pages, FARM_BW_PAGES_SMALL);
    cr_assert_eq(buffer.huge_bytes, 0);
    cr_assert(buffer.placed || buffer.note[0], "misplaced, and not said");
    memset(buffer.start, 1, buffer.bytes);
    farm_bw_buffer_close(&buffer);
    cr_assert_null(buffer.start);
}

Test(bw, a_buffer_of_transparent_pages_says_how_much_lies_in_them) {
    with_buffer buffer = {0};
    char reason[256];
    if (!farm_bw_pages_available(NULL, FARM_BW_PAGES_TRANSPARENT, reason, sizeof reason)) cr_skip_test("%s", reason);
    cr_assert_eq(farm_bw_buffer_open(NULL, 8 << 20, -1, FARM_BW_PAGES_TRANSPARENT, 0, &buffer, NULL), FARM_OK);
    cr_assert_eq((uintptr_t)buffer.start % (2 << 20), 0);
    cr_assert_leq(buffer.huge_bytes, buffer.bytes);
    cr_assert(buffer.placed);
    // AUTO is what it gets.
    with_buffer any = {0};
    cr_assert_eq(farm_bw_buffer_open(NULL, 8 << 20, -1, FARM_BW_PAGES_AUTO, 0, &any, NULL), FARM_OK);
    cr_assert_neq(any.pages, FARM_BW_PAGES_AUTO);
    cr_assert_eq(any.pages == FARM_BW_PAGES_SMALL, any.note[0] != 0);
}

Test(bw, pages_of_a_pool_are_refused_with_the_reason_where_there_are_none) {
    char reason[256];
    with_buffer buffer = {0};
    // A machine without pools of huge pages and without transparent ones.
    cr_assert_not(farm_bw_pages_available("/nonexistent", FARM_BW_PAGES_1G, reason, sizeof reason));
    cr_assert(strstr(reason, "1 GiB"), "%s", reason);
    cr_assert_not(farm_bw_pages_available("/nonexistent", FARM_BW_PAGES_TRANSPARENT, reason, sizeof reason));
    cr_assert_eq(farm_bw_buffer_open("/nonexistent", 1 << 20, -1, FARM_BW_PAGES_2M, 0, &buffer, &err),
                 FARM_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "2 MiB"), "%s", err.message);
    cr_assert_eq(farm_bw_buffer_open("/nonexistent", 1 << 20, -1, FARM_BW_PAGES_AUTO, 0, &buffer, &err), FARM_OK);
    cr_assert_eq(buffer.pages, FARM_BW_PAGES_SMALL);
}

Test(bw, time_that_is_over_leaves_a_buffer_with_the_pages_it_has) {
    with_buffer buffer = {0};
    for (int pages = FARM_BW_PAGES_SMALL; pages <= FARM_BW_PAGES_TRANSPARENT; pages++) {
        char reason[256];
        if (!farm_bw_pages_available(NULL, (enum farm_bw_pages)pages, reason, sizeof reason)) continue;
        cr_assert_eq(farm_bw_buffer_open(NULL, 64 << 20, -1, (enum farm_bw_pages)pages, 1, &buffer, NULL), FARM_OK);
        cr_assert_eq(buffer.bytes, FARM_BW_BUFFER_PIECE);
        cr_assert(buffer.placed && buffer.huge_bytes <= buffer.bytes);
        memset(buffer.start, 1, buffer.bytes);
        farm_bw_buffer_close(&buffer);
    }
}

Test(bw, absurd_sizes_are_refused_with_what_is_there) {
    with_buffer buffer = {0};
    const size_t absurd[] = {SIZE_MAX, (size_t)1 << 50};
    for (int i = 0; i < 2; i++) {
        err.message[0] = 0;
        cr_assert_eq(farm_bw_buffer_open(NULL, absurd[i], -1, FARM_BW_PAGES_AUTO, 0, &buffer, &err), FARM_E_LIMIT);
        cr_assert(err.message[0]);
        cr_assert_null(buffer.start);
    }
    cr_assert(strstr(err.message, "GiB"), "what is there is not said: %s", err.message);
    cr_assert_eq(farm_bw_buffer_open(NULL, 0, -1, FARM_BW_PAGES_AUTO, 0, &buffer, &err), FARM_E_INVALID);
}

Test(bw, a_node_that_does_not_exist_is_refused) {
    with_buffer buffer = {0};
    cr_assert_neq(farm_bw_buffer_open(NULL, 1 << 20, 63, FARM_BW_PAGES_SMALL, 0, &buffer, &err), FARM_OK);
    cr_assert(strstr(err.message, "63"), "%s", err.message);
    cr_assert_null(buffer.start);
}
