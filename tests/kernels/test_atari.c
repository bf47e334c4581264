// Compares Atari preprocessing with OpenCV's results (tests/vectors/atari_resize.bin) and the fast path with the
// reference. Run from the repository's root.
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../vectors/vectors.h"
#include "kernels/atari.h"

enum {
    WIDTH = FARM_ATARI_WIDTH,
    OUT_BYTES = FARM_ATARI_SIDE * FARM_ATARI_SIDE,
    FRAME_MAX = FARM_ATARI_HEIGHT_MAX * WIDTH
};

enum pattern { NOISE, TIES, PICTURE, ANY_INDEX, PATTERNS };

static uint32_t hash32(uint32_t seed, uint32_t y, uint32_t x) {
    uint32_t v = seed * 0x9E3779B1u + y * 0x85EBCA77u + x * 0xC2B2AE3Du;
    v = (v ^ v >> 15) * 0x2C1B3C6Du;
    v = (v ^ v >> 12) * 0x297A2D39u;
    return v ^ v >> 15;
}

// The frames of make_atari_resize.py.
static void make_frame(uint8_t *frame, int height, enum pattern pattern, uint32_t seed, int second) {
    const uint32_t own = seed + 1000u * (uint32_t)second;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < WIDTH; x++) {
            const uint32_t noise = hash32(own, (uint32_t)y, (uint32_t)x),
                           tile = hash32(x / 8 == 5 ? own : seed, (uint32_t)y / 10, (uint32_t)x / 8);
            const uint32_t indices[PATTERNS] = {[NOISE] = noise % 128 * 2,
                                                [TIES] = noise % 2 * 8,
                                                [PICTURE] = tile % 128 * 2,
                                                [ANY_INDEX] = noise % 256};
            frame[y * WIDTH + x] = (uint8_t)indices[pattern];
        }
}

static void make_pair(uint8_t *a, uint8_t *b, int height, enum pattern pattern, uint32_t seed) {
    make_frame(a, height, pattern, seed, 0);
    make_frame(b, height, pattern, seed, 1);
}

static void make_grey(uint8_t grey[256]) {
    for (uint32_t i = 0; i < 256; i++) grey[i] = (uint8_t)(hash32(7, i, 0) % 256);
}

static struct farm_atari_plan plan_of(int height, const uint8_t grey[256]) {
    struct farm_atari_plan plan;
    struct farm_error err;
    cr_assert_eq(farm_atari_plan_init(&plan, height, grey, &err), FARM_OK, "%s", err.message);
    return plan;
}

static void expect_equal(const uint8_t *got, const uint8_t *expected, const char *what) {
    for (int i = 0; i < OUT_BYTES; i++)
        cr_assert_eq(got[i], expected[i], "%s: row %d column %d is %d, not %d", what, i / FARM_ATARI_SIDE,
                     i % FARM_ATARI_SIDE, got[i], expected[i]);
}

Test(kernels_atari, equals_opencv_area_resize_byte_for_byte) {
    static struct {
        char magic[8];
        uint32_t cases;
        struct {
            uint32_t height, pattern, seed;
            uint8_t expected[OUT_BYTES];
        } at[12];
    } file;
    uint8_t grey[256];
    vectors_read("tests/vectors/atari_resize.bin", &file, sizeof file);
    cr_assert(memcmp(file.magic, "FARMAR01", 8) == 0 && file.cases == 12);
    make_grey(grey);
    for (uint32_t c = 0; c < file.cases; c++) {
        static uint8_t a[FRAME_MAX], b[FRAME_MAX];
        uint8_t got[OUT_BYTES];
        const int height = (int)file.at[c].height;
        make_pair(a, b, height, (enum pattern)file.at[c].pattern, file.at[c].seed);
        const struct farm_atari_plan plan = plan_of(height, grey);
        farm_atari_preprocess_portable(&plan, a, b, got);
        expect_equal(got, file.at[c].expected, "portable");
        farm_atari_preprocess(&plan, a, b, got);
        expect_equal(got, file.at[c].expected, "as chosen at run time");
    }
}

