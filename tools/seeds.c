// See seeds.h. Seeds side by side get equal parts of the CPUs as affinity masks, so each plans for its part.
#include "tools/seeds.h"

#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread.h"
#include "report/run_dir.h"
#include "tools/shared/command.h"
#include "topo/machine.h"

enum { SEEDS_MAX = 64, WORDS_MORE = 8, DOCUMENT_BYTES_MAX = 1 << 20 };
static const double SEED_MAX = 9e15;

struct seed {
    char number[24], run[FARM_RUN_PATH_MAX + 32];
    pid_t pid;           // 0: not running
    int out_fd, said_fd; // what it prints, in memory; a pipe of its messages, if seeds are side by side
    char said[4096];     // the start of a line
    size_t said_bytes;
    bool failed;
    json_t *document; // NULL: none
};

struct seeds {
    const struct farm_seeds_request *request;
    char run[FARM_RUN_PATH_MAX];
    struct seed seed[SEEDS_MAX], *on[SEEDS_MAX]; // on[part]: NULL: none
    struct farm_bitmap part[SEEDS_MAX];          // side by side: CPUs
    size_t count, started;
    bool stopped; // by a signal
    sigset_t before;
};

// ---- before ----

static bool add(struct seeds *seeds, long long number) {
    struct seed *seed = &seeds->seed[seeds->count];
    if (seeds->count == SEEDS_MAX) return false;
    snprintf(seed->number, sizeof seed->number, "%lld", number);
    snprintf(seed->run, sizeof seed->run, "%s/seed-%lld", seeds->run, number);
    for (size_t i = 0; i < seeds->count; i++)
        if (strcmp(seeds->seed[i].number, seed->number) == 0) return false;
    seeds->count++;
    return true;
}

static enum farm_status read_list(struct seeds *seeds, const char *list, struct farm_error *err) {
    char *end;
    for (const char *at = list;; at = end + 1) {
        bool good = isdigit((unsigned char)*at);
        const long long first = strtoll(at, &end, 10);
        const size_t dash = *end == '-' ? 1 : strncmp(end, "..", 2) == 0 ? 2 : 0;
        good &= !dash || isdigit((unsigned char)end[dash]);
        const long long last = dash ? strtoll(end + dash, &end, 10) : first;
        good &= (*end == ',' || !*end) && first <= last && (double)last <= SEED_MAX;
        for (long long number = first; number <= last && good; number++) good = add(seeds, number);
        if (!good)
            return farm_fail(err, FARM_E_USAGE, "--seeds %s: must be at most %d different numbers, as 1,2,3 or 1-5",
                             list, SEEDS_MAX);
        if (!*end) return FARM_OK;
    }
}

// Equal parts of CPUs that lie together, of whole cores if there are enough.
static enum farm_status divide(struct seeds *seeds, struct farm_error *err) {
    const int parts = (int)seeds->request->parallel;
    static struct farm_machine machine; // too large for a small stack
    enum farm_status status = farm_machine_read(&machine, &(struct farm_machine_source){0}, err);
    if (status) return status;
    const int allowed = farm_bitmap_count(&machine.allowed), threads = machine.cpu_count / machine.core_count;
    const bool limited = machine.cpu_quota > 0 && machine.cpu_quota < allowed; // a quota is divided as the CPUs are
    const int count = !limited ? allowed : machine.cpu_quota < parts ? parts : (int)machine.cpu_quota;
    int each = count / parts, used = 0;
    if (!each) return farm_fail(err, FARM_E_USAGE, "--parallel %d: this process may use %d CPUs", parts, count);
    if (each > threads) each -= each % threads;
    for (int i = 0; i < machine.cpu_count; i++)
        if (farm_bitmap_has(&machine.allowed, machine.cpu[i].cpu) && used < each * parts)
            farm_bitmap_set(&seeds->part[used++ / each], machine.cpu[i].cpu);
    return FARM_OK;
}

static enum farm_status prepare(struct seeds *seeds, struct farm_error *err) {
    const struct farm_seeds_request *request = seeds->request;
    if (request->parallel < 1 || request->parallel > SEEDS_MAX)
        return farm_fail(err, FARM_E_USAGE, "--parallel must be 1 to %d", SEEDS_MAX);
    if (request->run && strlen(request->run) > FARM_RUN_PATH_MAX - 128)
        return farm_fail(err, FARM_E_USAGE, "--run: '%.80s' is too long", request->run);
    snprintf(seeds->run, sizeof seeds->run, "%s", request->run ? request->run : "");
    enum farm_status status = read_list(seeds, request->list, err);
    if (!status && request->parallel > 1) status = divide(seeds, err);
    if (status || request->run) return status;
    status = farm_run_dir_make(request->env, seeds->run, sizeof seeds->run, err);
    seeds->count = 0;
    return status ? status : read_list(seeds, request->list, err); // with the folder's name
}

