// The files of a run's folder that hold its samples: metrics.jsonl (JSON Lines: one object a line, units in the keys),
// metrics.csv, and TensorBoard's event file. A format prints bytes; all else is common to them. Runs in the supervisor.
// A sample is one write(2), so a crash tears at most the last one; opening for --resume removes a torn line. A full or
// failing disk does not end a training: the file is cut to its whole records, and the next sample is tried.
#ifndef FARM_REPORT_SINK_H
#define FARM_REPORT_SINK_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "report/metrics.h"

// Another format is one file of src/report, its declaration below, and a line of open_sinks (tools/train.c).
struct farm_sink_format {
    const char *name;  // the file's
    bool each_session; // a session begins its own file, NAME.TIME.HOST.PID.NUMBER; false: --resume appends lines
    void (*head)(FILE *out, const struct farm_sample *first); // what a file begins with; NULL: nothing
    void (*record)(FILE *out, const struct farm_sample *sample);
};
extern const struct farm_sink_format farm_sink_jsonl, farm_sink_csv, farm_sink_tensorboard;

// A file that grows by whole records.
struct farm_appended {
    int fd;                    // -1: closed
    int why;                   // errno of the newest loss
    bool losing;               // the newest record is missing, and a part of it may follow the first `whole` bytes
    off_t whole;               // if losing
    uint64_t written, missing; // records since it was opened
    char path[1280];
};

struct farm_sink {
    const struct farm_sink_format *format;
    struct farm_appended file;
};

// Shortens the open file to its whole lines (resume) or to nothing (else). Returns the length that stays, or -1 with
// errno.
off_t farm_appended_keep(struct farm_appended *file, bool resume);

// Appends a record, or counts it as missing and cuts the file to the records before it. True: *note has a message for
// the log, because the loss begins or has ended.
bool farm_appended_write(struct farm_appended *file, const char *record, size_t bytes, struct farm_error *note);

// Opens the format's file in the folder, for appending (resume) or empty (else), and writes its head. `first`: a sample
// with the run's keys and `before`. Errors close it: farm_file_open_own's; FARM_E_IO; FARM_E_USAGE resume, and the file
// has another head.
enum farm_status farm_sink_open(const struct farm_sink_format *format, const char *folder, bool resume,
                                const struct farm_sample *first, struct farm_sink *out, struct farm_error *err);
// Appends a sample. True: *note has a message for the log (farm_appended_write), or there is no memory for the sample.
bool farm_sink_write(struct farm_sink *sink, const struct farm_sample *sample, struct farm_error *note);
void farm_sink_close(struct farm_sink *sink); // safe on a closed one

// Returns wall_s of the last of a file's first lines of metrics that have at most `frames`, or 0.
double farm_sink_wall_s(const char *path, uint64_t frames);

// Shortens a file of metrics to these lines; a missing file has none.
void farm_sink_cut(const char *path, uint64_t frames);

#endif
