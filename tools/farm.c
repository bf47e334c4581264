// The program `farm`: finds the subcommand and runs it. See command.h.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/thread.h"
#include "farm_build.h"
#include "supervisor/guardian.h"
#include "tools/shared/command.h"

struct command {
    const char *name, *about;
    int (*run)(int argc, char **argv);
    bool starts; // processes, which its guardian ends at last
};

static const struct command commands[] = {
    {"train", "trains an agent: actors, learner, progress, checkpoints", farm_cmd_train, true},
    {"eval", "plays a trained agent without learning and prints its score", farm_cmd_eval, true},
    {"fps", "how fast environments run in the farm, against the bare simulator", farm_cmd_fps, true},
    {"serve", "runs actors for a program of your own, which answers them in the learner's place", farm_cmd_serve, true},
    {"plot", "draws the curves of runs: return, speed, policy lag, entropy, KL divergence", farm_cmd_plot, false},
    {"export", "writes a trained policy as an ONNX file, for other programs", farm_cmd_export, false},
    {"bridge", "runs this machine's actors for a learner on another machine", farm_cmd_bridge, true},
    {"actors", "adds actors to a run that goes on, or removes some", farm_cmd_actors, false},
    {"bw", "memory bandwidth and latency, and what the farm's rings carry", farm_cmd_bw, true},
    {"envs", "lists the environments that can run here", farm_cmd_envs, true},
    {"topo", "draws this machine and the plan for it", farm_cmd_topo, false},
    {"doctor", "lists what is missing or badly set, and the remedies", farm_cmd_doctor, true},
    {"setup", "installs the Python packages of ale/* and gym/* for an installed copy", farm_cmd_setup, true},
    {"report", "machine, checks and figures in one document for a bug report", farm_cmd_report, true},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *stream) {
    fprintf(stream, "usage: farm COMMAND [--flags]\n\n"
                    "Trains reinforcement learning agents: actor processes step environments into shared memory,\n"
                    "a learner infers and trains from that same memory.\n\ncommands:\n");
    for (size_t i = 0; i < COMMANDS; i++) fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].about);
    fprintf(stream, "\n  farm COMMAND --help   prints a command's flags\n"
                    "  farm --version        prints the version\n\n"
                    "start with:\n  farm train            trains a small Breakout for a minute\n\n"
                    "exit status:\n"
                    "  0  done; of train, eval, fps, serve, bridge and bw also: ended by SIGINT, SIGTERM or SIGHUP\n"
                    "  1  failed: a limit of this machine, another process, or a fault while it ran\n"
                    "  2  refused before it began: a flag, a recipe, or a file, environment or part that they name\n");
}

static int report_unknown_command(const char *word) {
    const char *names[COMMANDS];
    for (size_t i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
    const char *near = farm_nearest(word, names, COMMANDS);
    if (near)
        fprintf(stderr, "farm: unknown command '%s': did you mean '%s'? (farm --help lists all)\n", word, near);
    else
        fprintf(stderr, "farm: unknown command '%s' (farm --help lists all)\n", word);
    return 2;
}

bool farm_read_flags(const struct farm_cli *cli, int argc, char **argv, const char **word, int *exit_status) {
    struct farm_error own = {0}, *err = cli->error ? cli->error : &own;
    bool help;
    enum farm_status status = farm_cli_parse(cli, argc, argv, word, &help, err);
    *exit_status = !status ? 0 : cli->error ? 2 : farm_report_error(cli->program, err);
    if (!status && help) farm_cli_print_help(cli);
    return !status && !help;
}

int farm_report_error(const char *program, const struct farm_error *err) {
    fprintf(stderr, "%s: %s\n", program, err->message);
    switch (err->status) {
    case FARM_E_INTERRUPTED:
        return 0;
    case FARM_E_USAGE:
    case FARM_E_INVALID:
    case FARM_E_NOT_FOUND:
    case FARM_E_PERMISSION:
    case FARM_E_FORMAT:
    case FARM_E_UNSUPPORTED:
        return 2;
    default:
        return 1;
    }
}

// Whether text is lost that something may read (no closed pipe or terminal, no `>&-`). Stores errno, or 0.
static bool output_is_lost(int *why) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    *why = fflush(stdout) ? errno : 0;
    if (!*why && !ferror(stdout)) return false;
    if (!*why && write(STDOUT_FILENO, "\n", 1) < 0) *why = errno; // printf's own write failed and kept nothing
    const bool unread = poll(&out, 1, 0) > 0 && out.revents & (POLLERR | POLLHUP);
    return !unread && (fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

// farm_start (farm/farm.h) passes a pipe on that ends with its process: SIGTERM then, as from farm_stop.
static void follow_starter(void) {
    const char *text = getenv("FARM_LIFE_FD");
    char path[48], byte;
    if (!text) return;
    snprintf(path, sizeof path, "/proc/self/fd/%.20s", text);
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // anew: other farms of that process have it too
    close(atoi(text));
    unsetenv("FARM_LIFE_FD");
    if (fd < 0 || fcntl(fd, F_SETSIG, SIGTERM) || fcntl(fd, F_SETOWN, getpid()) ||
        fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK))
        fprintf(stderr, "farm: cannot follow the end of the process that has started it: %s\n", strerror(errno));
    else if (read(fd, &byte, 1) == 0)
        raise(SIGTERM);
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("farm %s\n", FARM_COMMIT);
        return 0;
    }
    struct farm_error err;
    if (farm_thread_prepare_stacks(&err)) return farm_report_error("farm", &err);
    signal(SIGUSR1, SIG_IGN); // batch systems send them before the end; a run reads them all the same, because it
    signal(SIGUSR2, SIG_IGN); // blocks them (signalfd)
    signal(SIGXFSZ, SIG_IGN); // a write beyond RLIMIT_FSIZE fails with EFBIG instead (workers: SIGXFSZ kills)
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            if (commands[i].starts) farm_guardian_start(argv);
            follow_starter();
            return commands[i].run(argc - 1, argv + 1);
        }
    return report_unknown_command(argv[1]);
}

int main(int argc, char **argv) {
    // Output without a reader (`farm envs | head`) is dropped, and the work goes on; --json reports the loss
    // (farm_json_print). No file may get the number of a closed standard stream (`>&-`).
    int fd, why;
    signal(SIGPIPE, SIG_IGN);
    while ((fd = open("/dev/null", O_RDONLY)) >= 0 && fd <= STDERR_FILENO) continue;
    close(fd);
    const int status = run(argc, argv);
    if (status || !output_is_lost(&why)) return status;
    fprintf(stderr, "farm: the output is incomplete: %s\n", why ? strerror(why) : "it could not be written");
    return 1;
}
