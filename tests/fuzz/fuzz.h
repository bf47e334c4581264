// What the fuzz targets share: reading an input, and the check of every refusal. A target is one file fuzz_NAME.c with
// LLVMFuzzerTestOneInput. It must not crash, and it asserts what its part of the program promises. `make fuzz` runs the
// targets for long, tests/fuzz/test_fuzz.sh briefly.
#ifndef FARM_TESTS_FUZZ_H
#define FARM_TESTS_FUZZ_H

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

// libFuzzer's entry: one input; returns 0.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

// Copies the next `bytes` of the input into *out; zeros beyond its end.
static inline void fuzz_take(struct fuzz_input *input, void *out, size_t bytes) {
    size_t there = bytes < input->left ? bytes : input->left;
    memset(out, 0, bytes);
    if (there) memcpy(out, input->at, there);
    input->at += there;
    input->left -= there;
}

// Returns the next `bytes` (at most the rest) as a text, which may contain zero bytes, in a heap block of exactly that
// size: ASan finds accesses beyond it.
static inline char *fuzz_take_text(struct fuzz_input *input, size_t bytes) {
    if (bytes > input->left) bytes = input->left;
    char *text = malloc(bytes + 1);
    assert(text);
    fuzz_take(input, text, bytes);
    text[bytes] = 0;
    return text;
}

// A refusal has its status and a message that ends within its array.
static inline void fuzz_check_refusal(enum farm_status status, const struct farm_error *err) {
    assert(status != FARM_OK && err->status == status);
    assert(err->message[0] && memchr(err->message, 0, sizeof err->message));
}

#endif