// ---- a seed's process ----

// In the child: the command's words without --seeds LIST, and with the seed's.
static void become_train(const struct seeds *seeds, const struct seed *seed, size_t part, int said_fd) {
    const struct farm_seeds_request *request = seeds->request;
    const char *const more[WORDS_MORE] = {"--parallel", "1", "--seed", seed->number, "--run", seed->run, "--json"};
    char **words = calloc((size_t)request->argc + WORDS_MORE + 1, sizeof *words);
    size_t count = 0;
    if (!words || dup2(seed->out_fd, STDOUT_FILENO) < 0) _exit(1);
    words[count++] = (char *)"farm"; // execv modifies no word
    for (int i = 0; i < request->argc; i++)
        if (strncmp(request->argv[i], "--seeds", 7) == 0)
            i += !request->argv[i][7];
        else
            words[count++] = request->argv[i];
    for (int i = 0; more[i]; i++) words[count++] = (char *)more[i];
    if (said_fd >= 0 && (dup2(said_fd, STDERR_FILENO) < 0 || farm_bitmap_pin(&seeds->part[part], NULL))) _exit(1);
    sigprocmask(SIG_SETMASK, &seeds->before, NULL);
    execv("/proc/self/exe", words);
    _exit(1);
}

static void start(struct seeds *seeds, struct seed *seed, size_t part) {
    const pid_t parent = getpid();
    const bool side = seeds->request->parallel > 1;
    int ends[2] = {-1, -1};
    struct farm_error err;
    farm_log_info("seed %s, %zu of %zu: %s", seed->number, seeds->started, seeds->count, seed->run);
    seed->out_fd = memfd_create("seed", MFD_CLOEXEC);
    seed->pid = seed->out_fd < 0 || (side && pipe2(ends, O_CLOEXEC)) ? -1 : fork();
    if (!seed->pid && (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != parent)) _exit(1);
    if (!seed->pid) become_train(seeds, seed, part, ends[1]);
    seed->failed = seed->pid < 0;
    if (seed->failed)
        farm_fail_errno(&err, FARM_E_LIMIT, "seed %s cannot be started", seed->number),
            farm_log_error("%s", err.message);
    seeds->on[part] = seed->failed ? NULL : seed;
    if (ends[1] >= 0) close(ends[1]);
    seed->said_fd = ends[0];
    if (side) fcntl(seed->said_fd, F_SETFL, O_NONBLOCK);
}

// Prints its whole lines, and a line that is too long in parts.
static void pass_lines(struct seed *seed) {
    ssize_t n;
    while (seed->said_fd >= 0 &&
           (n = read(seed->said_fd, seed->said + seed->said_bytes, sizeof seed->said - seed->said_bytes)) > 0) {
        char *at = seed->said, *end, *const last = at + seed->said_bytes + n;
        for (; (end = memchr(at, '\n', (size_t)(last - at))); at = end + 1)
            fprintf(stderr, "seed %s: %.*s\n", seed->number, (int)(end - at), at);
        seed->said_bytes = (size_t)(last - at);
        memmove(seed->said, at, seed->said_bytes);
        if (seed->said_bytes < sizeof seed->said) continue;
        fprintf(stderr, "seed %s: %.*s\n", seed->number, (int)seed->said_bytes, seed->said);
        seed->said_bytes = 0;
    }
}

static void finish(struct seed *seed, int status) {
    char *text = malloc(DOCUMENT_BYTES_MAX);
    const ssize_t bytes = text ? pread(seed->out_fd, text, DOCUMENT_BYTES_MAX, 0) : 0;
    if (bytes > 0) seed->document = farm_json_parse(text, (size_t)bytes, "its document", NULL);
    free(text);
    close(seed->out_fd);
    if (seed->said_fd >= 0) close(seed->said_fd);
    seed->failed = status || !seed->document;
    if (WIFSIGNALED(status)) farm_log_warn("seed %s was killed by signal %d", seed->number, WTERMSIG(status));
}

// Collects what has ended and starts what has a part. Returns whether any runs.
static bool turn(struct seeds *seeds) {
    bool running = false;
    int status;
    for (int64_t part = 0; part < seeds->request->parallel; part++) {
        struct seed *seed = seeds->on[part];
        const bool ended = seed && waitpid(seed->pid, &status, WNOHANG) == seed->pid;
        if (seed) pass_lines(seed);
        if (ended) finish(seed, status), seeds->on[part] = NULL;
        while (!seeds->on[part] && !seeds->stopped && seeds->started < seeds->count)
            start(seeds, &seeds->seed[seeds->started++], (size_t)part);
        running |= seeds->on[part] != NULL;
    }
    return running;
}

