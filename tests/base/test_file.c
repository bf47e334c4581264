// The kernel's small files, on a recorded machine; and who can change a file.
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Numbers without names: in containers a user often has none.
enum { STRANGER = 54321 };

Test(base, what_others_can_change_is_not_ours) {
    static const struct {
        mode_t mode;
        uid_t owner;
        gid_t group;
        const char *refusal; // NULL: ours
    } cases[] = {{0755, 0, 0, NULL},
                 {0700, 0, 0, NULL},
                 {0775, 0, 0, NULL}, // root's private group
                 {0755, 0, STRANGER, NULL},
                 {0775, 0, STRANGER, "writable by its group (mode 0775): run chmod go-w "},
                 {0777, 0, 0, "writable by every user (mode 0777)"},
                 {01777, 0, 0, "(mode 1777)"},
                 {0755, STRANGER, 0, "belongs to another user (without a name, uid 54321; this is uid 0)"}};
    char path[300];
    struct farm_error err;
    if (geteuid() != 0) cr_skip_test("only root can give files away");
    record("mine/file", "");
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "%s/mine%s", root, i % 2 ? "/file" : "");
        cr_assert_eq(chown(path, cases[i / 2].owner, cases[i / 2].group), 0);
        cr_assert_eq(chmod(path, cases[i / 2].mode), 0);
        const int fd = open(path, O_PATH | O_CLOEXEC);
        const enum farm_status status = farm_file_check_own(fd, path, &err);
        close(fd);
        cr_assert_eq(status, cases[i / 2].refusal ? FARM_E_PERMISSION : FARM_OK, "%s, case %zu", path, i / 2);
        cr_assert(!cases[i / 2].refusal || strstr(err.message, cases[i / 2].refusal), "%s", err.message);
    }
}
