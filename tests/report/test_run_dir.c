// Run folders: names, lock, checkpoints, and files replaced as a whole.
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/no_locks.h"
#include "base/file.h"
#include "report/run_dir.h"

static char folder[] = "/tmp/farm-runs-XXXXXX";

static void make_folder(void) {
    cr_assert(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}
static void remove_folder(void) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
}
TestSuite(report, .init = make_folder, .fini = remove_folder);

// In place of the library's, also for libfarm: a file system that cannot flush folders, or files.
static int folder_errno, file_errno;

int fsync(int fd) {
    struct stat info;
    const int error = fstat(fd, &info) ? errno : S_ISDIR(info.st_mode) ? folder_errno : file_errno;
    return error ? errno = error, -1 : (int)syscall(SYS_fsync, fd);
}

static void touch(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT, 0666);
    cr_assert_geq(fd, 0, "%s", name);
    close(fd);
}

static struct farm_run_dir opened(const char *path, bool resume) {
    struct farm_run_dir dir;
    struct farm_error err;
    cr_assert_eq(farm_run_dir_open(path, "native/catch", resume, &dir, &err), FARM_OK, "%s", err.message);
    return dir;
}

static enum farm_status refused(const char *path, bool resume, struct farm_error *err) {
    struct farm_run_dir dir;
    enum farm_status status = farm_run_dir_open(path, "native/catch", resume, &dir, err);
    cr_assert_eq(dir.lock_fd, -1);
    return status;
}

Test(report, default_names_count_upwards) {
    struct farm_run_dir first = opened(NULL, false), second = opened(NULL, false);
    cr_assert(strstr(first.path, "runs/native_catch-20"), "%s", first.path);
    cr_assert_str_eq(strrchr(first.path, '-'), "-1");
    cr_assert_str_eq(strrchr(second.path, '-'), "-2");
    char path[FARM_RUN_PATH_MAX + 16];
    cr_assert_eq(access(farm_run_dir_file(second.path, "checkpoints", path, sizeof path), F_OK), 0);
    farm_run_dir_close(&first);
    farm_run_dir_close(&second);
}

Test(report, refuses_a_second_farm_and_names_the_first) {
    struct farm_run_dir first = opened("deep/er/run", false);
    struct farm_error err;
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld)", (long)getpid());
    cr_assert_eq(refused("deep/er/run", false, &err), FARM_E_BUSY);
    cr_assert(strstr(err.message, pid), "%s", err.message);
    cr_assert_eq(refused("deep/er/run", true, &err), FARM_E_BUSY);
    farm_run_dir_close(&first);
    struct farm_run_dir again = opened("deep/er/run", false);
    farm_run_dir_close(&again);
}

Test(report, the_lock_ends_with_its_process) {
    int ready[2];
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct farm_run_dir dir;
        char byte = (char)farm_run_dir_open("run", "e", false, &dir, NULL);
        if (write(ready[1], &byte, 1) == 1) pause();
        _exit(0);
    }
    char byte = 1;
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_assert_eq(byte, FARM_OK);
    struct farm_error err;
    cr_assert_eq(refused("run", false, &err), FARM_E_BUSY);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    struct farm_run_dir dir = opened("run", false);
    farm_run_dir_close(&dir);
}

// What was logged meanwhile, until the next call.
static const char *logged(int capture[2]) {
    static char text[4096];
    ssize_t n = -1;
    if (capture[0] < 0) {
        cr_assert_eq(pipe2(capture, O_NONBLOCK), 0);
        cr_assert_geq(dup2(capture[1], STDERR_FILENO), 0);
    } else {
        n = read(capture[0], text, sizeof text - 1);
    }
    text[n > 0 ? n : 0] = 0;
    return text;
}

Test(report, warns_of_a_file_system_without_locks_or_flushed_folders) {
    const int locks[] = {ENOSYS, ENOLCK, EOPNOTSUPP, EINVAL}, folders[] = {EBADF, EOPNOTSUPP, EACCES, EINVAL};
    struct farm_error err;
    int capture[2] = {-1, -1};
    logged(capture);
    for (int i = 0; i < 4; i++) {
        lock_errno = locks[i];
        folder_errno = folders[i];
        file_errno = i % 2 ? EOPNOTSUPP : EINVAL;
        struct farm_run_dir dir = opened("run", false);
        const char *text = logged(capture);
        cr_assert(strstr(text, "cannot lock run/lock (") && strstr(text, strerror(locks[i])), "%s", text);
        cr_assert(strstr(text, "power cut") && strstr(text, strerror(folders[i])), "%s", text);
        cr_assert_eq(farm_file_replace("run/a", "x", 1, &err), FARM_OK, "%s", err.message);
        farm_run_dir_close(&dir);
    }
    lock_errno = EIO;
    cr_assert_eq(refused("run", false, &err), FARM_E_IO);
    folder_errno = EIO;
    cr_assert_eq(farm_file_replace("run/a", "x", 1, &err), FARM_E_IO);
    folder_errno = 0;
    file_errno = ENOSPC;
    cr_assert_eq(farm_file_replace("run/a", "x", 1, &err), FARM_E_IO);
}

