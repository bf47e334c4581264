// `farm bw`: memory bandwidth and latency of this machine, and what its lanes carry. The parts measure and print
// (src/bw, and this folder); here are the command line, the order of events and the document. Runs in one process,
// which has SIGINT, SIGTERM and SIGHUP blocked: a signal ends the measurement that runs, and all after it.
#include "tools/bw/bw.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"
#include "bridge/measure.h"
#include "bw/clock.h"
#include "bw/disturbance.h"
#include "farm_build.h"
#include "shm/limits.h"
#include "tools/bw/compare.h"
#include "tools/shared/command.h"

enum { LINE_COLUMNS = 100, LINE_COLUMNS_MAX = 400, ARRAYS = 3 };

static const uint64_t SMALL_BYTES = 1 << 20, SIZE_LEAST = 64 << 10,
                      SIZE_MOST = 256ull << 30; // 2^32 lines of a chase
static const double SECONDS_LEAST = 0.1, SECONDS_MOST = 3600, IDLE_S = 0.1, ENV_S = 8, NOTHING_S = 0.001, RETRY_S = 10;
// All parts together, at each depth: less than the command may take, because a part completes its current sample.
static const double LIMIT_S[FARM_BW_DEPTHS] = {7, 56, INFINITY};

struct part {
    const char *name, *about;
    double seconds[FARM_BW_DEPTHS]; // quick, summary, full; 0: not at that depth, unless --only names it
    farm_bw_part *run;
};

static const struct part parts[] = {
    {"memory", "kernels: read, write, copy, scale, add, triad", {4, 20, 40}, farm_bw_part_memory},
    {"latency", "idle latency and the cache ladder", {1, 5, 15}, farm_bw_part_latency},
    {"matrix", "node by node, latency and bandwidth", {0.6, 2, 10}, farm_bw_part_matrix},
    {"mix", "peak by reads to writes", {0, 2.5, 8}, farm_bw_part_mix},
    {"loaded", "latency under load", {0, 3, 20}, farm_bw_part_loaded},
    {"cores", "bandwidth by number of cores", {0, 4, 8}, farm_bw_part_cores},
    {"handoff", "a cache line from core to core", {0.3, 1, 6}, farm_bw_part_handoff},
    {"pages", "4 KiB, transparent, 2 MiB and 1 GiB pages", {0, 4, 12}, farm_bw_part_pages},
    {"tlb", "reach of the TLB", {0, 0, 10}, farm_bw_part_tlb},
    {"ring", "our own lanes: hops, steps by payload", {0.8, 3, 20}, farm_bw_part_ring},
    {"gpu", "host to GPU and back, node by GPU", {0.5, 3, 15}, farm_bw_part_gpu}, // for each GPU
    {"network", "the bridge to another machine (--network)", {1, 5, 15}, farm_bw_part_network},
    {"env", "ceilings for an environment's observations (--env)", {0, 0, 0}, farm_bw_part_env},
};
enum { PARTS = sizeof parts / sizeof *parts, ENV_PART = PARTS - 1 };

struct options {
    bool json, quick, full, quiet;
    const char *only, *size, *cpus, *kernels, *svg, *env, *fps_json, *compare;
    const char *newer;         // a document to compare with --compare's, instead of measuring
    const char *network, *key; // address of `farm bridge bench --listen`; NULL: no network
    bool insecure;
    double seconds; // NAN: not set
    int64_t samples;
};

struct bw {
    const struct options *options;
    struct farm_machine machine;
    struct farm_bw_control control;
    struct farm_bw_job job;
    struct farm_measure_config network;
    struct farm_key *key; // in a page of its own; NULL: in the clear
    struct farm_bw_disturbance disturbance;
    bool chosen[PARTS];
    double budget_s[PARTS]; // each chosen part's
    int part, part_count;   // the one that runs, from 1; how many are chosen
    const char *part_name;
    bool terminal, drawn; // stderr is a terminal; a progress line is on it
    bool interrupted;
    json_t *then, *sections;
    uint64_t start_ns, end_ns; // end_ns: of measuring
    struct farm_bw_moment begun;
};

// ---- options ----

