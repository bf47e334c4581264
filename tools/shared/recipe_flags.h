// Recipes on command lines: every recipe key is a flag, and files supply what the flags leave open. `farm train`, `farm
// eval`, `farm fps`, `farm serve` and `farm bridge` read their command lines here. Runs before any other process
// exists.
#ifndef FARM_TOOLS_SHARED_RECIPE_FLAGS_H
#define FARM_TOOLS_SHARED_RECIPE_FLAGS_H

#include <farm/env.h>

#include "base/cli.h"
#include "learner/checkpoint.h"
#include "run/plan.h"

// farm_read_flags (command.h) with recipe keys as flags beside `cli`'s own (whose `other` functions are ignored). use:
// the command's, whose keys alone are flags; FARM_USE_TRAIN: all are. Recipes may hold the others. *recipe becomes
// the defaults with the flags over them; it is not settled.
bool farm_read_recipe_flags(const struct farm_cli *cli, enum farm_recipe_use use, int argc, char **argv,
                            const char **word, struct farm_recipe *recipe, int *exit_status);

// Sets a layer from a checkpoint's metadata: env, its options and the known keys of these uses (0: all keys).
// FARM_E_FORMAT. FARM_E_PERMISSION: it names code, no flag does, and others can change fd, the file that it was read
// from. path: for messages.
enum farm_status farm_recipe_flags_metadata(struct farm_recipe *recipe, enum farm_recipe_layer layer, unsigned uses,
                                            const struct farm_checkpoint_metadata *metadata, int fd, const char *path,
                                            struct farm_error *err);

// Puts the weaker layers under the flags: `file` (NULL: none), then `base`, a run's own recipe or a checkpoint
// that holds it (NULL: the one shipped for the environment, if there is one, the key `base` is not none, and `file` is
// not another shipped one); then settles the recipe, whose `base` becomes none: it needs nothing under it.
// FARM_E_PERMISSION as above, of a run's recipe or a checkpoint.
enum farm_status farm_recipe_flags_settle(struct farm_recipe *recipe, const char *file, const char *base,
                                          struct farm_error *err);

// Whether `farm train --env NAME` can train an environment of this spec (farm_run_trains); if not, err has the reason.
bool farm_recipe_flags_train(const char *name, const struct farm_env_spec *spec, struct farm_error *err);

// ---- other machines' actors (run/bridges.h), of `farm train` and `farm serve` ----

struct farm_listen_flags {
    struct farm_run_listen request;
    bool insecure;
    int64_t expect_actors, bridges; // for `request`
};

// The flags, for an array of struct farm_cli_flag. of: struct farm_listen_flags.
#define FARM_LISTEN_FLAGS(of)                                                                                          \
    {"listen", FARM_CLI_STRING, &(of).request.address, "ADDR:PORT",                                                    \
     "other machines' actors may join here (farm bridge); port 0: any. DIR/bridge.addr holds the address"},            \
        {"key", FARM_CLI_STRING, &(of).request.key, "FILE",                                                            \
         "the key that a node needs to join (farm bridge keygen FILE)"},                                               \
        {"insecure", FARM_CLI_BOOL, &(of).insecure, NULL,                                                              \
         "no key and no encryption: on loopback and private addresses only"},                                          \
        {"expect-actors", FARM_CLI_INT, &(of).expect_actors, "N",                                                      \
         "other machines' actors for which batch and rings are sized and memory is reserved (more or fewer may "       \
         "join)"},                                                                                                     \
        {"bridges", FARM_CLI_INT, &(of).bridges, "N", "processes that serve other machines [1]"}, {                    \
        "bridge-engine", FARM_CLI_STRING, &(of).request.engine, "E",                                                   \
            "how they use the network: auto, uring or poll [auto]"                                                     \
    }

// Completes `request`. FARM_E_USAGE: flags without --listen, out of range, or without a key.
enum farm_status farm_listen_flags_settle(struct farm_listen_flags *flags, struct farm_error *err);

#endif
