// `farm plot`: curves of runs, as a picture, as text or as JSON. This file reads the command line;
// python/actorfarm/plot.py, which takes this process over, does the rest.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/shared/command.h"
#include "tools/shared/drawing.h"

struct request {
    bool json;
    const char *output, *axis, *metrics, *title, *x_max;
    int64_t smooth;
    struct farm_cli_words runs, baselines;
};

// The script's command line: pairs of a key and its value.
struct pairs {
    char **argv;
    size_t count;
};

static void add(struct pairs *pairs, const char *key, const char *value) {
    if (!value) return;
    pairs->argv[pairs->count++] = (char *)(uintptr_t)key;
    pairs->argv[pairs->count++] = (char *)(uintptr_t)value;
}

// Steps may have a suffix, minutes a fraction.
static enum farm_status read_x_max(const char *text, double *x_max, struct farm_error *err) {
    int64_t whole;
    if (farm_parse_double(text, x_max)) return FARM_OK;
    if (!farm_parse_int(text, &whole))
        return farm_fail(err, FARM_E_USAGE, "--x-max: '%s' is not a number (examples: 500000, 1.2M, 7.5)", text);
    *x_max = (double)whole;
    return FARM_OK;
}

// Returns only if the script cannot be started.
static enum farm_status draw(const struct request *request, char **argv, struct farm_error *err) {
    struct farm_drawing drawing;
    struct pairs pairs = {argv, 3};
    char smooth[24], x_max[32];
    double number;
    enum farm_status status = read_x_max(request->x_max, &number, err);
    if (!status) status = farm_drawing_find(request->output ? "matplotlib" : NULL, &drawing, err);
    if (status) return status;
    argv[0] = drawing.python;
    argv[1] = drawing.start;
    argv[2] = (char *)"plot.py";
    snprintf(smooth, sizeof smooth, "%" PRId64, request->smooth);
    snprintf(x_max, sizeof x_max, "%.17g", number);
    add(&pairs, "x", request->axis);
    add(&pairs, "smooth", smooth);
    add(&pairs, "x_max", x_max);
    add(&pairs, "metrics", request->metrics);
    add(&pairs, "title", request->title);
    add(&pairs, "output", request->output);
    add(&pairs, "json", request->json ? "1" : NULL);
    add(&pairs, "remedy", farm_drawing_remedy());
    for (size_t i = 0; i < request->runs.count; i++) add(&pairs, "run", request->runs.items[i]);
    for (size_t i = 0; i < request->baselines.count; i++) add(&pairs, "baseline", request->baselines.items[i]);
    execve(drawing.python, argv, drawing.environment);
    free(drawing.environment);
    return farm_fail_errno(err, FARM_E_LIMIT, "cannot start %s", drawing.python);
}

int farm_cmd_plot(int argc, char **argv) {
    enum { FIXED = 25 }; // words besides runs and baselines
    struct farm_error err;
    int exit_status;
    char **words = calloc((size_t)argc * 4 + FIXED, sizeof *words);
    if (!words) return farm_fail_errno(&err, FARM_E_LIMIT, "farm plot"), farm_report_error("farm plot", &err);
    const char **given = (const char **)words + (size_t)argc * 2 + FIXED;
    struct request request = {
        .axis = "steps", .smooth = 1, .x_max = "0", .runs.items = given, .baselines.items = given + argc};
    const struct farm_cli_flag flags[] = {
        {"-o", FARM_CLI_STRING, &request.output, "FILE", "a picture: its ending is .png, .svg or .pdf. Without: text"},
        {"x", FARM_CLI_STRING, &request.axis, "AXIS", "x axis (steps|minutes|frames); steps: agent steps"},
        {"metrics", FARM_CLI_STRING, &request.metrics, "LIST",
         "what to draw, by commas: return, speed, lag, entropy, kl (all of these), or keys of metrics.jsonl"},
        {"baseline", FARM_CLI_WORDS, &request.baselines, "FILE",
         "published returns as dashed lines (CSV: x, y and, optionally, name, unit); may be repeated"},
        {"smooth", FARM_CLI_INT, &request.smooth, "N", "each point is the mean over N neighbours of its run (1)"},
        {"x-max", FARM_CLI_STRING, &request.x_max, "X", "the axis ends there, in its unit; 0: with the longest curve"},
        {"title", FARM_CLI_STRING, &request.title, "TEXT", "above the picture; the environment if there is one only"},
        {"json", FARM_CLI_BOOL, &request.json, NULL, "one JSON document of the points drawn on stdout"},
    };
    const struct farm_cli cli = {
        .program = "farm plot",
        .synopsis = "RUN... [-o FILE] [--x AXIS] [--metrics LIST] [--baseline FILE ...] [--json]",
        .about =
            "Draws the curves of runs. RUN is the folder of a `farm train`, running or ended, its metrics.jsonl, a\n"
            "file of lines like bench/results/training.jsonl, or - for such lines on stdin. Runs whose recipes\n"
            "differ in the seed only are one curve: their median, as far as all of them have played, with a band\n"
            "of the quartiles, of up to three runs from the least to the most; the band of a single run is the\n"
            "standard deviation of its games. docs/METRICS.md describes baselines and the JSON document.",
        .examples =
            "  farm plot runs/b1\n"
            "  farm plot runs/seed* -o curves.png --x minutes\n"
            "  farm plot runs/b1 runs/b2 --metrics return,explained_variance --smooth 5 -o curves.svg\n"
            "  grep ale/Pong bench/results/training.jsonl | farm plot - --baseline bench/baselines/ale_Pong.csv -o "
            "pong.png\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
        .words = &request.runs};
    if (farm_read_flags(&cli, argc, argv, NULL, &exit_status)) {
        draw(&request, words, &err);
        exit_status = farm_report_error(cli.program, &err);
    }
    free(words);
    return exit_status;
}
