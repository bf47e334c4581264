// See seeds.h. Seeds side by side get equal parts of the CPUs as affinity masks, so each plans for its part.
#include "tools/seeds.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "topo/claim.h"

enum { SEEDS_MAX = 64, FLAGS_MORE = 8, DOCUMENT_BYTES_MAX = 1 << 20 };
static const double SEED_MAX = 9e15;

struct seed {
    char number[24], run[FARM_RUN_PATH_MAX + 32];
    pid_t pid;           // 0: not running
    int part;            // its part of the CPUs
    int out_fd, said_fd; // its document; side by side: its messages
    char said[4096];     // the start of a line
    size_t said_bytes;
    bool failed;
    json_t *document; // NULL: none
};

struct seeds {
    const struct farm_seeds_request *request;
    char run[FARM_RUN_PATH_MAX];
    struct seed seed[SEEDS_MAX];
    size_t count, started;
    struct farm_bitmap part[SEEDS_MAX]; // side by side
    bool busy[SEEDS_MAX];               // parts
    sigset_t signals, before;
    bool stopped; // by a signal
};

// ---- before ----

static bool add(struct seeds *seeds, long long number) {
    struct seed *seed = &seeds->seed[seeds->count];
    if (seeds->count == SEEDS_MAX) return false;
    snprintf(seed->number, sizeof seed->number, "%lld", number);
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
        long long last = first;
        if (*end == '-' || strncmp(end, "..", 2) == 0) {
            at = end + (*end == '-' ? 1 : 2);
            good &= isdigit((unsigned char)*at) != 0;
            last = strtoll(at, &end, 10);
        }
        good &= (*end == ',' || !*end) && first <= last && (double)last <= SEED_MAX;
        for (long long number = first; number <= last && good; number++) good = add(seeds, number);
        if (!good)
            return farm_fail(err, FARM_E_USAGE,
                             "--seeds %s: expected at most %d different whole numbers, as 1,2,3 or 1-5", list,
                             SEEDS_MAX);
        if (!*end) return FARM_OK;
    }
}

// Equal parts of whole cores that lie together; of single CPUs if there are fewer cores than parts.
static enum farm_status divide(struct seeds *seeds, struct farm_error *err) {
    const int parts = (int)seeds->request->parallel;
    struct farm_machine *machine = calloc(1, sizeof *machine);
    struct farm_claim claim;
    struct farm_bitmap taken = {{0}}, all;
    enum farm_status status = machine ? farm_machine_read(machine, &(struct farm_machine_source){0}, err)
                                      : farm_fail(err, FARM_E_LIMIT, "no memory");
    if (!status && !farm_claim_open(&claim, NULL, NULL)) {
        (void)farm_claim_read_taken(&claim, &taken, NULL);
        farm_claim_close(&claim);
    }
    all = machine ? machine->allowed : taken;
    farm_bitmap_remove(&all, &taken);
    if (!status && farm_bitmap_count(&all) < parts) all = machine->allowed; // then seeds take turns with other farms
    int units[2] = {0, 0}, core = -1;                                       // CPUs, cores
    for (int i = 0; !status && i < machine->cpu_count; i++) {
        if (!farm_bitmap_has(&all, machine->cpu[i].cpu)) continue;
        units[0]++;
        units[1] += machine->cpu[i].core != core;
        core = machine->cpu[i].core;
    }
    const bool cores = units[1] >= parts;
    const int each = units[cores] / parts;
    if (!status && !each)
        status = farm_fail(err, FARM_E_USAGE, "--parallel %d: this process may use %d CPUs", parts, units[0]);
    core = -1;
    for (int i = 0, unit = -1; !status && i < machine->cpu_count; i++) {
        const struct farm_cpu *cpu = &machine->cpu[i];
        if (!farm_bitmap_has(&all, cpu->cpu)) continue;
        unit += !cores || cpu->core != core;
        core = cpu->core;
        if (unit < each * parts) farm_bitmap_set(&seeds->part[unit / each], cpu->cpu);
    }
    free(machine);
    return status;
}

// ---- a seed's process ----

// The command's words without --seeds and --parallel, and with those of the seed. malloc'd; NULL: no memory.
static char **make_words(const struct farm_seeds_request *request, const struct seed *seed) {
    static const char *const own[] = {"--seeds", "--parallel"};
    char **words = calloc((size_t)request->argc + FLAGS_MORE, sizeof *words);
    const char *const more[] = {"--seed", seed->number, "--run", seed->run, "--json"};
    size_t count = 0;
    if (!words) return NULL;
    words[count++] = (char *)"farm"; // execv modifies no word
    for (int i = 0; i < request->argc; i++) {
        int skip = 0;
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
            const size_t length = strlen(own[k]);
            if (strncmp(request->argv[i], own[k], length) == 0)
                skip = request->argv[i][length] == '=' ? 1 : request->argv[i][length] ? skip : 2;
        }
        if (skip) i += skip - 1;
        if (!skip) words[count++] = request->argv[i];
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) words[count++] = (char *)more[i];
    return words;
}