static enum farm_status choose_depth(struct bw *bw, struct farm_error *err) {
    const struct options *o = bw->options;
    if (o->quick && o->full) return farm_fail(err, FARM_E_USAGE, "--quick and --full exclude each other");
    bw->job.depth = o->quick ? FARM_BW_QUICK : o->full ? FARM_BW_FULL : FARM_BW_SUMMARY;
    if (o->fps_json && !o->env) return farm_fail(err, FARM_E_USAGE, "--fps-json goes with --env");
    if (o->newer && !o->compare)
        return farm_fail(err, FARM_E_USAGE, "'%.80s' needs --compare FILE (farm bw --help)", o->newer);
    if (o->samples < 1 || o->samples > FARM_BW_SAMPLES_MAX)
        return farm_fail(err, FARM_E_USAGE, "--samples: between 1 and %d", FARM_BW_SAMPLES_MAX);
    bw->job.setup.samples = (int)o->samples;
    if (!isnan(o->seconds) && !(o->seconds >= SECONDS_LEAST && o->seconds <= SECONDS_MOST))
        return farm_fail(err, FARM_E_USAGE, "--seconds: between %g and %g", SECONDS_LEAST, SECONDS_MOST);
    return FARM_OK;
}

static enum farm_status choose_part(struct bw *bw, const char *name, struct farm_error *err) {
    const char *names[PARTS];
    char known[256] = "";
    for (size_t i = 0; i < PARTS; i++) {
        names[i] = parts[i].name;
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
        if (strcmp(name, names[i]) == 0) {
            bw->chosen[i] = true;
            return FARM_OK;
        }
    }
    const char *near = farm_nearest(name, names, PARTS);
    return farm_fail(err, FARM_E_USAGE, "--only: there is no part '%.40s'%s%s%s (there are %s)", name,
                     near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "", known);
}

// A part requested by name gets the least depth's time that has it; matrices of many nodes up to four times as much.
static double budget_of(const struct bw *bw, const struct part *part) {
    const double node_pairs = (double)bw->machine.node_count * bw->machine.node_count;
    double seconds = 0;
    if (part->run == farm_bw_part_env) return ENV_S;
    if (part->run == farm_bw_part_network && !bw->options->network) return NOTHING_S;
    for (int depth = bw->job.depth; seconds == 0 && depth < FARM_BW_DEPTHS; depth++) seconds = part->seconds[depth];
    const int gpus = part->run == farm_bw_part_gpu ? farm_bw_gpus_expected(&bw->machine) : 1;
    if (gpus != 1) seconds = gpus ? seconds * gpus : NOTHING_S;
    return part->run == farm_bw_part_matrix ? seconds * fmin(fmax(node_pairs / 4, 1), 4) : seconds;
}

// The parts of --only, of --env, or of the depth; and the time of each.
static enum farm_status choose_parts(struct bw *bw, struct farm_error *err) {
    const struct options *o = bw->options;
    enum farm_status status = FARM_OK;
    if (o->only) {
        char *names = strdup(o->only), *rest = names;
        if (!names) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
        for (char *name; (name = strsep(&rest, ",")) && !status;) status = choose_part(bw, name, err);
        free(names);
    }
    if (!status && o->env) status = choose_part(bw, "env", err);
    double total_s = 0;
    for (size_t i = 0; i < PARTS; i++) {
        const struct part *part = &parts[i];
        if (!o->only && !o->env) bw->chosen[i] = part->seconds[bw->job.depth] > 0;
        if (!bw->chosen[i]) continue;
        bw->budget_s[i] = budget_of(bw, part);
        bw->part_count++;
        total_s += bw->budget_s[i];
    }
    for (size_t i = 0; i < PARTS && o->seconds > 0; i++) bw->budget_s[i] *= o->seconds / total_s;
    if (!status && bw->chosen[ENV_PART] && !o->env)
        return farm_fail(err, FARM_E_USAGE, "--only env needs the environment: --env ale/Pong");
    return status;
}

