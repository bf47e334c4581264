// What the fuzz targets share: taking an input apart, and the sentence on what every refusal must look like. A target
// is one file fuzz_NAME.c with LLVMFuzzerTestOneInput; beside not crashing it asserts what its part of the program
// promises. `make fuzz` runs them for long, tests/fuzz/test_fuzz.sh briefly, driver.c replays files without libFuzzer.
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

// The next `bytes` of the input into *out; zeros where it has ended.
static inline void fuzz_take(struct fuzz_input *input, void *out, size_t bytes) {
    size_t there = bytes < input->left ? bytes : input->left;
    memset(out, 0, bytes);
    if (there) memcpy(out, input->at, there);
    input->at += there;
    input->left -= there;
}

// The next `bytes` (or as many as are left) as a text in a heap block of exactly that size, so that ASan sees any step
// beyond. It may hold zero bytes.
static inline char *fuzz_take_text(struct fuzz_input *input, size_t bytes) {
    if (bytes > input->left) bytes = input->left;
    char *text = malloc(bytes + 1);
    assert(text);
    fuzz_take(input, text, bytes);
    text[bytes] = 0;
    return text;
}

// A refusal names its status and says a sentence that ends within its array.
static inline void fuzz_check_refusal(enum farm_status status, const struct farm_error *err) {
    assert(status != FARM_OK && err->status == status);
    assert(err->message[0] && memchr(err->message, 0, sizeof err->message));
}

#endif
