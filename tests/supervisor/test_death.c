// What is found out about deaths: the kernel's settings on recorded machines, and addresses of this program.
#include <criterion/criterion.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/recorded.h"
#include "supervisor/death.h"

static struct farm_death_watch watch;
static struct farm_death death;

static void describe(int code, int status, const char *why) {
    siginfo_t info = {.si_code = code};
    info.si_pid = 4711;
    info.si_status = status;
    farm_death_describe(&watch, &info, "actor 3", why, &death);
}

static void watch_recorded(void) {
    make_root();
    farm_death_watch(&watch, root);
}

TestSuite(death, .init = watch_recorded, .fini = remove_root, .timeout = 30);

Test(death, describes_what_waitid_reports) {
    describe(CLD_EXITED, 3, "");
    cr_assert_str_eq(death.how, "ended with exit status 3");
    cr_assert(!death.crashed && death.pid == 4711);
    describe(CLD_KILLED, SIGRTMAX, "");
    cr_assert_str_eq(death.how, "ended with a final error");
    describe(CLD_KILLED, SIGKILL, "it hung");
    cr_assert_str_eq(death.how, "was killed by signal 9 (Killed), by the farm: it hung");
    describe(CLD_KILLED, SIGSEGV, "");
    cr_assert(death.crashed && !death.core[0]);
}

Test(death, blames_the_kernel_if_no_group_has_a_limit) {
    record("proc/vmstat", "nr_free_pages 1\noom_kill 5\n");
    farm_death_watch(&watch, root);
    describe(CLD_KILLED, SIGKILL, "");
    cr_assert_str_eq(death.how, "was killed by signal 9 (Killed)");
    record("proc/vmstat", "nr_free_pages 1\noom_kill 7\n");
    for (int i = 0; i < 2; i++) {
        describe(CLD_KILLED, SIGKILL, "");
        cr_assert_str_eq(death.how, "was killed by signal 9 (Killed), probably by the out-of-memory killer (of this "
                                    "machine's kernel, 2 oom_kill events)");
    }
    describe(CLD_KILLED, SIGKILL, "");
    cr_assert_str_eq(death.how, "was killed by signal 9 (Killed)", "each event explains one death");
}

