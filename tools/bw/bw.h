// What the parts of `farm bw` share: the job (what is measured and how), and the account (figures, sections, tables)
// that every part adds to. Measurements are src/bw's; parts choose them, print their tables and put them into the JSON
// document. Runs in the process of the command, which has SIGINT, SIGTERM and SIGHUP blocked: a signal ends the
// measurement that runs, and all after it.
#ifndef FARM_TOOLS_BW_H
#define FARM_TOOLS_BW_H

#include <jansson.h>
#include <signal.h>
#include <stdio.h>

#include "bridge/measure.h"
#include "bw/disturbance.h"
#include "bw/figure.h"
#include "report/heatmap.h"
#include "report/svg.h"

enum farm_bw_depth { FARM_BW_QUICK, FARM_BW_SUMMARY, FARM_BW_FULL, FARM_BW_DEPTHS };
enum { FARM_BW_PARTS_MAX = 16, FARM_BW_LABELS_MAX = 128 };

struct farm_bw_job;

// A part of the measurement. Where `seconds` is 0 the part does not belong to that depth; --only takes it all the same.
// `run` fills `section`, an empty object; what it can measure only in part it adds as far as it came.
struct farm_bw_part {
    const char *name, *about;
    double seconds[FARM_BW_DEPTHS];
    enum farm_status (*run)(struct farm_bw_job *job, json_t *section, struct farm_error *err);
};

struct farm_bw_job {
    enum farm_bw_depth depth;
    struct farm_machine *machine;
    struct farm_bw_control control;
    struct farm_bw_setup setup;         // `seconds` is set anew for each part
    uint64_t size_bytes;                // of arrays; 0: beyond caches
    const char *svg;                    // folder; NULL: no pictures
    const char *env, *fps_json;         // the environment whose ceiling is asked for; NULL: none
    struct farm_measure_config network; // address NULL: none
    bool quiet, terminal;               // terminal: stderr is one
    bool drawn;                         // a progress line stands there
    bool interrupted;
    int part, parts; // the one that runs, from 1
    const char *part_name;
    // the account
    FILE *out; // tables; nowhere with --json
    bool colour;
    size_t columns; // of a line of `out`
    json_t *results;
    struct farm_bw_disturbance fit;
};

// ---- parts (farm_bw_parts.c names them all) ----

extern const struct farm_bw_part farm_bw_parts[];
extern const size_t farm_bw_part_count;

enum farm_status farm_bw_part_memory(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_mix(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_cores(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_pages(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_matrix(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_latency(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_tlb(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_loaded(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_handoff(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_ring(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_env(struct farm_bw_job *job, json_t *section, struct farm_error *err);
enum farm_status farm_bw_part_gpu(struct farm_bw_job *job, json_t *section, struct farm_error *err);
// How many GPUs there may be, CUDA unasked: by the machine's list, at least one where there is a driver or
// FARM_CUDA_BACKEND.
int farm_bw_gpus_expected(const struct farm_machine *machine);
enum farm_status farm_bw_part_network(struct farm_bw_job *job, json_t *section, struct farm_error *err);

// ---- the account (farm_bw_account.c) ----

// Whether a signal has come; from then on always true. And the progress line of struct farm_bw_control.
bool farm_bw_stop(void *job);
void farm_bw_show_progress(void *job, const char *what, double done);
void farm_bw_clear_progress(struct farm_bw_job *job);

// A part's share of its time for one of its measurements.
struct farm_bw_setup farm_bw_setup_for(const struct farm_bw_job *job, double share);

// What a figure is shown in: its value times scale.
struct farm_bw_unit {
    double scale;
    const char *name;
    bool higher_is_better;
};
extern const struct farm_bw_unit farm_bw_gb_per_s, farm_bw_ns;

// A figure of the document's "results". Nothing measured: nothing added.
void farm_bw_add(struct farm_bw_job *job, const struct farm_bw_figure *figure, const struct farm_bw_unit *unit,
                 const char *name, ...) __attribute__((format(printf, 4, 5)));
// The same; prints it as a cell of so many columns too, and sets it in the object under that key.
void farm_bw_tell(struct farm_bw_job *job, int columns, json_t *object, const char *key,
                  const struct farm_bw_figure *figure, const struct farm_bw_unit *unit, const char *name, ...)
    __attribute__((format(printf, 7, 8)));

// A name as a part of a figure's: without blanks. Returns text.
char *farm_bw_key(const char *name, char *text, size_t bytes);

// {"median", "spread", "cv", "samples", "least", "most", "in_cache"}; null if nothing was measured.
json_t *farm_bw_figure_json(const struct farm_bw_figure *figure);
// Puts it under "conditions" and prints its note.
void farm_bw_tell_conditions(struct farm_bw_job *job, json_t *section, const struct farm_bw_conditions *conditions);

// A figure in a table's cell: "27.9" or "-", times scale; "27.9*" if it is one of caches (in_cache).
const char *farm_bw_cell(const struct farm_bw_figure *figure, double scale, char *text, size_t bytes);

// Names of rows or columns of a map: these numbers (NULL: 0, 1, ...).
struct farm_bw_labels {
    char text[FARM_BW_LABELS_MAX][16];
    const char *names[FARM_BW_LABELS_MAX];
};
void farm_bw_label(struct farm_bw_labels *labels, const int *numbers, int count);

// Prints the map, and with --svg writes NAME.svg.
enum farm_status farm_bw_give_map(struct farm_bw_job *job, const char *name, const struct farm_heatmap *map,
                                  struct farm_error *err);
// With --svg writes NAME.svg.
enum farm_status farm_bw_give_chart(struct farm_bw_job *job, const char *name, const struct farm_chart *chart,
                                    struct farm_error *err);

#endif
