// Paths that this user may not use: base/paths.h.
#include "base/paths.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Test(paths, a_denied_path_is_told_from_a_missing_one) {
    char folder[] = "/tmp/farm-paths-XXXXXX", link[PATH_MAX], path[PATH_MAX], closed[PATH_MAX];
    const bool root = getuid() == 0;
    struct farm_error err;
    cr_assert(mkdtemp(folder));
    snprintf(closed, sizeof closed, "%s/closed", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    cr_assert(!mkdir(closed, 0) && !chmod(folder, 0755) && !symlink("closed/venv/bin/python", link));
    if (root) cr_assert_eq(setresuid(65534, 65534, 0), 0); // root is denied nothing
    cr_expect_eq(farm_path_check(link, X_OK, &err), FARM_E_PERMISSION);
    cr_expect(strstr(err.message, "/link: permission denied (") && strstr(err.message, "/closed is closed to"), "%s",
              err.message);
    setenv("FARM_PYTHON", link, 1);
    cr_expect_eq(farm_path_python(path, sizeof path, &err), FARM_E_PERMISSION);
    cr_expect(strncmp(err.message, "FARM_PYTHON: /tmp/", 18) == 0, "%s", err.message);
    cr_expect_eq(farm_path_check("/nowhere/python", X_OK, &err), FARM_E_NOT_FOUND);
    cr_expect_str_eq(err.message, "/nowhere/python: No such file or directory");
    if (root) cr_assert_eq(setresuid(0, 0, 0), 0);
    cr_expect(!unlink(link) && !rmdir(closed) && !rmdir(folder), "%s is left behind", folder);
}