// "small", a number as in other flags (64M = 64,000,000), or a number of KiB, MiB or GiB.
static enum farm_status choose_size(struct bw *bw, struct farm_error *err) {
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    const char *text = bw->options->size;
    int64_t bytes = 0;
    char number[32];
    if (!text) return FARM_OK;
    bool known = farm_parse_int(text, &bytes);
    if (strcmp(text, "small") == 0) known = true, bytes = (int64_t)SMALL_BYTES;
    const size_t length = strlen(text);
    for (int i = 0; i < 3 && !known && length > 3 && length < sizeof number; i++) {
        if (strcmp(text + length - 3, units[i]) != 0) continue;
        snprintf(number, sizeof number, "%.*s", (int)length - 3, text);
        known = farm_parse_int(number, &bytes) && bytes >= 0 && bytes <= INT64_MAX >> 10 * (i + 1);
        bytes = known ? bytes << 10 * (i + 1) : 0;
    }
    if (!known || bytes < (int64_t)SIZE_LEAST)
        return farm_fail(err, FARM_E_USAGE, "--size '%.40s': small, or at least 64KiB, as in 64MiB or 256M", text);
    const double gib = 1 << 30;
    const uint64_t left = farm_limits_memory_available_bytes(NULL);
    if ((uint64_t)bytes > left / ARRAYS)
        return farm_fail(err, FARM_E_LIMIT,
                         "--size %.40s: three arrays of it take %.1f GiB, and %.1f GiB may be taken (free memory, or "
                         "the rest of the control group's limit): at most %.2f GiB",
                         text, ARRAYS * (double)bytes / gib, (double)left / gib, (double)left / gib / ARRAYS);
    if ((uint64_t)bytes > SIZE_MOST) return farm_fail(err, FARM_E_LIMIT, "--size %.40s: 256GiB at most", text);
    bw->job.size_bytes = (uint64_t)bytes & ~UINT64_C(4095);
    return FARM_OK;
}

static enum farm_status choose_cpus(struct bw *bw, struct farm_error *err) {
    struct farm_bitmap cpus, missing;
    char list[64];
    if (!bw->options->cpus) return FARM_OK;
    if (farm_bitmap_parse(bw->options->cpus, &cpus, err) || farm_bitmap_count(&cpus) == 0)
        return farm_fail(err, FARM_E_USAGE, "--cpus '%.40s' is not a list of CPUs as in 0-3,8", bw->options->cpus);
    missing = cpus;
    farm_bitmap_remove(&missing, &bw->machine.allowed);
    if (farm_bitmap_count(&missing))
        return farm_fail(err, FARM_E_USAGE, "--cpus: this process must not run on %s",
                         farm_bitmap_format(&missing, list, sizeof list));
    bw->machine.allowed = cpus;
    return FARM_OK;
}

static enum farm_status choose_kernels(struct bw *bw, struct farm_error *err) {
    const char *name = bw->options->kernels;
    enum farm_bandwidth_variant variant = FARM_BANDWIDTH_BEST;
    if (!name) return FARM_OK;
    for (variant = 0; variant < FARM_BANDWIDTH_VARIANTS; variant++)
        if (strcmp(name, farm_bandwidth_variant_name(variant)) == 0) break;
    if (variant == FARM_BANDWIDTH_VARIANTS)
        return farm_fail(err, FARM_E_USAGE, "--kernels must be one of best, portable, avx2, avx512 (got '%.40s')",
                         name);
    if (!farm_bandwidth_has(variant))
        return farm_fail(err, FARM_E_UNSUPPORTED, "--kernels %s: this CPU does not have these instructions", name);
    bw->job.setup.variant = variant;
    return FARM_OK;
}

static enum farm_status choose_network(struct bw *bw, struct farm_error *err) {
    const struct options *o = bw->options;
    if ((o->key || o->insecure) && !o->network)
        return farm_fail(err, FARM_E_USAGE, "--key and --insecure go with --network");
    if (!o->network) return FARM_OK;
    if (!o->key == !o->insecure)
        return farm_fail(err, FARM_E_USAGE,
                         "--network needs --key FILE or --insecure, as `farm bridge bench --listen`");
    bw->network = (struct farm_measure_config){.address = o->network, .engine = "auto", .retry_s = RETRY_S};
    bw->job.network = &bw->network;
    const enum farm_status status = o->key ? farm_key_load(o->key, FARM_KEY_NODE, &bw->key, NULL, err) : FARM_OK;
    bw->network.key = bw->key;
    return status;
}

