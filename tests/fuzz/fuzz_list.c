// The kernel's lists of CPUs and nodes ("0-3,8"), and numbers and truths as users write them: what is accepted is
// written as the same set again, in any size of text; numbers are finite and whole ones read back.
#include <math.h>
#include <stdio.h>

#include "base/bitmap.h"
#include "base/cli.h"
#include "fuzz.h"

static void check_set(const struct farm_bitmap *set, size_t small) {
    static char text[FARM_BITMAP_BITS * 5];
    struct farm_bitmap again;
    int count = 0;
    for (int bit = farm_bitmap_next(set, 0); bit >= 0; bit = farm_bitmap_next(set, bit + 1), count++)
        assert(farm_bitmap_has(set, bit));
    assert(count == farm_bitmap_count(set));
    farm_bitmap_format(set, text, sizeof text);
    assert(farm_bitmap_parse(text, &again, NULL) == FARM_OK && memcmp(&again, set, sizeof again) == 0);
    char *tight = malloc(small); // ASan watches its end
    assert(tight && farm_bitmap_format(set, tight, small) == tight && strlen(tight) < small);
    assert(strcmp(tight, text) == 0 || strcmp(tight + strlen(tight) - 3, "...") == 0);
    free(tight);
}

static void check_numbers(const char *text) {
    int64_t whole, again;
    double real;
    bool truth;
    if (farm_parse_int(text, &whole)) {
        char written[32];
        snprintf(written, sizeof written, "%lld", (long long)whole);
        assert(farm_parse_int(written, &again) && again == whole);
    }
    if (farm_parse_double(text, &real)) assert(isfinite(real));
    if (farm_parse_bool(text, &truth)) assert(strlen(text) <= 5);
    static const char *const names[] = {"actors", "lanes", "net", "", "rmsprop_epsilon"};
    const char *near = farm_nearest(text, names, 5);
    assert(!near || strlen(text) <= 64);
    for (int i = 0; i < 5; i++)
        if (strcmp(text, names[i]) == 0) assert(near == names[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct farm_bitmap set;
    struct farm_error err = {0};
    uint8_t small;
    fuzz_take(&input, &small, 1);
    char *text = fuzz_take_text(&input, input.left);
    enum farm_status status = farm_bitmap_parse(text, &set, &err);
    if (status)
        fuzz_check_refusal(status, &err);
    else
        check_set(&set, 4 + small);
    check_numbers(text);
    free(text);
    return 0;
}
