// `farm setup`: the Python environment of an installed copy, made or brought up to date.
#include <limits.h>
#include <stdio.h>

#include "base/cli.h"
#include "envs/python.h"
#include "tools/shared/command.h"

int farm_cmd_setup(int argc, char **argv) {
    const struct farm_cli cli = {
        .program = "farm setup",
        .synopsis = "[--help]",
        .about =
            "Installs the Python packages that ale/*, gym/* and pictures need (about 450 MB, from PyPI), or brings\n"
            "them up to date. `make install` leaves that to this command; train, eval, fps, bridge, plot -o and\n"
            "bw --svg run it when they first need it. The packages go to PREFIX/lib/farm/venv if this user may\n"
            "write there, for all users, else to actorfarm/venv in $XDG_DATA_HOME or ~/.local/share, for this user.\n"
            "PYTHON=... names the Python to use, which must be of the version that farm was built with.\n"
            "FARM_PYTHON=... in the environment of the other commands names an interpreter that has the packages\n"
            "already."};
    struct farm_error err;
    char python[PATH_MAX];
    int exit_status;
    if (!farm_read_flags(&cli, argc, argv, NULL, &exit_status)) return exit_status;
    if (farm_env_setup(python, sizeof python, &err)) return farm_report_error(cli.program, &err);
    printf("%s has the packages for ale/* and gym/*\n", python);
    return 0;
}
