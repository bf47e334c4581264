// What is found out about deaths: the kernel's settings on recorded machines, and addresses of this program.
#include <criterion/criterion.h>
#include <link.h>
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

static char places[4096];
static void add_place(void *context, const char *line) {
    strcat(strcat(places, line), "\n");
}

Test(death, names_functions_of_frames_and_leaves_out_the_c_library) {
    struct farm_death_frames frames = {.length = 0};
    struct dl_find_object object;
    char path[256], line[512];
    cr_assert_eq(_dl_find_object((void *)describe, &object), 0);
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    cr_assert_gt(length, 0);
    path[length] = 0;
    cr_assert(!farm_death_take_frame(&frames, "farm: error: actor 3: frame"));
    cr_assert(farm_death_take_frame(&frames, "farm: frame 0x10 /lib/libc.so.6"));
    snprintf(line, sizeof line, "farm: frame 0x%llx %s",
             (unsigned long long)((uintptr_t)describe - object.dlfo_link_map->l_addr), path);
    cr_assert(farm_death_take_frame(&frames, line));
    cr_assert(farm_death_take_frame(&frames, "farm: frame 0x12 /no/such object.so"));
    farm_death_print_frames(&frames, add_place, NULL);
    cr_assert(strncmp(places, "crashed in ", 11) == 0 && !strstr(places, "libc"), "%s", places);
    cr_assert(strstr(places, access("/usr/bin/addr2line", X_OK) ? "addr2line -fe " : "describe at "), "%s", places);
    cr_assert(strstr(places, "called by addr2line -fe '/no/such object.so' 0x12\n"), "%s", places);
    cr_assert_eq(frames.length, 0);
}
