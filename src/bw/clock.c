// See clock.h.
#include "bw/clock.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/time.h"

enum { SAMPLES_DEFAULT = 5 };

struct farm_bw_clock farm_bw_clock_start(const struct farm_bw_setup *setup, double default_seconds, int figures,
                                         struct farm_bw_conditions *conditions) {
    const double seconds = setup->seconds > 0 ? setup->seconds : default_seconds;
    const uint64_t now = farm_now_ns();
    const uint64_t end = now + (uint64_t)(seconds * 1e9);
    return (struct farm_bw_clock){
        .setup = setup, .start_ns = now, .end_ns = end, .figures = figures, .due = 1, .conditions = conditions};
}

bool farm_bw_is_stopped(const struct farm_bw_setup *setup) {
    const struct farm_bw_control *control = setup->control;
    return control && control->stop && control->stop(control->context);
}

static bool stopped(struct farm_bw_clock *clock) {
    if (farm_bw_is_stopped(clock->setup)) clock->conditions->stopped = true;
    return clock->conditions->stopped;
}

bool farm_bw_clock_next(struct farm_bw_clock *clock, const char *format, ...) {
    if (stopped(clock)) return false;
    const struct farm_bw_control *control = clock->setup->control;
    if (control && control->progress) {
        char what[80];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(what, sizeof what, format, arguments);
        va_end(arguments);
        control->progress(control->context, what, clock->figures ? (double)clock->taken / clock->figures : 1);
    }
    const uint64_t now = farm_now_ns();
    const bool over = now >= clock->end_ns, take = !over || clock->taken < clock->due;
    const int left = clock->figures > clock->taken ? clock->figures - clock->taken : 1;
    clock->until_ns = over ? now : now + (clock->end_ns - now) / (uint64_t)left;
    clock->conditions->out_of_time |= !take;
    return take;
}

bool farm_bw_clock_more(struct farm_bw_clock *clock, int done) {
    const int samples = clock->setup->samples;
    const int wanted = samples < 1 ? SAMPLES_DEFAULT : samples < FARM_BW_SAMPLES_MAX ? samples : FARM_BW_SAMPLES_MAX;
    if (done == 0) return true;
    if (stopped(clock) || done >= wanted) return false;
    if (farm_now_ns() < clock->until_ns) return true;
    clock->conditions->out_of_time = true;
    return false;
}

bool farm_bw_clock_over(struct farm_bw_clock *clock) {
    return stopped(clock) || (clock->taken >= clock->due && farm_now_ns() >= clock->end_ns);
}

void farm_bw_clock_took(struct farm_bw_clock *clock) {
    clock->taken++;
}

double farm_bw_clock_share(const struct farm_bw_clock *clock, int figures) {
    const uint64_t now = farm_now_ns();
    const int left = clock->figures > clock->taken + figures ? clock->figures - clock->taken : figures;
    return now < clock->end_ns ? (double)(clock->end_ns - now) * 1e-9 * figures / left : 0;
}

uint64_t farm_bw_bytes_in_time(uint64_t bytes, uint64_t piece, double took_s, double times, double seconds) {
    const double possible = took_s > 0 ? (double)piece * (seconds / (took_s * times)) : (double)bytes;
    if (possible >= (double)bytes) return bytes;
    return possible > FARM_BANDWIDTH_LINE ? (uint64_t)possible & ~(uint64_t)(FARM_BANDWIDTH_LINE - 1)
                                          : FARM_BANDWIDTH_LINE;
}

enum farm_status farm_bw_leave_out(enum farm_status status, const struct farm_error *why, int *measured,
                                   struct farm_bw_conditions *conditions, struct farm_error *err) {
    if (status && err) *err = *why;
    if (!status) ++*measured;
    if (status != FARM_E_LIMIT) return status;
    farm_bw_conditions_note(conditions, "Left out: %s.", why->message);
    return FARM_OK;
}

enum farm_status farm_bw_all_left_out(int measured, const struct farm_error *why, struct farm_error *err) {
    if (measured) return FARM_OK;
    if (why->status && err) *err = *why;
    return why->status;
}

void farm_bw_mark_in_cache(struct farm_bw_figure *figure, uint64_t bytes, uint64_t cache_bytes,
                           struct farm_bw_conditions *conditions) {
    if (bytes > cache_bytes || !farm_bw_figure_is(figure)) return;
    figure->in_cache = true;
    farm_bw_conditions_note(conditions,
                            "*: the memory used fits into the last-level caches (%.0f MiB): a figure of caches.",
                            (double)cache_bytes / (1 << 20));
}
