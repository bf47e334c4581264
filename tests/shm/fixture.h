// Segments of actor 7, closed at the end of their scope.
#ifndef TESTS_SHM_FIXTURE_H
#define TESTS_SHM_FIXTURE_H

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "shm/segment.h"

static const uint64_t HASH = 0x1122334455667788;

static inline struct farm_segment_request request_of(size_t bytes, int node, bool huge) {
    return (struct farm_segment_request){.kind = FARM_SEGMENT_UP,
                                         .owner = 7,
                                         .bytes = bytes,
                                         .node = node,
                                         .layout_hash = HASH,
                                         .user = "shape",
                                         .user_bytes = 6,
                                         .huge = huge};
}

static inline struct farm_segment create(struct farm_segment_request request) {
    struct farm_segment segment;
    struct farm_error err = {0};
    cr_assert_eq(farm_segment_create(&request, &segment, &err), FARM_OK, "%s", err.message);
    return segment;
}

static inline struct farm_segment open_segment(int fd, bool writable) {
    struct farm_segment view;
    struct farm_error err = {0};
    cr_assert_eq(farm_segment_open(fd, writable, FARM_SEGMENT_UP, HASH, &view, &err), FARM_OK, "%s", err.message);
    return view;
}

#define with_segment __attribute__((cleanup(farm_segment_close))) struct farm_segment

static inline const char *described(const struct farm_segment *segment) {
    static char text[512];
    farm_segment_describe(segment, text, sizeof text);
    return text;
}

#define expect_text(where, text) cr_assert(strstr(where, text), "'%s' does not say '%s'", where, text)

#endif