Test(report, lists_checkpoints_newest_first) {
    struct farm_run_dir dir = opened("run", false);
    touch("run/checkpoints/000000000900.safetensors");
    touch("run/checkpoints/000000001000.safetensors");
    touch("run/checkpoints/1000000000000.safetensors"); // more than 12 digits
    touch("run/checkpoints/000000002000.safetensors.tmp.77");
    touch("run/checkpoints/best.safetensors");
    char path[FARM_RUN_PATH_MAX + 64];
    cr_assert(farm_run_dir_checkpoint("run", 0, path, sizeof path));
    cr_assert_str_eq(path, "run/checkpoints/1000000000000.safetensors");
    cr_assert(farm_run_dir_checkpoint("run", 1, path, sizeof path));
    cr_assert_str_eq(path, "run/checkpoints/000000001000.safetensors");
    cr_assert(farm_run_dir_checkpoint("run", 2, path, sizeof path));
    cr_assert(!farm_run_dir_checkpoint("run", 3, path, sizeof path));
    cr_assert(!farm_run_dir_checkpoint("elsewhere", 0, path, sizeof path));
    farm_run_dir_close(&dir);
}

Test(report, does_not_start_over_a_run_with_checkpoints) {
    struct farm_run_dir dir = opened("run", false);
    touch("run/checkpoints/000000000900.safetensors");
    farm_run_dir_close(&dir);
    struct farm_error err;
    cr_assert_eq(refused("run", false, &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "--resume"), "%s", err.message);
    dir = opened("run", true);
    farm_run_dir_close(&dir);
}

Test(report, resume_requires_an_existing_folder) {
    struct farm_error err;
    cr_assert_eq(refused(NULL, true, &err), FARM_E_USAGE);
    cr_assert_eq(refused("nothing", true, &err), FARM_E_NOT_FOUND);
    cr_assert_neq(access("nothing", F_OK), 0, "nothing was made");
    touch("file");
    cr_assert_eq(refused("file", false, &err), FARM_E_USAGE);
    cr_assert_eq(refused("", false, &err), FARM_E_USAGE);
}

static int entries(const char *path) {
    int count = 0;
    DIR *open_folder = opendir(path);
    while (readdir(open_folder)) count++;
    closedir(open_folder);
    return count - 2;
}

