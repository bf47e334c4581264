// See cgroup.h. Formats: admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux's Documentation; mountinfo: proc(5).
#include "base/cgroup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { PATH_BYTES = FARM_CGROUP_PATH_BYTES, LINE_BYTES = 4096, STAT_BYTES = 8192 };

struct names {
    const char *memory_limit, *memory_high, *memory_usage, *active_file, *inactive_file, *cpus;
};
static const struct names names_v1 = {
    "memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "\ntotal_active_file ", "\ntotal_inactive_file ",
    "cpuset.effective_cpus",
};
static const struct names names_v2 = {
    "memory.max", "memory.high", "memory.current", "\nactive_file ", "\ninactive_file ", "cpuset.cpus.effective",
};

// One mounted hierarchy: which of the controllers it may hold, and this process's group in it.
struct hierarchy {
    bool v2, cpu, memory, cpuset, pids;
    char mount[PATH_BYTES]; // with the root prefix, without a final slash
    char group[PATH_BYTES]; // "" or "/a/b"
};

// A file's number of bytes. UINT64_MAX: "max", v1's "unlimited" (LONG_MAX in pages), no number, no file, or name NULL.
static uint64_t read_bytes(const char *directory, const char *name) {
    char text[64], *end;
    if (!name || !farm_file_text(text, sizeof text, "%s/%s", directory, name)) return UINT64_MAX;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text || value >= UINT64_C(1) << 62 ? UINT64_MAX : value;
}

// Whether `word` is an element of the comma-separated `list`.
static bool list_has(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && strchr(",\n", at[length])) return true;
    return false;
}

