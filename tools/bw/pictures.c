// The pictures of `farm bw --svg`: python/actorfarm/plot_bw.py draws them from the JSON document. See bw.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/program.h"
#include "tools/bw/bw.h"
#include "tools/shared/drawing.h"

enum { PATH_BYTES = 4096, PLOT_LIMIT_S = 300 };

// `python plot_bw.py [DOCUMENT FOLDER]`; without arguments it only loads matplotlib. The caller frees *answer.
static enum farm_status run_plot(const char *document, const char *folder, char **answer, struct farm_error *err) {
    struct farm_drawing drawing;
    struct farm_error why;
    enum farm_status status = farm_drawing_find("matplotlib", &drawing, err);
    if (status) return farm_fail_in(err, status, "--svg");
    char *const arguments[] = {drawing.python,
                               drawing.start,
                               (char *)"plot_bw.py",
                               (char *)(uintptr_t)document,
                               (char *)(uintptr_t)folder,
                               NULL};
    const struct farm_program program = {.path = drawing.python,
                                         .argv = arguments,
                                         .environment = drawing.environment,
                                         .label = "farm bw --svg: ",
                                         .apart = true, // a signal ends the measurement, not the pictures of it
                                         .limit_s = PLOT_LIMIT_S};
    status = farm_program_read(&program, answer, &why);
    free(drawing.environment);
    if (!status) return FARM_OK;
    if (document)
        return farm_fail(err, FARM_E_IO, "--svg: no pictures in %s (%.300s); the figures are in %s", folder,
                         why.message, document);
    return farm_fail(err, FARM_E_UNSUPPORTED, "--svg: %.300s: %s, or %.300s -m pip install matplotlib", why.message,
                     farm_drawing_remedy(), farm_format_word(drawing.python).text);
}

enum farm_status farm_bw_check_pictures(struct farm_error *err) {
    char *answer = NULL;
    const enum farm_status status = run_plot(NULL, NULL, &answer, err);
    free(answer);
    return status;
}

static void log_pictures(const json_t *pictures) {
    size_t i, k;
    const json_t *entry, *name;
    json_array_foreach(json_object_get(pictures, "files"), i, entry) {
        farm_log_info("written: %s", json_string_value(entry));
    }
    json_array_foreach(json_object_get(pictures, "skipped"), i, entry) {
        char names[256] = "";
        json_array_foreach(json_object_get(entry, "pictures"), k, name) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", k ? ", " : "", json_string_value(name));
        }
        farm_log_info("no picture of %s: %s", names, json_string_value(json_object_get(entry, "reason")));
    }
}

enum farm_status farm_bw_draw_pictures(json_t *document, const char *folder, bool quiet, struct farm_error *err) {
    char path[PATH_BYTES], *answer = NULL;
    size_t bytes;
    snprintf(path, sizeof path, "%s/bw.json", folder);
    char *text = farm_json_line(document, &bytes);
    enum farm_status status = farm_file_replace(path, text, bytes, err);
    free(text);
    if (status) return farm_fail_in(err, status, "--svg");
    status = run_plot(path, folder, &answer, err);
    json_t *pictures = status ? NULL : farm_json_parse(answer, strlen(answer), "plot_bw.py", err);
    free(answer);
    if (!pictures) return err->status;
    json_array_insert_new(json_object_get(pictures, "files"), 0, json_string(path));
    if (!quiet) log_pictures(pictures);
    farm_json_set(document, "pictures", pictures);
    return FARM_OK;
}
