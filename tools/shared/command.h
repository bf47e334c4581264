// farm's subcommands. Each parses its part of the command line (argv[0] is the subcommand) and returns the program's
// exit status: 0 done, 1 failed, 2 refused (farm_report_error).
#ifndef FARM_TOOLS_SHARED_COMMAND_H
#define FARM_TOOLS_SHARED_COMMAND_H

#include <stdbool.h>

#include "base/cli.h"
#include "base/status.h"

int farm_cmd_train(int argc, char **argv);
int farm_cmd_eval(int argc, char **argv);
int farm_cmd_fps(int argc, char **argv);
int farm_cmd_serve(int argc, char **argv);
int farm_cmd_plot(int argc, char **argv);
int farm_cmd_export(int argc, char **argv);
int farm_cmd_bridge(int argc, char **argv);
int farm_cmd_actors(int argc, char **argv);
int farm_cmd_bw(int argc, char **argv);
int farm_cmd_topo(int argc, char **argv);
int farm_cmd_envs(int argc, char **argv);
int farm_cmd_doctor(int argc, char **argv);
int farm_cmd_setup(int argc, char **argv);
int farm_cmd_report(int argc, char **argv);

// For the subcommands: reads the command line (farm_cli_parse). False: the help or an error is printed, and the command
// ends with *exit_status.
bool farm_read_flags(const struct farm_cli *cli, int argc, char **argv, const char **word, int *exit_status);

// For the subcommands: prints "farm train: MESSAGE" on stderr and returns the exit status. 2: the command line, a
// recipe, or a file, environment or part that they name is at fault (FARM_E_USAGE, INVALID, NOT_FOUND, PERMISSION,
// FORMAT, UNSUPPORTED). 1: any other error, and all those of a farm that runs, which are FARM_E_DEAD
// (farm_run_execute).
int farm_report_error(const char *program, const struct farm_error *err);

#endif
