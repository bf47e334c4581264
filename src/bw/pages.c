// See pages.h.
#include "bw/pages.h"

#include <stdio.h>

#include "bw/latency.h"
#include "bw/workers.h"

static struct farm_bw_figure nothing(void) {
    return farm_bw_figure_of(NULL, 0);
}

// Read, copy and latency on memory of one page size. FARM_E_UNSUPPORTED and FARM_E_LIMIT: not to be had.
static enum farm_status measure_pages(const struct farm_bw_setup *setup, struct farm_bw_pages_result *result, int cpu,
                                      struct farm_bw_pages_row *row, struct farm_bw_clock *clock,
                                      struct farm_error *err) {
    struct farm_bw_workers_config workers_config = farm_bw_workers_for(clock, 2, &cpu, 1, 2, result->array_bytes);
    workers_config.pages = row->pages;
    struct farm_bw_workers workers;
    if (farm_bw_clock_over(clock)) return FARM_OK;
    enum farm_status status = farm_bw_workers_open(setup, &workers_config, &workers, clock->conditions, err);
    if (status) return status;
    result->array_bytes = workers.array_bytes; // the first row's choice is every row's
    row->huge_share = row->pages == FARM_BW_PAGES_SMALL
                          ? 1
                          : (double)workers.actor[0].buffer.huge_bytes / (double)workers.actor[0].buffer.bytes;
    if (farm_bw_clock_next(clock, farm_bw_pages_name(row->pages)))
        status = farm_bw_workers_figure(&workers, clock, FARM_BANDWIDTH_READ, FARM_BANDWIDTH_TEMPORAL,
                                        FARM_BANDWIDTH_SEQUENTIAL, 0, &row->read_bytes_per_s, err);
    if (!status && farm_bw_clock_next(clock, farm_bw_pages_name(row->pages)))
        status = farm_bw_workers_figure(&workers, clock, FARM_BANDWIDTH_COPY, FARM_BANDWIDTH_TEMPORAL,
                                        FARM_BANDWIDTH_SEQUENTIAL, 0, &row->copy_bytes_per_s, err);
    farm_bw_workers_close(&workers);
    if (status || !farm_bw_clock_next(clock, farm_bw_pages_name(row->pages))) return status;
    struct farm_bw_setup latency_setup = *setup;
    latency_setup.seconds = (double)(clock->end_ns - clock->start_ns) * 1e-9 / clock->figures;
    const struct farm_bw_idle_config idle_config = {.bytes = result->array_bytes, .pages = row->pages};
    struct farm_bw_idle_result idle;
    status = farm_bw_idle(&latency_setup, &idle_config, &idle, err);
    row->latency_ns = idle.ns;
    farm_bw_clock_took(clock);
    return status;
}

enum farm_status farm_bw_page_sizes(const struct farm_bw_setup *setup, const struct farm_bw_pages_config *config,
                                    struct farm_bw_pages_result *result, struct farm_error *err) {
    const int cpu = config->cpu >= 0 ? config->cpu : farm_bitmap_next(&setup->machine->allowed, 0);
    const enum farm_bw_pages kinds[] = {FARM_BW_PAGES_SMALL, FARM_BW_PAGES_TRANSPARENT, FARM_BW_PAGES_2M,
                                        FARM_BW_PAGES_1G};
    *result = (struct farm_bw_pages_result){.conditions = farm_bw_conditions_start()};
    result->array_bytes = config->array_bytes;
    struct farm_bw_clock clock = farm_bw_clock_start(setup, 6, 3 * 4, &result->conditions);
    enum farm_status status = FARM_OK;
    for (int i = 0; i < 4; i++) {
        struct farm_bw_pages_row *row = &result->row[i];
        *row = (struct farm_bw_pages_row){
            .pages = kinds[i], .read_bytes_per_s = nothing(), .copy_bytes_per_s = nothing(), .latency_ns = nothing()};
        row->available = farm_bw_pages_available(setup->root, kinds[i], row->reason, sizeof row->reason);
        if (!row->available || status) continue;
        struct farm_error why = {0};
        enum farm_status got = measure_pages(setup, result, cpu, row, &clock, &why);
        if (got == FARM_OK) continue;
        row->available = false;
        snprintf(row->reason, sizeof row->reason, "%s", why.message);
        const bool missing = got == FARM_E_UNSUPPORTED || (got == FARM_E_LIMIT && kinds[i] >= FARM_BW_PAGES_2M);
        if (!missing) status = got;
        if (!missing && err) *err = why;
    }
    return status;
}
