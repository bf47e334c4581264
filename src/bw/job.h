// What the parts of `farm bw` share: the job (what to measure, and how), and its report (tables, the document's figures
// and sections). A part measures, prints its table and fills its section. One thread runs all parts, one after another;
// each part starts and ends its own threads.
#ifndef FARM_BW_JOB_H
#define FARM_BW_JOB_H

#include <jansson.h>
#include <stdio.h>

#include "base/format.h"
#include "bw/figure.h"

enum farm_bw_depth { FARM_BW_QUICK, FARM_BW_SUMMARY, FARM_BW_FULL, FARM_BW_DEPTHS };

struct farm_bw_job {
    enum farm_bw_depth depth;
    struct farm_bw_setup setup; // `seconds`: for the current part
    uint64_t size_bytes;        // size of arrays and chases; 0: beyond caches
    FILE *out;                  // tables
    bool colour;
    size_t columns;  // in a line of `out`
    json_t *results; // a list of all figures
    // For parts of tools/bw. NULL: not requested.
    const char *env, *fps_json;
    const struct farm_measure_config *network;
};

// A part fills `section`, an empty object. What cannot be measured is stated there (`not_measured`, `conditions`).
typedef enum farm_status farm_bw_part(struct farm_bw_job *job, json_t *section, struct farm_error *err);
farm_bw_part farm_bw_part_memory, farm_bw_part_mix, farm_bw_part_cores, farm_bw_part_pages, farm_bw_part_matrix,
    farm_bw_part_latency, farm_bw_part_tlb, farm_bw_part_loaded, farm_bw_part_handoff, farm_bw_part_ring;

// The job's setup with a share of its time.
struct farm_bw_setup farm_bw_setup_for(const struct farm_bw_job *job, double share);

// ---- figures ----

// The unit that a figure is shown in: its value times scale.
struct farm_bw_unit {
    double scale;
    const char *name;
    bool higher_is_better;
};
extern const struct farm_bw_unit farm_bw_gb_per_s, farm_bw_ns;

// The median in that unit; NAN: not measured.
double farm_bw_median(const struct farm_bw_figure *figure, const struct farm_bw_unit *unit);

// Adds a figure to the results, unless it was not measured.
void farm_bw_add_result(struct farm_bw_job *job, const struct farm_bw_figure *figure, const struct farm_bw_unit *unit,
                        const char *name, ...) __attribute__((format(printf, 4, 5)));
// The same; also prints it right-aligned in `columns` columns, and sets it in `object`.
void farm_bw_report(struct farm_bw_job *job, int columns, json_t *object, const char *key,
                    const struct farm_bw_figure *figure, const struct farm_bw_unit *unit, const char *name, ...)
    __attribute__((format(printf, 7, 8)));

// A name for use within a figure's name: without blanks. Returns text.
char *farm_bw_key(const char *name, char *text, size_t bytes);

// "27.9", "27.9*" if in_cache, "-" if not measured.
struct farm_number_text farm_bw_figure_text(const struct farm_bw_figure *figure, double scale);

// {"median", "spread", "cv", "samples", "least", "most", "in_cache"}; null if not measured.
json_t *farm_bw_figure_json(const struct farm_bw_figure *figure);

// Sets "conditions" and prints the note.
void farm_bw_report_conditions(struct farm_bw_job *job, json_t *section, const struct farm_bw_conditions *conditions);

#endif
