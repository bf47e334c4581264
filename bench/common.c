// See common.h.
#include "common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>

#include "base/bitmap.h"
#include "base/cli.h"
#include "base/json.h"
#include "base/statistics.h"
#include "farm_build.h"
#include "topo/machine.h"

void farm_bench_start(struct farm_bench *bench, int argc, char **argv, double default_seconds) {
    struct farm_error err;
    bool help;
    bench->seconds = default_seconds;
    struct farm_cli_flag flags[2 + FARM_BENCH_FLAGS_MAX] = {
        {"json", FARM_CLI_BOOL, &bench->json, NULL, "one JSON document on stdout"},
        {"seconds", FARM_CLI_DOUBLE, &bench->seconds, "S", "most time to spend"},
    };
    must_hold(bench->flag_count <= FARM_BENCH_FLAGS_MAX, "too many flags");
    for (size_t i = 0; i < bench->flag_count; i++) flags[2 + i] = bench->flags[i];
    const char *synopsis = bench->flag_count ? "[--json] [--seconds S] ..." : "[--json] [--seconds S]";
    const struct farm_cli cli = {.program = bench->name,
                                 .synopsis = synopsis,
                                 .about = bench->about,
                                 .flags = flags,
                                 .flag_count = 2 + bench->flag_count};
    if (farm_cli_parse(&cli, argc, argv, NULL, &help, &err)) {
        fprintf(stderr, "%s: %s\n", bench->name, err.message);
        exit(2);
    }
    if (help) {
        farm_cli_print_help(&cli);
        exit(0);
    }
}

void farm_bench_add(struct farm_bench *bench, const char *name, const char *unit, const char *better, double *ours,
                    size_t count, const char *reference, double *theirs, size_t their_count, double target) {
    if (!bench) return;
    must_hold(bench->count < FARM_BENCH_RESULTS_MAX, "too many results");
    struct farm_bench_result *result = &bench->results[bench->count++];
    *result = (struct farm_bench_result){
        .name = name, .unit = unit, .better = better, .reference = reference, .target = target};
    result->value = farm_median(ours, count, &result->spread);
    result->reference_value = result->ratio = NAN;
    if (!theirs) return;
    result->reference_value = farm_median(theirs, their_count, NULL);
    result->ratio = result->value / result->reference_value;
}

static int count_numa_nodes(void) {
    int count = 0;
    for (char path[64]; count < 1024; count++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d", count);
        FILE *file = fopen(path, "r");
        if (!file) break;
        fclose(file);
    }
    return count;
}

static json_t *describe_machine(void) {
    struct utsname system;
    char cpu[256];
    farm_machine_cpu_name(NULL, cpu, sizeof cpu);
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "cpu", cpu);
    farm_json_set_int(object, "cores", (uint64_t)farm_bench_cpus());
    farm_json_set_int(object, "nodes", (uint64_t)count_numa_nodes());
    farm_json_set_text(object, "kernel", uname(&system) ? NULL : system.release);
    farm_json_set_text(object, "gpu", NULL);
    return object;
}

static json_t *describe_result(const struct farm_bench_result *result) {
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "name", result->name);
    farm_json_set_real(object, "value", result->value);
    farm_json_set_text(object, "unit", result->unit);
    farm_json_set_text(object, "better", result->better);
    farm_json_set_real(object, "spread", result->spread);
    farm_json_set_text(object, "reference", result->reference);
    farm_json_set_real(object, "reference_value", result->reference_value);
    farm_json_set_real(object, "ratio", result->ratio);
    farm_json_set_real(object, "target", result->target);
    return object;
}

static int print_json(const struct farm_bench *bench) {
    struct farm_error err;
    json_t *document = farm_json_object(true), *results = json_array();
    farm_json_set_text(document, "benchmark", bench->name);
    farm_json_set_text(document, "commit", FARM_COMMIT);
    farm_json_set(document, "machine", describe_machine());
    for (size_t i = 0; i < bench->count; i++) json_array_append_new(results, describe_result(&bench->results[i]));
    farm_json_set(document, "results", results);
    enum farm_status status = farm_json_print(document, stdout, &err);
    json_decref(document);
    if (status) fprintf(stderr, "%s: %s\n", bench->name, err.message);
    return status ? 1 : 0;
}

int farm_bench_finish(struct farm_bench *bench) {
    if (bench->json) return print_json(bench);
    printf("%-34s %12s %-10s %7s %12s %7s %7s  %s\n", bench->name, "median", "unit", "spread", "reference", "ratio",
           "target", "is");
    for (size_t i = 0; i < bench->count; i++) {
        const struct farm_bench_result *r = &bench->results[i];
        printf("%-34s %12.4g %-10s", r->name, r->value, r->unit);
        if (isfinite(r->spread))
            printf(" %6.1f%%", 100 * r->spread);
        else // the median is 0
            printf(" %7s", "");
        if (isnan(r->ratio))
            printf(" %12s %7s", "", "");
        else
            printf(" %12.4g %7.3f", r->reference_value, r->ratio);
        if (isnan(r->target))
            printf(" %7s", "");
        else
            printf(" %7.3g", r->target);
        printf("  %s\n", r->reference ? r->reference : "");
    }
    return 0;
}

int farm_bench_cpus(void) {
    struct farm_bitmap cpus;
    return farm_bitmap_pinned(&cpus, NULL) ? 1 : farm_bitmap_count(&cpus);
}

bool farm_bench_pin(int index) {
    struct farm_bitmap cpus;
    if (farm_bitmap_pinned(&cpus, NULL)) return false;
    int cpu = farm_bitmap_next(&cpus, 0);
    while (cpu >= 0 && index-- > 0) cpu = farm_bitmap_next(&cpus, cpu + 1);
    return cpu >= 0 && farm_bitmap_pin_to(cpu, NULL) == FARM_OK;
}
