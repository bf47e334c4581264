// See cgroup.h. File formats: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the Linux sources, proc(5) for
// mountinfo.
#include "topo/cgroup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 4096, STAT_BYTES = 16384 };

// One controller's hierarchy: the mount point, and this process's group below it.
struct hierarchy {
    char mount[PATH_BYTES]; // with the root prefix, without a final slash
    char group[PATH_BYTES]; // "" or "/a/b"
};

struct names {
    const char *memory_limit, *memory_usage, *active_file, *inactive_file, *cpus;
};
static const struct names names_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "\ntotal_active_file ",
                                      "\ntotal_inactive_file ", "cpuset.effective_cpus"};
static const struct names names_v2 = {"memory.max", "memory.current", "\nactive_file ", "\ninactive_file ",
                                      "cpuset.cpus.effective"};

// The controllers that matter, each with the folders that may hold it.
enum controller { CPU, MEMORY, CPUSET, UNIFIED, CONTROLLERS };
static const char *const controller_names[CONTROLLERS] = {"cpu", "memory", "cpuset", ""};

// Reads directory/name into text, terminated; false where that fails.
static bool read_text(const char *directory, const char *name, char *text, size_t size) {
    char path[2 * PATH_BYTES + 64];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) >= sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(text, 1, size - 1, file);
    text[n] = 0;
    fclose(file);
    return n > 0;
}

// A number of bytes; UINT64_MAX for "max", for v1's "unlimited" (LONG_MAX rounded to pages) and for what is no number.
static uint64_t parse_bytes(const char *text) {
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text || value >= (UINT64_C(1) << 62) ? UINT64_MAX : value;
}

static uint64_t read_bytes(const char *directory, const char *name) {
    char text[64];
    return read_text(directory, name, text, sizeof text) ? parse_bytes(text) : UINT64_MAX;
}

// True where `word` is an element of the comma-separated `list`.
static bool list_has(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; length && (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ',' || at[length] == '\n')) return true;
    return false;
}

// The group of this process in a controller's hierarchy, as /proc/self/cgroup names it; "" where it does not.
static void find_group(const char *root, enum controller controller, char *group, size_t size) {
    char directory[PATH_BYTES], line[LINE_BYTES];
    group[0] = 0;
    snprintf(directory, sizeof directory, "%s/proc/self/cgroup", root);
    FILE *file = fopen(directory, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) { // "4:memory:/a/b", "0::/a/b"
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        controllers++;
        bool match = controller == UNIFIED ? !*controllers : list_has(controllers, controller_names[controller]);
        if (!match) continue;
        path[strcspn(path, "\n")] = 0;
        snprintf(group, size, "%s", path);
    }
    fclose(file);
}

// A group's path as seen below a mount whose root is the group `mount_root`. A container often sees its own group
// mounted as root while /proc/self/cgroup still names the host's path, or "..": then the mount itself is the group.
static void below_mount(const char *mount_root, char *group) {
    size_t length = strlen(mount_root);
    if (strcmp(mount_root, "/") == 0) length = 0;
    bool inside = strncmp(group, mount_root, length) == 0 && (group[length] == '/' || !group[length]);
    if (!inside || strstr(group, "/..") || strcmp(group + length, "/") == 0)
        group[0] = 0;
    else
        memmove(group, group + length, strlen(group + length) + 1);
}

// Finds where a controller is mounted and this process's group there.
static bool find_hierarchy(const char *root, enum controller controller, struct hierarchy *out) {
    char path[PATH_BYTES], line[LINE_BYTES];
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        char mount_root[PATH_BYTES], mount[PATH_BYTES], type[64], super[LINE_BYTES];
        const char *right = strstr(line, " - ");
        if (!right || sscanf(line, "%*s %*s %*s %4095s %4095s", mount_root, mount) != 2) continue;
        if (sscanf(right, " - %63s %*s %4095s", type, super) != 2) continue;
        bool match = controller == UNIFIED
                         ? strcmp(type, "cgroup2") == 0
                         : strcmp(type, "cgroup") == 0 && list_has(super, controller_names[controller]);
        if (!match) continue;
        int n = snprintf(out->mount, sizeof out->mount, "%s%s", root, mount);
        if (n < 0 || (size_t)n >= sizeof out->mount) continue;
        find_group(root, controller, out->group, sizeof out->group);
        below_mount(mount_root, out->group);
        found = true;
    }
    fclose(file);
    return found;
}