// b NULL: one frame, which the reference gets twice.
static void expect_reference(const struct farm_atari_plan *plan, const uint8_t *a, const uint8_t *b) {
    uint8_t expected[OUT_BYTES], got[OUT_BYTES];
    farm_atari_preprocess_portable(plan, a, b ? b : a, expected);
    farm_atari_preprocess(plan, a, b, got);
    expect_equal(got, expected, b ? "pair" : "one frame");
}

Test(kernels_atari, fast_path_equals_the_reference_for_all_heights_of_the_emulator) {
    static const int heights[] = {210, 214, 220, 230, 250, 84, 168, 211, 256};
    for (size_t h = 0; h < sizeof heights / sizeof heights[0]; h++)
        for (uint32_t seed = 0; seed < 40; seed++) {
            static uint8_t a[FRAME_MAX], b[FRAME_MAX];
            make_pair(a, b, heights[h], (enum pattern)(seed % PATTERNS), seed);
            const struct farm_atari_plan plan =
                plan_of(heights[h], seed % 8 < 4 ? farm_atari_grey_ntsc : farm_atari_grey_pal);
            expect_reference(&plan, a, b);
            expect_reference(&plan, a, NULL);
        }
}

// Two greys an odd distance apart put many results of height 210 exactly between two bytes, where OpenCV's float errors
// decide.
Test(kernels_atari, fast_path_equals_the_reference_on_exact_halves) {
    for (int step = 0; step < 50; step++) {
        static uint8_t frame[FRAME_MAX];
        uint8_t grey[256] = {0};
        grey[8] = (uint8_t)(5 * step + 5);
        grey[0] = (uint8_t)(step % 3 * 50);
        make_frame(frame, 210, TIES, (uint32_t)step, 0);
        const struct farm_atari_plan plan = plan_of(210, grey);
        expect_reference(&plan, frame, NULL);
    }
}

Test(kernels_atari, takes_the_maximum_of_greys_not_of_indices) {
    static uint8_t a[FRAME_MAX], b[FRAME_MAX];
    memset(a, 2, sizeof a);   // grey 74
    memset(b, 240, sizeof b); // grey 47
    uint8_t out[OUT_BYTES];
    const struct farm_atari_plan plan = plan_of(210, farm_atari_grey_ntsc);
    farm_atari_preprocess(&plan, a, b, out);
    for (int i = 0; i < OUT_BYTES; i++) cr_assert_eq(out[i], 74);
}

// An array that ends at a page that cannot be accessed.
static uint8_t *at_the_end_of_a_page(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
    uint8_t *memory = mmap(NULL, (pages + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    cr_assert_eq(mprotect(memory + page, pages * page, PROT_READ | PROT_WRITE), 0);
    return memory + page + pages * page - bytes;
}

Test(kernels_atari, touches_nothing_outside_its_arrays) {
    static const int heights[] = {210, 250};
    for (int h = 0; h < 2; h++) {
        const size_t bytes = (size_t)heights[h] * WIDTH;
        uint8_t *a = at_the_end_of_a_page(bytes), *b = at_the_end_of_a_page(bytes),
                *out = at_the_end_of_a_page(OUT_BYTES);
        uint8_t expected[OUT_BYTES];
        make_pair(a, b, heights[h], NOISE, 1);
        const struct farm_atari_plan plan = plan_of(heights[h], farm_atari_grey_pal);
        out[-1] = 99; // the page before is rounded up to, so there is a byte to watch
        farm_atari_preprocess(&plan, a, b, out);
        farm_atari_preprocess_portable(&plan, a, b, expected);
        expect_equal(out, expected, "at the end of a page");
        cr_assert_eq(out[-1], 99);
    }
}

Test(kernels_atari, rejects_heights_outside_84_to_256) {
    static const int heights[] = {-1, 0, 83, 257};
    for (int h = 0; h < 4; h++) {
        struct farm_atari_plan plan;
        struct farm_error err;
        cr_assert_eq(farm_atari_plan_init(&plan, heights[h], farm_atari_grey_ntsc, &err), FARM_E_INVALID);
        cr_assert_not_null(strstr(err.message, "rows"));
    }
}
