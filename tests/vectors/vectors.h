// Reads one file of tests/vectors, from the repository's root.
#ifndef FARM_TESTS_VECTORS_H
#define FARM_TESTS_VECTORS_H

#include <criterion/criterion.h>
#include <stdio.h>

// Exactly `bytes` of it, or the test fails.
static inline void vectors_read(const char *path, void *to, size_t bytes) {
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s is missing; run from the repository's root", path);
    cr_assert_eq(fread(to, 1, bytes, file), bytes, "%s is too short", path);
    cr_assert_eq(fgetc(file), EOF, "%s is too long", path);
    fclose(file);
}

#endif