static void become_train(const struct seeds *seeds, const struct seed *seed, char **words, pid_t parent) {
    const bool side = seeds->request->parallel > 1;
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != parent || dup2(seed->out_fd, STDOUT_FILENO) < 0) _exit(1);
    if (side && (dup2(seed->said_fd, STDERR_FILENO) < 0 || farm_bitmap_pin(&seeds->part[seed->part], NULL))) _exit(1);
    sigprocmask(SIG_SETMASK, &seeds->before, NULL);
    execv("/proc/self/exe", words);
    _exit(1);
}

static enum farm_status start(struct seeds *seeds, struct seed *seed, struct farm_error *err) {
    int ends[2] = {-1, -1};
    const pid_t parent = getpid();
    char **words = make_words(seeds->request, seed);
    while (seeds->busy[seed->part]) seed->part++;
    seed->out_fd = memfd_create("seed", MFD_CLOEXEC);
    const bool ready =
        words && seed->out_fd >= 0 && (seeds->request->parallel == 1 || !pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    if (ready && seeds->request->parallel > 1) fcntl(ends[1], F_SETFL, 0); // the seed's end waits
    seed->said_fd = ends[1];
    seed->pid = ready ? fork() : -1;
    if (!seed->pid) become_train(seeds, seed, words, parent);
    const int reason = errno;
    if (ends[1] >= 0) close(ends[1]);
    free(words);
    seed->said_fd = ends[0];
    if (seed->pid > 0) seeds->busy[seed->part] = true;
    if (seed->pid > 0) return FARM_OK;
    errno = reason;
    seed->pid = 0;
    seed->failed = true;
    return farm_fail_errno(err, FARM_E_LIMIT, "seed %s cannot be started", seed->number);
}

// Prints its whole lines, and a line that is too long in parts.
static void pass_lines(struct seed *seed) {
    ssize_t n;
    while (seed->said_fd >= 0 &&
           (n = read(seed->said_fd, seed->said + seed->said_bytes, sizeof seed->said - seed->said_bytes)) > 0) {
        char *at = seed->said, *end, *const last = seed->said + seed->said_bytes + n;
        for (; (end = memchr(at, '\n', (size_t)(last - at))); at = end + 1)
            fprintf(stderr, "seed %s: %.*s\n", seed->number, (int)(end - at), at);
        seed->said_bytes = (size_t)(last - at);
        memmove(seed->said, at, seed->said_bytes);
        if (seed->said_bytes < sizeof seed->said) continue;
        fprintf(stderr, "seed %s: %.*s\n", seed->number, (int)seed->said_bytes, seed->said);
        seed->said_bytes = 0;
    }
}

static void finish(struct seeds *seeds, struct seed *seed, int status) {
    const off_t bytes = lseek(seed->out_fd, 0, SEEK_END);
    char *text = bytes > 0 && bytes < DOCUMENT_BYTES_MAX ? malloc((size_t)bytes) : NULL;
    pass_lines(seed);
    if (text && pread(seed->out_fd, text, (size_t)bytes, 0) == bytes)
        seed->document = farm_json_parse(text, (size_t)bytes, "its document", NULL);
    free(text);
    close(seed->out_fd);
    if (seed->said_fd >= 0) close(seed->said_fd);
    seed->failed = status || !seed->document;
    if (WIFSIGNALED(status)) farm_log_warn("seed %s was killed by signal %d", seed->number, WTERMSIG(status));
    seed->pid = 0;
    seeds->busy[seed->part] = false;
}

// Starts what has a place, collects what has ended. Returns how many run.
static size_t turn(struct seeds *seeds) {
    size_t running = 0;
    struct farm_error err;
    for (size_t i = 0; i < seeds->started; i++) {
        struct seed *seed = &seeds->seed[i];
        int status;
        if (!seed->pid) continue;
        pass_lines(seed);
        if (waitpid(seed->pid, &status, WNOHANG) == seed->pid)
            finish(seeds, seed, status);
        else
            running++;
    }
    while (!seeds->stopped && seeds->started < seeds->count && running < (size_t)seeds->request->parallel) {
        struct seed *seed = &seeds->seed[seeds->started++];
        if (!seeds->request->quiet)
            farm_log_info("seed %s, %zu of %zu: %s", seed->number, seeds->started, seeds->count, seed->run);
        if (start(seeds, seed, &err))
            farm_log_error("%s", err.message);
        else
            running++;
    }
    return running;
}

static void run_all(struct seeds *seeds) {
    const struct timespec tick = {.tv_nsec = 100000000};
    seeds->signals = farm_ending_signals();
    sigset_t wanted = seeds->signals;
    sigaddset(&wanted, SIGCHLD);
    sigprocmask(SIG_BLOCK, &wanted, &seeds->before);
    while (turn(seeds)) {
        const int signal = sigtimedwait(&wanted, NULL, &tick);
        if (signal <= 0 || signal == SIGCHLD) continue;
        seeds->stopped = true;
        for (size_t i = 0; i < seeds->started; i++)
            if (seeds->seed[i].pid) kill(seeds->seed[i].pid, SIGTERM);
    }
    sigprocmask(SIG_SETMASK, &seeds->before, NULL);
}

// ---- the report ----

static double figure(const struct seed *seed, const char *key) {
    const json_t *value = json_object_get(seed->document, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

// Over the seeds that did not fail and have one; returns how many. *deviation: by n - 1; NAN: of one.
static int summarise(const struct seeds *seeds, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    int count = 0;
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (size_t i = 0; i < seeds->count; i++) {
            const double value = figure(&seeds->seed[i], "return_mean");
            if (isnan(value) || seeds->seed[i].failed) continue;
            count++;
            if (!pass) sum += value;
            if (pass) squares += (value - *mean) * (value - *mean);
        }
        *mean = count ? sum / count : (double)NAN;
    }
    *deviation = count > 1 ? sqrt(squares / (count - 1)) : (double)NAN;
    return count;
}

static void print_table(const struct seeds *seeds) {
    double mean, deviation;
    printf("\n%-8s %11s %8s %9s  %s\n", "seed", "return_mean", "frames", "wall_s", "run");
    for (size_t i = 0; i < seeds->count; i++) {
        const struct seed *seed = &seeds->seed[i];
        const double value = figure(seed, "return_mean"), frames = figure(seed, "frames");
        printf("%-8s %11s %8s %9s  %s%s\n", seed->number, isnan(value) ? "-" : farm_format_figure(value).text,
               isnan(frames) ? "-" : farm_format_count(frames).text,
               isnan(frames) ? "-" : farm_format_figure(figure(seed, "wall_s")).text, seed->run,
               seed->failed          ? "  failed"
               : i >= seeds->started ? "  not started"
                                     : "");
    }
    const int count = summarise(seeds, &mean, &deviation);
    if (count) printf("Mean of %d: %s", count, farm_format_figure(mean).text);
    if (count > 1) printf(", standard deviation %s", farm_format_figure(deviation).text);
    printf("%s`farm plot %s/seed-*` draws the curves.\n", count ? ". " : "", farm_format_word(seeds->run).text);
}

static enum farm_status print_document(struct seeds *seeds, struct farm_error *err) {
    json_t *document = farm_json_object(true), *list = json_array();
    double mean, deviation;
    summarise(seeds, &mean, &deviation);
    farm_json_set_real(document, "return_mean", mean);
    farm_json_set_real(document, "return_std", deviation);
    farm_json_set_bool(document, "interrupted", seeds->stopped);
    farm_json_set_text(document, "run_dir", seeds->run);
    for (size_t i = 0; i < seeds->count; i++) {
        struct seed *seed = &seeds->seed[i];
        if (!seed->document) {
            seed->document = farm_json_object(true);
            farm_json_set_int(seed->document, "seed", strtoull(seed->number, NULL, 10));
            farm_json_set_text(seed->document, "run_dir", seed->run);
            farm_json_set_text(seed->document, "error", seed->failed ? "failed, see its messages" : "not started");
        }
        farm_json_append(list, json_incref(seed->document));
    }
    farm_json_set(document, "seeds", list);
    const enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static enum farm_status prepare(struct seeds *seeds, struct farm_error *err) {
    const struct farm_seeds_request *request = seeds->request;
    enum farm_status status = read_list(seeds, request->list, err);
    if (!status && (request->parallel < 1 || request->parallel > SEEDS_MAX))
        status = farm_fail(err, FARM_E_USAGE, "--parallel must be 1 to %d", SEEDS_MAX);
    if (!status && request->parallel > 1) status = divide(seeds, err);
    if (!status && request->run && strlen(request->run) > FARM_RUN_PATH_MAX - 128)
        status = farm_fail(err, FARM_E_USAGE, "--run: '%.80s' is too long", request->run);
    if (!status && request->run) snprintf(seeds->run, sizeof seeds->run, "%s", request->run);
    if (!status && !request->run) status = farm_run_dir_make(request->env, seeds->run, sizeof seeds->run, err);
    for (size_t i = 0; i < seeds->count && !status; i++)
        snprintf(seeds->seed[i].run, sizeof seeds->seed[i].run, "%s/seed-%s", seeds->run, seeds->seed[i].number);
    return status;
}

int farm_train_seeds(const struct farm_seeds_request *request) {
    struct farm_error err;
    struct seeds *seeds = calloc(1, sizeof *seeds);
    if (!seeds) return farm_fail_errno(&err, FARM_E_LIMIT, "--seeds"), farm_report_error("farm train", &err);
    seeds->request = request;
    enum farm_status status = prepare(seeds, &err);
    bool failed = false;
    if (!status) {
        run_all(seeds);
        if (!request->json) print_table(seeds);
        if (request->json) status = print_document(seeds, &err);
        for (size_t i = 0; i < seeds->count; i++) {
            failed |= seeds->seed[i].failed;
            json_decref(seeds->seed[i].document);
        }
    }
    free(seeds);
    return status ? farm_report_error("farm train", &err) : failed;
}