static enum farm_status check_options(struct bw *bw, struct farm_error *err) {
    enum farm_status status = choose_depth(bw, err);
    if (!status) status = choose_parts(bw, err);
    if (!status) status = choose_cpus(bw, err);
    if (!status) status = choose_size(bw, err);
    if (!status) status = choose_kernels(bw, err);
    if (!status) status = choose_network(bw, err);
    if (!status && bw->options->compare) status = farm_bw_document_read(bw->options->compare, &bw->then, err);
    if (!status && bw->options->svg) status = farm_folder_make(bw->options->svg, err);
    if (!status && bw->options->svg) status = farm_bw_check_pictures(err);
    return status;
}

// ---- signals and progress ----

// Whether a signal has arrived; from then on always true.
static bool is_interrupted(void *context) {
    struct bw *bw = context;
    const sigset_t signals = farm_ending_signals();
    if (sigtimedwait(&signals, NULL, &(struct timespec){0}) > 0) bw->interrupted = true;
    return bw->interrupted;
}

static void show_progress(void *context, const char *what, double done) {
    struct bw *bw = context;
    if (bw->options->quiet || !bw->terminal) return;
    dprintf(STDERR_FILENO, "\r%d of %d: %s: %.80s, %.0f %%\033[K", bw->part, bw->part_count, bw->part_name, what,
            100 * done);
    bw->drawn = true;
}

static void clear_progress(struct bw *bw) {
    if (bw->drawn) dprintf(STDERR_FILENO, "\r\033[K");
    bw->drawn = false;
}

// ---- the machine ----

static json_t *machine_json(const struct farm_machine *machine) {
    struct utsname system;
    char cpu[256], list[256];
    farm_machine_cpu_name(NULL, cpu, sizeof cpu);
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "cpu", cpu);
    farm_json_set_int(object, "cores", (uint64_t)farm_bitmap_count(&machine->allowed));
    farm_json_set_int(object, "nodes", (uint64_t)machine->node_count);
    farm_json_set_text(object, "kernel", uname(&system) ? NULL : system.release);
    farm_json_set_text(object, "gpu", machine->gpu_count ? machine->gpu[0].name : NULL);
    farm_json_set_text(object, "cpus", farm_bitmap_format(&machine->allowed, list, sizeof list));
    farm_json_set_int(object, "sockets", (uint64_t)machine->socket_count);
    farm_json_set_int(object, "physical_cores", (uint64_t)machine->core_count);
    farm_json_set_int(object, "l3_groups", (uint64_t)machine->l3_count);
    farm_json_set_int(object, "l3_bytes", machine->l3_bytes);
    farm_json_set_int(object, "memory_available_bytes", farm_limits_memory_available_bytes(NULL));
    return object;
}

static json_t *conventions_json(void) {
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "gb", "1e9 bytes");
    farm_json_set_text(object, "bytes",
                       "loads and stores of the program (STREAM's count); bus_bytes_per_program_byte times it adds the "
                       "lines that ordinary stores fetch first (write-allocate)");
    farm_json_set_text(object, "nt", "non-temporal stores, past the caches: nothing is fetched");
    farm_json_set_text(object, "latency", "of one load in a chase of pointers through one random cycle, idle machine");
    farm_json_set_text(object, "spread", "(75th - 25th percentile) / median of the samples");
    farm_json_set_text(object, "placement", "every page verified with the kernel (move_pages): conditions.placed");
    return object;
}

static json_t *disturbance_json(const struct farm_bw_disturbance *found, double cpu_quota) {
    json_t *object = farm_json_object(false), *findings = json_array();
    for (int i = 0; i < found->findings; i++) {
        json_t *finding = farm_json_object(false);
        farm_json_set_text(finding, "name", found->finding[i].name);
        farm_json_set_bool(finding, "serious", found->finding[i].serious);
        farm_json_set_text(finding, "text", found->finding[i].text);
        farm_json_append(findings, finding);
    }
    farm_json_set(object, "findings", findings);
    farm_json_set_real(object, "others_cpus", found->others_cpus);
    farm_json_set_real(object, "steal_cpus", found->steal_cpus);
    farm_json_set_real(object, "quota_cpus", cpu_quota > 0 ? cpu_quota : (double)NAN);
    farm_json_set_int(object, "throttled_periods", found->throttled_periods);
    farm_json_set_real(object, "ghz_least", found->ghz_least > 0 ? found->ghz_least : (double)NAN);
    farm_json_set_real(object, "ghz_most", found->ghz_most > 0 ? found->ghz_most : (double)NAN);
    farm_json_set_text(object, "governor", found->governor[0] ? found->governor : NULL);
    farm_json_set_int(object, "threads_per_core", (uint64_t)(found->smt > 0 ? found->smt : 1));
    farm_json_set_text(object, "hypervisor", found->hypervisor[0] ? found->hypervisor : NULL);
    farm_json_set_text(object, "transparent_huge_pages", found->thp[0] ? found->thp : NULL);
    return object;
}

