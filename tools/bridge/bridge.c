// `farm bridge`: `keygen`, and the other parts by their word. Without a word: connect.c.
#include <string.h>

#include "base/format.h"
#include "bridge/key.h"
#include "tools/bridge/bridge.h"
#include "tools/shared/command.h"

// ---- keygen ----

static int make_key(int argc, char **argv) {
    const char *node = NULL, *withdrawn = NULL;
    const struct farm_cli_flag flags[] = {
        {"node", FARM_CLI_STRING, &node, "NAME", "makes FILE.NAME, the key of one node, from the learner's FILE"},
        {"withdraw", FARM_CLI_STRING, &withdrawn, "NAME", "nodes with the key of this name may join no more"},
    };
    const struct farm_cli cli = {
        .program = "farm bridge keygen",
        .synopsis = "[--node NAME | --withdraw NAME] FILE",
        .about =
            "Makes keys in files that only their owner can read: FILE for the learner, which stays on its machine,\n"
            "and FILE.node for nodes. Nodes may share FILE.node, or have names: --node makes FILE.NAME for one. A\n"
            "node's key lets its holder join, but neither act as the learner nor use another name. --withdraw ends\n"
            "a name: runs that use FILE close its connections within seconds, free its places and refuse it. Copy a\n"
            "node's file safely (scp -p keeps its mode).",
        .examples = "  farm bridge keygen farm.key\n"
                    "  scp -p farm.key.node node6:\n"
                    "  farm bridge keygen --node node7 farm.key && scp -p farm.key.node7 node7:\n"
                    "  farm bridge keygen --withdraw node7 farm.key\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    const char *path = NULL;
    int exit_status;
    struct farm_error err;
    if (!farm_read_flags(&cli, argc, argv, &path, &exit_status)) return exit_status;
    if (!path) {
        fprintf(stderr, "farm bridge keygen: FILE is missing: farm bridge keygen FILE\n");
        return 2;
    }
    if (node && withdrawn) {
        fprintf(stderr, "farm bridge keygen: --node and --withdraw exclude each other\n");
        return 2;
    }
    const enum farm_status status =
        withdrawn ? farm_key_withdraw(path, withdrawn, &err) : farm_key_make(path, node, &err);
    if (status) return farm_report_error("farm bridge keygen", &err);
    if (withdrawn)
        printf("%s: the key of node %s is withdrawn; runs that use this file notice it within seconds\n", path,
               withdrawn);
    else
        printf("%s.%s is for nodes: scp -p %s.%s NODE: (%s stays with the learner)\n", path, node ? node : "node",
               farm_format_word(path).text, node ? node : "node", path);
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
