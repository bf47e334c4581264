// See bare.h.
#include "tools/fps/bare.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor/bare.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/program.h"
#include "base/time.h"

// How often a wait reads *stop; time to close environments (python/actorfarm/actor.py: CLOSE_S);
// DIES_S: from the end of a pipe to that of its process.
enum { POLL_MS = 50, END_S = 7, DIES_S = 2 };

struct turn_result {
    uint64_t steps, taken_ns, cpu_ns;
};

// ---- the child ----

static bool read_all(int fd, void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        const ssize_t n = read(fd, (char *)bytes + done, count - done);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

static void run_loop(const struct farm_actor_config *config, uint32_t width, int command, int answer) {
    struct farm_bare bare;
    struct farm_error err;
    struct turn_result result = {0};
    double seconds;
    if (farm_bare_open(config, width, &bare, &err)) {
        farm_log_error("the bare loop: %s", err.message);
        _exit(1);
    }
    farm_bare_run(&bare, 1, &result.taken_ns); // its first pass resets all of them
    result.taken_ns = 0;
    while (write(answer, &result, sizeof result) == sizeof result && read_all(command, &seconds, sizeof seconds)) {
        const uint64_t from = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        result.steps = farm_bare_run(&bare, (uint64_t)(seconds * 1e9), &result.taken_ns);
        result.cpu_ns = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - from;
    }
    farm_bare_close(&bare);
}

static void exec_python(const struct farm_run_workers *workers, uint32_t actor, uint32_t width, int command,
                        int answer) {
    const struct farm_env_argument arguments[] = {{"--width", .number = width},
                                                  {"--seed", .number = workers->actors[actor].config.seed + actor},
                                                  {"--command-fd", .number = (uint64_t)command},
                                                  {"--answer-fd", .number = (uint64_t)answer}};
    struct farm_env_program program;
    struct farm_error err;
    if (farm_env_program_make(&workers->plan->env, "actorfarm.bare", arguments, 4, &program, &err)) {
        farm_log_error("the bare loop: %s", err.message);
        return;
    }
    fcntl(command, F_SETFD, 0);
    fcntl(answer, F_SETFD, 0);
    execve(program.argv[0], program.argv, program.environment);
    farm_log_error("the bare loop: cannot start %s: %s", program.argv[0], strerror(errno));
}

static _Noreturn void run_child(const struct farm_run_workers *workers, uint32_t actor, int command, int answer) {
    struct farm_error err;
    const struct farm_run_actor *beside = &workers->actors[actor];
    const uint32_t own = workers->plan->width, others = own / workers->plan->env.spec.agents * beside->config.opponents;
    sigset_t nothing;
    sigemptyset(&nothing);
    setpgid(0, 0); // out of Ctrl-C's reach, with the environments' own processes
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    if (workers->plan->recipe.pin && farm_bitmap_pin(&beside->cpus, &err)) farm_log_warn("not pinned: %s", err.message);
    if (workers->plan->env.confined && farm_confine_environment(&err)) {
        farm_log_error("%s", err.message);
        _exit(1);
    }
    if (workers->plan->env.kind == FARM_ENV_PYTHON) {
        exec_python(workers, actor, own + others, command, answer);
        _exit(1);
    }
    run_loop(&beside->config, own + others, command, answer);
    _exit(0);
}

// ---- the parent ----

enum farm_status farm_fps_bare_start(const struct farm_run_workers *workers, uint32_t actor, struct farm_fps_bare *bare,
                                     struct farm_error *err) {
    int commands[2], answers[2];
    const pid_t parent = getpid();
    const double learn = workers->plan->env.spec.agents;
    if (pipe2(commands, O_CLOEXEC)) return farm_fail_errno(err, FARM_E_LIMIT, "cannot start a bare loop");
    if (pipe2(answers, O_CLOEXEC)) {
        close(commands[0]);
        close(commands[1]);
        return farm_fail_errno(err, FARM_E_LIMIT, "cannot start a bare loop");
    }
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        close(commands[1]); // otherwise it would not see the end of the pipe
        close(answers[0]);
        run_child(workers, actor, commands[0], answers[1]);
    }
    close(commands[0]);
    close(answers[1]);
    *bare = (struct farm_fps_bare){.pid = pid,
                                   .command = commands[1],
                                   .answer = answers[0],
                                   .share = learn / (learn + workers->actors[actor].config.opponents),
                                   .hang_s = workers->plan->recipe.hang_seconds,
                                   .start_s = workers->plan->width * workers->plan->recipe.start_seconds};
    farm_death_watch(&bare->deaths, "");
    if (pid > 0) return FARM_OK;
    farm_fps_bare_end(bare);
    return farm_fail_errno(err, FARM_E_LIMIT, "cannot start a bare loop");
}

