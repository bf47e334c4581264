// `farm bridge`: `keygen`, and the other parts by their word. Without a word: connect.c.
#include <string.h>

#include "base/format.h"
#include "bridge/key.h"
#include "tools/bridge/bridge.h"
#include "tools/shared/command.h"

// ---- keygen ----

static int make_key(int argc, char **argv) {
    const struct farm_cli cli = {
        .program = "farm bridge keygen",
        .synopsis = "FILE",
        .about =
            "Makes a key: 32 random bytes in a file that only its owner can read. Learner and nodes of a run hold\n"
            "the same key. Any machine with the key can join: copy it safely (scp -p keeps its mode).",
        .examples = "  farm bridge keygen farm.key\n"
                    "  scp -p farm.key node7:\n",
    };
    const char *path = NULL;
    int exit_status;
    struct farm_error err;
    if (!farm_read_flags(&cli, argc, argv, &path, &exit_status)) return exit_status;
    if (!path) {
        fprintf(stderr, "farm bridge keygen: FILE is missing: farm bridge keygen FILE\n");
        return 2;
    }
    if (farm_key_make(path, &err)) return farm_report_error("farm bridge keygen", &err);
    printf("%s holds a new key. Each node needs a copy that only its owner can read: scp -p %s NODE:\n", path,
           farm_format_word(path).text);
    return 0;
}

// ---- parts ----

static const struct part {
    const char *name;
    int (*run)(int argc, char **argv);
} parts[] = {{"keygen", make_key}, {"status", farm_bridge_status}, {"bench", farm_bridge_bench}};
enum { PARTS = sizeof parts / sizeof *parts };

static int report_unknown_word(const char *word) {
    const char *names[PARTS];
    for (size_t i = 0; i < PARTS; i++) names[i] = parts[i].name;
    const char *near = farm_nearest(word, names, PARTS);
    fprintf(stderr, "farm bridge: unknown word '%s'%s%s%s (farm bridge --help lists all)\n", word,
            near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
    return 2;
}

int farm_cmd_bridge(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') return farm_bridge_connect(argc, argv);
    for (size_t i = 0; i < PARTS; i++)
        if (strcmp(argv[1], parts[i].name) == 0) return parts[i].run(argc - 1, argv + 1);
    return report_unknown_word(argv[1]);
}