static void run_all(struct seeds *seeds) {
    const struct timespec tick = {.tv_nsec = 100000000};
    sigset_t wanted = farm_ending_signals();
    for (const int *also = (const int[]){SIGCHLD, SIGUSR1, SIGUSR2, 0}; *also; also++) sigaddset(&wanted, *also);
    sigprocmask(SIG_BLOCK, &wanted, &seeds->before);
    while (turn(seeds)) {
        const int signal = sigtimedwait(&wanted, NULL, &tick);
        if (signal <= 0 || signal == SIGCHLD) continue;
        const bool user = signal == SIGUSR1 || signal == SIGUSR2; // each seed's own matter
        seeds->stopped |= !user;
        for (size_t part = 0; part < SEEDS_MAX; part++)
            if (seeds->on[part]) kill(seeds->on[part]->pid, user ? signal : SIGTERM);
    }
    sigprocmask(SIG_SETMASK, &seeds->before, NULL);
}

// ---- the report ----

static double figure(const struct seed *seed, const char *key) {
    const json_t *value = json_object_get(seed->document, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

// Over the seeds that did not fail and have a return; how many. *deviation: by n - 1; NAN: of one. (Welford 1962)
static int summarise(const struct seeds *seeds, double *mean, double *deviation) {
    int count = 0;
    double squares = 0;
    *mean = 0;
    for (const struct seed *seed = seeds->seed; seed < seeds->seed + seeds->count; seed++) {
        const double value = figure(seed, "return_mean"), before = value - *mean;
        if (isnan(value) || seed->failed) continue;
        *mean += before / ++count;
        squares += before * (value - *mean);
    }
    *deviation = count > 1 ? sqrt(squares / (count - 1)) : (double)NAN;
    if (!count) *mean = (double)NAN;
    return count;
}

static void print_table(const struct seeds *seeds) {
    double mean, deviation;
    printf("\n%-8s %11s %8s %9s  %s\n", "seed", "return_mean", "frames", "wall_s", "run");
    for (size_t i = 0; i < seeds->count; i++) {
        const struct seed *seed = &seeds->seed[i];
        printf("%-8s %11s %8s %9s  %s%s\n", seed->number, farm_format_figure(figure(seed, "return_mean")).text,
               farm_format_count(figure(seed, "frames")).text, farm_format_figure(figure(seed, "wall_s")).text,
               seed->run,
               seed->failed          ? "  failed"
               : i >= seeds->started ? "  not started"
                                     : "");
    }
    const int count = summarise(seeds, &mean, &deviation);
    printf("Mean of %d: %s, standard deviation %s. `farm plot %s` draws the curves.\n", count,
           farm_format_figure(mean).text, farm_format_figure(deviation).text, farm_format_word(seeds->run).text);
}

static enum farm_status print_document(const struct seeds *seeds, struct farm_error *err) {
    json_t *document = farm_json_object(true), *list = json_array();
    double mean, deviation;
    summarise(seeds, &mean, &deviation);
    farm_json_set_real(document, "return_mean", mean);
    farm_json_set_real(document, "return_std", deviation);
    farm_json_set_bool(document, "interrupted", seeds->stopped);
    farm_json_set_text(document, "run_dir", seeds->run);
    for (const struct seed *seed = seeds->seed; seed < seeds->seed + seeds->count; seed++) {
        json_t *one = seed->document ? json_incref(seed->document) : farm_json_object(true);
        farm_json_append(list, one);
        if (seed->document) continue;
        farm_json_set_int(one, "seed", strtoull(seed->number, NULL, 10));
        farm_json_set_text(one, "run_dir", seed->run);
        farm_json_set_text(one, "error", seed->failed ? "failed: see its messages" : "not started");
    }
    farm_json_set(document, "seeds", list);
    const enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

int farm_train_seeds(const struct farm_seeds_request *request) {
    static struct seeds seeds; // too large for a small stack
    struct farm_error err;
    bool failed = false;
    seeds.request = request;
    enum farm_status status = prepare(&seeds, &err);
    if (status) return farm_report_error("farm train", &err);
    run_all(&seeds);
    if (request->json) status = print_document(&seeds, &err);
    if (!request->json) print_table(&seeds);
    for (size_t i = 0; i < seeds.count; i++) {
        failed |= seeds.seed[i].failed;
        json_decref(seeds.seed[i].document);
    }
    return status ? farm_report_error("farm train", &err) : failed;
}
