// See death.h.
#include "supervisor/death.h"

#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/format.h"
#include "base/program.h"

enum { FRAMES_MAX = 9, PLACES_MAX = 4, PATH_BYTES = 512 };

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
    line += sizeof head - 1;
    const size_t used = frames->count ? strlen(frames->lines) : 0, bytes = strlen(line) + 2;
    const size_t digits = strspn(line, "0123456789abcdef");
    if (!digits || digits > 16 || line[digits] != ' ' || line[digits + 1] != '/' || frames->count == FRAMES_MAX ||
        bytes > PATH_BYTES || used + bytes > sizeof frames->lines)
        return false;
    snprintf(frames->lines + used, bytes, "%s\n", line);
    return ++frames->count;
}

struct frame {
    uint64_t offset;
    char path[PATH_BYTES];
};

// Without the first ones that are of the C library (abort, memcpy): their caller says more. Returns how many remain.
static uint32_t read_frames(const struct farm_death_frames *frames, struct frame found[FRAMES_MAX]) {
    const char *at = frames->lines;
    uint32_t count = 0;
    for (uint32_t i = 0; i < frames->count; i++, at = strchr(at, '\n') + 1) {
        if (count == 1 && strstr(found[0].path, "/libc.so")) count = 0;
        sscanf(at, "%" SCNx64 " %511[^\n]", &found[count].offset, found[count].path);
        count++;
    }
    return count;
}

void farm_death_first_place(const struct farm_death_frames *frames, char *line, size_t bytes) {
    struct frame found[FRAMES_MAX];
    read_frames(frames, found);
    snprintf(line, bytes, "crashed in addr2line -fe %s 0x%" PRIx64, farm_format_word(found[0].path).text,
             found[0].offset);
}

// Whether it can be mapped as code. Opens no file whose opening waits or has an effect.
static bool is_object(const char *path) {
    char opened[32];
    struct stat info;
    Elf64_Ehdr head; // begins as Elf32_Ehdr does
    const int place = open(path, O_PATH | O_CLOEXEC);
    if (place < 0 || fstat(place, &info) || !S_ISREG(info.st_mode) || info.st_size < (off_t)sizeof head) return false;
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", place);
    const int fd = open(opened, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return read(fd, &head, sizeof head) == sizeof head && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
           (head.e_type == ET_EXEC || head.e_type == ET_DYN);
}

int farm_death_print_places(void *context, struct farm_error *err) {
    static const char inlined[] = " (inlined by) ";
    struct frame found[FRAMES_MAX];
    char text[1024];
    const uint32_t count = read_frames(context, found);
    for (uint32_t i = 0, places = 0; i < count && places < PLACES_MAX; i++) {
        if (is_object(found[i].path))
            farm_program_place(found[i].path, found[i].offset, text, sizeof text);
        else
            snprintf(text, sizeof text, "0x%" PRIx64 " of %s, which is no object file", found[i].offset, found[i].path);
        for (char *line = text, *end; *line && places < PLACES_MAX; line = end, places++) {
            const char *way = line != text ? "inlined in" : i == 0 ? "crashed in" : "called by";
            end = line + strcspn(line, "\n");
            if (*end) *end++ = 0;
            if (strncmp(line, inlined, sizeof inlined - 1) == 0) line += sizeof inlined - 1;
            dprintf(STDOUT_FILENO, "%s %s\n", way, line);
        }
    }
    return 0;
}
