// See limits.h. File formats: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux sources; proc(5).
#include "shm/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"

enum { TEXT_BYTES = 8192, SIZE_TEXT_BYTES = 32, CAP_IPC_LOCK_BIT = 14, CAP_SYS_RESOURCE_BIT = 24 };
static const uint64_t HUGE_BYTES = 2u << 20, RESERVE_MAX_BYTES = 1u << 30, RESERVE_SHARE = 32;

// A limit of memory: a cgroup level, the machine, a node.
struct room {
    uint64_t left_bytes; // UINT64_MAX: no limit known
    uint64_t limit_bytes, used_bytes;
    char name[FARM_CGROUP_PATH_BYTES + 64]; // "memory.max of control group /a/b", "MemAvailable of this machine"
    const char *remedy;
};

static const char remedy_v2[] = "raise it (systemd: MemoryMax=, MemoryHigh=; docker and podman: --memory; "
                                "Slurm: --mem; Kubernetes: limits.memory)";
static const char remedy_v1[] = "raise it (systemd: MemoryLimit=; docker: --memory; Slurm: --mem; Kubernetes: "
                                "limits.memory)";

static const char *size_text(char text[SIZE_TEXT_BYTES], uint64_t bytes) {
    const char *unit = bytes < 1u << 30 ? "MiB" : "GiB";
    snprintf(text, SIZE_TEXT_BYTES, "%.2f %s", (double)bytes / (bytes < 1u << 30 ? 1u << 20 : 1u << 30), unit);
    return text;
}

static uint64_t without_reserve(uint64_t bytes) {
    uint64_t reserve = bytes / RESERVE_SHARE;
    return bytes - (reserve < RESERVE_MAX_BYTES ? reserve : RESERVE_MAX_BYTES);
}

// ---- control groups, machine and node ----

static void read_groups(const char *root, struct room *least) {
    struct farm_cgroup_limits limits;
    farm_cgroup_read(root, &limits);
    const struct farm_cgroup_memory *memory = &limits.memory;
    if (memory->left_bytes >= least->left_bytes) return;
    *least = (struct room){.left_bytes = memory->left_bytes,
                           .limit_bytes = memory->limit_bytes,
                           .used_bytes = memory->used_bytes,
                           .remedy = memory->v2 ? remedy_v2 : remedy_v1};
    snprintf(least->name, sizeof least->name, "%s of control group %s", memory->file, memory->group);
}

static void lower_room(struct room *least, uint64_t left, uint64_t total, const char *remedy, const char *name) {
    if (left >= least->left_bytes) return;
    *least = (struct room){
        .left_bytes = left, .limit_bytes = total, .used_bytes = total > left ? total - left : 0, .remedy = remedy};
    snprintf(least->name, sizeof least->name, "%s", name);
}

static void read_machine(const char *root, struct room *least) {
    char text[TEXT_BYTES];
    if (!farm_file_text(text, sizeof text, "%s/proc/meminfo", root) || !strstr(text, "MemAvailable:")) return;
    uint64_t left = farm_file_number(text, "MemAvailable:") * 1024, total = farm_file_number(text, "MemTotal:") * 1024;
    lower_room(least, left, total, "end other programs", "MemAvailable of this machine");
}

// "Node 1 MemFree:  123 kB" of a node's meminfo.
static uint64_t node_value(const char *text, int node, const char *key) {
    char line[64];
    snprintf(line, sizeof line, "Node %d %s:", node, key);
    return farm_file_number(text, line) * 1024;
}

static void read_node(const char *root, int node, struct room *least) {
    char text[TEXT_BYTES];
    if (!farm_file_text(text, sizeof text, "%s/sys/devices/system/node/node%d/meminfo", root, node)) return;
    uint64_t left = node_value(text, node, "MemFree") + node_value(text, node, "Active(file)") +
                    node_value(text, node, "Inactive(file)"),
             total = node_value(text, node, "MemTotal");
    char name[64];
    snprintf(name, sizeof name, "memory of NUMA node %d", node);
    lower_room(least, left, total, "end other programs there, or place fewer actors on it", name);
}