// ---- disturbances ----

static void print_findings(const struct bw *bw, const struct farm_bw_disturbance *before) {
    const struct farm_bw_disturbance *found = &bw->disturbance;
    for (int i = 0; i < found->findings; i++) {
        const struct farm_bw_finding *finding = &found->finding[i];
        const bool known = before && farm_bw_disturbance_find(before, finding->name);
        if (!known) fprintf(bw->job.out, "%s %s\n", finding->serious ? "WARNING:" : "note:", finding->text);
    }
}

// During a tenth of a second nothing of this process runs: what the CPUs do then is others' load.
static void judge_before(struct bw *bw) {
    struct farm_bw_moment now;
    const struct timespec moment = {.tv_nsec = (long)(IDLE_S * 1e9)};
    farm_bw_moment_now(&bw->machine, NULL, &bw->begun);
    nanosleep(&moment, NULL);
    farm_bw_moment_now(&bw->machine, NULL, &now);
    farm_bw_disturbance_judge(&bw->machine, NULL, &bw->begun, &now, &bw->disturbance);
    print_findings(bw, NULL);
}

static void judge_after(struct bw *bw) {
    struct farm_bw_moment now;
    const struct farm_bw_disturbance before = bw->disturbance;
    farm_bw_moment_now(&bw->machine, NULL, &now);
    farm_bw_disturbance_judge(&bw->machine, NULL, &bw->begun, &now, &bw->disturbance);
    print_findings(bw, &before);
}

// ---- measuring ----

// Of the parts from `first` on.
static double total_s(const struct bw *bw, size_t first) {
    double total = 0;
    for (size_t i = first; i < PARTS; i++) total += bw->chosen[i] ? bw->budget_s[i] : 0;
    return total;
}

// What a part may take: its budget, or its share of what is left. The main table, the first, has all of it.
static double seconds_of(const struct bw *bw, size_t i) {
    const uint64_t now = farm_now_ns();
    const double left = now < bw->end_ns ? (double)(bw->end_ns - now) * 1e-9 : 0, budget = bw->budget_s[i];
    const bool first = parts[i].run == farm_bw_part_memory;
    return fmin(budget, first ? left : left * budget / total_s(bw, i));
}

static enum farm_status run_part(struct bw *bw, size_t i, struct farm_error *err) {
    struct farm_bw_job *job = &bw->job;
    const struct part *part = &parts[i];
    json_t *section = farm_json_object(false);
    const uint64_t start_ns = farm_now_ns();
    bw->part++;
    bw->part_name = part->name;
    job->setup.seconds = seconds_of(bw, i);
    if (!bw->options->quiet && !bw->terminal)
        farm_log_info("%d of %d: %s: %s", bw->part, bw->part_count, part->name, part->about);
    show_progress(bw, part->about, 0);
    char *table = NULL;
    size_t table_bytes;
    FILE *out = job->out, *memory = open_memstream(&table, &table_bytes);
    if (memory) job->out = memory;
    enum farm_status status = FARM_OK;
    if (job->setup.seconds > 0) {
        status = part->run(job, section, err);
    } else {
        fprintf(job->out, "%s: not measured: the time was over (--seconds gives more)\n", part->name);
        farm_json_set_text(section, "not_measured", "the time was over");
    }
    job->out = out;
    if (memory) fclose(memory);
    clear_progress(bw);
    if (table) fprintf(out, "\n%s", table);
    fflush(out);
    free(table);
    farm_json_set_real(section, "wall_s", (double)(farm_now_ns() - start_ns) * 1e-9);
    farm_json_set(bw->sections, part->name, section);
    return status ? farm_fail_in(err, status, "%s", part->name) : FARM_OK;
}