// This process's group in the hierarchy that holds a controller (NULL: in v2's), by /proc/self/cgroup; "": none.
static void find_group(const char *root, const char *controller, char group[PATH_BYTES]) {
    char file_path[PATH_BYTES], line[LINE_BYTES];
    group[0] = 0;
    if ((size_t)snprintf(file_path, sizeof file_path, "%s/proc/self/cgroup", root) >= sizeof file_path) return;
    FILE *file = fopen(file_path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) { // "4:memory:/a/b", "0::/a/b"
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(++controllers, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (controller ? list_has(controllers, controller) : !*controllers) snprintf(group, PATH_BYTES, "%s", path);
    }
    fclose(file);
}

// Makes a group's path relative to a mount whose root is the group `mount_root`. In a container its own group is often
// mounted as root while /proc/self/cgroup still names the host's path, or "..": then the mount itself is the group.
static void below_mount(const char *mount_root, char *group) {
    size_t length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    bool inside = strncmp(group, mount_root, length) == 0 && (group[length] == '/' || !group[length]);
    if (!inside || strstr(group, "/..") || strcmp(group + length, "/") == 0)
        group[0] = 0;
    else
        memmove(group, group + length, strlen(group + length) + 1);
}

// Reads a line of mountinfo. False: not a hierarchy with one of the controllers.
static bool parse_mount(const char *root, const char *line, struct hierarchy *out) {
    char mount_root[PATH_BYTES], mount[PATH_BYTES], type[64], super[LINE_BYTES];
    const char *right = strstr(line, " - ");
    if (!right || sscanf(line, "%*s %*s %*s %4095s %4095s", mount_root, mount) != 2) return false;
    if (sscanf(right, " - %63s %*s %4095s", type, super) != 2) return false;
    out->v2 = strcmp(type, "cgroup2") == 0;
    if (!out->v2 && strcmp(type, "cgroup") != 0) return false;
    out->cpu = out->v2 || list_has(super, "cpu");
    out->memory = out->v2 || list_has(super, "memory");
    out->cpuset = out->v2 || list_has(super, "cpuset");
    out->pids = out->v2 || list_has(super, "pids");
    if (!out->cpu && !out->memory && !out->cpuset && !out->pids) return false;
    if ((size_t)snprintf(out->mount, sizeof out->mount, "%s%s", root, mount) >= sizeof out->mount) return false;
    const char *controller = out->cpu ? "cpu" : out->memory ? "memory" : out->cpuset ? "cpuset" : "pids";
    find_group(root, out->v2 ? NULL : controller, out->group);
    below_mount(mount_root, out->group);
    return true;
}

static void tighten_quota(struct farm_cgroup_limits *out, double quota_us, double period_us) {
    if (!(quota_us > 0) || !(period_us > 0)) return;
    double cpus = quota_us / period_us;
    if (!isfinite(cpus)) return;
    if (out->cpu_quota == 0 || cpus < out->cpu_quota) out->cpu_quota = cpus;
}

static void read_quota(const char *directory, bool v2, struct farm_cgroup_limits *out) {
    char text[128], period_text[64];
    double quota_us, period_us;
    if (v2) { // "350000 100000" or "max 100000"
        if (farm_file_text(text, sizeof text, "%s/cpu.max", directory) &&
            sscanf(text, "%lf %lf", &quota_us, &period_us) == 2)
            tighten_quota(out, quota_us, period_us);
    } else if (farm_file_text(text, sizeof text, "%s/cpu.cfs_quota_us", directory) &&
               farm_file_text(period_text, sizeof period_text, "%s/cpu.cfs_period_us", directory)) {
        tighten_quota(out, atof(text), atof(period_text)); // -1: no quota
    }
}

static void read_memory(const char *directory, const struct hierarchy *h, const struct names *names,
                        struct farm_cgroup_memory *least) {
    uint64_t max = read_bytes(directory, names->memory_limit), high = read_bytes(directory, names->memory_high);
    // Above memory.high the kernel throttles until memory is reclaimed. Rings cannot be reclaimed, so it is a limit.
    uint64_t limit = high < max ? high : max;
    if (limit == UINT64_MAX) return;
    uint64_t usage = read_bytes(directory, names->memory_usage);
    if (usage == UINT64_MAX) usage = 0;
    char stat[STAT_BYTES] = "\n"; // so that "\nkey " finds a key at the start
    uint64_t cache = 0;
    if (farm_file_text(stat + 1, sizeof stat - 1, "%s/memory.stat", directory))
        cache = farm_file_number(stat, names->active_file) + farm_file_number(stat, names->inactive_file);
    uint64_t used = usage > cache ? usage - cache : 0, left = limit > used ? limit - used : 0;
    if (left >= least->left_bytes) return;
    least->left_bytes = left;
    least->limit_bytes = limit;
    least->used_bytes = used;
    least->v2 = h->v2;
    least->file = high < max ? names->memory_high : names->memory_limit;
    snprintf(least->group, sizeof least->group, "%s", *h->group ? h->group : "/");
}

static void read_cpus(const char *directory, const struct names *names, struct farm_cgroup_limits *out) {
    char text[LINE_BYTES];
    struct farm_bitmap cpus;
    if (out->has_cpus || !farm_file_text(text, sizeof text, "%s/%s", directory, names->cpus)) return;
    if (farm_bitmap_parse(text, &cpus, NULL) || !farm_bitmap_count(&cpus)) return;
    out->cpus = cpus; // effective: limited by the parents' sets
    out->has_cpus = true;
}

static void read_pids(const char *directory, struct farm_cgroup_limits *out) {
    const uint64_t limit = read_bytes(directory, "pids.max"), used = read_bytes(directory, "pids.current"),
                   left = used < limit ? limit - used : 0;
    if (limit == UINT64_MAX || used == UINT64_MAX || left >= out->pids_left) return;
    out->pids_left = left;
    out->pids_limit = limit;
}

static void read_level(void *context, const struct hierarchy *h, const char *directory) {
    struct farm_cgroup_limits *out = context;
    const struct names *names = h->v2 ? &names_v2 : &names_v1;
    if (h->cpu) read_quota(directory, h->v2, out);
    if (h->memory) read_memory(directory, h, names, &out->memory);
    if (h->cpuset) read_cpus(directory, names, out);
    if (h->pids) read_pids(directory, out);
}

// Each level has its own quota; the level that was throttled most counts.
static void read_throttling(void *context, const struct hierarchy *h, const char *directory) {
    struct farm_cgroup_throttling *out = context;
    char stat[STAT_BYTES] = "\n";
    if (!h->cpu || !farm_file_text(stat + 1, sizeof stat - 1, "%s/cpu.stat", directory)) return;
    const uint64_t periods = farm_file_number(stat, "\nnr_throttled "),
                   ns = h->v2 ? farm_file_number(stat, "\nthrottled_usec ") * 1000
                              : farm_file_number(stat, "\nthrottled_time ");
    if (periods > out->periods) out->periods = periods;
    if (ns > out->ns) out->ns = ns;
}

static void read_kills(void *context, const struct hierarchy *h, const char *directory) {
    uint64_t *most = context;
    char text[1024] = "\n";
    const char *file = h->v2 ? "memory.events" : "memory.oom_control";
    if (!h->memory || !farm_file_text(text + 1, sizeof text - 1, "%s/%s", directory, file)) return;
    const uint64_t kills = farm_file_number(text, "\noom_kill ");
    if (kills > *most) *most = kills;
}

// Visits this process's group in every hierarchy, and every group above it up to the mount.
static void visit_levels(const char *root,
                         void (*visit)(void *context, const struct hierarchy *h, const char *directory),
                         void *context) {
    char path[PATH_BYTES], line[LINE_BYTES], directory[2 * PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/mountinfo", root) >= sizeof path) return;
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        struct hierarchy h;
        if (!parse_mount(root, line, &h)) continue;
        for (char *slash = h.group; slash;) {
            snprintf(directory, sizeof directory, "%s%s", h.mount, h.group);
            visit(context, &h, directory);
            slash = strrchr(h.group, '/');
            if (slash) *slash = 0;
        }
    }
    fclose(file);
}

void farm_cgroup_read(const char *root, struct farm_cgroup_limits *out) {
    memset(out, 0, sizeof *out);
    out->memory.limit_bytes = out->memory.left_bytes = out->pids_left = out->pids_limit = UINT64_MAX;
    visit_levels(root, read_level, out);
}

void farm_cgroup_read_throttling(const char *root, struct farm_cgroup_throttling *out) {
    *out = (struct farm_cgroup_throttling){0};
    visit_levels(root, read_throttling, out);
}

uint64_t farm_cgroup_read_kills(const char *root) {
    uint64_t most = 0;
    visit_levels(root, read_kills, &most);
    return most;
}
