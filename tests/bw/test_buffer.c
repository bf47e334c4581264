// Memory to measure on: its page size, its node, refusals before anything is allocated.
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "bw/buffer.h"
#include "shm/limits.h"

static struct farm_error err;

TestSuite(bw, .timeout = 60);

#define with_buffer                                                                                                    \
    __attribute__((cleanup(farm_bw_buffer_close))) struct farm_bw_buffer // closed at the end of its scope

Test(bw, a_buffer_has_all_its_pages_on_the_requested_node) {
    with_buffer buffer = {0};
    enum farm_status status = farm_bw_buffer_open(NULL, (5 << 20) + 1, 0, FARM_BW_PAGES_SMALL, 0, &buffer, &err);
    cr_assert_eq(status, FARM_OK, "%s", err.message);
    cr_assert_geq(buffer.bytes, (5 << 20) + 1);
    cr_assert_eq(buffer.pages, FARM_BW_PAGES_SMALL);
    cr_assert_eq(buffer.huge_bytes, 0);
    cr_assert(buffer.placed || buffer.note[0], "misplaced without a note");
    memset(buffer.start, 1, buffer.bytes);
    farm_bw_buffer_close(&buffer);
    cr_assert_null(buffer.start);
}

Test(bw, a_buffer_of_transparent_pages_counts_its_huge_bytes) {
    with_buffer buffer = {0};
    char reason[256];
    if (!farm_bw_pages_available(NULL, FARM_BW_PAGES_TRANSPARENT, reason, sizeof reason)) cr_skip_test("%s", reason);
    cr_assert_eq(farm_bw_buffer_open(NULL, 8 << 20, -1, FARM_BW_PAGES_TRANSPARENT, 0, &buffer, NULL), FARM_OK);
    cr_assert_eq((uintptr_t)buffer.start % (2 << 20), 0);
    cr_assert_leq(buffer.huge_bytes, buffer.bytes);
    cr_assert(buffer.placed);
    with_buffer any = {0};
    cr_assert_eq(farm_bw_buffer_open(NULL, 8 << 20, -1, FARM_BW_PAGES_AUTO, 0, &any, NULL), FARM_OK);
    cr_assert_neq(any.pages, FARM_BW_PAGES_AUTO);
    cr_assert_eq(any.pages == FARM_BW_PAGES_SMALL, any.note[0] != 0);
}

Test(bw, pages_of_an_empty_pool_are_refused_with_the_reason) {
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

Test(bw, a_buffer_out_of_time_keeps_the_pages_that_are_present) {
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

Test(bw, absurd_sizes_and_missing_nodes_are_refused_with_the_reason) {
    static const struct {
        size_t bytes;
        int node;
        enum farm_status status;
        const char *word;
    } cases[] = {{SIZE_MAX, -1, FARM_E_LIMIT, ""},
                 {(size_t)1 << 50, -1, FARM_E_LIMIT, "GiB"}, // the available memory
                 {0, -1, FARM_E_INVALID, ""},
                 {1 << 20, 63, FARM_E_LIMIT, "63"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        with_buffer buffer = {0};
        err.message[0] = 0;
        cr_assert_eq(farm_bw_buffer_open(NULL, cases[i].bytes, cases[i].node, FARM_BW_PAGES_AUTO, 0, &buffer, &err),
                     cases[i].status, "case %zu: %s", i, err.message);
        cr_assert(!buffer.start && err.message[0] && strstr(err.message, cases[i].word), "%s", err.message);
    }
}

Test(bw, conditions_hold_for_all_buffers_and_have_the_smallest_pages) {
    const struct farm_bw_buffer buffers[] = {
        {.bound = true, .placed = true, .pages = FARM_BW_PAGES_2M},
        {.bound = false, .placed = true, .pages = FARM_BW_PAGES_TRANSPARENT, .note = "A note. "},
        {.bound = true, .placed = true, .pages = FARM_BW_PAGES_2M, .note = "A note. "},
    };
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    for (int i = 0; i < 3; i++) farm_bw_buffer_add_conditions(&buffers[i], &conditions);
    cr_assert(!conditions.bound && conditions.placed);
    cr_assert_eq(conditions.pages, FARM_BW_PAGES_TRANSPARENT);
    cr_assert_str_eq(conditions.note, "A note.");
}
