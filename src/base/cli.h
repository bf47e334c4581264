// Command lines of farm's subcommands and of the benchmarks: long flags "--name value", "--name=value", boolean
// "--name" and "--no-name", positional words, `--help`; "-o value" for a flag named "-o". An unknown flag is a usage
// error that names the nearest known one. Runs before any other process or thread exists; allocates nothing.
#ifndef FARM_BASE_CLI_H
#define FARM_BASE_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum farm_cli_kind {
    FARM_CLI_BOOL,   // bool *
    FARM_CLI_SWITCH, // enum farm_cli_switch *: a boolean that may also be the word value_name
    FARM_CLI_STRING, // const char ** (points into argv)
    FARM_CLI_INT,    // int64_t *; accepts 10000000, 10M, 2.5M, 64k, 1e6 where the value is whole
    FARM_CLI_DOUBLE, // double *
    FARM_CLI_WORDS,  // struct farm_cli_words *: the flag may be given several times
};

enum farm_cli_switch { FARM_CLI_OFF, FARM_CLI_ON, FARM_CLI_WORD };

// Words of the command line, in their order.
struct farm_cli_words {
    const char **items; // [argc] places of the caller; they point into argv
    size_t count;
};

struct farm_cli_flag {
    const char *name; // without the dashes, but "-o" for a short one
    enum farm_cli_kind kind;
    void *out;
    const char *value_name; // shown in --help: "N", "DIR"; a switch's word; NULL for booleans
    const char *help;       // one line
};

struct farm_cli {
    const char *program;  // "farm topo"
    const char *synopsis; // "[--json] [--actors N]"
    const char *about;    // a paragraph
    const char *examples; // lines, or NULL
    const struct farm_cli_flag *flags;
    size_t flag_count;
    struct farm_cli_words *words; // takes all positional words; NULL: farm_cli_parse's `word` takes one at most
    // Sets flags that are not in `flags` (recipe keys). value is NULL if none is given with '=' and the next word
    // starts with "--" or is missing (a boolean key: true). FARM_E_NOT_FOUND: it does not know the name. May be NULL.
    enum farm_status (*other)(void *context, const char *name, const char *value, struct farm_error *err);
    const char *(*other_name)(void *context, size_t i); // i-th name that `other` knows, NULL at the end; may be NULL
    void (*other_help)(void *context);                  // prints its part of --help; may be NULL
    void *context;
    struct farm_error *error; // why farm_read_flags refuses, which then does not print it; may be NULL
};

// Parses argv[1..argc) (argv[0] is skipped). `word`: the one positional word that the program takes (unchanged if none
// is given); NULL: it takes none, or cli->words has them. *help: --help or -h (nothing else is checked). FARM_E_USAGE.
enum farm_status farm_cli_parse(const struct farm_cli *cli, int argc, char **argv, const char **word, bool *help,
                                struct farm_error *err);
void farm_cli_print_help(const struct farm_cli *cli);

// A whole number as FARM_CLI_INT describes. False: the text is not one.
bool farm_parse_int(const char *text, int64_t *out);
bool farm_parse_double(const char *text, double *out);
// "true/yes/on/1", "false/no/off/0".
bool farm_parse_bool(const char *text, bool *out);

// The candidate nearest to `word` by edit distance; NULL if none is near enough.
const char *farm_nearest(const char *word, const char *const *candidates, size_t count);

#endif