static struct room least_room(const char *root, int node) {
    struct room least = {.left_bytes = UINT64_MAX};
    root = farm_file_root(root);
    read_groups(root, &least);
    read_machine(root, &least);
    if (node >= 0) read_node(root, node, &least);
    return least;
}

uint64_t farm_limits_memory_available_bytes(const char *root) {
    return without_reserve(least_room(root, -1).left_bytes);
}

int64_t farm_limits_huge_pool_bytes(const char *root, size_t page_bytes) {
    static const char pool[] = "sys/kernel/mm/hugepages/hugepages-";
    const size_t kib = page_bytes / 1024;
    char text[64];
    root = farm_file_root(root);
    if (!farm_file_text(text, sizeof text, "%s/%s%zukB/free_hugepages", root, pool, kib)) return -1;
    const uint64_t free_pages = strtoull(text, NULL, 10);
    const bool any = farm_file_text(text, sizeof text, "%s/%s%zukB/resv_hugepages", root, pool, kib);
    const uint64_t reserved = any ? strtoull(text, NULL, 10) : 0;
    return free_pages > reserved ? (int64_t)((free_pages - reserved) * page_bytes) : 0;
}

uint64_t farm_limits_huge_available_bytes(const char *root, int node) {
    char text[64];
    const int64_t pool = farm_limits_huge_pool_bytes(root, HUGE_BYTES);
    if (pool <= 0 || node < 0) return pool > 0 ? (uint64_t)pool : 0;
    if (!farm_file_text(text, sizeof text,
                        "%s/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/free_hugepages",
                        farm_file_root(root), node))
        return 0;
    const uint64_t of_node = strtoull(text, NULL, 10) * HUGE_BYTES;
    return of_node < (uint64_t)pool ? of_node : (uint64_t)pool;
}

// `what`: " of shared memory", or "".
static enum farm_status check_memory(const char *root, uint64_t bytes, int node, const char *what,
                                     struct farm_error *err) {
    char wanted[SIZE_TEXT_BYTES], left[SIZE_TEXT_BYTES], limit[SIZE_TEXT_BYTES], used[SIZE_TEXT_BYTES];
    const struct room least = least_room(root, node);
    uint64_t may_take = without_reserve(least.left_bytes);
    if (bytes <= may_take) return FARM_OK;
    return farm_fail(
        err, FARM_E_LIMIT,
        "%s%s wanted, %s may still be taken: %s (%s, %s in use) is the limit; %s, or take fewer actors, environments "
        "or steps",
        size_text(wanted, bytes), what, size_text(left, may_take), least.name, size_text(limit, least.limit_bytes),
        size_text(used, least.used_bytes), least.remedy);
}

enum farm_status farm_limits_check_memory(const char *root, uint64_t bytes, int node, struct farm_error *err) {
    return check_memory(root, bytes, node, " of shared memory", err);
}

// ---- resource limits ----

// A resource limit; UINT64_MAX for "unlimited".
static uint64_t parse_limit(const char *text) {
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text || value >= UINT64_C(1) << 62 ? UINT64_MAX : value;
}

// Reads a line of /proc/self/limits; false if there is none. UINT64_MAX: unlimited.
static bool read_rlimit(const char *root, const char *name, uint64_t *soft, uint64_t *hard) {
    char text[TEXT_BYTES], soft_text[32], hard_text[32];
    if (!farm_file_text(text, sizeof text, "%s/proc/self/limits", root)) return false;
    const char *line = strstr(text, name);
    if (!line || sscanf(line + strlen(name), "%31s %31s", soft_text, hard_text) != 2) return false;
    *soft = parse_limit(soft_text);
    *hard = parse_limit(hard_text);
    return true;
}

