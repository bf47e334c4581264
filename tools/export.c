// `farm export`: reads the command line; python/actorfarm/exporting.py takes this process over and does the rest.
#include <unistd.h>

#include "tools/shared/command.h"
#include "tools/shared/drawing.h"

int farm_cmd_export(int argc, char **argv) {
    struct farm_error err;
    struct farm_drawing python;
    const char *run = NULL, *output = NULL;
    bool best = false, json = false;
    int exit_status;
    const struct farm_cli_flag flags[] = {
        {"-o", FARM_CLI_STRING, &output, "FILE", "the ONNX file; one of this name is replaced"},
        {"best", FARM_CLI_BOOL, &best, NULL, "the run's best checkpoint, not its newest one"},
        {"json", FARM_CLI_BOOL, &json, NULL, "one JSON document on stdout"},
    };
    const struct farm_cli cli = {
        .program = "farm export",
        .synopsis = "RUN_OR_CHECKPOINT -o FILE.onnx [--best] [--json]",
        .about =
            "Writes the policy of a run, or of a checkpoint file, for programs that read ONNX (opset 17), with the\n"
            "normalisation of observations, the memory and the greedy action. docs/PYTHON.md: its inputs and outputs.",
        .examples = "  farm export runs/b1 --best -o policy.onnx\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags};
    if (!farm_read_flags(&cli, argc, argv, &run, &exit_status)) return exit_status;
    if (!run || !output) {
        farm_fail(&err, FARM_E_USAGE, "which %s? farm export %s", run ? "file" : "run", cli.synopsis);
    } else if (!farm_drawing_find("onnx", &python, &err)) {
        execle(python.python, python.python, python.start, "actorfarm.exporting", run, output, best ? "1" : "0",
               json ? "1" : "0", farm_drawing_remedy(), (char *)NULL, python.environment);
        farm_fail_errno(&err, FARM_E_LIMIT, "cannot start %s", python.python);
    }
    return farm_report_error(cli.program, &err);
}