static enum farm_status run_parts(struct bw *bw, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    const double seconds = bw->options->seconds > 0 ? total_s(bw, 0) : fmin(total_s(bw, 0), LIMIT_S[bw->job.depth]);
    bw->end_ns = farm_now_ns() + (uint64_t)(seconds * 1e9);
    if (!bw->options->quiet) farm_log_info("up to %.0f s; Ctrl-C ends it with the figures so far", seconds + 1);
    for (size_t i = 0; i < PARTS && !status && !is_interrupted(bw); i++)
        if (bw->chosen[i]) status = run_part(bw, i, err);
    return status;
}

static json_t *document_of(struct bw *bw, const char *failure) {
    static const char *const depths[] = {"quick", "summary", "full"};
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "benchmark", "bw");
    farm_json_set_text(document, "commit", FARM_COMMIT);
    farm_json_set(document, "machine", machine_json(&bw->machine));
    farm_json_set_text(document, "depth", depths[bw->job.depth]);
    farm_json_set_real(document, "wall_s", (double)(farm_now_ns() - bw->start_ns) * 1e-9);
    farm_json_set(document, "conventions", conventions_json());
    farm_json_set(document, "fit", disturbance_json(&bw->disturbance, bw->machine.cpu_quota));
    json_object_set(document, "results", bw->job.results);
    json_object_set(document, "sections", bw->sections);
    farm_json_set_bool(document, "interrupted", bw->interrupted);
    farm_json_set_text(document, "error", failure);
    return document;
}

static enum farm_status measure_and_report(struct bw *bw, struct farm_error *err) {
    struct farm_error printing;
    bw->job.results = json_array();
    bw->sections = farm_json_object(false);
    judge_before(bw);
    enum farm_status status = run_parts(bw, err), printed = FARM_OK;
    judge_after(bw);
    json_t *document = document_of(bw, status ? err->message : NULL);
    if (bw->then && !status) {
        json_t *compare = farm_bw_compare(bw->job.out, bw->options->compare, bw->then, document);
        farm_json_set(document, "compare", compare);
    }
    if (bw->options->svg && !status)
        status = farm_bw_draw_pictures(document, bw->options->svg, bw->options->quiet, err);
    if (bw->interrupted) fprintf(bw->job.out, "\nStopped by a signal: these are the figures so far.\n");
    if (bw->options->json) printed = farm_json_print(document, stdout, &printing);
    json_decref(document);
    json_decref(bw->job.results);
    json_decref(bw->sections);
    if (!status && printed) *err = printing;
    return status ? status : printed;
}

// Compares two documents without measuring.
static enum farm_status compare_files(struct bw *bw, struct farm_error *err) {
    json_t *now;
    enum farm_status status = farm_bw_document_read(bw->options->newer, &now, err);
    if (status) return status;
    json_t *compare = farm_bw_compare(bw->job.out, bw->options->compare, bw->then, now);
    if (bw->options->json) {
        json_t *document = farm_json_object(true);
        farm_json_set_text(document, "benchmark", "bw_compare");
        json_object_set(document, "compare", compare);
        status = farm_json_print(document, stdout, err);
        json_decref(document);
    }
    json_decref(compare);
    json_decref(now);
    return status;
}

// ---- the command ----

static size_t columns_of(int fd) {
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) || size.ws_col < 40) return LINE_COLUMNS;
    return size.ws_col < LINE_COLUMNS_MAX ? size.ws_col : LINE_COLUMNS_MAX;
}

static enum farm_status prepare(struct bw *bw, struct farm_error *err) {
    struct farm_bw_job *job = &bw->job;
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    const bool terminal = isatty(STDOUT_FILENO);
    bw->start_ns = farm_now_ns();
    job->out = bw->options->json ? fopen("/dev/null", "we") : stdout;
    if (!job->out) return farm_fail_errno(err, FARM_E_IO, "/dev/null");
    job->colour = terminal && !bw->options->json && !(no_colour && no_colour[0]) && term && strcmp(term, "dumb") != 0;
    job->columns = terminal ? columns_of(STDOUT_FILENO) : LINE_COLUMNS;
    bw->terminal = isatty(STDERR_FILENO);
    job->env = bw->options->env;
    job->fps_json = bw->options->fps_json;
    bw->control = (struct farm_bw_control){.stop = is_interrupted, .progress = show_progress, .context = bw};
    job->setup = (struct farm_bw_setup){.machine = &bw->machine, .control = &bw->control};
    const struct farm_machine_source here = {0};
    return farm_machine_read(&bw->machine, &here, err);
}

