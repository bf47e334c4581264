// What tests of measurements share: this machine, and a control that stops one.
#ifndef TESTS_BW_HERE_H
#define TESTS_BW_HERE_H

#include <criterion/criterion.h>

#include "bw/figure.h"

static struct farm_machine machine;

// On this machine, which it reads into `machine`.
static inline struct farm_bw_setup setup_here(double seconds, int samples, double sample_s) {
    const struct farm_machine_source source = {0};
    struct farm_error err;
    cr_assert_eq(farm_machine_read(&machine, &source, &err), FARM_OK, "%s", err.message);
    return (struct farm_bw_setup){.machine = &machine, .seconds = seconds, .samples = samples, .sample_s = sample_s};
}

// struct farm_bw_control's: stops when it has been asked as often as the int at `context` says.
static inline bool stop_after(void *context) {
    int *left = context;
    return (*left)-- <= 0;
}

#endif
