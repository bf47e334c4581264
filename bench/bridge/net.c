// See net.h.
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common.h"
#include "base/bitmap.h"

static bool write_file(const char *path, const char *text) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return good;
}

// An ordinary user becomes root in a new user namespace.
static bool enter_new_namespace(void) {
    char map[64];
    const uid_t uid = geteuid();
    const gid_t gid = getegid();
    if (unshare(CLONE_NEWNET) == 0) return true;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    snprintf(map, sizeof map, "0 %u 1", uid);
    if (!write_file("/proc/self/uid_map", map)) return false;
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", gid);
    return write_file("/proc/self/gid_map", map);
}

// Returns a descriptor, which keeps the namespace alive.
static int make_second_namespace(void) {
    int go[2], said[2];
    char path[64], byte = 0;
    if (pipe2(go, O_CLOEXEC) || pipe2(said, O_CLOEXEC)) return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        byte = unshare(CLONE_NEWNET) == 0;
        (void)!write(said[1], &byte, 1);
        close(go[1]);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    int fd = -1;
    snprintf(path, sizeof path, "/proc/%d/ns/net", pid);
    if (pid > 0 && read(said[0], &byte, 1) == 1 && byte) fd = open(path, O_RDONLY | O_CLOEXEC);
    const int all[] = {go[0], go[1], said[0], said[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) close(all[i]);
    if (pid > 0) waitpid(pid, NULL, 0);
    return fd;
}

static bool ip(const struct bench_net *net, enum bench_side side, const char *line) {
    char text[256];
    snprintf(text, sizeof text, "%s", line);
    const char *argv[24] = {"ip"};
    size_t count = 1;
    for (char *word = strtok(text, " "); word && count < 23; word = strtok(NULL, " ")) argv[count++] = word;
    return bench_net_run(net, side, argv, NULL, 0);
}

static bool join_by_veth(struct bench_net *net) {
    char line[128];
    // A descriptor of this process, which `ip` inherits.
    const int shown = fcntl(net->ns[BENCH_NODE], F_DUPFD, 3);
    snprintf(line, sizeof line, "link add farm0 type veth peer name farm1 netns /proc/self/fd/%d", shown);
    const bool made = ip(net, BENCH_LEARNER, line);
    close(shown);
    return made && ip(net, BENCH_LEARNER, "addr add 10.87.0.1/24 dev farm0") &&
           ip(net, BENCH_LEARNER, "link set farm0 up") && ip(net, BENCH_LEARNER, "link set lo up") &&
           ip(net, BENCH_NODE, "addr add 10.87.0.2/24 dev farm1") && ip(net, BENCH_NODE, "link set farm1 up") &&
           ip(net, BENCH_NODE, "link set lo up");
}

void bench_net_make(struct bench_net *net) {
    *net = (struct bench_net){.address = {"10.87.0.1", "10.87.0.2"}, .ns = {-1, -1}};
    struct farm_bitmap cpus = {0};
    farm_bitmap_pinned(&cpus, NULL);
    for (int cpu = farm_bitmap_next(&cpus, 0); cpu >= 0; cpu = farm_bitmap_next(&cpus, cpu + 1))
        net->cpu[BENCH_NODE] = cpu;
    net->cpu[BENCH_LEARNER] = farm_bitmap_next(&cpus, 0);
    if (bench_net_has("ip") && enter_new_namespace()) {
        net->ns[BENCH_LEARNER] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        net->ns[BENCH_NODE] = make_second_namespace();
        if (net->ns[BENCH_LEARNER] >= 0 && net->ns[BENCH_NODE] >= 0 && join_by_veth(net)) return;
        // In a new namespace the loopback interface is down at first.
        for (int side = 0; side < BENCH_SIDES; side++) net->ns[side] = -1;
        ip(net, BENCH_LEARNER, "link set lo up");
    }
    fprintf(stderr, "bridge: no namespaces, or no `ip` (iproute2): both sides use loopback\n");
    net->loopback = true;
    net->address[BENCH_LEARNER] = net->address[BENCH_NODE] = "127.0.0.1";
}

// Adds a blackhole route, because the kernel takes up to a second to notice a link that is set down and up.
void bench_net_cut(const struct bench_net *net, bool down) {
    char words[96];
    snprintf(words, sizeof words, "route %s blackhole %s/32", down ? "add" : "del", net->address[BENCH_NODE]);
    must_hold(ip(net, BENCH_LEARNER, words), "a route into nothing");
}

pid_t bench_net_fork(const struct bench_net *net, enum bench_side side) {
    const pid_t parent = getpid(), pid = fork();
    must_hold(pid >= 0, "fork");
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (net->ns[side] >= 0 && setns(net->ns[side], CLONE_NEWNET) != 0) _exit(1);
    if (net->cpu[side] >= 0) farm_bitmap_pin_to(net->cpu[side], NULL);
    return 0;
}

void bench_net_join(pid_t pid, const char *what) {
    int status;
    while (waitpid(pid, &status, 0) < 0) must_hold(errno == EINTR, what);
    must_hold(status == 0, what);
}

pid_t bench_net_start(const struct bench_net *net, enum bench_side side, bool quiet, int *output,
                      const char *const *argv) {
    int out[2] = {-1, -1};
    must_hold(!output || pipe2(out, O_CLOEXEC) == 0, "pipe");
    const pid_t pid = bench_net_fork(net, side);
    if (pid > 0) setpgid(pid, pid);
    if (pid == 0) {
        setpgid(0, 0);
        const int none = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(none, 0);
        dup2(output ? out[1] : none, 1);
        if (quiet) dup2(none, 2);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (output) {
        close(out[1]);
        *output = out[0];
    }
    return pid;
}

bool bench_net_run(const struct bench_net *net, enum bench_side side, const char *const *argv, char *text,
                   size_t bytes) {
    int output = -1, status = -1;
    size_t used = 0;
    const pid_t pid = bench_net_start(net, side, true, text ? &output : NULL, argv);
    if (text) {
        for (ssize_t got; used + 1 < bytes && (got = read(output, text + used, bytes - 1 - used)) > 0;)
            used += (size_t)got;
        text[used] = 0;
        close(output);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status == 0;
}

bool bench_net_has(const char *program) {
    char path[4096];
    const char *all = getenv("PATH");
    for (const char *from = all ? all : "/usr/bin:/bin"; *from;) {
        const size_t length = strcspn(from, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)length, from, program);
        if (access(path, X_OK) == 0) return true;
        from += length + (from[length] == ':');
    }
    return false;
}

void bench_net_end(pid_t pid) {
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}
