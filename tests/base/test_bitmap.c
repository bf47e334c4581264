// Sets of CPUs: the kernel's list form, pinning.
#include <criterion/criterion.h>

#include "base/bitmap.h"

static struct farm_error error;

static const char *list_of(const struct farm_bitmap *set) {
    static char text[256];
    return farm_bitmap_format(set, text, sizeof text);
}

Test(base, reads_and_writes_lists_of_cpus) {
    static const char *const same[] = {"", "0", "0-3", "1,3,5", "0-1,63-64,4095"};
    static const char *const wrong[] = {"a", "3-1", "4096", "1,,2x", "-1", "1-", "0 1"};
    struct farm_bitmap set;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        cr_assert_eq(farm_bitmap_parse(same[i], &set, &error), FARM_OK, "%s", error.message);
        cr_assert_str_eq(list_of(&set), same[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_eq(farm_bitmap_parse(wrong[i], &set, &error), FARM_E_FORMAT, "'%s' was taken", wrong[i]);
    cr_assert_eq(farm_bitmap_parse(" 7 , 9\n", &set, NULL), FARM_OK);
    cr_assert_str_eq(list_of(&set), "7,9");
    cr_assert_eq(farm_bitmap_next(&set, 8), 9);
    cr_assert_eq(farm_bitmap_next(&set, 10), -1);
    char small[8];
    cr_assert_eq(farm_bitmap_parse("100,200,300", &set, NULL), FARM_OK);
    cr_assert_str_eq(farm_bitmap_format(&set, small, sizeof small), "100...");
}

Test(base, pins_to_one_cpu_and_reads_it_back) {
    struct farm_bitmap ours, now, none = {{0}};
    cr_assert_eq(farm_bitmap_pinned(&ours, &error), FARM_OK, "%s", error.message);
    cr_assert_geq(farm_bitmap_count(&ours), 1);
    for (int cpu = farm_bitmap_next(&ours, 0); cpu >= 0; cpu = farm_bitmap_next(&ours, cpu + 1)) {
        cr_assert_eq(farm_bitmap_pin_to(cpu, &error), FARM_OK, "%s", error.message);
        cr_assert_eq(farm_bitmap_pinned(&now, &error), FARM_OK, "%s", error.message);
        cr_assert(farm_bitmap_count(&now) == 1 && farm_bitmap_has(&now, cpu), "pinned to %s", list_of(&now));
    }
    cr_assert_eq(farm_bitmap_pin(&none, &error), FARM_E_INVALID);
    cr_assert_eq(farm_bitmap_pin_to(-1, &error), FARM_E_INVALID);
    cr_assert_eq(farm_bitmap_pin_to(FARM_BITMAP_BITS, &error), FARM_E_INVALID);
    cr_assert_eq(farm_bitmap_pin(&ours, &error), FARM_OK, "%s", error.message);
}
