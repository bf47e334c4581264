// Texts of a kernel or a container about control groups: the input holds several files, each ended by a zero byte,
// which are written into a folder that is used as the root. The limits that result are consistent.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "fuzz.h"

// In the order of the input; a file that the input does not reach does not exist.
static const char *const files[] = {
    "proc/self/mountinfo",
    "proc/self/cgroup",
    "g/cpu.max",
    "g/memory.max",
    "g/memory.high",
    "g/memory.current",
    "g/memory.stat",
    "g/cpuset.cpus.effective",
    "g/a/cpu.max",
    "g/a/memory.max",
    "g/a/memory.current",
    "g/a/cpuset.cpus.effective",
    "g/cpu.cfs_quota_us",
    "g/cpu.cfs_period_us",
    "g/memory.limit_in_bytes",
    "g/memory.usage_in_bytes",
};
enum { FILES = sizeof files / sizeof *files };

// Made once, and named after the process.
static const char *root_folder(void) {
    static char root[128];
    static const char *const folders[] = {"", "/proc", "/proc/self", "/g", "/g/a"};
    if (root[0]) return root;
    snprintf(root, sizeof root, "%s/root.%ld", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s%s", root, folders[i]);
        mkdir(path, 0700);
    }
    return root;
}

static void record(const char *root, const char *name, const void *text, size_t bytes) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert(fd >= 0 && (!bytes || write(fd, text, bytes) == (ssize_t)bytes));
    close(fd);
}

static void check(const struct farm_cgroup_limits *limits) {
    const struct farm_cgroup_memory *memory = &limits->memory;
    assert(isfinite(limits->cpu_quota) && limits->cpu_quota >= 0);
    assert(limits->has_cpus == (farm_bitmap_count(&limits->cpus) > 0));
    static char list[5 * FARM_BITMAP_BITS];
    struct farm_bitmap again;
    farm_bitmap_format(&limits->cpus, list, sizeof list);
    assert(!limits->has_cpus || farm_bitmap_parse(list, &again, NULL) == FARM_OK);
    assert(!limits->has_cpus || memcmp(&again, &limits->cpus, sizeof again) == 0);
    if (memory->left_bytes == UINT64_MAX) return;
    assert(memory->left_bytes <= memory->limit_bytes && memory->limit_bytes < UINT64_MAX);
    assert(memory->left_bytes == 0 || memory->left_bytes + memory->used_bytes == memory->limit_bytes);
    assert(memory->file && memory->group[0] && memchr(memory->group, 0, sizeof memory->group));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static bool there[FILES];
    struct fuzz_input input = {data, bytes};
    struct farm_cgroup_limits limits, again;
    const char *root = root_folder();
    for (int i = 0; i < FILES; i++) {
        const uint8_t *end = input.left ? memchr(input.at, 0, input.left) : NULL;
        size_t length = end ? (size_t)(end - input.at) : input.left;
        if (length || there[i]) record(root, files[i], input.at, length); // an empty file counts as none
        there[i] = length > 0;
        input.at += length + (end != NULL);
        input.left -= length + (end != NULL);
    }
    farm_cgroup_read(root, &limits);
    check(&limits);
    farm_cgroup_read(root, &again);
    assert(memcmp(&limits, &again, sizeof limits) == 0);
    return 0;
}