Test(death, names_the_core_file) {
    char here[512], expected[600];
    cr_assert_not_null(getcwd(here, sizeof here));
    static const char *const cases[][3] = {
        {"/cores/%e.%p.%s%%", "0", "core file: /cores/actor 3.4711.11%"},
        {"/cores/core.%t", "1", "core file: /cores/core.*.4711"},
        {"|/lib/systemd/systemd-coredump %P", "0",
         "its core went to /lib/systemd/systemd-coredump %P (coredumpctl gdb 4711, with systemd)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record("proc/sys/kernel/core_pattern", cases[i][0]);
        record("proc/sys/kernel/core_uses_pid", cases[i][1]);
        describe(CLD_DUMPED, SIGSEGV, "");
        cr_assert_str_eq(death.core, cases[i][2]);
    }
    record("proc/sys/kernel/core_pattern", "core");
    describe(CLD_DUMPED, SIGSEGV, "");
    snprintf(expected, sizeof expected, "core file: %s/core", here);
    cr_assert(strncmp(death.core, expected, sizeof death.core - 40) == 0, "%s", death.core);
}

// One character less than the text has room for: the slash and the zero byte must fit too.
Test(death, a_long_working_directory_leaves_the_cause_alone) {
    char folder[sizeof death.core];
    const int length = (int)(sizeof death.core - sizeof "core file: " - strlen(root) - 1);
    snprintf(folder, sizeof folder, "%s/%0*d", root, length, 0);
    record("proc/sys/kernel/core_pattern", "core");
    cr_assert(!mkdir(folder, 0700) && !chdir(folder));
    describe(CLD_DUMPED, SIGSEGV, "");
    cr_assert_str_eq(death.cause, "was killed by signal 11 (Segmentation fault)");
}

// What a worker prints for these frames' lines.
static const char *print_places(const struct farm_death_frames *frames) {
    static char places[4096];
    const int file = memfd_create("places", MFD_CLOEXEC), before = dup(STDOUT_FILENO);
    dup2(file, STDOUT_FILENO);
    cr_assert_eq(farm_death_print_places((void *)(uintptr_t)frames, NULL), 0);
    dup2(before, STDOUT_FILENO);
    places[pread(file, places, sizeof places - 1, 0)] = 0;
    return places;
}

Test(death, names_functions_of_frames_and_leaves_out_the_c_library) {
    struct farm_death_frames frames = {.count = 0};
    struct dl_find_object object;
    char path[256], line[512], first[512];
    cr_assert_eq(_dl_find_object((void *)describe, &object), 0);
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    cr_assert_gt(length, 0);
    path[length] = 0;
    cr_assert(farm_death_take_frame(&frames, "farm: frame 0x10 /lib/libc.so.6"));
    const unsigned long long offset = (uintptr_t)describe - object.dlfo_link_map->l_addr;
    snprintf(line, sizeof line, "farm: frame 0x%llx %s", offset, path);
    cr_assert(farm_death_take_frame(&frames, line));
    cr_assert(farm_death_take_frame(&frames, "farm: frame 0x12 /no/such object.so"));
    const char *places = print_places(&frames);
    cr_assert(strncmp(places, "crashed in ", 11) == 0 && !strstr(places, "libc"), "%s", places);
    cr_assert(strstr(places, access("/usr/bin/addr2line", X_OK) ? "addr2line -fe " : "describe at "), "%s", places);
    cr_assert(strstr(places, "called by 0x12 of /no/such object.so, which is no object file\n"), "%s", places);
    farm_death_first_place(&frames, first, sizeof first);
    snprintf(line, sizeof line, "crashed in addr2line -fe %s 0x%llx", path, offset);
    cr_assert_str_eq(first, line);
}

Test(death, takes_only_frames_of_absolute_paths) {
    static const char *const lies[] = {
        "farm: error: actor 3: frame", "farm: frame 0x10 @/etc/passwd", "farm: frame 0x10 --help",
        "farm: frame 0x10 ./p.so",     "farm: frame 0x /p.so",          "farm: frame 0x10g /p.so",
        "farm: frame 0x-1 /p.so",      "farm: frame 0x10  /p.so",       "farm: frame 0x10000000000000000 /p.so",
        "farm: frame 10 /p.so"};
    struct farm_death_frames frames = {.count = 0};
    char line[1024];
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        cr_assert(!farm_death_take_frame(&frames, lies[i]), "%s", lies[i]);
    snprintf(line, sizeof line, "farm: frame 0x1 /%0*d", 600, 0);
    cr_assert(!farm_death_take_frame(&frames, line), "a path that no report has");
    int taken = 0;
    while (taken < 100 && farm_death_take_frame(&frames, "farm: frame 0x1 /p.so")) taken++;
    cr_assert_eq(taken, 9, "as many as a report has, then they are lines as any others");
}

// A read of the fifo, or of the terminal, would wait for ever.
Test(death, reads_no_file_that_is_no_object) {
    char line[512];
    snprintf(line, sizeof line, "%s/fifo", root);
    cr_assert_eq(mkfifo(line, 0600), 0);
    record("text", "no object, though a file that is long enough for the head of one: 0123456789012345");
    record("short", "\177ELF");
    const char *const paths[] = {root, "/dev/ptmx", "/dev/zero", "/proc/self/maps", "/proc/kmsg"};
    for (size_t i = 0; i < 8; i++) {
        struct farm_death_frames frames = {.count = 0};
        static const char *const names[] = {"fifo", "text", "short"};
        if (i < 3)
            snprintf(line, sizeof line, "farm: frame 0x1 %s/%s", root, names[i]);
        else
            snprintf(line, sizeof line, "farm: frame 0x1 %s", paths[i - 3]);
        cr_assert(farm_death_take_frame(&frames, line));
        const char *places = print_places(&frames);
        cr_assert(strncmp(places, "crashed in 0x1 of ", 18) == 0 && strstr(places, "no object file\n"), "%s", places);
    }
}
