// Two network namespaces joined by veth, one for the learner's side and one for the node's, each with its own CPU; made
// as root or as an ordinary user (in a user namespace). If namespaces are forbidden, both sides use loopback, and
// results say so. Also starts the processes of either side.
#ifndef BENCH_BRIDGE_NET_H
#define BENCH_BRIDGE_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum bench_side { BENCH_LEARNER, BENCH_NODE, BENCH_SIDES };

struct bench_net {
    bool loopback;
    const char *address[BENCH_SIDES]; // each side's
    int ns[BENCH_SIDES];              // descriptors of the namespaces; -1: loopback
    int cpu[BENCH_SIDES];             // the first and the last CPU; -1: any
};

// Moves the calling process, which must be single-threaded, into the learner's namespace.
void bench_net_make(struct bench_net *net);
// Takes the path down, or up again.
void bench_net_cut(const struct bench_net *net, bool down);

// A child process in the side's namespace on the side's CPU, which dies with this process; 0 in the child.
pid_t bench_net_fork(const struct bench_net *net, enum bench_side side);
// Waits for it and checks that it succeeded.
void bench_net_join(pid_t pid, const char *what);
// Starts a program there in a new process group. *output receives a pipe with its standard output (NULL: discarded);
// quiet: its errors are discarded.
pid_t bench_net_start(const struct bench_net *net, enum bench_side side, bool quiet, int *output,
                      const char *const *argv);
// Runs a program there; text receives its output. False: it is missing or failed.
bool bench_net_run(const struct bench_net *net, enum bench_side side, const char *const *argv, char *text,
                   size_t bytes);
bool bench_net_has(const char *program);
// Ends such a process and waits for it.
void bench_net_end(pid_t pid);

#endif