enum farm_status farm_limits_check_file(const char *root, uint64_t bytes, struct farm_error *err) {
    struct rlimit limit;
    uint64_t soft, hard;
    root = farm_file_root(root);
    if (!*root && getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur) return FARM_OK;
    if (!read_rlimit(root, "Max file size", &soft, &hard) || bytes <= soft) return FARM_OK;
    return farm_fail(
        err, FARM_E_LIMIT,
        "%llu bytes wanted in one file, RLIMIT_FSIZE allows %llu (hard limit %llu): raise it with `ulimit -f "
        "%llu` (systemd: LimitFSIZE=; docker: --ulimit fsize=)",
        (unsigned long long)bytes, (unsigned long long)soft, (unsigned long long)hard,
        (unsigned long long)((bytes + 1023) / 1024));
}

static enum farm_status check_address_space(const char *root, uint64_t bytes, struct farm_error *err) {
    char text[TEXT_BYTES], wanted[SIZE_TEXT_BYTES], allowed[SIZE_TEXT_BYTES], mapped[SIZE_TEXT_BYTES];
    uint64_t soft, hard;
    if (!read_rlimit(root, "Max address space", &soft, &hard) || soft == UINT64_MAX) return FARM_OK;
    if (!farm_file_text(text, sizeof text, "%s/proc/self/statm", root)) return FARM_OK;
    const uint64_t used = strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (used + bytes <= soft) return FARM_OK;
    return farm_fail(err, FARM_E_LIMIT,
                     "%s of address space wanted in one process, RLIMIT_AS allows %s, of which %s are in use: raise it "
                     "with `ulimit -v unlimited` (systemd: LimitAS=; docker: --ulimit as=)",
                     size_text(wanted, used + bytes), size_text(allowed, soft), size_text(mapped, used));
}

enum farm_status farm_limits_check_run(const char *root, uint64_t bytes, uint64_t process_bytes,
                                       struct farm_error *err) {
    const enum farm_status status = check_memory(root, bytes, -1, "", err);
    return status ? status : check_address_space(farm_file_root(root), process_bytes, err);
}

static bool has_capability(const char *root, int bit) {
    char text[TEXT_BYTES];
    const char *line = farm_file_text(text, sizeof text, "%s/proc/self/status", root) ? strstr(text, "CapEff:") : NULL;
    return line && strtoull(line + strlen("CapEff:"), NULL, 16) >> bit & 1;
}

// Whether `wanted` fits the soft limit, which is raised on the running system.
static bool fits_rlimit(const char *root, int resource, uint64_t wanted, uint64_t soft, uint64_t hard) {
    if (wanted <= soft) return true;
    if (wanted > hard) return false;
    if (*root) return true;
    struct rlimit limit;
    if (getrlimit(resource, &limit)) return false;
    limit.rlim_cur = wanted;
    return setrlimit(resource, &limit) == 0;
}

// A limit of a number; UINT64_MAX: none, or no file.
struct count {
    const char *what, *limit, *remedy; // remedy: in front of the figure that would do
    uint64_t wanted, used, allowed;
};

// The hard limit, and the soft limit raised to what is wanted; UINT64_MAX: none.
static uint64_t raised_limit(const char *root, const char *name, int resource, uint64_t wanted) {
    uint64_t soft, hard;
    const bool any = read_rlimit(root, name, &soft, &hard);
    return !any || fits_rlimit(root, resource, wanted, soft, hard) ? UINT64_MAX : hard;
}

static uint64_t read_number(const char *root, const char *file) {
    char text[64];
    return farm_file_text(text, sizeof text, "%s/proc/sys/%s", root, file) ? parse_limit(text) : UINT64_MAX;
}

