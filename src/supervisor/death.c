// See death.h.
#include "supervisor/death.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/format.h"
#include "base/program.h"

enum { FRAMES_MAX = 8, PLACES_MAX = 4, PATH_BYTES = 512 };

// ---- the out-of-memory killer ----

static uint64_t read_machine_kills(const char *root) {
    char text[16384] = "\n";
    if (!farm_file_text(text + 1, sizeof text - 1, "%s/proc/vmstat", root)) return 0;
    return farm_file_number(text, "\noom_kill ");
}

void farm_death_watch(struct farm_death_watch *watch, const char *root) {
    *watch = (struct farm_death_watch){.root = farm_file_root(root)};
    watch->group_before = farm_cgroup_read_kills(watch->root);
    watch->machine_before = read_machine_kills(watch->root);
}

// The kernel counts a kill before it sends the signal. detail: the limit and the count.
static bool is_out_of_memory(struct farm_death_watch *watch, char *detail, size_t bytes) {
    struct farm_cgroup_limits limits;
    const uint64_t group = farm_cgroup_read_kills(watch->root) - watch->group_before,
                   machine = read_machine_kills(watch->root) - watch->machine_before;
    if ((group > machine ? group : machine) <= watch->explained) return false;
    watch->explained++;
    farm_cgroup_read(watch->root, &limits);
    if (group && limits.memory.limit_bytes != UINT64_MAX)
        snprintf(detail, bytes, " (control group limit %s, %llu oom_kill event%s)",
                 farm_format_bytes((double)limits.memory.limit_bytes).text, (unsigned long long)group,
                 group == 1 ? "" : "s");
    else
        snprintf(detail, bytes, " (of this machine's kernel, %llu oom_kill event%s)",
                 (unsigned long long)(group ? group : machine), (group ? group : machine) == 1 ? "" : "s");
    return true;
}

// ---- core files ----

// The path of the core file by core(5); "*" for what is not known here.
static void find_core(const char *root, const siginfo_t *info, const char *name, char *text, size_t bytes) {
    char pattern[256], number[32];
    if (!farm_file_line(pattern, sizeof pattern, "%s/proc/sys/kernel/core_pattern", root)) return;
    if (pattern[0] == '|') {
        snprintf(text, bytes, "its core went to %.120s (coredumpctl gdb %d, with systemd)", pattern + 1,
                 (int)info->si_pid);
        return;
    }
    size_t used = (size_t)snprintf(text, bytes, "core file: ");
    if (pattern[0] != '/' && getcwd(text + used, bytes - used - 1)) used += strlen(text + used), text[used++] = '/';
    for (const char *at = pattern; *at && used + sizeof number < bytes; at++) {
        const char *word = "*";
        if (*at != '%') {
            text[used++] = *at;
            continue;
        }
        if (!*++at) break;
        snprintf(number, sizeof number, "%d", *at == 's' ? info->si_status : (int)info->si_pid);
        if (strchr("pPiIs", *at)) word = number;
        if (*at == 'e') word = name;
        if (*at == '%') word = "%";
        used += (size_t)snprintf(text + used, bytes - used, "%.31s", word);
    }
    text[used] = 0;
    char with_pid[8] = "";
    if (!strstr(pattern, "%p") && farm_file_line(with_pid, sizeof with_pid, "%s/proc/sys/kernel/core_uses_pid", root) &&
        with_pid[0] == '1')
        snprintf(text + used, bytes - used, ".%d", (int)info->si_pid);
}

// ---- how it died ----

void farm_death_describe(struct farm_death_watch *watch, const siginfo_t *info, const char *name, const char *why,
                         struct farm_death *out) {
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP, SIGQUIT};
    char detail[192] = "";
    const int number = info->si_status;
    const size_t bytes = sizeof out->cause;
    *out = (struct farm_death){.pid = info->si_pid};
    if (info->si_code == CLD_EXITED) {
        snprintf(out->cause, bytes, "ended with exit status %d", number);
    } else if (number == SIGRTMAX) {
        snprintf(out->cause, bytes, "ended with a final error");
    } else {
        const size_t used =
            (size_t)snprintf(out->cause, bytes, "was killed by signal %d (%.30s)", number, strsignal(number));
        if (why[0])
            snprintf(out->cause + used, bytes - used, ", by the farm: %s", why);
        else if (number == SIGKILL && is_out_of_memory(watch, detail, sizeof detail))
            snprintf(out->cause + used, bytes - used, ", probably by the out-of-memory killer");
        for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) out->crashed |= crashes[i] == number;
    }
    if (info->si_code == CLD_DUMPED) find_core(watch->root, info, name, out->core, sizeof out->core);
    snprintf(out->how, sizeof out->how, "%s%s", out->cause, detail);
}

// ---- where it crashed ----

bool farm_death_take_frame(struct farm_death_frames *frames, const char *line) {
    static const char head[] = "farm: frame 0x";
    if (strncmp(line, head, sizeof head - 1) != 0) return false;
    const size_t left = sizeof frames->lines - frames->length;
    const int used = snprintf(frames->lines + frames->length, left, "%s\n", line + sizeof head - 1);
    if ((size_t)used < left) frames->length += (size_t)used;
    frames->lines[frames->length] = 0;
    return true;
}

static bool is_of_libc(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, "libc.so", 7) == 0;
}

void farm_death_print_frames(struct farm_death_frames *frames, void (*print)(void *context, const char *line),
                             void *context) {
    static const char inlined[] = " (inlined by) ";
    char path[FRAMES_MAX][PATH_BYTES], text[1024];
    uint64_t offset[FRAMES_MAX];
    int count = 0, first = 0, places = 0;
    for (const char *at = frames->lines; *at && count < FRAMES_MAX; at = strchr(at, '\n') + 1)
        if (sscanf(at, "%llx %511[^\n]", (unsigned long long *)&offset[count], path[count]) == 2) count++;
    frames->length = 0;
    frames->lines[0] = 0;
    while (first + 1 < count && is_of_libc(path[first])) first++; // abort, memcpy: their caller says more
    for (int i = first; i < count && places < PLACES_MAX; i++) {
        farm_program_place(path[i], offset[i], text, sizeof text);
        for (char *line = text, *end; *line && places < PLACES_MAX; line = end, places++) {
            char whole[sizeof text + 16];
            const char *way = line != text ? "inlined in" : i == first ? "crashed in" : "called by";
            end = line + strcspn(line, "\n");
            if (*end) *end++ = 0;
            if (strncmp(line, inlined, sizeof inlined - 1) == 0) line += sizeof inlined - 1;
            snprintf(whole, sizeof whole, "%s %s", way, line);
            print(context, whole);
        }
    }
}
