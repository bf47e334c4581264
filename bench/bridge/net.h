// Two network namespaces joined by veth, for the learner's side and the node's, each with a CPU of its own; made as
// root or as an ordinary user (in a user namespace). Where namespaces are forbidden, both sides meet on loopback, and
// results say so. Processes of either side are started here.
#ifndef BENCH_BRIDGE_NET_H
#define BENCH_BRIDGE_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum bench_side { BENCH_LEARNER, BENCH_NODE, BENCH_SIDES };

struct bench_net {
    bool loopback;
    const char *where;                // for results: "veth" or "loopback"
    const char *address[BENCH_SIDES]; // of each side
    int ns[BENCH_SIDES];              // descriptors of the namespaces; -1: loopback
    int cpu[BENCH_SIDES];             // the first and the last that there are; -1: any
};

// The calling process, single-threaded, moves into the learner's namespace.
void bench_net_make(struct bench_net *net);
// Takes the path down and up again, at the node's end.
void bench_net_cut(const struct bench_net *net, bool down);

// A child process in the side's namespace on the side's CPU, which dies with this process; 0 in the child.
pid_t bench_net_fork(const struct bench_net *net, enum bench_side side);
// Waits for it; wrong: it failed.
void bench_net_join(pid_t pid, const char *what);
// Starts a program there, as a process group, its standard output (and, if `quiet`, its errors) into *output, a pipe
// (NULL: discarded).
pid_t bench_net_start(const struct bench_net *net, enum bench_side side, bool quiet, int *output,
                      const char *const *argv);
// Runs a program there, and keeps what it prints. False: it is missing or failed.
bool bench_net_run(const struct bench_net *net, enum bench_side side, const char *const *argv, char *text,
                   size_t bytes);
bool bench_net_has(const char *program);
// Ends a process that was started here.
void bench_net_end(pid_t pid);

#endif
