// A recorded machine: a temporary folder `root` with the files of /proc and /sys that a test writes. make_root and
// remove_root are the suite's .init and .fini.
#ifndef FARM_TESTS_SUPPORT_RECORDED_H
#define FARM_TESTS_SUPPORT_RECORDED_H

#include <criterion/criterion.h>
#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t MIB = 1 << 20;
static char root[64];

static void make_root(void) {
    snprintf(root, sizeof root, "/tmp/farm-recorded-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where) {
    return remove(path);
}

static void remove_root(void) {
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

// Records a file, making its folders.
static void record(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        cr_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(full, "w");
    cr_assert_not_null(file, "%s", full);
    fputs(text, file);
    fclose(file);
}

static inline void record_bytes(const char *path, uint64_t bytes) {
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)bytes);
    record(path, text);
}

// Records memory.max and memory.current of a cgroup v2.
static inline void record_memory(const char *group, uint64_t most_bytes, uint64_t current_bytes) {
    char path[128];
    snprintf(path, sizeof path, "sys/fs/cgroup%s/memory.max", group);
    record_bytes(path, most_bytes);
    snprintf(path, sizeof path, "sys/fs/cgroup%s/memory.current", group);
    record_bytes(path, current_bytes);
}

// Records a machine with cgroup v2 only, and this process in `group`.
static inline void record_v2(const char *group) {
    char text[128];
    record("proc/self/mountinfo", "23 1 0:20 / /proc rw - proc proc rw\n"
                                  "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    snprintf(text, sizeof text, "0::%s\n", group);
    record("proc/self/cgroup", text);
}

#endif
