// What tests of measurements share: this machine, a job to run parts with, and a control that stops a measurement.
#ifndef TESTS_BW_HERE_H
#define TESTS_BW_HERE_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bw/buffer.h"
#include "bw/job.h"

enum { SMALL = 1 << 20 };

static struct farm_machine machine;
static struct farm_error err;

// NULL: this machine.
static inline void read_machine(const char *synthetic) {
    const struct farm_machine_source source = {.synthetic = synthetic};
    cr_assert_eq(farm_machine_read(&machine, &source, &err), FARM_OK, "%s", err.message);
}

static inline struct farm_bw_setup setup_here(double seconds, int samples, double sample_s) {
    read_machine(NULL);
    return (struct farm_bw_setup){.machine = &machine, .seconds = seconds, .samples = samples, .sample_s = sample_s};
}

static inline void skip_without_two_cores(void) {
    int cpus[2];
    if (farm_bw_cpus(&machine, -1, cpus, 2) < 2) cr_skip_test("one core");
}

static inline bool is_measured(const struct farm_bw_figure *figure) {
    return figure->samples >= 1 && figure->median > 0 && isfinite(figure->median);
}

// Runs a part, whose tables go nowhere. The caller owns the section.
static inline enum farm_status run_part(farm_bw_part *part, const struct farm_bw_setup *setup, enum farm_bw_depth depth,
                                        uint64_t size_bytes, json_t **section) {
    struct farm_bw_job job = {.depth = depth, .setup = *setup, .size_bytes = size_bytes, .columns = 100};
    job.out = fopen("/dev/null", "w");
    job.results = json_array();
    *section = json_object();
    err.message[0] = 0;
    const enum farm_status status = part(&job, *section, &err);
    json_decref(job.results);
    fclose(job.out);
    return status;
}

static inline json_t *section_of(farm_bw_part *part, const struct farm_bw_setup *setup, enum farm_bw_depth depth,
                                 uint64_t size_bytes) {
    json_t *section;
    cr_assert_eq(run_part(part, setup, depth, size_bytes, &section), FARM_OK, "%s", err.message);
    return section;
}

static inline void free_section(json_t **section) {
    json_decref(*section);
}

#define with_section __attribute__((cleanup(free_section))) json_t // freed at the end of its scope

// The value at a path like "rows.0.ns.median"; NULL: there is none.
static inline const json_t *value_at(const json_t *value, const char *path) {
    char text[128], *rest = text;
    snprintf(text, sizeof text, "%s", path);
    for (char *step; (step = strsep(&rest, ".")) && value;)
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(step)) : json_object_get(value, step);
    return value;
}

static inline double number_at(const json_t *value, const char *path) {
    const json_t *number = value_at(value, path);
    return json_is_number(number) ? json_number_value(number) : (double)NAN;
}

static inline bool is_true_at(const json_t *value, const char *path) {
    return json_is_true(value_at(value, path));
}

// Asserts that the note of the section's conditions contains the words.
static inline void assert_noted(const json_t *section, const char *words) {
    const char *note = json_string_value(value_at(section, "conditions.note"));
    cr_assert(note && strstr(note, words), "'%s' is not in the note '%s'", words, note ? note : "");
}

// struct farm_bw_control's `stop`: true after as many calls as the int at `context` states.
static inline bool stop_after(void *context) {
    int *left = context;
    return (*left)-- <= 0;
}

#endif