Test(report, replaces_files_whole) {
    struct farm_error err;
    char *text;
    size_t bytes;
    cr_assert_eq(farm_file_replace("a", "first", 5, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_file_replace("a", "second\0x", 8, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_file_read("a", 100, &text, &bytes, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(bytes, 8);
    cr_assert_eq(memcmp(text, "second\0x", 9), 0, "with a zero byte behind");
    free(text);
    cr_assert_eq(entries("."), 1, "no temporary file is left");
    cr_assert_eq(farm_file_read("a", 7, &text, &bytes, &err), FARM_E_FORMAT);
    cr_assert_eq(farm_file_read("b", 7, &text, &bytes, &err), FARM_E_NOT_FOUND);
    cr_assert_eq(farm_file_read(".", 7, &text, &bytes, &err), FARM_E_FORMAT);
    cr_assert_eq(farm_file_try_replace("a", &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_file_try_replace("no/where", &err), FARM_E_NOT_FOUND);
    cr_assert_eq(farm_file_replace("no/where", "x", 1, &err), FARM_E_NOT_FOUND);
}

Test(report, a_failed_replacement_keeps_the_old_file) {
    struct farm_error err;
    cr_assert_eq(mkdir("taken", 0777), 0);
    touch("taken/inside");
    cr_assert_eq(farm_file_try_replace("taken", &err), FARM_E_USAGE);
    cr_assert_eq(farm_file_replace("taken", "x", 1, &err), FARM_E_IO); // rename over a folder
    cr_assert_eq(access("taken/inside", F_OK), 0);
    cr_assert_eq(entries("."), 1, "no temporary file is left");
}

// ---- what another user has prepared ----

static int plant_link(const char *name) {
    return symlink("../victim", name);
}
static int plant_dangling(const char *name) {
    return symlink("../new", name);
}
static int plant_further_name(const char *name) {
    return link("victim", name);
}
static int plant_fifo(const char *name) {
    return mkfifo(name, 0666);
}
static int plant_foreign(const char *name) {
    touch(name);
    return chown(name, 54321, (gid_t)-1);
}

static void expect_victim(const char *after) {
    char *text;
    size_t bytes;
    cr_assert_eq(farm_file_read("victim", 100, &text, &bytes, NULL), FARM_OK, "%s", after);
    cr_assert_eq(bytes, 3, "%s", after);
    free(text);
    cr_assert_neq(access("new", F_OK), 0, "%s", after);
}

Test(report, neither_opens_nor_follows_what_was_planted_in_a_folder, .timeout = 30) {
    static const struct {
        int (*plant)(const char *);
        const char *refusal;
    } cases[] = {{plant_link, " is a link: remove it"},
                 {plant_dangling, " is a link: remove it"},
                 {plant_further_name, " is a file with further names (hard links)"},
                 {plant_fifo, " is not a regular file"},
                 {plant_foreign, " is another user's file"}};
    struct farm_error err;
    char temporary[32];
    int fd;
    snprintf(temporary, sizeof temporary, "run/recipe.yaml.tmp.%ld", (long)getpid());
    cr_assert_eq(farm_file_replace("victim", "as\n", 3, &err), FARM_OK);
    cr_assert_eq(mkdir("run", 0755), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].plant == plant_foreign && geteuid() != 0) continue;
        cr_assert_eq(cases[i].plant("run/lock"), 0);
        cr_assert_eq(refused("run", false, &err), FARM_E_PERMISSION, "%s", cases[i].refusal);
        cr_assert(strstr(err.message, cases[i].refusal), "%s", err.message);
        cr_assert_eq(farm_file_open_own("run/lock", O_WRONLY | O_APPEND, &fd, &err),
                     cases[i].plant == plant_fifo ? FARM_E_IO : FARM_E_PERMISSION, "%s", cases[i].refusal);
        cr_assert_eq(fd, -1);
        cr_assert_eq(rename("run/lock", temporary), 0);
        for (int own = 0; own < 2; own++)
            cr_assert_eq(own ? farm_file_replace_own("run/recipe.yaml", "recipe", 6, true, &err)
                             : farm_file_replace("run/recipe.yaml", "recipe", 6, &err),
                         FARM_OK, "%s", err.message);
        cr_assert_eq(unlink("run/recipe.yaml"), 0);
        cr_assert_eq(cases[i].plant("run/recipe.yaml"), 0);
        cr_assert_eq(farm_file_replace("run/recipe.yaml", "recipe", 6, &err), FARM_OK, "%s", err.message);
        expect_victim(cases[i].refusal);
    }
    cr_assert_eq(entries("run"), 1, "nothing else is made");
}

Test(report, works_only_in_folders_that_others_cannot_change) {
    struct farm_error err;
    const mode_t mask = umask(0);
    struct farm_run_dir dir = opened("deep/run", false);
    struct stat info;
    for (const char *const *made =
             (const char *const[]){"deep", "deep/run", "deep/run/lock", "deep/run/checkpoints", NULL};
         *made; made++)
        cr_assert(!stat(*made, &info) && !(info.st_mode & 022), "%s: %o", *made, info.st_mode);
    umask(mask);
    farm_run_dir_close(&dir);
    cr_assert_eq(symlink("deep", "runs"), 0);
    dir = opened("runs/run", false); // the way to it may have links
    farm_run_dir_close(&dir);
    cr_assert_eq(rename("deep/run/checkpoints", "elsewhere"), 0);
    cr_assert_eq(symlink("../../elsewhere", "deep/run/checkpoints"), 0);
    cr_assert_eq(refused("deep/run", false, &err), FARM_E_PERMISSION);
    cr_assert(strstr(err.message, "deep/run/checkpoints is a link, or no folder"), "%s", err.message);
    cr_assert_eq(chmod("deep/run", 01777), 0);
    cr_assert_eq(refused("deep/run", true, &err), FARM_E_PERMISSION);
    cr_assert(strstr(err.message, "name a folder in it"), "%s", err.message);
    cr_assert_eq(farm_file_replace_own("deep/run/recipe.yaml", "x", 1, true, &err), FARM_E_PERMISSION);
    cr_assert_eq(farm_file_replace("deep/run/report.md", "x", 1, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(chmod("deep", 0777), 0);
    dir = opened("deep/mine", false);
    farm_run_dir_close(&dir);
}

Test(report, finds_the_run_that_a_checkpoint_belongs_to) {
    char run[16];
    cr_assert(farm_run_dir_of_checkpoint("runs/a/checkpoints/1.safetensors", run, sizeof run));
    cr_expect_str_eq(run, "runs/a");
    cr_expect(!farm_run_dir_of_checkpoint("runs/a/elsewhere/1.safetensors", run, sizeof run));
    cr_expect(!farm_run_dir_of_checkpoint("1.safetensors", run, sizeof run));
    cr_expect(!farm_run_dir_of_checkpoint("checkpoints/1.safetensors", run, sizeof run));
    cr_expect(!farm_run_dir_of_checkpoint("/a/path/too/long/checkpoints/1", run, sizeof run));
}