static enum farm_status check_counts(const char *root, const struct farm_limits_request *request,
                                     struct farm_error *err) {
    enum { RESERVED_PIDS = 300 }; // the kernel does not give numbers below a second time
    static const char tasks[] = "processes and threads";
    unsigned long long running = 0; // on the whole system: the fourth field of /proc/loadavg is runnable/all
    char text[128];
    struct farm_cgroup_limits group;
    farm_cgroup_read(root, &group);
    if (farm_file_text(text, sizeof text, "%s/proc/loadavg", root)) sscanf(text, "%*s %*s %*s %*u/%llu", &running);
    const struct count counts[] = {
        {"open files", "RLIMIT_NOFILE (hard limit)",
         "raise it (systemd: LimitNOFILE=; docker: --ulimit nofile=; limits.conf: nofile) with ulimit -n ",
         request->descriptors, 0, raised_limit(root, "Max open files", RLIMIT_NOFILE, request->descriptors)},
        {tasks, "pids.max of the control group", "raise it (systemd: TasksMax=; docker: --pids-limit) to ",
         request->processes, group.pids_limit - group.pids_left, group.pids_limit},
        {tasks, "RLIMIT_NPROC (hard limit)", "raise it (systemd: LimitNPROC=; limits.conf: nproc) with ulimit -u ",
         request->processes, 0,
         has_capability(root, CAP_SYS_RESOURCE_BIT)
             ? UINT64_MAX
             : raised_limit(root, "Max processes", RLIMIT_NPROC, request->processes)},
        {tasks, "kernel.pid_max", "raise it with sysctl -w kernel.pid_max=", request->processes,
         running + RESERVED_PIDS, read_number(root, "kernel/pid_max")},
        {"mappings in one process", "vm.max_map_count", "raise it with sysctl -w vm.max_map_count=", request->mappings,
         0, read_number(root, "vm/max_map_count")},
    };
    for (const struct count *c = counts; c < counts + sizeof counts / sizeof *counts; c++) {
        if (!c->wanted || c->used + c->wanted <= c->allowed) continue;
        char beside[48] = "";
        if (c->used) snprintf(beside, sizeof beside, " beside %llu", (unsigned long long)c->used);
        return farm_fail(err, FARM_E_LIMIT, "%llu %s wanted%s, %s allows %llu: %s%llu, or take fewer actors",
                         (unsigned long long)c->wanted, c->what, beside, c->limit, (unsigned long long)c->allowed,
                         c->remedy, (unsigned long long)(c->used + c->wanted));
    }
    return FARM_OK;
}

static enum farm_status check_locked(const char *root, uint64_t wanted, struct farm_error *err) {
    char wanted_text[SIZE_TEXT_BYTES], soft_text[SIZE_TEXT_BYTES], hard_text[SIZE_TEXT_BYTES];
    uint64_t soft, hard;
    if (has_capability(root, CAP_IPC_LOCK_BIT)) return FARM_OK;
    if (!read_rlimit(root, "Max locked memory", &soft, &hard) || fits_rlimit(root, RLIMIT_MEMLOCK, wanted, soft, hard))
        return FARM_OK;
    return farm_fail(
        err, FARM_E_LIMIT,
        "%s of locked memory wanted, RLIMIT_MEMLOCK allows %s (hard limit %s): raise it with `ulimit -l %llu` "
        "(systemd: LimitMEMLOCK=; docker: --ulimit memlock=; /etc/security/limits.conf: memlock)",
        size_text(wanted_text, wanted), size_text(soft_text, soft), size_text(hard_text, hard),
        (unsigned long long)((wanted + 1023) / 1024));
}

enum farm_status farm_limits_check(const struct farm_limits_request *request, struct farm_error *err) {
    const char *root = farm_file_root(request->root);
    uint64_t pool = request->huge ? farm_limits_huge_available_bytes(root, -1) : 0;
    uint64_t bytes = request->shared_bytes > pool ? request->shared_bytes - pool : 0;
    enum farm_status status = farm_limits_check_memory(root, bytes, -1, err);
    if (!status) status = check_counts(root, request, err);
    if (!status) status = check_locked(root, request->locked_bytes, err);
    return status;
}