static void tighten_quota(struct farm_cgroup_limits *out, double quota_us, double period_us) {
    if (!(quota_us > 0) || !(period_us > 0)) return;
    double cpus = quota_us / period_us;
    if (out->cpu_quota == 0 || cpus < out->cpu_quota) out->cpu_quota = cpus;
}

static void read_quota(const char *directory, bool v2, struct farm_cgroup_limits *out) {
    char text[128], period_text[64];
    double quota_us, period_us;
    if (v2) { // "350000 100000" or "max 100000"
        if (read_text(directory, "cpu.max", text, sizeof text) && sscanf(text, "%lf %lf", &quota_us, &period_us) == 2)
            tighten_quota(out, quota_us, period_us);
    } else if (read_text(directory, "cpu.cfs_quota_us", text, sizeof text) &&
               read_text(directory, "cpu.cfs_period_us", period_text, sizeof period_text)) {
        tighten_quota(out, atof(text), atof(period_text)); // -1: no quota
    }
}

// The number after `key` in memory.stat, 0 where the key is missing.
static uint64_t stat_value(const char *stat, const char *key) {
    const char *at = strstr(stat, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void read_memory(const char *directory, const struct names *names, bool v2, struct farm_cgroup_limits *out) {
    uint64_t limit = read_bytes(directory, names->memory_limit);
    // Above memory.high the kernel throttles until memory is reclaimed, and rings cannot be: as good as a limit.
    uint64_t high = v2 ? read_bytes(directory, "memory.high") : UINT64_MAX;
    if (high < limit) limit = high;
    if (limit == UINT64_MAX) return;
    uint64_t usage = read_bytes(directory, names->memory_usage);
    if (usage == UINT64_MAX) usage = 0;
    char stat[STAT_BYTES] = "\n"; // so that a key at the very start is found by its "\nkey "
    uint64_t cache = 0;
    if (read_text(directory, "memory.stat", stat + 1, sizeof stat - 1))
        cache = stat_value(stat, names->active_file) + stat_value(stat, names->inactive_file);
    uint64_t used = usage > cache ? usage - cache : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left >= out->memory_free_bytes) return;
    out->memory_free_bytes = left;
    out->memory_limit_bytes = limit;
}

static void read_cpus(const char *directory, const struct names *names, struct farm_cgroup_limits *out) {
    char text[LINE_BYTES];
    struct farm_bitmap cpus;
    if (out->has_cpus || !read_text(directory, names->cpus, text, sizeof text)) return;
    if (farm_bitmap_parse(text, &cpus, NULL) || !farm_bitmap_count(&cpus)) return;
    out->cpus = cpus; // effective: the parents' sets are in it
    out->has_cpus = true;
}

// Visits the group and every group above it up to the mount.
static void read_levels(struct hierarchy *h, enum controller controller, struct farm_cgroup_limits *out) {
    bool v2 = controller == UNIFIED;
    const struct names *names = v2 ? &names_v2 : &names_v1;
    for (;;) {
        char directory[2 * PATH_BYTES];
        snprintf(directory, sizeof directory, "%s%s", h->mount, h->group);
        if (v2 || controller == CPU) read_quota(directory, v2, out);
        if (v2 || controller == MEMORY) read_memory(directory, names, v2, out);
        if (v2 || controller == CPUSET) read_cpus(directory, names, out);
        char *slash = strrchr(h->group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

void farm_cgroup_read(const char *root, struct farm_cgroup_limits *out) {
    memset(out, 0, sizeof *out);
    out->memory_limit_bytes = out->memory_free_bytes = UINT64_MAX;
    for (enum controller controller = 0; controller < CONTROLLERS; controller++) {
        struct hierarchy hierarchy;
        if (find_hierarchy(root, controller, &hierarchy)) read_levels(&hierarchy, controller, out);
    }
}