static int bw_main(const struct options *options) {
    struct farm_error err;
    const sigset_t signals = farm_ending_signals();
    sigset_t before;
    struct bw *bw = calloc(1, sizeof *bw);
    if (!bw) return farm_fail_errno(&err, FARM_E_LIMIT, "farm bw"), farm_report_error("farm bw", &err);
    bw->options = options;
    // Pending until is_interrupted takes them.
    sigprocmask(SIG_BLOCK, &signals, &before);
    enum farm_status status = prepare(bw, &err);
    if (!status) status = check_options(bw, &err);
    if (!status) status = options->newer ? compare_files(bw, &err) : measure_and_report(bw, &err);
    if (options->json && bw->job.out) fclose(bw->job.out);
    sigprocmask(SIG_SETMASK, &before, NULL);
    json_decref(bw->then);
    farm_key_free(bw->key);
    free(bw);
    return status ? farm_report_error("farm bw", &err) : 0;
}

int farm_cmd_bw(int argc, char **argv) {
    struct options options = {.samples = 5, .seconds = (double)NAN};
    const struct farm_cli_flag flags[] = {
        {"quick", FARM_CLI_BOOL, &options.quick, NULL, "the most important figures, within 8 s (without: within 60 s)"},
        {"full", FARM_CLI_BOOL, &options.full, NULL, "everything, in about 3 minutes"},
        {"only", FARM_CLI_STRING, &options.only, "A,B",
         "memory, latency, matrix, mix, loaded, cores, handoff, pages, tlb, ring, gpu, network"},
        {"seconds", FARM_CLI_DOUBLE, &options.seconds, "S", "for all parts together"},
        {"samples", FARM_CLI_INT, &options.samples, "N", "at most N samples of each figure (5)"},
        {"size", FARM_CLI_STRING, &options.size, "N",
         "bytes of each array and chase, however long they take: 64MiB, 256M, small\n"
         "(default: 4 x the last-level caches, less if time or memory is short)"},
        {"cpus", FARM_CLI_STRING, &options.cpus, "LIST", "measure only with these, as in 0-3,8"},
        {"kernels", FARM_CLI_STRING, &options.kernels, "K", "best, portable, avx2 or avx512 (best)"},
        {"env", FARM_CLI_STRING, &options.env, "E",
         "how many frames/s memory could carry for E's observations, and the share that farm fps reaches"},
        {"fps-json", FARM_CLI_STRING, &options.fps_json, "FILE",
         "the document of an earlier farm fps --json, instead of a short run"},
        {"network", FARM_CLI_STRING, &options.network, "ADDR:PORT",
         "also the path to another machine, which runs `farm bridge bench --listen ADDR:PORT`"},
        {"key", FARM_CLI_STRING, &options.key, "FILE", "for --network: a node's key of the other side (FILE.node)"},
        {"insecure", FARM_CLI_BOOL, &options.insecure, NULL,
         "for --network: without a key; loopback and private addresses only"},
        {"svg", FARM_CLI_STRING, &options.svg, "DIR", "draws matrices and curves there (needs matplotlib)"},
        {"compare", FARM_CLI_STRING, &options.compare, "FILE",
         "compares with an earlier --json, of this machine or another"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress on stderr"},
    };
    const struct farm_cli cli = {
        .program = "farm bw",
        .synopsis = "[--quick | --full] [--only A,B] [--env E] [--svg DIR] [--compare FILE [NEWER]] [--json]",
        .about =
            "Measures memory bandwidth and latency: kernels, caches, NUMA nodes, cores, pages, latency under load,\n"
            "the farm's lanes, and the path between nodes and GPUs. GB are 1e9 bytes; bytes are the program's\n"
            "loads and stores. Method and conventions: docs/BANDWIDTH.md. --compare FILE NEWER compares two\n"
            "documents and measures nothing.",
        .examples = "  farm bw\n"
                    "  farm bw --quick --json > before.json\n"
                    "  farm bw --quick --compare before.json\n"
                    "  farm bw --only latency,matrix,loaded --svg pictures\n"
                    "  farm bw --env ale/Pong\n"
                    "  farm bw --only network --network 10.0.0.5:7710 --key farm.key.node\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    int exit_status;
    return farm_read_flags(&cli, argc, argv, &options.newer, &exit_status) ? bw_main(&options) : exit_status;
}