// Its pipe has ended: says how it died.
static enum farm_status fail_ended(const struct farm_fps_bare *bare, struct farm_error *err) {
    struct farm_death_watch watch = bare->deaths;
    struct farm_death death;
    siginfo_t info = {0};
    if (!farm_program_ended(bare->pid, DIES_S))
        return farm_fail(err, FARM_E_DEAD, "the bare loop (process %d) has closed its pipe and does not end",
                         (int)bare->pid);
    if (waitid(P_PID, (id_t)bare->pid, &info, WEXITED | WNOHANG | WNOWAIT))
        return farm_fail_errno(err, FARM_E_DEAD, "the bare loop ended (process %d)", (int)bare->pid);
    farm_death_describe(&watch, &info, "", "", &death);
    return farm_fail(err, FARM_E_DEAD, "the bare loop %s (process %d; farm doctor checks a plug-in)", death.how,
                     (int)bare->pid);
}

// turn_s: how long it plays; after limit_s more (0: never) its environment hangs, which `flag` changes.
static enum farm_status read_result(const struct farm_fps_bare *bare, double turn_s, double limit_s, const char *flag,
                                    const volatile sig_atomic_t *stop, struct turn_result *result,
                                    struct farm_error *err) {
    const uint64_t begin_ns = farm_now_ns();
    while (!*stop) {
        const double late_s = (double)(farm_now_ns() - begin_ns) * 1e-9 - turn_s;
        if (limit_s > 0 && late_s > limit_s)
            return farm_fail(err, FARM_E_DEAD,
                             "the bare loop (process %d) has not returned from its environment for %.3g s "
                             "(%s; farm doctor checks a plug-in)",
                             (int)bare->pid, late_s, flag);
        struct pollfd readable = {.fd = bare->answer, .events = POLLIN};
        if (poll(&readable, 1, POLL_MS) != 1) continue;
        if (!read_all(bare->answer, result, sizeof *result)) return fail_ended(bare, err);
        result->steps = (uint64_t)((double)result->steps * bare->share);
        return FARM_OK;
    }
    return farm_fail(err, FARM_E_DEAD, "stopped");
}

enum farm_status farm_fps_bare_await(const struct farm_fps_bare *bare, const volatile sig_atomic_t *stop,
                                     struct farm_error *err) {
    struct turn_result result;
    return read_result(bare, 0, bare->start_s, "--start-seconds, for each of them", stop, &result, err);
}

static enum farm_status play_turn(const struct farm_fps_bare *bares, uint32_t count, double seconds,
                                  const volatile sig_atomic_t *stop, struct farm_fps_bare_rate *rate,
                                  struct farm_error *err) {
    uint64_t steps = 0, cpu_ns = 0;
    rate->per_s = 0;
    for (uint32_t i = 0; i < count; i++)
        if (write(bares[i].command, &seconds, sizeof seconds) != sizeof seconds) return fail_ended(&bares[i], err);
    for (uint32_t i = 0; i < count; i++) {
        struct turn_result result;
        enum farm_status status =
            read_result(&bares[i], seconds, bares[i].hang_s, "--hang-seconds", stop, &result, err);
        if (status) return status;
        if (result.taken_ns) rate->per_s += (double)result.steps / ((double)result.taken_ns * 1e-9);
        steps += result.steps;
        cpu_ns += result.cpu_ns;
    }
    rate->cpu_ns = steps ? (double)cpu_ns / (double)steps : 0;
    return FARM_OK;
}

// Python's clock goes on while the command stands stopped: such a turn is played again.
enum farm_status farm_fps_bare_turn(const struct farm_fps_bare *bares, uint32_t count, double seconds,
                                    const volatile sig_atomic_t *stop, struct farm_fps_bare_rate *rate,
                                    struct farm_error *err) {
    enum farm_status status;
    uint64_t stopped_ns;
    do {
        stopped_ns = __atomic_load_n(farm_stopped_ns, __ATOMIC_RELAXED);
        status = play_turn(bares, count, seconds, stop, rate, err);
    } while (!status && __atomic_load_n(farm_stopped_ns, __ATOMIC_RELAXED) != stopped_ns);
    return status;
}

void farm_fps_bare_end(struct farm_fps_bare *bare) {
    int ended;
    if (bare->command > 0) close(bare->command);
    if (bare->pid > 0) farm_program_await(bare->pid, END_S, &ended);
    if (bare->answer > 0) close(bare->answer);
    *bare = (struct farm_fps_bare){0};
}
