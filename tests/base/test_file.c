// The kernel's small files, on a recorded machine.
#include <criterion/criterion.h>

#include "../support/recorded.h"
#include "base/file.h"

TestSuite(base, .init = make_root, .fini = remove_root, .timeout = 30);

Test(base, reads_the_start_of_a_file_and_its_first_line) {
    char text[16], line[16], few[4];
    record("proc/one", "first\nsecond\n");
    cr_assert(farm_file_text(text, sizeof text, "%s/proc/%s", root, "one"));
    cr_assert_str_eq(text, "first\nsecond\n");
    cr_assert(farm_file_line(line, sizeof line, "%s/proc/one", root));
    cr_assert_str_eq(line, "first");
    cr_assert(farm_file_text(few, sizeof few, "%s/proc/one", root));
    cr_assert_str_eq(few, "fir");
    record("proc/blank", "\nsecond\n");
    cr_assert(farm_file_line(line, sizeof line, "%s/proc/blank", root), "an empty line is one");
    cr_assert_str_eq(line, "");
}

Test(base, returns_nothing_for_missing_and_empty_files) {
    char text[16], path[5000];
    record("proc/empty", "");
    cr_assert_not(farm_file_text(text, sizeof text, "%s/proc/empty", root));
    cr_assert_str_eq(text, "");
    snprintf(text, sizeof text, "before");
    cr_assert_not(farm_file_line(text, sizeof text, "%s/proc/missing", root));
    cr_assert_str_eq(text, "");
    memset(path, 'a', sizeof path - 1);
    path[sizeof path - 1] = 0;
    cr_assert_not(farm_file_text(text, sizeof text, "/%s", path), "longer than a path may be");
}

Test(base, null_and_slash_are_the_running_system) {
    cr_assert_str_eq(farm_file_root(NULL), "");
    cr_assert_str_eq(farm_file_root("/"), "");
    cr_assert_str_eq(farm_file_root("/recorded"), "/recorded");
}
