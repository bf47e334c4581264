// `farm bridge`: this machine's actors for a learner elsewhere, and what goes with it. The parts are in
// farm_bridge_*.c.
#include <stdio.h>
#include <string.h>

#include "bridge/key.h"
#include "tools/bridge/bridge.h"
#include "tools/shared/command.h"

// ---- keygen ----

static int keygen(int argc, char **argv) {
    const struct farm_cli cli = {
        .program = "farm bridge keygen",
        .synopsis = "FILE",
        .about =
            "Makes a key: 32 random bytes, in a file that its owner alone can read. Learner and nodes of a run hold\n"
            "the same key; with it any machine can join, so copy it by a safe way (scp -p keeps its mode).",
        .examples = "  farm bridge keygen farm.key\n"
                    "  scp -p farm.key node7:\n",
    };
    const char *path = NULL;
    int exit_status;
    struct farm_error err;
    if (!farm_read_flags(&cli, argc, argv, &path, &exit_status)) return exit_status;
    if (!path) {
        fprintf(stderr, "farm bridge keygen: which file? farm bridge keygen FILE\n");
        return 2;
    }
    if (farm_key_make(path, &err)) return farm_report_error("farm bridge keygen", &err);
    printf("%s holds a new key. Each node needs a copy that its owner alone can read: scp -p %s NODE:\n", path, path);
    return 0;
}

// ---- by word ----

static const struct part {
    const char *name;
    int (*run)(int argc, char **argv);
} parts[] = {{"keygen", keygen}, {"status", farm_bridge_status}, {"bench", farm_bridge_bench}};
enum { PARTS = sizeof parts / sizeof *parts };

static int unknown(const char *word) {
    const char *names[PARTS];
    for (size_t i = 0; i < PARTS; i++) names[i] = parts[i].name;
    const char *near = farm_nearest(word, names, PARTS);
    fprintf(stderr, "farm bridge: unknown word '%s'%s%s%s (farm bridge --help tells all)\n", word,
            near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
    return 2;
}

int farm_cmd_bridge(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') return farm_bridge_connect(argc, argv);
    for (size_t i = 0; i < PARTS; i++)
        if (strcmp(argv[1], parts[i].name) == 0) return parts[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
